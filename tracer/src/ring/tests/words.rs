//! A reader of a ring of which a test sets each word: what it does at the very edges.

use std::cell::{Cell, RefCell};

use terms::function::FunctionId;

use crate::record::Record;
use crate::ring::geometry::{Geometry, LIMIT_HOLD, LIMIT_OFF, Lap, Position};
use crate::ring::model::Heard;
use crate::ring::moment::Moment;
use crate::ring::reader::{
    CellWord, Delivered, Losses, Mode, Patience, RingMemory, RingReader, Sink, is_recording,
};
use crate::ring::snapshot::Snapshot;
use crate::ring::timeline::Timeline;

/// So many functions there are.
const FUNCTIONS: u32 = 100;

/// Ring 0 as a test wants it.
#[derive(Debug)]
struct Words {
    geometry: Geometry,
    head: Cell<u64>,
    limit: Cell<u64>,
    lost: Cell<u64>,
    slots: RefCell<Vec<u64>>,
    can_halt: Cell<bool>,
}

impl RingMemory for Words {
    fn load(&self, _ring: u16, word: CellWord) -> u64 {
        self.cell(word).get()
    }

    fn store(&self, _ring: u16, word: CellWord, value: u64) {
        self.cell(word).set(value);
    }

    fn copy(&self, _ring: u16, slot: u64, into: &mut [u64]) {
        let slot = usize::try_from(slot).unwrap();
        into.copy_from_slice(&self.slots.borrow()[slot..slot + into.len()]);
    }

    fn can_halt(&self) -> bool {
        self.can_halt.get()
    }
}

impl Words {
    fn cell(&self, word: CellWord) -> &Cell<u64> {
        match word {
            CellWord::Head => &self.head,
            CellWord::Limit => &self.limit,
            CellWord::Lost => &self.lost,
        }
    }

    /// The slot of the record with this number, counted from 0, as it is when written in `lap`.
    fn write_lap(&self, number: u64, lap: u64, function: u32) {
        let slot = usize::try_from(number % self.geometry.slots()).unwrap();
        self.slots.borrow_mut()[slot] = Record::new(1, FunctionId(function), lap).0;
    }

    fn write(&self, number: u64) {
        self.write_lap(number, number / self.geometry.slots() + 1, 7);
    }

    /// So many slots were reserved.
    fn reserve(&self, records: u64) {
        let head = self.geometry.first().after(records);
        self.head.set(head.word(0));
    }
}

/// A ring with its reader.
struct Read {
    words: Words,
    reader: RingReader,
    heard: Heard,
}

impl Read {
    fn new(bytes: u64, mode: Mode) -> Self {
        let geometry = Geometry::with_bytes(bytes).unwrap();
        let words = Words {
            geometry,
            head: Cell::new(0),
            limit: Cell::new(0),
            lost: Cell::new(0),
            slots: RefCell::new(vec![0; usize::try_from(geometry.slots()).unwrap()]),
            can_halt: Cell::new(false),
        };
        let mut reader = RingReader::new(0, geometry, mode, FUNCTIONS);
        reader.initialise(&words);
        reader.switch(&words, true);
        let heard = Heard::default();
        Self {
            words,
            reader,
            heard,
        }
    }

    fn small() -> Self {
        Self::new(4096, Mode::Overwrite)
    }

    /// One look and what follows from it; returns how many records were delivered so far.
    fn drain(&mut self, now: u64, patience: Patience) -> u64 {
        let head = self.reader.look(&self.words);
        let timeline = Timeline::of_one(head, Moment::exact(now));
        self.reader
            .drain(&self.words, &timeline, patience, &mut self.heard);
        self.reader.delivered()
    }

    fn snapshot(&mut self, timeline: &Timeline, sink: &mut impl Sink) {
        let snapshot = Snapshot {
            ring: 0,
            geometry: self.words.geometry,
            first: self.words.geometry.first(),
            head: self.reader.look(&self.words),
            functions: FUNCTIONS,
            format: crate::record::Format::Calls,
            is_timed: true,
            timeline,
        };
        snapshot.deliver(&self.words, sink);
    }

    fn losses(&self) -> Losses {
        let losses = self.reader.losses();
        assert_eq!(self.heard.lost, losses.records(), "each is said");
        losses
    }
}

#[test]
fn a_head_that_goes_back_is_counted_and_not_followed() {
    let mut ring = Read::small();
    (0..10).for_each(|number| ring.words.write(number));
    ring.words.reserve(10);
    assert_eq!(ring.drain(1000, Patience::Over), 10);
    ring.words.reserve(5);
    assert_eq!(ring.drain(1001, Patience::Over), 10);
    assert_eq!(ring.reader.reserved(), 10);
    ring.words.reserve(10);
    assert_eq!(ring.drain(1002, Patience::Over), 10);
    let expected = Losses {
        corrupt: 1,
        ..Losses::default()
    };
    assert_eq!(ring.losses(), expected);
}

#[test]
fn a_count_of_lost_calls_that_goes_back_is_no_loss() {
    let mut ring = Read::small();
    for (lost, discarded, corrupt) in [(10, 10, 0), (7, 10, 1), (9, 12, 1)] {
        ring.words.lost.set(lost);
        ring.drain(1000, Patience::Over);
        let losses = ring.losses();
        assert_eq!((losses.discarded, losses.corrupt), (discarded, corrupt));
    }
}

#[test]
fn the_first_function_that_does_not_exist_is_none() {
    let mut ring = Read::small();
    ring.words.write_lap(0, 1, FUNCTIONS);
    ring.words.write_lap(1, 1, FUNCTIONS - 1);
    ring.words.reserve(2);
    let head = ring.reader.look(&ring.words);
    let timeline = Timeline::of_one(head, Moment::exact(1000));
    let mut heard = Heard::default();
    ring.snapshot(&timeline, &mut heard);
    assert_eq!((heard.records.len(), heard.lost), (1, 1));
    assert_eq!(ring.drain(1000, Patience::Over), 1);
    assert_eq!(ring.losses().invalid, 1);
}

/// Its writer read the clock, and was preempted until the ring was used anew.
#[test]
fn nothing_is_shown_before_the_beginning() {
    let mut ring = Read::small();
    ring.words.slots.borrow_mut()[0] = Record::new(990, FunctionId(7), 1).0;
    ring.words.reserve(1);
    let mut timeline = Timeline::begun(Moment::exact(1000));
    let head = ring.reader.look(&ring.words);
    timeline.look(head, Moment::exact(1005), Position(0));
    let read = |ring: &mut Read, heard: &mut Heard| {
        let (reader, words) = (&mut ring.reader, &ring.words);
        reader.drain(words, &timeline, Patience::Over, heard);
    };
    let mut heard = Heard::default();
    ring.snapshot(&timeline, &mut heard);
    read(&mut ring, &mut heard);
    let ticks: Vec<u64> = heard.records.iter().map(|record| record.ticks).collect();
    assert_eq!(ticks, [1000, 1000]);
}

/// What comes, in its order.
#[derive(Default)]
struct Order(Vec<&'static str>);

impl Sink for Order {
    fn record(&mut self, _record: Delivered) {
        self.0.push("record");
    }

    fn lost(&mut self, _ticks: u64, _records: u64) {
        self.0.push("lost");
    }
}

#[test]
fn a_snapshot_says_what_is_missing_where_it_is_missing() {
    let mut ring = Read::small();
    ring.words.write(1);
    ring.words.reserve(3);
    let head = ring.reader.look(&ring.words);
    let mut order = Order::default();
    let timeline = Timeline::of_one(head, Moment::exact(1000));
    ring.snapshot(&timeline, &mut order);
    assert_eq!(order.0, ["lost", "record", "lost"]);
}

/// It was written over after the head was looked at; those after it were not.
#[test]
fn a_record_of_a_later_lap_is_not_waited_for() {
    let mut ring = Read::small();
    ring.words.write_lap(0, 2, 7);
    ring.words.write(1);
    ring.words.reserve(2);
    assert_eq!(ring.drain(1000, Patience::Ticks(1 << 20)), 1);
    assert_eq!(ring.losses().overwritten, 1);
}

#[test]
fn each_slot_is_waited_for_as_long_as_patience_says() {
    let mut ring = Read::small();
    ring.words.write(2);
    ring.words.reserve(3);
    // The first from 100 on, the second from when the first was gone past.
    for now in [100, 149, 150, 199] {
        assert_eq!(ring.drain(now, Patience::Ticks(50)), 0, "{now}");
        assert!(!ring.reader.is_drained_to(ring.reader.head()));
    }
    assert_eq!(ring.drain(200, Patience::Ticks(50)), 1);
    assert!(ring.reader.is_drained_to(ring.reader.head()));
    // They may still come.
    assert_eq!(ring.losses(), Losses::default());
    ring.words.write(1);
    assert_eq!(ring.drain(201, Patience::Ticks(50)), 2);
    assert_eq!(ring.heard.late, [1]);
    assert_eq!(ring.drain(202, Patience::Over), 2);
    assert_eq!(ring.losses().abandoned, 1);
}

#[test]
fn a_slot_is_not_waited_for_when_a_quarter_of_the_ring_waits() {
    let mut ring = Read::small();
    let quarter = ring.words.geometry.slots() / 4;
    (1..quarter).for_each(|number| ring.words.write(number));
    ring.words.reserve(quarter - 1);
    assert_eq!(ring.drain(100, Patience::Ticks(1000)), 0);
    ring.words.reserve(quarter);
    assert_eq!(ring.drain(101, Patience::Ticks(1000)), quarter - 1);
}

#[test]
fn a_ring_is_drained_when_nothing_is_left() {
    let mut ring = Read::small();
    assert!(ring.reader.is_drained_to(ring.reader.head()));
    ring.words.reserve(1);
    ring.drain(100, Patience::Ticks(1000));
    assert!(!ring.reader.is_drained_to(ring.reader.head()));
    ring.words.write(0);
    ring.drain(101, Patience::Ticks(1000));
    assert!(ring.reader.is_drained_to(ring.reader.head()));
}

/// Many can be on their way to it: a place for one of them was not enough, and the others were lost at a stop.
#[test]
fn a_ring_has_room_when_half_of_it_is_free() {
    let mut ring = Read::new(4096, Mode::Discard);
    let half = ring.words.geometry.slots() / 2;
    assert!(ring.reader.has_room());
    ring.words.reserve(half);
    ring.reader.look(&ring.words);
    assert!(!ring.reader.has_room(), "the one in the middle is slack");
    for number in 0..half {
        ring.words.write(number);
    }
    ring.drain(100, Patience::Ticks(1000));
    assert!(ring.reader.has_room());
}

/// The slot is its writer's until it is reserved in the next lap.
#[test]
fn a_slot_can_be_written_until_the_next_lap_reserves_it() {
    for (laps_on, is_given_up) in [(0, false), (1, true)] {
        let mut ring = Read::small();
        let slots = ring.words.geometry.slots();
        ring.words.reserve(1);
        ring.drain(100, Patience::Ticks(0));
        (1..slots).for_each(|number| ring.words.write(number));
        ring.words.reserve(slots + laps_on);
        ring.drain(101, Patience::Ticks(0));
        assert_eq!(ring.losses().abandoned, u64::from(is_given_up));
        ring.words.write(0);
        ring.drain(102, Patience::Ticks(0));
        // A late one is not taken for the one that has reserved the slot now.
        assert_eq!(
            ring.reader.delivered(),
            slots - u64::from(is_given_up),
            "{laps_on}"
        );
    }
}

/// It stores over a record of the next lap before anybody has read that: the slot looks like one that is still to
/// be written, for as long as the ring does not come round to it.
#[test]
fn a_record_under_one_that_came_a_lap_late_is_open_until_the_end() {
    let mut ring = Read::small();
    let slots = ring.words.geometry.slots();
    ring.words.reserve(slots + 1);
    (1..=slots).for_each(|number| ring.words.write(number));
    ring.words.write(0);
    ring.drain(100, Patience::Ticks(0));
    ring.drain(101, Patience::Ticks(0));
    assert_eq!(ring.reader.delivered(), slots - 1);
    // The first was skipped; the last is neither read nor lost.
    assert_eq!(ring.losses().overwritten, 1);
    assert_eq!(ring.losses().records(), 1);
    ring.drain(102, Patience::Over);
    assert_eq!(ring.losses().abandoned, 1);
    assert_eq!(ring.reader.delivered() + ring.losses().records(), slots + 1);
}

#[test]
fn as_many_slots_are_looked_at_again_as_is_said() {
    let mut ring = Read::new(16 << 10, Mode::Overwrite);
    ring.words.reserve(1024);
    ring.drain(100, Patience::Ticks(0));
    assert_eq!(ring.losses(), Losses::default());
    ring.words.reserve(1026);
    ring.drain(101, Patience::Ticks(0));
    assert_eq!(ring.losses().abandoned, 2);
    (0..1026).for_each(|number| ring.words.write(number));
    // The oldest were given up.
    assert_eq!(ring.drain(102, Patience::Over), 1024);
    assert_eq!(ring.losses().records(), 2);
}

#[test]
fn a_ring_that_is_off_stays_off_whoever_holds_and_releases_it() {
    for mode in [Mode::Overwrite, Mode::Discard] {
        let mut ring = Read::new(4096, mode);
        let limit = |ring: &Read| ring.words.limit.get();
        let on = limit(&ring);
        assert!(on > ring.words.head.get(), "it records");
        ring.reader.hold(&ring.words);
        assert!(limit(&ring) <= ring.words.head.get() && limit(&ring) != LIMIT_OFF);
        ring.reader.release(&ring.words);
        assert_eq!(limit(&ring), on);
        ring.reader.switch(&ring.words, false);
        assert_eq!(limit(&ring), LIMIT_OFF);
        ring.reader.hold(&ring.words);
        ring.reader.release(&ring.words);
        ring.drain(100, Patience::Ticks(0));
        assert_eq!(limit(&ring), LIMIT_OFF);
    }
}

/// It was once: whoever dumped let a session record again that a trigger had stopped.
#[test]
fn what_a_stub_has_ended_no_dump_lets_go_on() {
    for mode in [Mode::Overwrite, Mode::Discard] {
        for is_held in [false, true] {
            let mut ring = Read::new(4096, mode);
            ring.words.can_halt.set(true);
            let on = ring.words.limit.get();
            if is_held {
                ring.reader.hold(&ring.words);
                assert_eq!(ring.words.limit.get(), LIMIT_HOLD);
            }
            ring.words.limit.set(LIMIT_OFF);
            if !is_held {
                ring.reader.hold(&ring.words);
                assert_eq!(ring.words.limit.get(), LIMIT_OFF);
            }
            ring.reader.release(&ring.words);
            ring.drain(100, Patience::Ticks(0));
            assert_eq!(ring.words.limit.get(), LIMIT_OFF);
            assert!(!is_recording(&ring.reader, &ring.words));
            ring.reader.switch(&ring.words, true);
            assert_eq!(ring.words.limit.get(), on);
            // What is held for a dump, also by the stub that has asked for it, goes on after that.
            ring.words.limit.set(LIMIT_HOLD);
            ring.reader.hold(&ring.words);
            ring.reader.release(&ring.words);
            assert_eq!(ring.words.limit.get(), on);
        }
    }
}

/// A ring that is read while it is held stays so.
#[test]
fn a_ring_is_held_until_it_is_released_whoever_reads_it() {
    for can_halt in [false, true] {
        let mut ring = Read::new(4096, Mode::Discard);
        ring.words.can_halt.set(can_halt);
        let on = ring.words.limit.get();
        ring.reader.hold(&ring.words);
        ring.drain(100, Patience::Ticks(0));
        assert_eq!(ring.words.limit.get(), LIMIT_HOLD);
        ring.reader.release(&ring.words);
        assert_eq!(ring.words.limit.get(), on);
    }
}

#[test]
fn a_slot_of_zeros_is_not_yet_written_in_the_first_lap() {
    let geometry = Geometry::with_bytes(4096).unwrap();
    assert_eq!(geometry.compare(Record(0), geometry.first()), Lap::Earlier);
}

#[test]
fn half_of_all_laps_are_later_and_half_are_earlier() {
    let geometry = Geometry::with_bytes(4096).unwrap();
    let position = Position(2000 * geometry.slots());
    let compared = |lap| geometry.compare(Record::new(1, FunctionId(1), lap), position);
    assert_eq!(
        (compared(2000 + 511), compared(2000 + 512)),
        (Lap::Later, Lap::Earlier)
    );
    assert_eq!(
        (compared(2000 - 512), compared(1999)),
        (Lap::Earlier, Lap::Earlier)
    );
}

/// A stub adds the whole head word, shifted, in place of the mark alone.
#[test]
fn what_spills_over_from_the_mark_is_what_a_stub_adds_beside_it() {
    for ring in [0, 1, 1023] {
        for lap in [1, 1023, 1024, 5 << 20] {
            let geometry = Geometry::with_bytes(1 << 14).unwrap();
            let word = Position(lap * geometry.slots() + 3).word(ring);
            let function = FunctionId(9);
            let written = Record(Record::new(77, function, 0).0.wrapping_add(word >> 14));
            let record = written.without(geometry.spill(word));
            assert_eq!(record, Record::new(77, function, lap), "{ring} {lap}");
        }
    }
}
