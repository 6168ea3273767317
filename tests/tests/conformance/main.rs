//! What the tests of ftrace and of uftrace ask of a tracer, asked of this one (`tests::conformance` lists them all, and
//! docs/conformance.md is made of that list). Behaviours only: no line of theirs is here.
//!
//! Each case of the bundled guest is a test with the case's name. Those of a stock Linux are steps of one test, in `linux`, on one
//! guest: a boot of it takes longer than all of them.
#![cfg(test)]

mod linux;
mod places;
mod sets;
#[path = "../linux/shell.rs"]
mod shell;
mod tracers;
mod triggers;
mod uftrace;
mod values;
