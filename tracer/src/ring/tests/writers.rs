//! Writers that are late, moved or never come back, and what a reader of their ring says of them.

use super::*;

#[test]
fn a_writer_that_never_comes_back_does_not_stop_the_ring() {
    for mode in [Mode::Overwrite, Mode::Discard] {
        let mut host = Host::new(1, mode);
        // Preempted between the reservation and the store.
        host.guest.run(Op::Step {
            writer: 0,
            instructions: 4,
        });
        host.guest.run(Op::Burst { vcpu: 0, calls: 10 });
        host.poll(0, Patience::Ticks(1_000));
        assert_eq!(host.readers[0].0.delivered(), 0, "still waited for");
        host.poll(0, Patience::Ticks(0));
        assert_eq!(host.readers[0].0.delivered(), 10);
        for _ in 0..20 {
            host.guest.run(Op::Burst {
                vcpu: 0,
                calls: 200,
            });
            host.poll(0, Patience::Ticks(0));
        }
        let losses = host.readers[0].0.losses();
        assert_eq!(host.readers[0].0.delivered() + losses.discarded, 4010);
        // The next lap filled its slot.
        assert_eq!(losses.overwritten + losses.abandoned, 1);
        // Full when its slot was next, until it was given up at the next poll.
        assert!(losses.discarded < 200, "{losses:?}");
        assert_eq!(losses.discarded > 0, mode == Mode::Discard);
    }
}

/// Who waits for the writer of a slot lets its vCPU continue: so it comes, however long that takes.
#[test]
fn a_ring_that_loses_nothing_keeps_a_slot_for_ten_times_as_long() {
    let mut host = Host::new(1, Mode::Lossless);
    host.guest.run(Op::Step {
        writer: 0,
        instructions: 4,
    });
    let calls = small().slots();
    let calls = u32::try_from(calls).unwrap();
    host.guest.run(Op::Burst { vcpu: 0, calls });
    let patience = 1_000_000_000;
    (0..20).for_each(|_| host.poll(0, Patience::Ticks(patience)));
    let full = small().slots() * 15 / 16;
    assert_eq!(host.readers[0].0.reserved(), full, "it is full");
    host.guest.run(Op::Step {
        writer: 0,
        instructions: 1,
    });
    host.poll(0, Patience::Ticks(patience));
    let (reader, ..) = &host.readers[0];
    assert_eq!(reader.delivered(), full);
    assert_eq!(reader.losses().abandoned, 0);
}

/// It was once: the next lap filled the slot of a writer that was preempted for as long.
#[test]
fn a_ring_that_discards_keeps_the_slot_of_a_preempted_writer() {
    let mut host = Host::new(1, Mode::Discard);
    host.guest.run(Op::Step {
        writer: 0,
        instructions: 4,
    });
    for _ in 0..20 {
        let calls = 200;
        host.guest.run(Op::Burst { vcpu: 0, calls });
        host.poll(0, Patience::Ticks(1_000_000));
    }
    let (reader, ..) = &host.readers[0];
    assert_eq!(reader.reserved(), small().slots() * 15 / 16, "it is full");
    host.guest.run(Op::Step {
        writer: 0,
        instructions: 1,
    });
    for _ in 0..2 {
        host.guest.run(Op::Burst {
            vcpu: 0,
            calls: 100,
        });
        host.poll(0, Patience::Ticks(1_000_000));
    }
    let (reader, ..) = &host.readers[0];
    let losses = reader.losses();
    assert_eq!(reader.delivered() + losses.discarded, 4201);
    assert_eq!(reader.delivered(), reader.reserved(), "{losses:?}");
    assert_eq!(losses.records(), losses.discarded, "{losses:?}");
    assert!(reader.reserved() > small().slots(), "it continues");
}

/// Patience is with each slot that fills the ring, not with all of them together.
#[test]
fn a_ring_that_discards_gives_up_lost_writers_one_by_one() {
    let mut host = Host::new(1, Mode::Discard);
    for writer in 0..2 {
        host.guest.run(Op::Step {
            writer,
            instructions: 4,
        });
        host.guest.run(Op::Burst { vcpu: 0, calls: 9 });
    }
    host.poll(0, Patience::Ticks(0));
    let room = small().slots() * 15 / 16;
    // The lost slots are the first and the eleventh; then the whole ring is free.
    for (patience, more) in [
        (1_000_000, 0),
        (0, 0),
        (1_000_000, 10),
        (0, 10),
        (0, 10 + room),
    ] {
        host.guest.run(Op::Burst {
            vcpu: 0,
            calls: 1_000,
        });
        host.poll(0, Patience::Ticks(patience));
        let (reader, ..) = &host.readers[0];
        assert_eq!(reader.reserved() - room, more, "{patience}");
    }
}

#[test]
fn a_late_writer_is_delivered_while_its_slot_is_its_own() {
    let mut host = Host::new(1, Mode::Overwrite);
    host.guest.run(Op::Step {
        writer: 0,
        instructions: 4,
    });
    host.guest.run(Op::Burst { vcpu: 0, calls: 10 });
    host.poll(0, Patience::Ticks(0));
    host.guest.run(Op::Step {
        writer: 0,
        instructions: 1,
    });
    host.guest.run(Op::Burst { vcpu: 0, calls: 3 });
    host.poll(0, Patience::Ticks(0));
    let (reader, _, heard) = &host.readers[0];
    assert_eq!(reader.delivered(), 14);
    assert_eq!(reader.losses().records(), 0);
    // Its reader is told that others went before.
    assert_eq!(heard.late, [10]);
    let late = heard.records[10];
    assert_eq!(late.position, small().first());
    // Its own time, as of any other.
    let (calls, _) = host.guest.calls();
    assert_eq!(late.ticks, calls[0].time);
    assert!(late.ticks < heard.records[9].ticks);
}

/// It has compared the head of one ring, with that ring's number, with the limit of another.
#[test]
fn a_writer_that_is_moved_between_its_two_looks_is_not_lost() {
    for (from, to) in [(0, 1), (1, 0)] {
        let mut host = Host::new(2, Mode::Discard);
        let step = |instructions| Op::Step {
            writer: 0,
            instructions,
        };
        let moved = |vcpu| Op::Migrate { writer: 0, vcpu };
        for op in [moved(from), step(1), moved(to), step(8)] {
            host.guest.run(op);
        }
        host.poll(to, Patience::Over);
        let (_, lost) = host.guest.calls();
        assert_eq!(lost, 0, "{from} to {to}");
        assert_eq!(host.readers[to].0.delivered(), 1, "{from} to {to}");
    }
}

/// One slot, of which the two words may be of different laps.
struct TwoWords {
    record: Record,
    detail: Detail,
}

impl RingMemory for TwoWords {
    fn load(&self, _ring: u16, word: CellWord) -> u64 {
        match word {
            CellWord::Head => small().first().after(1).word(0),
            CellWord::Limit | CellWord::Lost => 0,
        }
    }

    fn store(&self, _ring: u16, _word: CellWord, _value: u64) {}

    fn copy(&self, _ring: u16, _slot: u64, into: &mut [u64]) {
        into.fill(self.record.0);
    }

    fn copy_details(&self, _ring: u16, _slot: u64, into: &mut [u64]) {
        into.fill(self.detail.0);
    }
}

/// The writer of a later lap has stored its second word, and not yet its first: the step and the stack slot are
/// those of another call.
#[test]
fn the_second_word_of_another_lap_is_not_taken_for_a_records() {
    let formats = [Format::Graph, Format::Callers];
    let marks = [(1, true), (2, false), (0, false)];
    for (format, (mark, is_whole)) in formats
        .into_iter()
        .flat_map(|format| marks.map(|mark| (format, mark)))
    {
        let memory = TwoWords {
            record: Record::new(5, FunctionId(7), 1),
            detail: Detail::new(0x1000, Step::Entry, mark),
        };
        let mut reader = RingReader::new(0, small(), Mode::Overwrite, 100).of(format);
        let head = reader.look(&memory);
        let timeline = Timeline::of_one(head, Moment::exact(1 << 40));
        let mut heard = Heard::default();
        let snapshot = Snapshot {
            ring: 0,
            geometry: small(),
            first: small().first(),
            head,
            functions: 100,
            format,
            is_timed: true,
            timeline: &timeline,
        };
        snapshot.deliver(&memory, &mut heard);
        let expected = (usize::from(is_whole), u64::from(!is_whole));
        assert_eq!(
            (heard.records.len(), heard.lost),
            expected,
            "snapshot, {mark}"
        );
        let mut heard = Heard::default();
        reader.drain(&memory, &timeline, Patience::Over, &mut heard);
        assert_eq!(
            (heard.records.len(), heard.lost),
            expected,
            "reader, {mark}"
        );
        assert_eq!(reader.losses().overwritten, u64::from(!is_whole));
    }
}

/// Records made in a stretch in which nobody looked: all of them are delivered and counted, and no others.
#[test]
fn records_of_a_late_look_are_delivered_and_counted() {
    for is_read in [true, false] {
        let mut host = Host::new(1, Mode::Overwrite);
        for (calls, wait) in [(10, 5), (20, 2 * ROUND), (30, 5)] {
            host.guest.run(Op::Burst { vcpu: 0, calls });
            host.guest.wait(wait);
            if is_read {
                host.poll(0, Patience::Ticks(0));
            } else {
                host.look(0);
            }
        }
        let (reader, timeline, heard) = &mut host.readers[0];
        let mut doubts = *reader.doubts();
        if !is_read {
            let snapshot = Snapshot {
                ring: 0,
                geometry: small(),
                first: small().first(),
                head: reader.head(),
                functions: FUNCTIONS_MAX,
                format: Format::Calls,
                is_timed: true,
                timeline,
            };
            doubts = snapshot.deliver(&host.guest, heard);
        }
        assert_eq!(heard.records.len(), 60);
        let late = |record: &&Delivered| record.doubt == Some(TimeDoubt::Late);
        assert_eq!(heard.records.iter().filter(late).count(), 20);
        assert_eq!(doubts.count(TimeDoubt::Late), 20);
        assert_eq!(doubts.records(), 20);
        let (calls, _) = host.guest.calls();
        for (record, call) in heard.records.iter().zip(&calls) {
            let is_right = record.ticks == call.time;
            assert!(is_right || record.doubt.is_some(), "{record:?} {call:?}");
        }
    }
}

/// A guest that calls traced functions between any two accesses of the host: held, it counts each.
#[derive(Debug, Default)]
struct Busy {
    limit: Cell<u64>,
    lost: Cell<u64>,
}

impl RingMemory for Busy {
    fn load(&self, _: u16, word: CellWord) -> u64 {
        if self.limit.get() == LIMIT_HOLD {
            self.lost.set(self.lost.get() + 1);
        }
        match word {
            CellWord::Head => small().first().word(0),
            CellWord::Limit => self.limit.get(),
            CellWord::Lost => self.lost.get(),
        }
    }

    fn store(&self, _: u16, word: CellWord, value: u64) {
        match word {
            CellWord::Limit => self.limit.set(value),
            CellWord::Lost => self.lost.set(value),
            CellWord::Head => {}
        }
    }

    fn copy(&self, _: u16, _: u64, into: &mut [u64]) {
        into.fill(0);
    }

    fn copy_details(&self, _: u16, _: u64, into: &mut [u64]) {
        into.fill(0);
    }
}

#[test]
fn what_is_lost_from_the_moment_on_that_a_ring_is_held_is_lost_by_that() {
    let memory = Busy::default();
    let mut reader = RingReader::new(0, small(), Mode::Overwrite, FUNCTIONS_MAX);
    reader.initialise(&memory);
    reader.switch(&memory, true);
    let before = reader.hold(&memory);
    for _ in 0..5 {
        memory.load(0, CellWord::Head);
    }
    reader.release(&memory);
    assert_eq!(memory.load(0, CellWord::Lost) - before, 5);
    // All that is lost in this mode is lost by holds.
    assert_eq!(memory.lost.get(), 5);
    // One that is off is not held.
    reader.switch(&memory, false);
    assert_eq!(reader.hold(&memory), 5);
    assert_eq!(memory.load(0, CellWord::Limit), LIMIT_OFF);
}
