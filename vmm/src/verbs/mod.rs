//! What the verbs of the command line take.

pub mod attach;
pub mod ctl;
pub mod run;
