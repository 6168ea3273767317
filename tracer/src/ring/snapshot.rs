//! What a ring holds at this moment, read without taking it away: `dump` of a flight recorder.

use super::geometry::{Geometry, Lap, Position};
use super::reader::{Delivered, RingMemory, Sink};
use super::timeline::Timeline;
use crate::record::{Detail, Record};

/// A view of one ring up to a head that was looked at.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// The ring's number.
    pub ring: u16,
    /// Its size.
    pub geometry: Geometry,
    /// Where the ring's first record is.
    pub first: Position,
    /// Up to where to read.
    pub head: Position,
    /// Functions with this number or more do not exist.
    pub functions: u32,
    /// Whether records have a second word (graph sessions).
    pub has_details: bool,
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
        let mut position = self.first.max(Position(oldest));
        let before = position.since(self.first);
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
            let mut details = vec![0; words.len()];
            if self.has_details {
                memory.copy_details(self.ring, slot, &mut details);
            }
            for (word, detail) in words.into_iter().zip(details) {
                let (record, detail) = (Record(word), Detail(detail));
                self.deliver_one(position, record, detail, &mut last_ticks, sink);
                position = position.after(1);
            }
        }
    }

    fn deliver_one(
        &self,
        position: Position,
        record: Record,
        detail: Detail,
        last_ticks: &mut u64,
        sink: &mut impl Sink,
    ) {
        let step = detail
            .step()
            .filter(|_| self.has_details && detail.mark() == record.mark());
        let is_whole = self.geometry.compare(record, position) == Lap::This
            && record.function().0 < self.functions
            && step.is_some() == self.has_details;
        match self.timeline.time(position, record.time()) {
            Some(ticks) if is_whole => {
                *last_ticks = ticks.max(*last_ticks);
                sink.record(Delivered {
                    ticks: *last_ticks,
                    function: record.function(),
                    graph: step.map(|step| (step, detail.slot())),
                });
            }
            _ => sink.lost(*last_ticks, 1),
        }
    }
}
