//! For how long room in a full ring has been wanted in vain: only what passes while somebody comes back for it. A guest that is
//! paused, or whose host sleeps, wants nothing, however long that takes; and who has been away cannot tell what has passed.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// How often writers have asked for room in a full ring.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asks(Option<Arc<AtomicU64>>);

impl Asks {
    /// Those that wait count themselves there.
    pub fn of(waited: Arc<AtomicU64>) -> Self {
        Self(Some(waited))
    }

    /// So often, with those that have counted themselves as lost.
    pub fn and(&self, lost: u64) -> u64 {
        let waited = self.0.as_ref().map_or(0, |waited| waited.load(SeqCst));
        waited.wrapping_add(lost)
    }
}

/// From one ask to the next no more passes than one in so many of the patience: in between everything may have stood still.
const ASKS: u64 = 16;

/// What is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    asked: u64,
    /// When that was seen first.
    seen: u64,
    ticks: u64,
}

impl Wanted {
    /// The ring is full since `now`; so often somebody has asked for room in it until then.
    pub const fn since(now: u64, asked: u64) -> Self {
        Self {
            asked,
            seen: now,
            ticks: 0,
        }
    }

    /// It is full still, and somebody has asked so often. Whether that was in vain for so many ticks.
    pub fn is_in_vain(&mut self, now: u64, asked: u64, patience: u64) -> bool {
        if asked != self.asked {
            let step = now.saturating_sub(self.seen).min(patience / ASKS);
            self.ticks = self.ticks.saturating_add(step);
            (self.asked, self.seen) = (asked, now);
        }
        self.ticks >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: u64 = 1600;

    /// Looks `step` ticks after each other; before one in so many somebody has asked. After how many it was in vain.
    fn looks(step: u64, asks: u64) -> Option<u64> {
        let mut wanted = Wanted::since(1_000_000, 7);
        (1..1000).find(|look| wanted.is_in_vain(1_000_000 + look * step, 7 + look / asks, PATIENCE))
    }

    #[test]
    fn time_passes_while_somebody_asks_and_in_small_steps() {
        assert_eq!(looks(10, 1), Some(PATIENCE / 10));
        assert_eq!(looks(10, u64::MAX), None);
        assert_eq!(looks(1_000_000, 1), Some(ASKS));
        assert_eq!(looks(1_000_000, u64::MAX), None);
        assert_eq!(
            looks(10, 10),
            Some(PATIENCE / 10),
            "who comes back now and then"
        );
        assert_eq!(looks(10, 50), Some(50 * ASKS), "who comes back seldom");
    }

    #[test]
    fn who_waits_and_who_is_lost_has_asked() {
        let waited = Arc::new(AtomicU64::new(3));
        let asks = Asks::of(Arc::clone(&waited));
        assert_eq!((asks.and(4), Asks::default().and(4)), (7, 4));
        waited.store(u64::MAX, SeqCst);
        assert_eq!(asks.and(2), 1, "only that it changes says something");
    }

    #[test]
    fn a_clock_that_goes_back_is_no_time() {
        let mut wanted = Wanted::since(1000, 0);
        assert!(!wanted.is_in_vain(0, 1, PATIENCE));
        assert!(!wanted.is_in_vain(100, 2, PATIENCE));
        assert_eq!(wanted.ticks, 100);
    }

    #[test]
    fn who_has_no_patience_waits_for_nobody() {
        assert!(Wanted::since(5, 0).is_in_vain(5, 0, 0));
    }
}
