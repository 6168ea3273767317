//! What is particular to a running Linux kernel, beside what its image says (`image/linux.rs`).

pub mod address_space;
