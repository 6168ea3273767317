//! What a ring holds at this moment, read without taking it away: `dump` of a flight recorder.

use super::geometry::{Geometry, Lap, Position};
use super::reader::{Decoded, Delivered, RingMemory, Sink};
use super::timeline::{Timeline, Times};
use crate::record::{Detail, Format, Record};
use trace::doubt::TimeDoubts;

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
    /// What its records say.
    pub format: Format,
    /// Whether their times say something.
    pub is_timed: bool,
    /// Looks at the head, the last of them at [`Self::head`] or later.
    pub timeline: &'a Timeline,
}

/// Words copied from the ring at a time.
const BATCH: u64 = 512;

impl Snapshot<'_> {
    /// Delivers every record that is whole; slots without one (being written over, or reserved and
    /// not yet written) are delivered as lost. The guest may continue writing meanwhile.
    /// Returns how many of them have times that may be wrong.
    pub fn deliver(&self, memory: &impl RingMemory, sink: &mut impl Sink) -> TimeDoubts {
        let oldest = self.head.0.saturating_sub(self.geometry.slots());
        let mut position = self.first.max(Position(oldest));
        let mut progress = Progress {
            times: Times::new(self.is_timed),
            doubts: TimeDoubts::default(),
            missing: position.since(self.first),
        };
        progress.times.from(self.timeline.begin());
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
            if self.format.has_details() {
                memory.copy_details(self.ring, slot, &mut details);
            }
            for (word, detail) in words.into_iter().zip(details) {
                let (record, detail) = (Record(word), Detail(detail));
                self.deliver_one(position, record, detail, &mut progress, sink);
                position = position.after(1);
            }
        }
        progress.say_missing(sink);
        progress.doubts
    }

    fn deliver_one(
        &self,
        position: Position,
        record: Record,
        detail: Detail,
        progress: &mut Progress,
        sink: &mut impl Sink,
    ) {
        let is_whole = self.geometry.compare(record, position) == Lap::This
            && (!self.format.has_details() || detail.mark() == record.mark());
        let spill = self.geometry.spill(position.word(self.ring));
        let said = Decoded::by(self.format, record.without(spill), detail.without(spill))
            .filter(|said| is_whole && said.function.0 < self.functions)
            .and_then(|said| Some((self.timeline.of(position)?, said)));
        match said {
            Some((look, said)) => {
                progress.say_missing(sink);
                let (ticks, doubt) = progress.times.next(Some(look), said.time);
                if let Some(doubt) = doubt {
                    progress.doubts.add(doubt, 1);
                }
                sink.record(Delivered {
                    ticks,
                    doubt,
                    function: said.function,
                    position,
                    beside: said.beside,
                });
            }
            None => progress.missing += 1,
        }
    }
}

/// How far a snapshot has got.
struct Progress {
    times: Times,
    doubts: TimeDoubts,
    /// Records that are missing since the last one delivered: said at once, as one gap.
    missing: u64,
}

impl Progress {
    fn say_missing(&mut self, sink: &mut impl Sink) {
        let missing = std::mem::take(&mut self.missing);
        if missing > 0 {
            sink.lost(self.times.last(), missing);
        }
    }
}
