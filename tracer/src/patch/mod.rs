//! Changes to guest text: decided as plans before any byte is written.

pub mod normalise;
