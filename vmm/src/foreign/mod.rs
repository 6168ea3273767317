//! A machine of another VMM: its process, its guest's memory, pausing and calls from outside.
//!
//! Only here is another process held by ptrace, and only on one thread. What is done to the VMM leaves no trace: threads are
//! seized for each pause alone, calls in their names use memory below their stacks and put back what was there.

mod again;
mod backends;
mod backing;
mod closed;
mod command_line;
mod counters;
pub mod error;
pub mod guest;
mod held;
mod held_ram;
mod kernel_watch;
mod label;
pub mod listed;
mod lock;
pub mod look;
mod machine;
pub mod memory;
mod others;
mod park;
mod parked;
mod parked_vcpus;
pub mod process;
mod ptrace;
mod questions;
mod remote;
pub(crate) mod requests;
mod run_page;
mod same_file;
mod shapes;
mod slots;
mod standing;
pub mod stopped;
#[cfg(test)]
pub(crate) mod stuck;
mod threads;
mod top_table;
mod touched;
mod urgent;
mod userfaults;
mod vcpu;
mod vcpu_file;
mod vcpus;
mod way_back;
mod window;

pub(crate) use held::{LOOK, let_late_go, rest, wait_and_let_go};
pub use machine::Foreign;
pub use standing::while_nobody_stands;
