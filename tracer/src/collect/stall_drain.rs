//! The times in which the clock page was not written, for a session that is timed by it.

use std::sync::Arc;

use trace::event::RecordKind;
use trace::stream::Origin;

use super::backlog::Batch;
use crate::clock::RunClock;
use crate::clock::page::Beats;

/// Reads the stalls since the session began.
#[derive(Debug)]
pub(super) struct StallDrain {
    beats: Arc<Beats>,
    /// How many were before the session, and how many have been read.
    before: u64,
    read: u64,
}

impl StallDrain {
    /// From now on.
    pub fn new(beats: Arc<Beats>) -> Self {
        let before = beats.since(0).1;
        Self {
            beats,
            before,
            read: before,
        }
    }

    /// Those that have come since the last time.
    pub fn read(&mut self, clock: &RunClock, to: impl FnMut(Batch)) {
        self.read = self.since(self.read, clock, to);
    }

    /// Those of the session's time; nothing is taken.
    pub fn copy(&self, clock: &RunClock, to: impl FnMut(Batch)) {
        self.since(self.before, clock, to);
    }

    fn since(&self, seen: u64, clock: &RunClock, mut to: impl FnMut(Batch)) -> u64 {
        let (stalls, seen) = self.beats.since(seen);
        for stall in stalls {
            let length_ns = clock.duration_ns(stall.end.wrapping_sub(stall.begin));
            let end_ns = clock.nanoseconds(stall.end);
            to(Batch::of(
                Origin::Clock,
                end_ns,
                RecordKind::Stall(length_ns),
            ));
        }
        seen
    }
}
