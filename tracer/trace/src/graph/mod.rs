//! From the records of a graph session to calls: which thread made each, how deep, for how long.
//!
//! ```text
//!  ring per vCPU --+
//!  ring per vCPU --+-> merge (by time) -> threads (by stack) -> selection -> writers, reports
//!  ring per vCPU --+
//! ```
//!
//! Nothing is known of the guest's scheduler. A record carries the stack slot of the call's return
//! address, and that tells threads apart: stacks are of one power-of-two size and aligned to it. So
//! a *thread* is a stack here; a stack that the guest gives to another thread keeps its number. Where the guest says whose
//! stack is whose, what a thread left open that has ended is closed ([`Death`]).
//!
//! A duration is given only when the exit is known to be that of the entry. What is not known is
//! said ([`End`]) and counted ([`Anomalies`]).

pub mod anomaly;
mod deaths;
pub mod join;
pub mod merge;
pub mod pipeline;
pub mod selection;
mod stack;
#[cfg(test)]
mod tests;
pub mod threads;

pub use anomaly::{Anomalies, Anomaly, Seen};
pub use deaths::Death;

use terms::function::FunctionId;

use crate::event::Values;

/// One step of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallEvent {
    /// Nanoseconds since the guest's time began.
    pub time_ns: u64,
    /// The vCPU it happened on.
    pub vcpu: u16,
    /// The thread, by the order of appearance.
    pub thread: u32,
    /// How many calls of this thread are open around it.
    pub depth: u32,
    /// What happened.
    pub kind: CallKind,
    /// Of an entry the arguments, of an exit what was returned, where they were captured.
    pub values: Option<Values>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// A function was entered.
    Entry(FunctionId),
    /// The innermost open call ended.
    Exit {
        /// Its function.
        function: FunctionId,
        /// How it ended.
        end: End,
        /// Nanoseconds that it took, where that is known.
        duration: Option<u64>,
    },
    /// That many records of this vCPU were lost; this thread was the last that was seen on it.
    Lost(u64),
}

/// How a call ended. The number is the one that trace directories hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum End {
    /// It returned.
    #[default]
    Returned = 0,
    /// It returned, but records were lost meanwhile: it may be two calls of which the end of the
    /// first and the beginning of the last are missing.
    Unsure = 1,
    /// There was no room to hook its return: when it ended is not known.
    Unhooked = 2,
    /// An outer call returned first: it was left by a jump out of it, or is missing for a loss.
    NotSeen = 3,
    /// Its place on the stack was used again: its thread died, or it was left by a jump.
    Unreturned = 4,
    /// Calls on its stack contradict each other: only its entry is known.
    EntryOnly = 5,
}

impl End {
    /// Every way to end, by number.
    pub const ALL: [Self; 6] = [
        Self::Returned,
        Self::Unsure,
        Self::Unhooked,
        Self::NotSeen,
        Self::Unreturned,
        Self::EntryOnly,
    ];

    /// What reports say beside such a call; nothing of one that returned.
    #[must_use]
    pub const fn remark(self) -> Option<&'static str> {
        match self {
            Self::Returned => None,
            Self::Unsure => Some("records lost meanwhile"),
            Self::Unhooked => Some("unhooked"),
            Self::NotSeen => Some("no return seen"),
            Self::Unreturned => Some("unreturned"),
            Self::EntryOnly => Some("entry only"),
        }
    }
}

/// Where calls go to. Those of one thread come in order: well nested, and never back in time.
pub trait CallSink {
    /// The next step.
    fn call(&mut self, event: CallEvent);
}

impl CallSink for Vec<CallEvent> {
    fn call(&mut self, event: CallEvent) {
        self.push(event);
    }
}
