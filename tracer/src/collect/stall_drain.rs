//! The times in which the clock page was not written, for a session that is timed by it.

use std::sync::Arc;

use trace::event::RecordKind;
use trace::stream::Origin;

use super::backlog::Batch;
use crate::clock::RunClock;
use crate::clock::page::{Beats, Stall};

/// Reads the stalls since the session began.
#[derive(Debug)]
pub(super) struct StallDrain {
    beats: Arc<Beats>,
    /// How many were before the session, and how many have been read.
    before: u64,
    read: u64,
    /// How many could not be read any more.
    forgotten: u64,
}

impl StallDrain {
    /// From now on.
    pub fn new(beats: Arc<Beats>) -> Self {
        let (before, _) = beats.stalls();
        Self {
            beats,
            before,
            read: before,
            forgotten: 0,
        }
    }

    /// Those that have come since the last time. Those of while nothing is written are nobody's.
    pub fn read(&mut self, clock: &RunClock, is_written: bool, mut to: impl FnMut(Batch)) {
        let since = Since::of(&self.beats, self.read);
        self.read = since.seen;
        if is_written {
            self.forgotten += since.forgotten;
            since.say(clock, &mut to);
        }
    }

    /// How many of those that were to be read there was only the number of.
    pub const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Those of the session's time; nothing is taken. How many of them, from `from_ns` on, there is only the number of: as far as can be
    /// told, which is from the oldest one on of which there is more.
    pub fn copy(&self, clock: &RunClock, from_ns: u64, mut to: impl FnMut(Batch)) -> u64 {
        let since = Since::of(&self.beats, self.before);
        let oldest = since.stalls.first();
        let is_older = oldest.is_some_and(|stall| clock.nanoseconds(stall.end) < from_ns);
        since.say(clock, &mut to);
        if is_older { 0 } else { since.forgotten }
    }
}

/// The stalls after some number of them.
struct Since {
    /// Those that are kept.
    stalls: Vec<Stall>,
    /// How many were before these.
    forgotten: u64,
    /// The number after the last.
    seen: u64,
}

impl Since {
    fn of(beats: &Beats, before: u64) -> Self {
        let (stalls, seen) = beats.since(before);
        let all = seen.saturating_sub(before);
        Self {
            forgotten: all.saturating_sub(stalls.len() as u64),
            stalls,
            seen,
        }
    }

    fn say(&self, clock: &RunClock, to: &mut impl FnMut(Batch)) {
        for stall in &self.stalls {
            let length_ns = clock.duration_ns(stall.end.wrapping_sub(stall.begin));
            let end_ns = clock.nanoseconds(stall.end);
            let stall = RecordKind::Stall(length_ns);
            to(Batch::of(Origin::Clock, end_ns, stall));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stalls of a tick, one each ten ticks.
    fn stall(beats: &Beats, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let end = 10 * number + 10;
            beats.note(Stall {
                begin: end - 1,
                end,
            });
        }
    }

    /// They were once missing without a word.
    #[test]
    fn what_is_not_kept_of_stalls_is_counted() {
        // A tick is a nanosecond.
        let clock = RunClock::new(0, 1_000_000);
        let beats = Arc::new(Beats::default());
        stall(&beats, 0..100);
        let mut drain = StallDrain::new(Arc::clone(&beats));
        stall(&beats, 100..5100);
        let mut copied = 0;
        let mut copy = |from_ns| drain.copy(&clock, from_ns, |_| copied += 1);
        // Of the 5000 of its time 4096 are there, the first of them the 904th after the 100 before.
        assert_eq!(copy(0), 904);
        assert_eq!(copy(10 * 1005), 904);
        assert_eq!(copy(10 * 1005 + 1), 0, "none of those was later");
        assert_eq!(copied, 3 * 4096);
        let mut read = 0;
        drain.read(&clock, true, |_| read += 1);
        assert_eq!((read, drain.forgotten()), (4096, 904));
        // Nobody listens.
        stall(&beats, 5100..15_000);
        drain.read(&clock, false, |_| panic!("nothing is written"));
        assert_eq!(drain.forgotten(), 904);
    }
}
