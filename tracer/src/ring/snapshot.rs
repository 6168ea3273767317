//! What a ring holds at this moment, read without taking it away: `dump` of a flight recorder.

use super::geometry::{Geometry, Lap, Position};
use super::reader::{Delivered, RingMemory, Sink};
use super::timeline::Timeline;
use crate::record::Record;

/// A view of one ring up to a head that was looked at.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// The ring's number.
    pub ring: u16,
    /// Its size.
    pub geometry: Geometry,
    /// Up to where to read.
    pub head: Position,
    /// Functions with this number or more do not exist.
    pub functions: u32,
    /// Looks at the head, the last of them at [`Self::head`] or later.
    pub timeline: &'a Timeline,
}

/// Words copied from the ring at a time.
const BATCH: u64 = 512;

impl Snapshot<'_> {
    /// Delivers every record that is whole; slots without one (being written over, or reserved and
    /// not yet written) are delivered as lost. The guest may go on writing meanwhile.
    pub fn deliver(&self, memory: &impl RingMemory, sink: &mut impl Sink) {
        let oldest = self.head.0.saturating_sub(self.geometry.slots());
        let mut position = self.geometry.first().max(Position(oldest));
        let before = position.since(self.geometry.first());
        if before > 0 {
            sink.lost(0, before);
        }
        let mut last_ticks = 0;
        while position < self.head {
            let slot = self.geometry.slot(position);
            let count = self
                .head
                .since(position)
                .min(self.geometry.slots() - slot)
                .min(BATCH);
            let mut words = vec![0; usize::try_from(count).unwrap_or_default()];
            memory.copy(self.ring, slot, &mut words);
            for word in words {
                self.deliver_one(position, Record(word), &mut last_ticks, sink);
                position = position.after(1);
            }
        }
    }

    fn deliver_one(
        &self,
        position: Position,
        record: Record,
        last_ticks: &mut u64,
        sink: &mut impl Sink,
    ) {
        let is_whole = self.geometry.compare(record, position) == Lap::This
            && record.function().0 < self.functions;
        match self.timeline.time(position, record.time()) {
            Some(ticks) if is_whole => {
                *last_ticks = ticks.max(*last_ticks);
                sink.record(Delivered {
                    ticks: *last_ticks,
                    function: record.function(),
                });
            }
            _ => sink.lost(*last_ticks, 1),
        }
    }
}
