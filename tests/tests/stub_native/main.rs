//! Stubs executed natively in this process: what they preserve, what they write, and that their
//! counts are exact under threads and migration.
//!
//! `EXOTRACE_SEED=N` repeats a run with the random numbers of an earlier one, which each test prints.
#![cfg(target_arch = "x86_64")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::tests_outside_test_module,
    reason = "a test: what is wrong fails it"
)]

mod bodies;
mod bound;
mod captures;
mod claims;
mod cpu;
mod decode;
mod displaced;
mod event_ring;
mod events;
mod expected;
mod graph;
mod ground;
mod halt;
mod held;
mod mapping;
mod migration;
mod notes;
mod own_returns;
mod preempt;
mod random;
mod registers;
mod rings;
mod session_rings;
mod setup;
mod switching;
mod tasks;
mod threads;
