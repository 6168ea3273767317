//! What `make bench`, `make bench-linux` and `make experiments` have in common: guests with their threads pinned, what
//! these measure themselves, samples with a spread, tables of them, and the host.

pub mod attached;
pub mod guest;
pub mod host;
pub mod rounds;
pub mod sample;
pub mod sessions;
pub mod table;

/// Whatever went wrong: it is printed, and the measurement ends.
pub type Failed = Box<dyn std::error::Error>;
