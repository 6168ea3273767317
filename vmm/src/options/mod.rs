//! Options that are given on the command line and over the control socket alike: one list for both.

pub mod as_root;
pub mod choice;
pub mod graph;
pub mod held;
pub mod quantities;
pub mod session;
pub mod traced;
pub mod trigger;
