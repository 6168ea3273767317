//! Slots that the reader went past because they were reserved and not written: their writers are
//! preempted, or will never come back.

use std::collections::VecDeque;

use super::geometry::Position;

/// Slots that are looked at again, at most; the oldest is given up for a new one.
const PENDING_MAX: usize = 1024;

/// The slots of one ring.
#[derive(Debug)]
pub(super) struct Pending {
    /// The oldest first.
    slots: VecDeque<Position>,
    /// A later lap may take slots before this from their writers.
    released: Position,
    /// The slot because of which the ring is full, and since when.
    full_since: Option<(Position, u64)>,
}

impl Pending {
    /// None, in a ring that begins at `first`.
    pub fn new(first: Position) -> Self {
        Self {
            slots: VecDeque::new(),
            released: first,
            full_since: None,
        }
    }

    /// Whether one is given up for the next one.
    pub fn is_full(&self) -> bool {
        self.slots.len() >= PENDING_MAX
    }

    /// Adds a slot after the others. Returns the one that is given up for it.
    pub fn push(&mut self, slot: Position) -> Option<Position> {
        let given_up = self.is_full().then(|| self.slots.pop_front());
        self.slots.push_back(slot);
        given_up.flatten()
    }

    /// Takes all of them, to be looked at.
    pub fn take(&mut self) -> VecDeque<Position> {
        std::mem::take(&mut self.slots)
    }

    /// The oldest slot that a later lap must not take from its writer, in a ring that discards.
    pub fn kept(&self) -> Option<Position> {
        let mut slots = self.slots.iter().copied();
        slots.find(|slot| *slot >= self.released)
    }

    /// A slot that has kept the ring full for `ticks` is kept no longer. The ring is full with `room`
    /// records between a slot and the head.
    pub fn release(&mut self, head: Position, room: u64, now: u64, ticks: u64) {
        let full = self.kept().filter(|kept| head.since(*kept) >= room);
        let before = self.full_since.filter(|(slot, _)| Some(*slot) == full);
        self.full_since = before.or_else(|| full.map(|slot| (slot, now)));
        if let Some((slot, since)) = self.full_since
            && now.saturating_sub(since) >= ticks
        {
            self.released = slot.after(1);
            self.full_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With slots 10 and 20 reserved and not written.
    fn pending() -> Pending {
        let mut pending = Pending::new(Position(10));
        for slot in [10, 20] {
            assert_eq!(pending.push(Position(slot)), None);
        }
        pending
    }

    /// A ring with room for 100 records, at a time.
    fn at(pending: &mut Pending, head: u64, now: u64) -> Option<u64> {
        pending.release(Position(head), 100, now, 50);
        pending.kept().map(|slot| slot.0)
    }

    #[test]
    fn a_slot_is_kept_until_it_has_kept_the_ring_full_for_so_long() {
        let mut pending = pending();
        assert_eq!(at(&mut pending, 109, 900), Some(10), "not full yet");
        assert_eq!(at(&mut pending, 110, 1000), Some(10));
        assert_eq!(at(&mut pending, 110, 1049), Some(10));
        assert_eq!(at(&mut pending, 110, 1050), Some(20));
        assert_eq!(at(&mut pending, 120, 1060), Some(20));
        assert_eq!(at(&mut pending, 120, 1110), None);
    }

    #[test]
    fn patience_with_a_slot_begins_when_that_slot_keeps_the_ring_full() {
        let mut pending = pending();
        assert_eq!(at(&mut pending, 110, 1000), Some(10));
        // It was written, and the next one is in the way.
        let _written = pending.take().pop_front();
        pending.push(Position(20));
        assert_eq!(at(&mut pending, 120, 1040), Some(20));
        assert_eq!(at(&mut pending, 120, 1051), Some(20));
        assert_eq!(at(&mut pending, 120, 1090), None);
    }
}
