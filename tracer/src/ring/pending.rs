//! Slots that the reader went past because they were reserved and not written: their writers are
//! preempted, or will never come back.

use std::collections::VecDeque;

use super::geometry::Position;
use super::wanted::Wanted;

/// Slots that are looked at again, at most; the oldest is given up for a new one.
const PENDING_MAX: usize = 1024;

/// The slots of one ring.
#[derive(Debug)]
pub(super) struct Pending {
    /// The oldest first.
    slots: VecDeque<Position>,
    /// A later lap may take slots before this from their writers.
    released: Position,
    /// The slot because of which the ring is full, and for how long it has been wanted since.
    full: Option<(Position, Wanted)>,
}

impl Pending {
    /// None, in a ring that begins at `first`.
    pub fn new(first: Position) -> Self {
        Self {
            slots: VecDeque::new(),
            released: first,
            full: None,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
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

    /// The same, or else this one.
    pub fn kept_or(&self, slot: Position) -> Position {
        self.kept().unwrap_or(slot)
    }

    /// A slot that has kept the ring full for `ticks`, in which writers came back for room (`asked` is how often they have asked
    /// for it so far), is kept no longer. The ring is full with `room` records between a slot and the head.
    pub fn release(&mut self, head: Position, room: u64, now: u64, asked: u64, ticks: u64) {
        let full = self.kept().filter(|kept| head.since(*kept) >= room);
        let before = self.full.filter(|(slot, _)| Some(*slot) == full);
        self.full = before.or_else(|| full.map(|slot| (slot, Wanted::since(now, asked))));
        if let Some((slot, wanted)) = &mut self.full
            && wanted.is_in_vain(now, asked, ticks)
        {
            self.released = slot.after(1);
            self.full = None;
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

    /// A ring with room for 100 records, at a time; a writer asks for some each time.
    fn at(pending: &mut Pending, head: u64, now: u64) -> Option<u64> {
        pending.release(Position(head), 100, now, now, 50);
        pending.kept().map(|slot| slot.0)
    }

    /// The first time from `begin` on at which what is kept is this.
    fn when(pending: &mut Pending, head: u64, begin: u64, kept: Option<u64>) -> u64 {
        let mut times = begin..begin + 1000;
        times.find(|now| at(pending, head, *now) == kept).unwrap()
    }

    #[test]
    fn a_slot_is_kept_until_it_has_kept_the_ring_full_for_so_long() {
        let mut pending = pending();
        assert_eq!(at(&mut pending, 109, 900), Some(10), "not full yet");
        assert_eq!(when(&mut pending, 110, 1000, Some(20)), 1050);
        assert_eq!(when(&mut pending, 120, 1060, None), 1110);
    }

    /// A guest that is paused for as long as you like has its slots when it goes on.
    #[test]
    fn a_slot_is_kept_while_nobody_asks_for_room() {
        let mut pending = pending();
        for now in (1000..100_000).step_by(10) {
            pending.release(Position(110), 100, now, 7, 50);
        }
        assert_eq!(pending.kept(), Some(Position(10)));
        assert_eq!(when(&mut pending, 110, 100_000, Some(20)), 100_047);
    }

    #[test]
    fn patience_with_a_slot_begins_when_that_slot_keeps_the_ring_full() {
        let mut pending = pending();
        assert_eq!(when(&mut pending, 110, 1000, Some(10)), 1000);
        // It was written, and the next one is in the way.
        let _written = pending.take().pop_front();
        pending.push(Position(20));
        assert_eq!(when(&mut pending, 120, 1040, None), 1090);
    }
}
