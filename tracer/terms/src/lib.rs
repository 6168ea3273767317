//! What the crates of the tracer speak in: addresses of the guest, the numbers of its functions and events, fields and
//! what they hold, numbers that are computed when a probe is hit, the bytes of a place in the text, and names.
//!
//! Data, and nothing that knows where it comes from: neither files nor guests.

#![forbid(unsafe_code)]

pub mod addr;
pub mod choice;
pub mod event_format;
pub mod expression;
pub mod field;
pub mod function;
pub mod nearest;
pub mod printable;
pub mod quantity;
pub mod region;
pub mod session_set;
pub mod site;
