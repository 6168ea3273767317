//! Threads that have ended in the middle of their calls: the guest's list of tasks says that their stack is another's now.
//!
//! What was open of such a thread above the place where the next one begins would stay open, around all of its calls. It
//! is closed when nobody else's calls are in the way. The list is looked at now and then, and records are read some
//! milliseconds after they were made, so what is known has two times: up to the first the thread lived, so what was entered
//! by then is its own; at the second it was gone, so when all records up to there have been seen, what is still open
//! of that will not return.

use std::collections::VecDeque;

/// More than a guest's tasks can end between two looks: the rest stays open.
const WAITING_MAX: usize = 1 << 12;

/// A thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// Its number: that of its stack.
    pub thread: u32,
    /// When it was seen last.
    pub alive_ns: u64,
    /// When its stack was another's.
    pub gone_ns: u64,
}

/// Those whose last records may be still to come, in the order of the looks.
#[derive(Debug, Default)]
pub(super) struct Deaths(VecDeque<Death>);

impl Deaths {
    /// One more.
    pub fn add(&mut self, death: Death) {
        if self.0.len() < WAITING_MAX {
            self.0.push_back(death);
        }
    }

    /// Nobody has died of whom no records can come any more when one of this time has.
    pub fn next_ns(&self) -> u64 {
        self.0.front().map_or(u64::MAX, |death| death.gone_ns)
    }

    /// The next one of which no records can come any more when one of this time has.
    pub fn next_before(&mut self, time_ns: u64) -> Option<Death> {
        self.0.pop_front_if(|death| death.gone_ns < time_ns)
    }
}
