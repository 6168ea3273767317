use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use terms::function::FunctionId;

use super::geometry::{
    Geometry, LIMIT_HOLD, LIMIT_NONE, LIMIT_OFF, Position, RING_BYTES_LOG2, RING_SHIFT, RINGS_MAX,
};
use super::model::{Guest, Heard, Op, WRITERS};
use super::moment::{Moment, ROUND};
use super::reader::{CellWord, Delivered, Mode, Patience, RingMemory, RingReader};
use super::snapshot::Snapshot;
use super::timeline::Timeline;
use crate::record::{Detail, FUNCTIONS_MAX, Format, RECORD_BYTES, Record};
use trace::doubt::TimeDoubt;
use trace::event::Step;

mod interleavings;
mod words;
mod writers;

fn small() -> Geometry {
    Geometry::with_bytes(4096).unwrap()
}

/// What the host does, with what the guest does meanwhile.
#[derive(Debug, Clone)]
enum HostOp {
    Guest(Op),
    Poll {
        ring: usize,
        ticks: u64,
        meanwhile: Vec<Op>,
    },
    Switch {
        on: bool,
        meanwhile: Vec<Op>,
    },
}

fn guest_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..3usize, prop_oneof![0..8u32, 0..900u32])
            .prop_map(|(vcpu, calls)| Op::Burst { vcpu, calls }),
        6 => (0..WRITERS, 1..7u8)
            .prop_map(|(writer, instructions)| Op::Step { writer, instructions }),
        2 => (0..WRITERS, 0..3usize).prop_map(|(writer, vcpu)| Op::Migrate { writer, vcpu }),
    ]
}

fn host_op() -> impl Strategy<Value = HostOp> {
    let meanwhile = || prop::collection::vec(guest_op(), 0..6);
    prop_oneof![
        12 => guest_op().prop_map(HostOp::Guest),
        5 => (0..3usize, prop_oneof![Just(0), Just(50), Just(u64::MAX)], meanwhile())
            .prop_map(|(ring, ticks, meanwhile)| HostOp::Poll { ring, ticks, meanwhile }),
        1 => (any::<bool>(), meanwhile())
            .prop_map(|(on, meanwhile)| HostOp::Switch { on, meanwhile }),
    ]
}

struct Host {
    guest: Guest,
    readers: Vec<(RingReader, Timeline, Heard)>,
}

impl Host {
    fn new(rings: u16, mode: Mode) -> Self {
        let guest = Guest::new(usize::from(rings), small());
        let reader = |ring| {
            let mut reader = RingReader::new(ring, small(), mode, FUNCTIONS_MAX);
            reader.initialise(&guest);
            reader.switch(&guest, true);
            let begun = Timeline::begun(Moment::exact(guest.now()));
            (reader, begun, Heard::default())
        };
        let readers = (0..rings).map(reader).collect();
        Self { guest, readers }
    }

    fn look(&mut self, ring: usize) {
        let (reader, timeline, _) = &mut self.readers[ring];
        let head = reader.look(&self.guest);
        let now = Moment::exact(self.guest.now());
        timeline.look(head, now, Position(head.0.saturating_sub(small().slots())));
    }

    fn poll(&mut self, ring: usize, patience: Patience) {
        self.look(ring);
        let (reader, timeline, heard) = &mut self.readers[ring];
        reader.drain(&self.guest, timeline, patience, heard);
    }

    fn run(&mut self, op: HostOp) {
        match op {
            HostOp::Guest(op) => self.guest.run(op),
            HostOp::Poll {
                ring,
                ticks,
                meanwhile,
            } => {
                self.guest.meanwhile.borrow_mut().extend(meanwhile);
                let ring = ring % self.readers.len();
                self.poll(ring, Patience::Ticks(ticks));
            }
            HostOp::Switch { on, meanwhile } => {
                self.guest.meanwhile.borrow_mut().extend(meanwhile);
                for (reader, ..) in &mut self.readers {
                    reader.switch(&self.guest, on);
                }
            }
        }
    }
}

proptest! {
    /// The main promise: each call that was not made while tracing was off is delivered once, or in
    /// exactly one count.
    #[test]
    fn every_call_is_delivered_or_counted(
        rings in 1..=3u16,
        mode in prop_oneof![Just(Mode::Overwrite), Just(Mode::Discard)],
        ops in prop::collection::vec(host_op(), 0..120),
    ) {
        let mut host = Host::new(rings, mode);
        for op in ops {
            host.run(op);
        }
        host.guest.meanwhile.borrow_mut().clear();
        for ring in 0..usize::from(rings) {
            host.poll(ring, Patience::Over);
        }
        let (calls, lost) = host.guest.calls();
        let mut accounted = 0;
        let mut discarded = 0;
        let mut delivered = BTreeSet::new();
        for ((reader, _, heard), ring) in host.readers.iter().zip(0u16..) {
            let losses = reader.losses();
            prop_assert_eq!((losses.invalid, losses.corrupt), (0, 0));
            prop_assert_eq!(heard.lost, losses.records());
            prop_assert_eq!(heard.records.len() as u64, reader.delivered());
            accounted += reader.delivered() + losses.records();
            discarded += losses.discarded;
            let mut last = 0;
            for (number, record) in heard.records.iter().enumerate() {
                let call = calls[record.function.index()];
                match heard.late.contains(&number) {
                    // Others were delivered before it, so its place says nothing of its time.
                    true => prop_assert_eq!((record.ticks, record.doubt), (call.time, None)),
                    false => prop_assert!(last <= record.ticks),
                }
                last = last.max(record.ticks);
                prop_assert!(delivered.insert(record.function), "delivered twice");
                prop_assert_eq!(call.ring, ring);
                prop_assert!(call.is_stored);
                prop_assert!(record.ticks >= call.time && record.ticks <= host.guest.now());
            }
        }
        prop_assert_eq!(discarded, lost);
        prop_assert_eq!(accounted, calls.len() as u64 + lost);
        // Nothing that is still in its slot was given up, unless the slot is reserved again.
        for (call, number) in calls.iter().zip(0..) {
            let head = host.readers[usize::from(call.ring)].0.head();
            if head.since(call.position) <= small().slots() && host.guest.is_kept(number as usize, call) {
                prop_assert!(delivered.contains(&terms::function::FunctionId(number)));
            }
        }
    }

    #[test]
    fn a_snapshot_holds_exactly_the_records_that_are_whole(
        ops in prop::collection::vec(host_op(), 0..60),
    ) {
        let mut host = Host::new(2, Mode::Overwrite);
        for op in ops {
            host.run(op);
        }
        host.guest.meanwhile.borrow_mut().clear();
        let (calls, _) = host.guest.calls();
        for ring in 0..2usize {
            host.poll(ring, Patience::Ticks(0));
            let (reader, timeline, _) = &host.readers[ring];
            let snapshot = Snapshot {
                ring: u16::try_from(ring).unwrap(),
                geometry: small(),
                first: reader.first(),
                head: reader.head(),
                functions: FUNCTIONS_MAX,
                format: Format::Calls,
                is_timed: true,
                timeline,
            };
            let mut heard = Heard::default();
            snapshot.deliver(&host.guest, &mut heard);
            let expected: Vec<usize> = calls.iter().enumerate()
                .filter(|(number, call)| usize::from(call.ring) == ring
                    && reader.head().since(call.position) <= small().slots()
                    && host.guest.is_kept(*number, call))
                .map(|(number, _)| number)
                .collect();
            let found: Vec<usize> = heard.records.iter().map(|one| one.function.index()).collect();
            prop_assert_eq!(found, expected);
            for record in &heard.records {
                prop_assert!(record.ticks >= calls[record.function.index()].time);
            }
            prop_assert_eq!(heard.records.len() as u64 + heard.lost, reader.reserved());
        }
    }

    #[test]
    fn positions_and_words_are_two_ways_to_say_the_same(
        ring in 0..RINGS_MAX, count in 0..1u64 << (RING_SHIFT - 3), other in any::<u64>(),
    ) {
        let word = Position(count).word(ring);
        prop_assert_eq!(Position::of_word(word, ring), Some(Position(count)));
        prop_assert_eq!(Position::of_word(word, (ring + 1) % RINGS_MAX), None);
        prop_assert_eq!(Position::of_word(word + 1, ring), None);
        prop_assert!(word < LIMIT_NONE);
        if let Some(position) = Position::of_word(other, ring) {
            prop_assert_eq!(position.word(ring), other);
        }
    }

    #[test]
    fn laps_are_told_apart(log2 in RING_BYTES_LOG2, lap in 1..1u64 << 20, back in 1..500u64) {
        use super::geometry::Lap;
        let geometry = Geometry::with_bytes(1 << log2).unwrap();
        let position = Position(lap * geometry.slots() + 5);
        let record = |lap: u64| Record::new(1, terms::function::FunctionId(1), lap);
        prop_assert_eq!(geometry.compare(record(lap), position), Lap::This);
        prop_assert_eq!(geometry.compare(record(lap + back), position), Lap::Later);
        prop_assert_eq!(
            geometry.compare(record(lap.wrapping_sub(back)), position), Lap::Earlier);
    }
}

/// Memory in which nothing is what stubs would have written.
struct Garbage {
    words: Vec<u64>,
    next: Cell<usize>,
    copied: Cell<u64>,
    slots: u64,
}

impl Garbage {
    fn word(&self) -> u64 {
        let next = self.next.get();
        self.next.set((next + 1) % self.words.len());
        self.words[next]
    }
}

impl RingMemory for Garbage {
    fn load(&self, _ring: u16, _word: CellWord) -> u64 {
        self.word()
    }

    fn store(&self, _ring: u16, _word: CellWord, _value: u64) {}

    fn copy(&self, _ring: u16, slot: u64, into: &mut [u64]) {
        assert!(slot + into.len() as u64 <= self.slots);
        self.copied.set(self.copied.get() + into.len() as u64);
        into.fill_with(|| self.word());
    }
}

fn garbage_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        Just(0),
        Just(u64::MAX),
        // A head of ring 0, near and far.
        (0..4096u64).prop_map(|count| count * RECORD_BYTES),
        (0..1u64 << 51).prop_map(|count| count * RECORD_BYTES),
        // A record with some lap mark.
        (0..64u64, any::<u64>()).prop_map(|(mark, rest)| rest << 10 | mark),
    ]
}

proptest! {
    #[test]
    fn garbage_neither_panics_nor_keeps_the_reader(
        words in prop::collection::vec(garbage_word(), 1..200),
        discard in any::<bool>(),
        polls in prop::collection::vec((any::<u64>(), prop::option::of(any::<u64>())), 1..40),
    ) {
        let mode = if discard { Mode::Discard } else { Mode::Overwrite };
        let memory = Garbage { words, next: Cell::new(0), copied: Cell::new(0), slots: small().slots() };
        let mut reader = RingReader::new(0, small(), mode, 100);
        reader.switch(&memory, true);
        let mut timeline = Timeline::begun(Moment::default());
        for (now, ticks) in polls {
            let mut heard = Heard::default();
            memory.copied.set(0);
            let head = reader.look(&memory);
            timeline.look(head, Moment::exact(now), Position(0));
            let patience = ticks.map_or(Patience::Over, Patience::Ticks);
            reader.drain(&memory, &timeline, patience, &mut heard);
            // One lap, what is pending (at most a lap more), and a batch to find that it must wait.
            prop_assert!(memory.copied.get() <= 3 * small().slots(), "{}", memory.copied.get());
            prop_assert!(heard.records.iter().all(|record| record.function.0 < 100));
            let snapshot = Snapshot {
                ring: 0, geometry: small(), first: small().first(), head, functions: 100, format: Format::Calls,
                is_timed: true, timeline: &timeline,
            };
            memory.copied.set(0);
            let mut heard = Heard::default();
            snapshot.deliver(&memory, &mut heard);
            prop_assert!(memory.copied.get() <= small().slots());
            prop_assert!(heard.records.iter().all(|record| record.function.0 < 100));
            let _ = reader.losses().records();
        }
    }
}

#[test]
fn ring_sizes_are_powers_of_two_in_range() {
    for bytes in [0, 1, 2048, 4097, 6144, 1 << 29, u64::MAX] {
        let error = Geometry::with_bytes(bytes).unwrap_err();
        assert_eq!(error.bytes, bytes);
    }
    assert_eq!(Geometry::with_bytes(1 << 28).unwrap().slots(), 1 << 25);
}
