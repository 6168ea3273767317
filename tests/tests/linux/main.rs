//! A stock Linux as a guest. Runs on `/dev/kvm` where `vmm doctor` says that it executes ring 0, else in
//! the box (`tests/run`).
//!
//! One module per subject; a new test goes into the module whose first line fits.
#![cfg(test)]

mod ages;
mod attach;
mod attach_anew;
mod attach_q35;
mod boot;
mod coexistence;
mod crash;
mod documents;
mod fentry;
mod functions;
mod hostile;
mod hotplug;
mod kernel;
mod kprobes;
mod modules;
mod probes;
mod processor;
mod shell;
mod start;
mod static_calls;
mod static_keys;
mod tasks;
mod trace;
mod window;
