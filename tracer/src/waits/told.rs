//! What is kept of the waits of one session.

use std::collections::VecDeque;

/// Waits that are kept one by one: more than a reader's round can bring.
const KEPT_MAX: usize = 1 << 14;

/// A wait that is over, with the host's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waited {
    /// Who has waited.
    pub vcpu: u16,
    /// Since when.
    pub begin: u64,
    /// Until when.
    pub end: u64,
    /// The guest's time then.
    pub at: u64,
}

/// How many waits there were, and how long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// How many.
    pub count: u64,
    /// Ticks of all together.
    pub ticks: u64,
    /// Ticks of the longest.
    pub longest: u64,
}

/// The waits.
#[derive(Debug, Default)]
pub(super) struct Told {
    kept: VecDeque<Waited>,
    counts: WaitCounts,
}

impl Told {
    /// One more.
    pub fn note(&mut self, wait: Waited) {
        let ticks = wait.end.saturating_sub(wait.begin);
        self.counts.count += 1;
        self.counts.ticks = self.counts.ticks.saturating_add(ticks);
        self.counts.longest = self.counts.longest.max(ticks);
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(wait);
    }

    /// Those after the first `seen` ones, as far as they are kept, and how many there are now.
    pub fn since(&self, seen: u64) -> (Vec<Waited>, u64) {
        let fresh = self.counts.count.saturating_sub(seen);
        let fresh = usize::try_from(fresh).unwrap_or(usize::MAX);
        let skip = self.kept.len().saturating_sub(fresh);
        let kept = self.kept.iter().skip(skip).copied().collect();
        (kept, self.counts.count)
    }

    /// All there were.
    pub const fn counts(&self) -> WaitCounts {
        self.counts
    }
}
