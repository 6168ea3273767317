//! Rounds are made one after another, by whoever begins one.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

use super::looks::lock;
#[cfg(test)]
use super::looks::lock_free;

/// Who holds it makes a round. Rounds have numbers, from 1 on: a lock alone does not say to who waits for it that a whole round was
/// made meanwhile, and goes to who has just let go of it as well as to who waits.
#[derive(Debug, Default)]
pub(super) struct RoundLock {
    round: Mutex<()>,
    /// The number of the last one that was begun.
    begun: AtomicU64,
    /// The number of the last one that has ended.
    ended: AtomicU64,
}

impl RoundLock {
    /// Begins a round, after the one that is being made.
    pub fn begin(&self) -> Round<'_> {
        self.begun_under(lock(&self.round))
    }

    /// Begins one, if none is being made.
    #[cfg(test)]
    pub fn begin_when_free(&self) -> Option<Round<'_>> {
        lock_free(&self.round).map(|held| self.begun_under(held))
    }

    fn begun_under<'a>(&'a self, held: MutexGuard<'a, ()>) -> Round<'a> {
        Round {
            number: self.begun.fetch_add(1, SeqCst).saturating_add(1),
            rounds: self,
            _held: held,
        }
    }

    /// The number of the last round that was begun by now.
    pub fn begun(&self) -> u64 {
        self.begun.load(SeqCst)
    }

    /// Whether a round has ended that was begun after the one of this number.
    pub fn has_made_one_after(&self, number: u64) -> bool {
        self.ended.load(SeqCst) > number
    }
}

/// A round that is being made; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Round<'a> {
    rounds: &'a RoundLock,
    number: u64,
    // Dropped last: who begins the next one finds that this has ended.
    _held: MutexGuard<'a, ()>,
}

#[cfg(test)]
impl Round<'_> {
    /// Ends it and begins the next one, and nobody comes between.
    pub fn again(&mut self) {
        self.rounds.ended.store(self.number, SeqCst);
        self.number = self.rounds.begun.fetch_add(1, SeqCst) + 1;
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.rounds.ended.store(self.number, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_was_being_made_is_none_that_was_begun_after_it() {
        let rounds = RoundLock::default();
        let first = rounds.begin();
        let asked = rounds.begun();
        assert!(rounds.begin_when_free().is_none());
        drop(first);
        assert!(!rounds.has_made_one_after(asked));
        let second = rounds.begin_when_free().unwrap();
        assert!(!rounds.has_made_one_after(asked), "it is being made");
        drop(second);
        assert!(rounds.has_made_one_after(asked));
        assert!(!rounds.has_made_one_after(rounds.begun()));
    }
}
