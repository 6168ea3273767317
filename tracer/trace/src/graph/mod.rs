//! From the records of a graph session to calls: which thread made each, how deep, for how long.
//!
//! ```text
//!  ring per vCPU --+
//!  ring per vCPU --+-> merge (by time) -> threads (by stack) -> selection -> stores, reports
//!  ring per vCPU --+
//! ```
//!
//! Nothing is known of the guest's scheduler. A record carries the stack slot of the call's return
//! address, and that tells threads apart: stacks are of one power-of-two size and aligned to it. So
//! a *thread* is a stack here; a stack that the guest gives to another thread keeps its number. Where the guest says whose
//! stack is whose, what a thread left open that has ended is closed ([`Death`]).
//!
//! A duration is given only when the exit is known to be that of the entry. What is not known is
//! said ([`End`](crate::event::End)) and counted ([`Anomalies`]).

pub mod anomaly;
mod deaths;
pub mod excerpt;
mod frames;
mod held;
pub mod join;
pub mod rules;
mod run;
pub mod selection;
pub mod share;
mod stack;
mod sure;
#[cfg(test)]
mod tests;
pub mod threads;
mod ties;

pub use anomaly::{Anomalies, Anomaly, Seen};
pub use deaths::Death;
pub(crate) use run::STACK_OPEN_MAX;
