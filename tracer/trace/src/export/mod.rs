//! Traces on disk, in formats that other tools open.

mod alone;
pub mod budget;
pub mod call_formats;
pub mod chrome;
pub mod compact;
pub mod ctf;
pub mod events;
pub mod folded;
pub mod html;
pub(crate) mod last_event;
mod lines;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
pub mod probes;
pub mod remark;
pub mod resolution;
pub mod store;
pub mod tids;
pub mod trace_dat;
pub mod uftrace;
mod whole;
