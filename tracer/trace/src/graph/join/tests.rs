//! Values against a simulated guest: threads that are preempted between a capture and its record, migrate, call in tail
//! position, and lose captures, records or both.

use std::collections::HashMap;

use proptest::prelude::*;
use terms::field::FieldValue;
use terms::function::FunctionId;

use crate::event::{CallValues, Event, EventKind, Moment, Record, RecordKind, Step};
use crate::graph::anomaly::Anomaly;
use crate::stream::{Origin, Pass, Stream, WAITING_MAX};

const STACK: u64 = 16 << 10;
const VCPUS: u16 = 2;
const THREADS: u64 = 3;
const FUNCTIONS: u32 = 3;

/// What a thread does with its next turn.
#[derive(Debug, Clone, Copy)]
enum Act {
    Call(u32),
    Tail(u32),
    Return,
}

/// What becomes of what is written in a turn.
#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    loses_values: bool,
    loses_record: bool,
    /// The thread is elsewhere between the two.
    migrates: bool,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..FUNCTIONS).prop_map(Act::Call),
        1 => (0..FUNCTIONS).prop_map(Act::Tail),
        5 => Just(Act::Return),
    ]
}

fn fate() -> impl Strategy<Value = Fate> {
    let rarely = || prop_oneof![9 => Just(false), 1 => Just(true)];
    (rarely(), rarely(), any::<bool>()).prop_map(|(loses_values, loses_record, migrates)| Fate {
        loses_values,
        loses_record,
        migrates,
    })
}

/// What a ring holds, and up to when a loss in it may have been.
#[derive(Debug, Clone)]
enum Item {
    Record(Record),
    Values(u64, CallValues),
    Lost(u64),
}

#[derive(Debug, Default)]
struct Guest {
    time: u64,
    calls: u64,
    /// Of each thread, the calls that are open: number, function, slot, whether it was entered by a jump.
    open: HashMap<u64, Vec<(u64, u32, u64, bool)>>,
    /// Those of the graph, then those of values.
    rings: [Vec<Item>; 2 * VCPUS as usize],
    /// The call that each record's time belongs to.
    truth: HashMap<u64, (u64, Moment)>,
    is_lossy: bool,
}

impl Guest {
    fn now(&mut self) -> u64 {
        self.time += 10;
        self.time
    }

    fn value(call: u64, moment: Moment) -> FieldValue {
        FieldValue::Unsigned(2 * call + moment as u64)
    }

    fn write(&mut self, vcpu: u16, call: u64, function: u32, step: Step, slot: u64, fate: Fate) {
        let moment = match step {
            Step::Exit => Moment::Exit,
            _ => Moment::Entry,
        };
        let time = self.now();
        let values = CallValues {
            function: FunctionId(function),
            moment,
            slot,
            values: [Self::value(call, moment)].into(),
        };
        let ring = usize::from(VCPUS + vcpu);
        if fate.loses_values {
            self.rings[ring].push(Item::Lost(time));
        } else {
            self.rings[ring].push(Item::Values(time, values));
        }
        let vcpu = if fate.migrates {
            (vcpu + 1) % VCPUS
        } else {
            vcpu
        };
        let time_ns = self.now();
        self.truth.insert(time_ns, (call, moment));
        self.is_lossy |= fate.loses_values || fate.loses_record;
        let kind = RecordKind::Graph {
            function: FunctionId(function),
            step,
            slot,
        };
        let record = match fate.loses_record {
            true => Item::Lost(time_ns),
            false => Item::Record(Record { time_ns, kind }),
        };
        self.rings[usize::from(vcpu)].push(record);
    }

    fn act(&mut self, vcpu: u16, thread: u64, act: Act, fate: Fate) {
        let top = (thread + 1) * STACK - 64;
        let open = self.open.entry(thread).or_default();
        let last = open.last().copied();
        match act {
            Act::Call(function) if open.len() < 40 => {
                // Often the same slot again, as loops do.
                let slot = last.map_or(top, |(.., slot, _)| slot - 16);
                self.calls += 1;
                open.push((self.calls, function, slot, false));
                self.write(vcpu, self.calls, function, Step::Entry, slot, fate);
            }
            Act::Tail(function) => {
                let Some((.., slot, _)) = last else { return };
                self.calls += 1;
                open.push((self.calls, function, slot, true));
                self.write(vcpu, self.calls, function, Step::Tail, slot, fate);
            }
            Act::Return | Act::Call(_) => {
                while let Some((call, function, slot, is_tail)) =
                    self.open.get_mut(&thread).and_then(Vec::pop)
                {
                    if !is_tail {
                        self.write(vcpu, call, function, Step::Exit, slot, fate);
                        break;
                    }
                }
            }
        }
    }

    /// Reads all rings in pieces, each ring as far as some point in time, and never backwards.
    fn read(&self, looks: &[u64]) -> (Vec<Event>, Stream) {
        let stream = Stream::of_graph(VCPUS, STACK, WAITING_MAX).unwrap();
        let mut stream = stream.with_values();
        for function in 0..FUNCTIONS {
            for moment in [Moment::Entry, Moment::Exit] {
                stream.expect_values(FunctionId(function), moment);
            }
        }
        let mut seen = Vec::new();
        let mut next = [0; 2 * VCPUS as usize];
        let looks = looks.iter().map(|part| self.time * part / 100);
        for (look, ring) in looks.chain([u64::MAX; 4]).zip((0..2 * VCPUS).cycle()) {
            let index = usize::from(ring);
            let origin = match ring.checked_sub(VCPUS) {
                None => Origin::Calls(ring),
                Some(vcpu) => Origin::Points(vcpu),
            };
            while let Some(item) = self.rings[index].get(next[index]) {
                let time = match item {
                    Item::Record(event) => event.time_ns,
                    Item::Values(time, _) | Item::Lost(time) => *time,
                };
                if time > look {
                    break;
                }
                next[index] += 1;
                match item {
                    Item::Record(record) => stream.rings().push(origin, vec![record.clone()], 0),
                    Item::Values(time_ns, values) => {
                        let (time_ns, values) = (*time_ns, Box::new(values.clone()));
                        let kind = RecordKind::Captured(values);
                        stream
                            .rings()
                            .push(origin, vec![Record { time_ns, kind }], 0);
                    }
                    // Of values that are lost nothing is told.
                    Item::Lost(time) if ring < VCPUS => {
                        let kind = RecordKind::Lost(1);
                        let time_ns = time.saturating_sub(25);
                        let after = self.rings[index].get(next[index]);
                        let until = after.map_or(u64::MAX, |after| match after {
                            Item::Record(event) => event.time_ns,
                            Item::Values(time, _) | Item::Lost(time) => *time,
                        });
                        stream.rings().push(
                            origin,
                            vec![Record { time_ns, kind }],
                            until.min(look),
                        );
                    }
                    Item::Lost(_) => {}
                }
            }
            stream.rings().looked(origin, look);
            stream.pass_on(Pass::Round, &mut seen);
        }
        stream.finish(&mut seen);
        (seen, stream)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A call has its own values or none; and all have theirs if nothing was lost.
    #[test]
    fn values_are_those_of_the_call_or_missing(
        acts in prop::collection::vec((0..VCPUS, 0..THREADS, act(), fate()), 1..200),
        is_lossy in any::<bool>(),
        looks in prop::collection::vec(0..100u64, 0..40),
    ) {
        let mut guest = Guest::default();
        for (vcpu, thread, act, fate) in acts {
            let fate = if is_lossy { fate } else { Fate { migrates: fate.migrates, ..Fate::default() } };
            guest.act(vcpu, thread, act, fate);
        }
        // A ring is never looked at for an earlier time than before.
        let mut looks = looks;
        looks.sort_unstable();
        let (seen, stream) = guest.read(&looks);
        let mut with = 0;
        for event in &seen {
            let moment = match event.kind {
                EventKind::Entry(_) => Moment::Entry,
                EventKind::Exit { .. } => Moment::Exit,
                _ => continue,
            };
            if let Some(values) = &event.values {
                with += 1;
                let truth = guest.truth.get(&event.time_ns);
                let expected = truth.map(|(call, of)| (Guest::value(*call, *of), *of));
                prop_assert_eq!(values.first().cloned().map(|value| (value, moment)), expected);
            }
        }
        let joined = stream.joined();
        let missing = stream.anomalies().unwrap().count(Anomaly::NoValues);
        prop_assert_eq!(joined.without, missing);
        prop_assert!(with <= joined.with);
        if !guest.is_lossy {
            prop_assert_eq!((joined.without, joined.unclaimed), (0, 0));
            prop_assert_eq!(joined.with, guest.truth.len() as u64);
        }
    }
}

fn values(function: u32, slot: u64, value: u64) -> CallValues {
    CallValues {
        function: FunctionId(function),
        moment: Moment::Entry,
        slot,
        values: [FieldValue::Unsigned(value)].into(),
    }
}

#[test]
fn what_a_lost_record_leaves_is_not_given_to_the_next_call() {
    use super::{Found, Join};
    let mut join = Join::default();
    join.expect(FunctionId(1), Moment::Entry);
    let record = |join: &mut Join| join.record(false, FunctionId(1), Step::Entry, 64);
    // Its record is lost, and so is what the next call captures.
    join.captured(10, false, values(1, 64, 1));
    join.lost(20);
    assert_eq!(record(&mut join), Found::Missing);
    // What was captured before the end of the loss is not certain either.
    join.captured(20, false, values(1, 64, 2));
    assert_eq!(record(&mut join), Found::Missing);
    join.captured(21, false, values(1, 64, 3));
    assert!(matches!(record(&mut join), Found::Values(_)));
    // Another function's, and one that comes late.
    join.captured(30, false, values(2, 64, 4));
    assert_eq!(record(&mut join), Found::Missing);
    join.captured(40, true, values(1, 64, 5));
    assert_eq!(record(&mut join), Found::Missing);
    join.captured(50, false, values(1, 64, 6));
    assert_eq!(
        join.record(true, FunctionId(1), Step::Entry, 64),
        Found::Missing
    );
    let joined = join.joined();
    assert_eq!((joined.with, joined.without, joined.unclaimed), (1, 5, 5));
}

#[test]
fn captures_whose_calls_never_come_take_bounded_memory() {
    use super::{Join, WAITING_MAX};
    let mut join = Join::default();
    let many = 3 * WAITING_MAX as u64;
    for call in 0..many {
        join.captured(call + 1, false, values(1, 8 * call, call));
        assert!(join.waiting.len() <= WAITING_MAX);
    }
    assert_eq!(join.joined().unclaimed, many - join.waiting.len() as u64);
}

/// In a file that comes from somebody each has thousands of values, of a byte in the file.
#[test]
fn captures_whose_calls_never_come_take_bounded_memory_however_large_they_are() {
    use super::{Join, weight};
    let large = |slot, count: usize| CallValues {
        values: vec![FieldValue::Fault; count].into(),
        ..values(1, slot, 0)
    };
    let one = weight(&large(0, 100).values);
    let mut join = Join::default();
    join.keep_within(3 * one);
    let taken = |join: &Join| {
        let each = join.waiting.values();
        each.map(|waiting| weight(&waiting.values)).sum::<usize>()
    };
    let mut most = 0;
    for call in 0..100 {
        join.captured(call + 1, false, large(8 * call, 100));
        assert_eq!(join.bytes, taken(&join));
        most = most.max(join.bytes);
    }
    assert_eq!(most, 3 * one);
    assert_eq!(join.joined().unclaimed, 100 - join.waiting.len() as u64);
    // What a slot had before counts no longer, nor what a record has taken, nor what is dropped.
    join.captured(200, false, large(8 * 99, 1));
    assert_eq!(join.bytes, taken(&join));
    join.record(false, FunctionId(1), Step::Entry, 8 * 99);
    assert_eq!(join.bytes, taken(&join));
    join.captured(201, false, large(0, 1));
    join.lost(202);
    assert_eq!(join.bytes, 0);
}
