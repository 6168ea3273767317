//! What drives tracing on this host: threads.

pub mod clock_page;
pub mod pollers;
