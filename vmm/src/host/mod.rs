//! What drives tracing on this host: threads; and what its kernel says of guests.

pub mod clock_page;
pub mod kernel_events;
pub mod pollers;
