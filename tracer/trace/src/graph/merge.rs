//! The events of all rings in the order of time, as far as it is certain.
//!
//! An event may continue when no ring can still bring an earlier one: each ring has one waiting, or was
//! looked at after that time. A ring in which a reserved slot is waited for holds the others back;
//! when too much waits for it, the rest continues, and what it brings then is late. Of events of the same time those of
//! the first rings go first.

use std::collections::VecDeque;

use crate::event::{Event, EventKind};

/// The events of one ring that wait.
#[derive(Debug, Default)]
struct Ring {
    waiting: VecDeque<Timed>,
    /// No event to come is earlier.
    seen_ns: u64,
}

/// An event on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// The event.
    pub event: Event,
    /// Of a loss: the time up to which it may have happened.
    pub until_ns: u64,
    /// Later events of other rings have gone on before it, because too many waited.
    pub is_late: bool,
}

/// Puts the rings' events into one order.
#[derive(Debug)]
pub struct Merge {
    rings: Vec<Ring>,
    waiting: usize,
    limit: usize,
    passed_ns: u64,
    /// What has gone on without being certain is not after this time.
    forced_ns: u64,
}

impl Merge {
    /// For this many rings; when more than `limit` events wait, the oldest continue.
    #[must_use]
    pub fn new(rings: usize, limit: usize) -> Self {
        Self {
            rings: (0..rings).map(|_| Ring::default()).collect(),
            waiting: 0,
            limit,
            passed_ns: 0,
            forced_ns: 0,
        }
    }

    /// The next event of `ring`. A loss may have happened up to `until_ns`.
    ///
    /// A time that others have passed is set to theirs. Its own thread has not: it continues only
    /// after the record has its place in the ring, and the ring was looked at before that.
    pub fn push(&mut self, ring: usize, mut event: Event, until_ns: u64) {
        let Some(ring) = self.rings.get_mut(ring) else {
            return;
        };
        if matches!(event.kind, EventKind::Lost(_)) {
            // Nothing was missing when the ring was looked at before.
            event.time_ns = event.time_ns.max(ring.seen_ns);
        }
        let is_late = event.time_ns < self.forced_ns;
        let last_ns = ring.waiting.back().map_or(0, |last| last.event.time_ns);
        event.time_ns = event.time_ns.max(last_ns).max(self.passed_ns);
        ring.waiting.push_back(Timed {
            event,
            until_ns,
            is_late,
        });
        self.waiting += 1;
    }

    /// A ring brings no more records that were reserved before this time: it was looked at after.
    pub fn looked(&mut self, ring: usize, time_ns: u64) {
        if let Some(ring) = self.rings.get_mut(ring) {
            ring.seen_ns = ring.seen_ns.max(time_ns);
        }
    }

    /// The next event whose place is certain.
    pub fn pop(&mut self) -> Option<Timed> {
        self.pop_up_to(self.waiting > self.limit)
    }

    /// The next event; no ring brings any more.
    pub fn pop_rest(&mut self) -> Option<Timed> {
        self.pop_up_to(true)
    }

    fn pop_up_to(&mut self, anything: bool) -> Option<Timed> {
        let mut first: Option<(u64, usize)> = None;
        let mut certain_ns = u64::MAX;
        for (index, ring) in self.rings.iter().enumerate() {
            match ring.waiting.front() {
                Some(timed) if first.is_none_or(|(time, _)| timed.event.time_ns < time) => {
                    first = Some((timed.event.time_ns, index));
                }
                Some(_) => {}
                None => certain_ns = certain_ns.min(ring.seen_ns),
            }
        }
        let (time, index) = first?;
        if time > certain_ns && !anything {
            return None;
        }
        let timed = self.rings.get_mut(index)?.waiting.pop_front()?;
        self.waiting -= 1;
        self.passed_ns = self.passed_ns.max(time);
        if time > certain_ns {
            self.forced_ns = self.passed_ns;
        }
        Some(timed)
    }
}
