//! Traces on disk, in formats that other tools open.

pub mod uftrace;
