//! What a trace is, from the moment at which its records have left the rings: events, the calls that they make, directories
//! of them on disk, and reports of these.
//!
//! It knows no guest, no ring and no patching: who shows a trace that is there needs only this.

#![forbid(unsafe_code)]

mod as_found;
pub mod columns;
pub mod convert;
pub mod crew;
pub mod doubt;
pub mod event;
pub mod export;
pub mod form;
pub mod glob;
pub mod graph;
pub mod host;
pub mod live;
pub mod report;
pub mod stream;
#[cfg(test)]
mod testing;
mod watch;
