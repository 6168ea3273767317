//! Times in which nothing was recorded though a session was started, for who copies its rings later.

use std::collections::VecDeque;

use crate::ring::geometry::Position;

/// Times that are kept. Nobody switches so often while a ring keeps what was between.
const KEPT_MAX: usize = 1 << 14;

/// Nothing was recorded for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OffTime {
    /// What the first ring of calls had before it.
    pub head: Position,
    /// When it was over, by the host's counter.
    pub until: u64,
}

/// All of them that are known, the oldest first.
#[derive(Debug, Default)]
pub(super) struct OffTimes {
    known: VecDeque<OffTime>,
    /// The end of the last one that is not.
    forgotten: Option<u64>,
}

impl OffTimes {
    /// One more is over.
    pub fn add(&mut self, time: OffTime) {
        self.known.push_back(time);
        if self.known.len() > KEPT_MAX {
            self.forgotten = self.known.pop_front().map(|oldest| oldest.until);
        }
    }

    /// Those that are known.
    pub fn known(&self) -> VecDeque<OffTime> {
        self.known.clone()
    }

    /// Before this time calls can have been open while nothing was recorded, and nobody knows.
    pub const fn forgotten(&self) -> Option<u64> {
        self.forgotten
    }
}
