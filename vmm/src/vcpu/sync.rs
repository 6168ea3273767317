//! By what a vCPU's thread and its controller wait for each other. Tests have the same code with a model of these, which
//! shows every way in which the two can meet ([`super::interleavings`]).

pub(super) use std::sync::atomic::{AtomicU8, AtomicU64};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
