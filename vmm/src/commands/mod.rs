//! One file per verb of the command line.

mod ask;
pub mod attach;
pub mod completions;
pub mod ctl;
pub mod doctor;
mod dynfunc;
mod ended;
mod events;
pub mod export;
mod follow;
mod in_memory;
pub mod listing;
pub mod man;
mod probes;
pub mod ps;
pub mod report;
mod restore;
pub mod run;
pub mod sites;
mod stdout;
mod this_host;
pub mod top;
mod whole_file;
