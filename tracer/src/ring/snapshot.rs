//! What a ring holds at this moment, copied without taking it away: `dump` of a flight recorder. It is copied as it is, which
//! takes a moment and as much memory as the ring has, and made into records later, a part at a time.

use std::collections::VecDeque;

use super::geometry::{Geometry, Lap, Position};
use super::reader::{Decoded, Delivered, RingMemory, Sink};
use super::timeline::{Timeline, Times};
use crate::record::{Detail, Format, Record};
use trace::doubt::TimeDoubts;

/// Slots of calls in a piece: what is copied, and delivered, at a time.
pub const PIECE: u64 = 1 << 14;

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

/// What a ring held, as far as it has not been delivered.
#[derive(Debug)]
pub struct Copied {
    of: Decoder,
    pieces: VecDeque<Piece>,
    /// The next record.
    position: Position,
    progress: Progress,
}

/// Slots that lie one after the other, as they were.
#[derive(Debug)]
pub struct Piece {
    /// The first of them.
    pub first: Position,
    words: Vec<u64>,
    details: Vec<u64>,
}

impl Piece {
    /// How many there are.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.words.len() as u64
    }

    fn end(&self) -> Position {
        self.first.after(self.slots())
    }
}

impl Snapshot<'_> {
    /// Copies every slot from the oldest on that is still there, so many at a time. The guest may continue writing meanwhile.
    #[must_use]
    pub fn copy(&self, memory: &impl RingMemory, at_a_time: u64) -> Copied {
        let oldest = self.head.0.saturating_sub(self.geometry.slots());
        let begin = self.first.max(Position(oldest));
        let mut progress = Progress {
            times: Times::new(self.is_timed),
            doubts: TimeDoubts::default(),
            missing: begin.since(self.first),
            after: 0,
        };
        progress.times.from(self.timeline.begin());
        let mut pieces = VecDeque::new();
        let mut next = begin;
        while next < self.head {
            let piece = self.piece(memory, next, at_a_time.max(1));
            next = piece.end();
            pieces.push_back(piece);
        }
        Copied {
            of: Decoder {
                ring: self.ring,
                geometry: self.geometry,
                functions: self.functions,
                format: self.format,
                timeline: self.timeline.clone(),
            },
            pieces,
            position: begin,
            progress,
        }
    }

    fn piece(&self, memory: &impl RingMemory, first: Position, at_a_time: u64) -> Piece {
        let slot = self.geometry.slot(first);
        let count = self.head.since(first).min(self.geometry.slots() - slot);
        let count = usize::try_from(count.min(at_a_time)).unwrap_or_default();
        let mut words = vec![0; count];
        memory.copy(self.ring, slot, &mut words);
        let mut details = Vec::new();
        if self.format.has_details() {
            // After the words: a stub stores the detail first.
            details.resize(count, 0);
            memory.copy_details(self.ring, slot, &mut details);
        }
        Piece {
            first,
            words,
            details,
        }
    }

    /// Delivers all at once, as [`Copied`] does.
    #[cfg(any(test, feature = "internals"))]
    pub fn deliver(&self, memory: &impl RingMemory, sink: &mut impl Sink) -> TimeDoubts {
        let mut copied = self.copy(memory, PIECE);
        while !copied.is_over() {
            copied.deliver_some(self.head, sink);
        }
        copied.say_missing(sink);
        copied.doubts()
    }
}

impl Copied {
    /// Whether all of it was delivered, but for what is missing at its end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Where the next record is.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.position
    }

    /// What has not been delivered, the next first.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter()
    }

    /// What is delivered later has this time or a later one.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.progress.times.last()
    }

    /// Delivers records that are whole, up to the end of a piece and before `to`, and lets go of the piece when that was all of it.
    /// Slots without a record (being written over, or reserved and not yet written, when they were copied) are delivered as lost.
    pub fn deliver_some(&mut self, to: Position, sink: &mut impl Sink) {
        let Some(piece) = self.pieces.front() else {
            return;
        };
        let to = to.min(piece.end());
        let from = usize::try_from(self.position.since(piece.first)).unwrap_or(usize::MAX);
        let count = usize::try_from(to.since(self.position)).unwrap_or(usize::MAX);
        let words = piece.words.iter().skip(from).take(count);
        let details = piece.details.iter().skip(from).copied();
        let details = details.chain(std::iter::repeat(0));
        for (word, detail) in words.zip(details) {
            let at = self.position;
            let (record, detail) = (Record(*word), Detail(detail));
            self.of
                .deliver(at, record, detail, &mut self.progress, sink);
            self.position = at.after(1);
        }
        if self.position >= piece.end() {
            self.pieces.pop_front();
        }
    }

    /// Delivers what is missing up to here.
    pub fn say_missing(&mut self, sink: &mut impl Sink) {
        self.progress.say_missing(sink);
    }

    /// What is missing from here on was lost after this time.
    pub fn lost_after(&mut self, ticks: u64) {
        self.progress.after = self.progress.after.max(ticks);
    }

    /// How many records that were delivered have times that may be wrong.
    #[must_use]
    pub const fn doubts(&self) -> TimeDoubts {
        self.progress.doubts
    }
}

/// What is known of the records of a ring.
#[derive(Debug)]
struct Decoder {
    ring: u16,
    geometry: Geometry,
    functions: u32,
    format: Format,
    timeline: Timeline,
}

impl Decoder {
    fn deliver(
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
#[derive(Debug)]
struct Progress {
    times: Times,
    doubts: TimeDoubts,
    /// Records that are missing since the last one delivered: said at once, as one gap.
    missing: u64,
    /// They were lost after this.
    after: u64,
}

impl Progress {
    fn say_missing(&mut self, sink: &mut impl Sink) {
        let missing = std::mem::take(&mut self.missing);
        if missing > 0 {
            sink.lost(self.times.last().max(self.after), missing);
        }
    }
}
