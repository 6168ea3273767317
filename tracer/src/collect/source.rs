//! One ring with its reader, and what is known of the times of its records.

use std::sync::Arc;

use crate::ring::geometry::{Geometry, Position};
use crate::ring::reader::{Patience, RingMemory, RingReader, Sink};
use crate::ring::timeline::Timeline;
use crate::ring::turnstile::Rings;
use crate::ring::wanted::Asks;
use crate::waits::WaitingRoom;
use trace::doubt::{TimeDoubt, TimeDoubts};

use super::looks::{Looks, oldest};
use crate::clock::{Jumps, Reading};

/// How a ring was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub head: Position,
    /// Records from there on are not before this time.
    before: u64,
}

/// A ring that is read.
#[derive(Debug)]
pub(super) struct Source {
    pub reader: RingReader,
    pub timeline: Timeline,
    geometry: Geometry,
    looks: Arc<Looks>,
    trust: Trust,
}

impl Source {
    /// Nothing has been written into the ring yet.
    pub fn new(reader: RingReader, geometry: Geometry, looks: &Arc<Looks>) -> Self {
        let reading = looks.clock().read(reader.ring());
        Self {
            reader,
            timeline: Timeline::begun(reading.moment),
            geometry,
            looks: Arc::clone(looks),
            trust: Trust::since(&reading),
        }
    }

    /// vCPUs that find it full wait in this room.
    pub fn wait_in(&mut self, room: &WaitingRoom, rings: Rings) {
        let waited = room.asks(rings, self.reader.ring());
        self.reader.asks = waited.map_or_else(Asks::default, Asks::of);
    }

    /// Looks at the head, then at the clock.
    pub fn look(&mut self, memory: &impl RingMemory) {
        let ring = self.reader.ring();
        self.looks.take(ring, &mut self.timeline);
        let head = self.reader.look(memory);
        let reading = self.looks.clock().read(ring);
        let keep_from = oldest(head, self.geometry);
        self.timeline.look(head, reading.moment, keep_from);
        self.trust
            .look(&reading, &mut self.timeline, &mut self.reader);
    }

    /// Looks.
    pub fn find(&mut self, memory: &impl RingMemory) -> Found {
        let before = self.looks.clock().least();
        self.look(memory);
        let head = self.reader.head();
        Found { head, before }
    }

    /// What is reserved later has a later time than this, as far as the ring's clock is known; none as long as some of what was
    /// found has not been delivered.
    pub fn seen_to(&self, found: Found) -> Option<u64> {
        let bound = self.timeline.last().bound;
        let is_delivered = self.reader.is_drained_to(found.head);
        is_delivered.then(|| found.before.saturating_sub(bound))
    }

    /// Delivers what was written before the head of some look, up to some record after so many (`most`). Whether more of it
    /// can be delivered at once.
    pub fn drain_to(
        &mut self,
        head: Position,
        most: u64,
        memory: &impl RingMemory,
        patience: Patience,
        sink: &mut impl Sink,
    ) -> bool {
        let timeline = &self.timeline;
        self.reader
            .drain_to(head, most, memory, timeline, patience, sink)
    }

    /// Records delivered of which the time is in doubt, and how often the clock was set, or could not be.
    pub fn doubts(&self) -> TimeDoubts {
        let mut doubts = *self.reader.doubts();
        let jumps = self.trust.jumps.after(self.trust.jumps_before);
        doubts.add(TimeDoubt::Set, jumps.sets);
        doubts.add(TimeDoubt::NotSetBack, jumps.not_set_back);
        doubts
    }

    /// Whether nobody has looked at the ring's clock since the newest of its records was made: asked when there are no more, and
    /// counted by then.
    pub fn is_unchecked(&self) -> bool {
        self.trust
            .leaves_unchecked(&self.reader, self.timeline.last().bound)
    }
}

/// Up to where the clock of a ring was what it was taken for.
#[derive(Debug, Clone, Copy)]
struct Trust {
    jumps_before: Jumps,
    jumps: Jumps,
    /// When the clock was seen to be right.
    checked: u64,
    /// When it was seen at all, as of the last look.
    seen: u64,
    /// The last look.
    looked: u64,
    /// Records that were delivered before the clock was seen to be right.
    sure: u64,
}

impl Trust {
    const fn since(reading: &Reading) -> Self {
        Self {
            jumps_before: reading.jumps,
            jumps: reading.jumps,
            checked: reading.checked,
            seen: reading.checked,
            looked: reading.moment.now,
            sure: 0,
        }
    }

    /// After a look, before what was found is delivered. What was delivered so far was made before the look before.
    fn look(&mut self, reading: &Reading, timeline: &mut Timeline, reader: &mut RingReader) {
        let delivered = reader.delivered();
        if reading.is_mixed {
            timeline.doubt_after(self.looked, TimeDoubt::Mixed);
        }
        if reading.jumps != self.jumps {
            timeline.doubt_after(self.checked, TimeDoubt::Moved);
            reader.doubt_delivered(TimeDoubt::Moved, delivered.saturating_sub(self.sure));
        }
        if reading.jumps != self.jumps || reading.checked >= self.looked {
            (self.sure, self.checked) = (delivered, reading.checked);
        }
        (self.jumps, self.looked) = (reading.jumps, reading.moment.now);
        self.seen = reading.checked;
    }

    /// A record is no newer than its time, but for what is not known of the clock.
    fn leaves_unchecked(&self, reader: &RingReader, bound: u64) -> bool {
        let newest = reader.times.last();
        let has_time = reader.delivered() > 0 && reader.times.is_timed();
        has_time && newest.saturating_sub(bound) > self.seen
    }
}

#[cfg(test)]
mod tests {
    use crate::record::Record;
    use crate::ring::geometry::Position;
    use crate::ring::moment::{Moment, ROUND};
    use crate::ring::reader::{CellWord, Delivered, Mode};
    use terms::function::FunctionId;

    use super::*;
    use crate::clock::{Relation, Sample};

    const BEGIN: u64 = 1 << 40;

    fn geometry() -> Geometry {
        Geometry::with_bytes(4096).unwrap()
    }

    /// A ring, with the guest's clock and what the host believes of it.
    struct Ring {
        slots: Vec<u64>,
        head: Position,
        made: Vec<u64>,
        now: u64,
        truth: u64,
        known: Reading,
        reader: RingReader,
        timeline: Timeline,
        trust: Trust,
        heard: Heard,
    }

    #[derive(Default)]
    struct Heard(Vec<Delivered>);

    impl Sink for Heard {
        fn record(&mut self, record: Delivered) {
            self.0.push(record);
        }

        fn lost(&mut self, _ticks: u64, _records: u64) {}
    }

    struct Slots<'a>(&'a [u64], Position);

    impl RingMemory for Slots<'_> {
        fn load(&self, _ring: u16, word: CellWord) -> u64 {
            match word {
                CellWord::Head => self.1.word(0),
                CellWord::Limit | CellWord::Lost => 0,
            }
        }

        fn store(&self, _ring: u16, _word: CellWord, _value: u64) {}

        fn copy(&self, _ring: u16, slot: u64, into: &mut [u64]) {
            let slot = usize::try_from(slot).unwrap();
            into.copy_from_slice(&self.0[slot..slot + into.len()]);
        }
    }

    impl Ring {
        fn new(truth: u64, known: Relation) -> Self {
            let known = Reading {
                moment: Moment {
                    now: BEGIN,
                    offset: known.offset,
                    bound: known.bound,
                },
                checked: BEGIN,
                jumps: Jumps::default(),
                is_mixed: false,
            };
            Self {
                slots: vec![0; 512],
                head: geometry().first(),
                made: Vec::new(),
                now: BEGIN,
                truth,
                known,
                reader: RingReader::new(0, geometry(), Mode::Overwrite, 10),
                timeline: Timeline::begun(known.moment),
                trust: Trust::since(&known),
                heard: Heard::default(),
            }
        }

        /// Records are made, one each `step` ticks; the last one is followed at once by whatever comes next.
        fn make(&mut self, records: u64, step: u64) {
            for _ in 0..records {
                self.now += step;
                let mark = self.head.0 / geometry().slots();
                let time = self.now.wrapping_add(self.truth);
                let slot = usize::try_from(geometry().slot(self.head)).unwrap();
                let spill = geometry().spill(self.head.word(0));
                self.slots[slot] = Record::new(time, FunctionId(3), mark).with(spill).0;
                self.head = self.head.after(1);
                self.made.push(self.now);
            }
        }

        fn read(&mut self) {
            let memory = Slots(&self.slots, self.head);
            let head = self.reader.look(&memory);
            self.known.moment.now = self.now;
            self.timeline.look(head, self.known.moment, Position(0));
            self.trust
                .look(&self.known, &mut self.timeline, &mut self.reader);
            let patience = Patience::Over;
            self.reader
                .drain(&memory, &self.timeline, patience, &mut self.heard);
        }

        /// The host looks at the counter: it is as known, or has been set.
        fn check(&mut self, bound: u64) {
            self.known.checked = self.now;
            let error = self.known.moment.offset.wrapping_sub(self.truth);
            if error.cast_signed().unsigned_abs() > self.known.moment.bound + bound {
                self.known.jumps.sets += 1;
                (self.known.moment.offset, self.known.moment.bound) = (self.truth, bound);
            }
        }

        /// How many records were shown with another time than they had, and how many durations between neighbours are
        /// other ones.
        fn wrong(&self) -> (u64, u64) {
            let pairs = || self.heard.0.iter().zip(&self.made);
            let wrong = pairs().filter(|(heard, made)| heard.ticks != **made);
            let durations = pairs()
                .zip(pairs().skip(1))
                .filter(|((h, m), (h2, m2))| h2.ticks - h.ticks != *m2 - *m);
            (wrong.count() as u64, durations.count() as u64)
        }

        fn doubted(&self) -> u64 {
            self.reader.doubts().records()
        }
    }

    /// A host that loses its CPU for `early` ticks before it reads the counter, or for `late` ones after it.
    fn measured(truth: u64, early: u64, late: u64) -> Relation {
        Relation::from(Sample {
            before: BEGIN - early - late,
            guest: (BEGIN - late).wrapping_add(truth),
            after: BEGIN,
        })
    }

    /// It was once: 200 ms between the two readings made every duration 0, 20 ms made a phantom call, and nothing was
    /// counted.
    #[test]
    fn durations_are_right_however_the_measuring_was_delayed() {
        const MS: u64 = 2_600_000;
        for truth in [0, 1 << 51, u64::MAX - 7] {
            for (early, late) in [(0, 0), (200, 0), (0, 200), (20, 0), (0, 20), (90, 110)] {
                let mut ring = Ring::new(truth, measured(truth, early * MS, late * MS));
                for round in 0..40 {
                    ring.make(10, MS / 3 + round);
                    ring.read();
                }
                let (wrong, durations) = ring.wrong();
                // What was made before the beginning, by what is known, is shown there.
                let early = early.saturating_sub(late) * MS / 2;
                let clamped = ring
                    .made
                    .iter()
                    .filter(|made| **made < BEGIN + early)
                    .count() as u64;
                assert!(
                    durations <= clamped + 1,
                    "{early} {late}: {durations} durations"
                );
                assert_eq!(ring.doubted(), 0);
                assert!(wrong == 0 || early != late);
            }
        }
    }

    /// Without the bound: what a delay did to the middle of one sample. Now it is counted.
    #[test]
    fn an_offset_that_is_wrong_beyond_its_bound_is_counted() {
        let wrong = Relation {
            offset: 0u64.wrapping_sub(1_000_000),
            bound: 10,
            measured: BEGIN,
        };
        let mut ring = Ring::new(0, wrong);
        for _ in 0..20 {
            ring.make(5, 1000);
            ring.read();
        }
        assert!(ring.wrong().1 > 0);
        assert_eq!(ring.doubted(), 100);
        assert_eq!(ring.reader.doubts().count(TimeDoubt::Impossible), 100);
    }

    /// Ten records, a check that agrees, and seven more that were read.
    fn checked() -> Ring {
        let mut ring = Ring::new(40, measured(40, 3, 3));
        ring.make(10, 1000);
        ring.read();
        ring.check(3);
        ring.make(7, 1000);
        ring.read();
        ring
    }

    #[test]
    fn what_was_recorded_since_the_last_check_is_in_doubt_when_the_clock_was_set() {
        for step in [5_000_000, 0u64.wrapping_sub(5_000_000), ROUND / 3, 1 << 60] {
            for is_read_before in [true, false] {
                let mut ring = checked();
                ring.truth = 40u64.wrapping_add(step);
                ring.make(5, 1000);
                if is_read_before {
                    ring.read();
                }
                ring.check(3);
                ring.make(9, 1000);
                ring.read();
                ring.make(20, 1000);
                ring.read();
                let (wrong, _) = ring.wrong();
                let doubted = ring.doubted();
                assert!(wrong <= doubted, "{step}: {wrong} of {doubted}");
                // Those between the two checks, and what came in the same look as the second.
                assert_eq!(ring.reader.doubts().count(TimeDoubt::Moved), 21, "{step}");
                let last = ring.heard.0[ring.heard.0.len() - 20..].iter();
                assert!(last.clone().all(|record| record.doubt.is_none()));
                assert!(
                    last.zip(&ring.made[31..])
                        .all(|(heard, made)| heard.ticks == *made)
                );
            }
        }
    }

    #[test]
    fn what_was_recorded_about_when_a_clock_could_not_be_set_back_is_in_doubt() {
        let mut ring = checked();
        // The vCPU has waited, and its counter has gone on.
        ring.truth = ring.truth.wrapping_add(5000);
        ring.known.moment.offset = ring.known.moment.offset.wrapping_add(5000);
        ring.known.jumps.not_set_back += 1;
        ring.known.checked = ring.now;
        for _ in 0..2 {
            ring.make(9, 1000);
            ring.read();
        }
        let doubts = ring.reader.doubts();
        assert_eq!(doubts.count(TimeDoubt::Moved), 16);
        assert_eq!(ring.wrong(), (0, 0), "the distance is known");
        let jumps = ring.trust.jumps.after(ring.trust.jumps_before);
        assert_eq!((jumps.sets, jumps.not_set_back), (0, 1));
    }

    /// It was once said nowhere: of a guest that has gone nobody knows what became of its clock.
    #[test]
    fn records_after_the_last_check_are_unchecked() {
        let is_unchecked = |ring: &Ring| {
            let bound = ring.known.moment.bound;
            ring.trust.leaves_unchecked(&ring.reader, bound)
        };
        let mut ring = checked();
        assert!(is_unchecked(&ring), "seven were made after it");
        ring.check(3);
        ring.read();
        assert!(!is_unchecked(&ring));
        ring.now += 1 << 30;
        ring.read();
        assert!(!is_unchecked(&ring), "none has come since");
        ring.make(1, 1000);
        ring.read();
        assert!(is_unchecked(&ring));
        assert_eq!(ring.doubted(), 0, "no record is known to be wrong");
        // None at all.
        assert!(!is_unchecked(&Ring::new(40, measured(40, 3, 3))));
    }

    #[test]
    fn checks_that_agree_leave_nothing_in_doubt() {
        let mut ring = Ring::new(1 << 44, measured(1 << 44, 50, 60));
        for _ in 0..50 {
            ring.make(3, 100);
            ring.read();
            ring.check(7);
        }
        assert_eq!((ring.doubted(), ring.heard.0.len()), (0, 150));
    }

    #[test]
    fn a_ring_that_is_timed_by_different_clocks_is_in_doubt_as_long_as_they_differ() {
        let mut ring = Ring::new(0, measured(0, 1, 1));
        for is_mixed in [false, true, true, false] {
            ring.make(4, 100);
            ring.known.is_mixed = is_mixed;
            ring.read();
        }
        assert_eq!(ring.reader.doubts().count(TimeDoubt::Mixed), 8);
        assert_eq!(ring.doubted(), 8);
    }
}
