//! What readers of rings know of the clock page and of who keeps it (`clock/layout.rs`).

use std::collections::VecDeque;
use std::fmt::Debug;
#[cfg(any(test, feature = "internals"))]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::layout;

/// Stalls that are kept one by one; of older ones it is known how many there were.
const STALLS_MAX: usize = 4096;

/// Somebody who keeps the page until this is dropped.
pub trait ClockPage: Debug {
    /// How it is kept.
    fn beat(&self) -> Beat;

    /// Whether it is kept to the period, or only from growing old.
    fn spin(&self, spins: bool);
}

/// How the page is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// Nanoseconds between two beats.
    pub period_ns: u64,
    /// The host CPU of the thread.
    pub cpu: Option<usize>,
}

/// A time in which the page was not written, in ticks of the host's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// The beat before it.
    pub begin: u64,
    /// The beat after it.
    pub end: u64,
}

/// What is known of the beats, for readers of rings.
#[derive(Debug, Default)]
pub struct Beats {
    last: AtomicU64,
    stalls: Mutex<Stalls>,
}

#[derive(Debug, Default)]
struct Stalls {
    kept: VecDeque<Stall>,
    count: u64,
    longest: u64,
}

impl Beats {
    /// How many bytes the page has.
    pub const PAGE_BYTES: u64 = layout::PAGE_BYTES;

    /// Of a page in which there is always the time of now.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn without_end() -> Arc<Self> {
        let last = AtomicU64::new(u64::MAX);
        Arc::new(Self {
            last,
            ..Self::default()
        })
    }

    /// The time in the page. A record that is reserved later may have it.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// The beat of this number, at this time: `store` writes words into the page, at these offsets.
    pub fn beat(&self, time: u64, number: u64, mut store: impl FnMut(u64, u64)) {
        store(layout::SHIFTED, layout::shifted(time));
        store(layout::COUNTER, time);
        store(layout::BEATS, number);
        self.last.store(time, Ordering::Release);
    }

    /// How many stalls there were, and the ticks of the longest.
    #[must_use]
    pub fn stalls(&self) -> (u64, u64) {
        let stalls = self.lock();
        (stalls.count, stalls.longest)
    }

    /// The stalls after the first `seen` ones, as far as they are kept, and how many there are now: where these are more, the oldest
    /// are not kept any more.
    #[must_use]
    pub fn since(&self, seen: u64) -> (Vec<Stall>, u64) {
        let stalls = self.lock();
        let fresh = usize::try_from(stalls.count.saturating_sub(seen)).unwrap_or(usize::MAX);
        let skip = stalls.kept.len().saturating_sub(fresh);
        (
            stalls.kept.iter().skip(skip).copied().collect(),
            stalls.count,
        )
    }

    /// A stall has ended: to be told before the beat that ends it.
    pub fn note(&self, stall: Stall) {
        let mut stalls = self.lock();
        stalls.count += 1;
        stalls.longest = stalls.longest.max(stall.end.saturating_sub(stall.begin));
        if stalls.kept.len() == STALLS_MAX {
            stalls.kept.pop_front();
        }
        stalls.kept.push_back(stall);
    }

    fn lock(&self) -> MutexGuard<'_, Stalls> {
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_counted_and_told_once() {
        let beats = Beats::default();
        for begin in 0..5000 {
            beats.note(Stall {
                begin,
                end: begin + 1 + begin % 7,
            });
        }
        assert_eq!(beats.stalls(), (5000, 7));
        let (all, seen) = beats.since(0);
        assert_eq!((all.len(), seen), (STALLS_MAX, 5000));
        assert_eq!(beats.since(seen), (Vec::new(), 5000));
        let (last, _) = beats.since(4998);
        assert_eq!(
            last.iter().map(|stall| stall.begin).collect::<Vec<_>>(),
            [4998, 4999]
        );
    }
}
