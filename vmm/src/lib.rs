//! A small KVM VMM that traces its guest's functions from outside.
//!
//! The only crate that names KVM: guest memory, vCPU threads and their pausing, devices, the
//! control socket and the command line. What tracing *decides* is the `tracer` crate's part.

mod all_memory;
pub mod bell;
pub mod black_box;
pub mod breakpoint;
pub mod cli;
pub mod clock;
pub mod closing;
pub mod commands;
pub mod confine;
pub mod control;
mod counter;
pub mod devices;
pub mod doctor;
pub mod event_loop;
pub mod exit_status;
pub mod explain;
pub mod failure;
pub mod files;
pub mod foreign;
pub mod guest;
pub mod host;
mod kernel_text;
pub mod layout;
pub mod live;
pub mod loader;
pub mod machine;
pub mod memory;
mod memslots;
pub mod not_started;
pub mod options;
pub mod outcome;
pub mod panic_watch;
pub mod pause_times;
mod processor;
mod provided;
pub mod provider;
pub mod quiesce;
pub mod remedy;
pub mod run;
pub mod running;
mod scatter;
pub mod signals;
pub mod terminal;
mod translated;
pub mod trial;
pub mod triggers;
pub mod vcpu;
pub mod verbs;
pub mod watchdog;
