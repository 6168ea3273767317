//! One file per verb of the command line.

mod ask;
pub mod completions;
pub mod ctl;
pub mod doctor;
mod dynfunc;
mod events;
pub mod export;
pub mod listing;
pub mod man;
mod probes;
pub mod report;
pub mod run;
pub mod sites;
mod stdout;
pub mod top;
mod whole_file;
