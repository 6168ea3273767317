//! The laws of the house, each looked up in the whole of every file, so that a convenient shortcut does not go unnoticed.
//!
//! Where a law is not kept yet, what breaks it is counted: such an allowance may only go down.
#![cfg(test)]

mod arrows;
mod conformance;
mod crates;
mod dependencies;
mod documents;
mod door;
mod functions;
mod modules;
mod source;
mod types;
mod words;
