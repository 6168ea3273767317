//! Guests that need a KVM which executes ring 0, and what only such a KVM can show. Runs on
//! `/dev/kvm` where `vmm doctor` says that it does, else in the box (`tests/run`).
//!
//! One module per subject; a new test goes into the module whose first line fits.
#![cfg(test)]

mod counts;
mod doctor;
mod host_events;
mod oracle;
mod storm;
mod times;
