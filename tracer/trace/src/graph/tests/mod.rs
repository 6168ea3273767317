//! Reconstruction against a simulated guest: threads with stacks of their own that are preempted and
//! migrate, call in tail position, die in the middle, and lose records.

use std::collections::HashMap;
use std::slice;

use proptest::prelude::*;
use terms::function::FunctionId;

use super::join::Found;
use super::rules::{Rules, Threshold};
use super::selection::Selection;
use super::threads::Threads;
use super::*;
use crate::columns::{Columns, Part};
use crate::event::{End, Event, EventKind, Record, RecordKind, Step, Timed};
use crate::form::Form;
use crate::stream::merge::Merge;
use crate::stream::{Origin, Pass, Stream};
use crate::testing::{event, popped};

mod apart;
mod by_hand;
mod edges;
mod expected;
mod order;
mod ties;

const STACK: u64 = 16 << 10;

/// What a thread does next.
#[derive(Debug, Clone, Copy)]
enum Act {
    Call(u32),
    Tail(u32),
    Unhooked(u32),
    Return,
    /// The thread ends where it is; a new one gets its stack.
    Die,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (0..8u32).prop_map(Act::Call),
        1 => (0..8u32).prop_map(Act::Tail),
        1 => (0..8u32).prop_map(Act::Unhooked),
        6 => Just(Act::Return),
    ]
}

fn act_or_death() -> impl Strategy<Value = Act> {
    prop_oneof![30 => act(), 1 => Just(Act::Die)]
}

/// One call as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Truth {
    thread: u64,
    function: u32,
    entered: u64,
    duration: Option<u64>,
}

/// A guest of threads, each with the slots, functions and entry times of its open calls.
#[derive(Debug, Default)]
struct Guest {
    time: u64,
    open: HashMap<u64, Vec<(u64, u32, u64)>>,
    /// Each ring's records, with the thread that made each.
    rings: Vec<Vec<Record>>,
    truth: Vec<Truth>,
}

impl Guest {
    fn new(vcpus: usize) -> Self {
        Self {
            rings: vec![Vec::new(); vcpus],
            ..Self::default()
        }
    }

    fn record(&mut self, vcpu: usize, function: u32, step: Step, slot: u64) {
        self.rings[vcpu].push(Record {
            time_ns: self.time,
            kind: RecordKind::Graph {
                function: FunctionId(function),
                step,
                slot,
            },
        });
    }

    fn act(&mut self, thread: u64, vcpu: usize, act: Act, passes: u64) {
        self.time += passes;
        let top = (thread + 1) * STACK - 64;
        let open = self.open.entry(thread).or_default();
        let last = open.last().copied();
        let below = last.map_or(top, |(slot, ..)| slot - 32);
        let (time, known) = (self.time, |function, entered, duration| Truth {
            thread,
            function,
            entered,
            duration,
        });
        match (act, last) {
            (Act::Call(function), _) if open.len() < 200 => {
                open.push((below, function, time));
                self.record(vcpu, function, Step::Entry, below);
            }
            (Act::Tail(function), Some((slot, ..))) if open.len() < 200 => {
                open.push((slot, function, time));
                self.record(vcpu, function, Step::Tail, slot);
            }
            (Act::Unhooked(function), _) => {
                self.truth.push(known(function, time, None));
                self.record(vcpu, function, Step::Unhooked, below);
            }
            (Act::Return, Some((slot, ..))) => {
                let mut hooked = 0;
                while let Some((_, function, entered)) = open.pop_if(|call| call.0 == slot) {
                    hooked = function;
                    self.truth
                        .push(known(function, entered, Some(time - entered)));
                }
                self.record(vcpu, hooked, Step::Exit, slot);
            }
            (Act::Die, _) => {
                for (_, function, entered) in std::mem::take(open) {
                    self.truth.push(known(function, entered, None));
                }
            }
            _ => {}
        }
    }

    /// All calls that were made, with their durations; those that are open have none.
    fn calls(mut self) -> Vec<Truth> {
        for (thread, open) in self.open {
            for (_, function, entered) in open {
                self.truth.push(Truth {
                    thread,
                    function,
                    entered,
                    duration: None,
                });
            }
        }
        self.truth.sort_unstable();
        self.truth
    }
}

/// Checks that each thread's steps are well nested and in order; returns its calls.
fn calls(steps: &[Event]) -> Vec<Truth> {
    let mut open: HashMap<u32, Vec<(u32, u64)>> = HashMap::new();
    let mut last: HashMap<u32, u64> = HashMap::new();
    let mut calls = Vec::new();
    let mut add = |thread: u32, (function, entered), duration| {
        calls.push(Truth {
            thread: thread.into(),
            function,
            entered,
            duration,
        });
    };
    for step in steps {
        let before = last.insert(step.thread, step.time_ns).unwrap_or(0);
        assert!(before <= step.time_ns, "back in time: {step:?}");
        let open = open.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(function) => {
                assert_eq!(step.depth as usize, open.len());
                open.push((function.0, step.time_ns));
            }
            EventKind::Exit {
                function,
                duration,
                end,
            } => {
                let call = open.pop().expect("an exit has its entry");
                assert_eq!((call.0, step.depth as usize), (function.0, open.len()));
                assert_eq!(duration.is_some(), end == End::Returned);
                assert!(duration.is_none_or(|ns| ns == step.time_ns - call.1));
                add(step.thread, call, duration);
            }
            _ => {}
        }
    }
    for (thread, open) in open {
        open.into_iter().for_each(|call| add(thread, call, None));
    }
    calls.sort_unstable();
    calls
}

/// The next record of a ring, as one that was read by itself.
fn push(stream: &mut Stream, vcpu: usize, record: &Record, until_ns: u64) {
    let ring = Origin::Calls(u16::try_from(vcpu).unwrap());
    stream
        .rings()
        .push(ring, columns(slice::from_ref(record)), until_ns);
}

/// Records as they are read.
fn columns(records: &[Record]) -> Columns {
    let mut columns = Columns::new(STACK);
    records.iter().for_each(|record| columns.record(record));
    columns
}

/// A stream of as many rings.
fn stream(rings: usize, waiting: usize) -> Stream {
    Stream::of_graph(u16::try_from(rings).unwrap(), STACK, waiting).unwrap()
}

/// Feeds the rings in rounds of these lengths, as a drain does.
fn reconstruct(rings: &[Vec<Record>], rounds: &[usize]) -> (Vec<Event>, Anomalies) {
    let mut stream = stream(rings.len(), 1 << 20);
    let mut steps = Vec::new();
    let mut done = vec![0; rings.len()];
    for (round, length) in rounds.iter().cycle().enumerate() {
        let index = round % rings.len();
        let ring = &rings[index];
        let end = ring.len().min(done[index] + length);
        for event in &ring[done[index]..end] {
            push(&mut stream, index, event, event.time_ns);
        }
        done[index] = end;
        let next_ns = ring.get(end).map_or(u64::MAX, |next| next.time_ns);
        let origin = Origin::Calls(u16::try_from(index).unwrap());
        stream.rings().looked(origin, next_ns);
        stream.pass_on(Pass::Round, &mut steps);
        if done
            .iter()
            .zip(rings)
            .all(|(done, ring)| *done == ring.len())
        {
            break;
        }
    }
    stream.finish(&mut steps);
    let anomalies = stream.anomalies().unwrap();
    (steps, anomalies)
}

/// Gives the simulated threads the numbers that they are shown with.
fn renumbered(mut truth: Vec<Truth>, rings: &[Vec<Record>]) -> Vec<Truth> {
    let mut events: Vec<&Record> = rings.iter().flatten().collect();
    events.sort_by_key(|event| event.time_ns);
    let mut numbers: HashMap<u64, u64> = HashMap::new();
    for event in events {
        if let RecordKind::Graph { slot, .. } = event.kind {
            let next = numbers.len() as u64;
            numbers.entry(slot / STACK).or_insert(next);
        }
    }
    for call in &mut truth {
        call.thread = numbers[&call.thread];
    }
    truth.sort_unstable();
    truth
}

type Schedule = Vec<(u64, usize, Act, u64)>;

fn schedule(act: impl Strategy<Value = Act>) -> impl Strategy<Value = Schedule> {
    prop::collection::vec((0..5u64, 0..3usize, act, 1..1000u64), 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Without losses every call is found, with its exact duration, on its thread.
    #[test]
    fn calls_are_exact(
        schedule in schedule(act_or_death()),
        rounds in prop::collection::vec(1..50usize, 1..6),
    ) {
        let mut guest = Guest::new(3);
        for (thread, vcpu, act, passes) in schedule {
            guest.act(thread, vcpu, act, passes);
        }
        let rings = guest.rings.clone();
        let truth = renumbered(guest.calls(), &rings);
        let (steps, anomalies) = reconstruct(&rings, &rounds);
        prop_assert_eq!(calls(&steps), truth);
        for anomaly in [Anomaly::SharedStack, Anomaly::UnmatchedExit, Anomaly::Unsure, Anomaly::Late] {
            prop_assert_eq!(anomalies.count(anomaly), 0, "{:?}", anomaly);
        }
    }

    /// With losses calls are missing or of unknown duration, but no duration is wrong.
    #[test]
    fn no_duration_is_wrong_after_losses(
        schedule in schedule(act_or_death()),
        losses in prop::collection::vec((0..3usize, any::<prop::sample::Index>(), 1..20usize), 1..6),
        rounds in prop::collection::vec(1..50usize, 1..6),
    ) {
        let mut guest = Guest::new(3);
        for (thread, vcpu, act, passes) in schedule {
            guest.act(thread, vcpu, act, passes);
        }
        let mut rings = guest.rings.clone();
        let truth = renumbered(guest.calls(), &rings);
        for (ring, at, length) in losses {
            let ring = &mut rings[ring];
            if ring.is_empty() {
                continue;
            }
            let start = at.index(ring.len());
            let end = ring.len().min(start + length);
            let time_ns = start.checked_sub(1).map_or(0, |before| ring[before].time_ns);
            let kind = RecordKind::Lost((end - start) as u64);
            ring.splice(start..end, [Record { time_ns, kind }]);
        }
        let (steps, _) = reconstruct_lossy(&rings, &rounds);
        for call in calls(&steps).iter().filter(|call| call.duration.is_some()) {
            let is_true = truth.iter().any(|other| {
                (other.function, other.entered, other.duration)
                    == (call.function, call.entered, call.duration)
            });
            prop_assert!(is_true, "{:?} is not among {:?}", call, truth);
        }
    }

    /// Whatever a hostile guest writes, steps are well nested and memory is bounded.
    #[test]
    fn nonsense_does_no_harm(
        events in prop::collection::vec((0..4u16, any::<u32>(), 0..4u8, any::<u64>(), 0..9u64), 0..400),
    ) {
        let mut stream = stream(3, 50);
        let mut steps = Vec::new();
        for (time_ns, (vcpu, function, step, slot, narrow)) in (0..).zip(events) {
            let step = [Step::Entry, Step::Exit, Step::Tail, Step::Unhooked][usize::from(step)];
            let slot = if narrow > 0 { narrow * 8 } else { slot };
            let function = FunctionId(function % 3);
            let kind = RecordKind::Graph { function, step, slot };
            push(&mut stream, vcpu.into(), &Record { time_ns, kind }, 0);
            stream.pass_on(Pass::Round, &mut steps);
        }
        stream.finish(&mut steps);
        calls(&steps);
    }

    /// What is selected is exactly what the rules ask for, each thread's steps in their order: no call more, none less.
    #[test]
    fn a_selection_is_what_was_asked_for(
        schedule in schedule(act()),
        losses in prop::collection::vec((any::<prop::sample::Index>(), 0..3u32), 0..4),
        depth in prop::option::of(1..5u32),
        threshold in prop::option::of(prop_oneof![0..3000u64, Just(u64::MAX)]),
        roots in prop::collection::vec(prop::sample::select(vec!["f1", "f2", "f[34]"]), 0..2),
        notrace in prop::collection::vec(prop::sample::select(vec!["f5", "f1"]), 0..2),
    ) {
        let mut guest = Guest::new(3);
        for (thread, vcpu, act, passes) in schedule {
            guest.act(thread, vcpu, act, passes);
        }
        let (mut steps, _) = reconstruct(&guest.rings, &[7]);
        for (at, thread) in losses {
            let at = at.index(steps.len() + 1);
            lose(&mut steps, at, thread);
        }
        // Often just the time that some call took.
        let taken = calls(&steps).iter().filter_map(|call| call.duration).max();
        let threshold = threshold.map(|wanted| if wanted == u64::MAX { taken.unwrap_or(0) } else { wanted });
        let owned = |globs: &[&str]| globs.iter().map(|&g| g.to_owned()).collect::<Vec<_>>();
        let rules = Rules::new(
            depth.and_then(std::num::NonZeroU32::new),
            &owned(&roots),
            &owned(&notrace),
            threshold.map(|nanoseconds| Threshold { nanoseconds }),
        )
        .unwrap();
        let expected = expected::selected(&steps, &rules);
        let mut selection = Selection::new(rules);
        for function in 0..8 {
            selection.add_function(&format!("f{function}"), None);
        }
        let mut shown = Vec::new();
        for step in &steps {
            selection.call(step.clone(), &mut shown);
        }
        selection.finish(&mut shown);
        calls(&shown);
        prop_assert_eq!(expected::by_thread(shown), expected);
    }
}

/// Puts a loss into the steps of a thread.
fn lose(steps: &mut Vec<Event>, at: usize, thread: u32) {
    let before = &steps[..at];
    let time_ns = before.last().map_or(0, |step| step.time_ns);
    let depth =
        before
            .iter()
            .filter(|step| step.thread == thread)
            .fold(0, |depth, step| match step.kind {
                EventKind::Entry(_) => depth + 1,
                EventKind::Exit { .. } => depth - 1,
                _ => depth,
            });
    let loss = Event {
        time_ns,
        vcpu: 0,
        thread,
        depth,
        kind: EventKind::Lost(1),
        values: None,
    };
    steps.insert(at, loss);
}

/// As [`reconstruct`]; a loss may have happened up to the next record of its ring.
fn reconstruct_lossy(rings: &[Vec<Record>], _rounds: &[usize]) -> (Vec<Event>, Anomalies) {
    let mut stream = stream(rings.len(), usize::MAX);
    for (vcpu, ring) in rings.iter().enumerate() {
        for (index, event) in ring.iter().enumerate() {
            let next = ring.get(index + 1..).unwrap_or_default().iter();
            let mut next = next.filter(|next| !matches!(next.kind, RecordKind::Lost(_)));
            let until_ns = next.next().map_or(u64::MAX, |next| next.time_ns);
            push(&mut stream, vcpu, event, until_ns);
        }
    }
    let mut steps = Vec::new();
    stream.finish(&mut steps);
    let anomalies = stream.anomalies().unwrap();
    (steps, anomalies)
}

fn graph(time_ns: u64, vcpu: u16, step: Step, function: u32, slot: u64) -> Timed {
    let function = FunctionId(function);
    let kind = RecordKind::Graph {
        function,
        step,
        slot,
    };
    Timed {
        record: Record { time_ns, kind },
        vcpu,
        time_ns,
        until_ns: 0,
        is_late: false,
        is_tied: false,
    }
}

fn run(events: &[Timed]) -> (Vec<Event>, Anomalies) {
    let mut threads = Threads::new(STACK).unwrap();
    let mut steps = Vec::new();
    for event in events {
        threads.record(event, Found::Nothing, &mut steps);
    }
    threads.advance(u64::MAX, &mut steps);
    (steps, threads.anomalies().clone())
}

#[test]
fn a_ring_that_waits_holds_the_others_back_until_too_much_waits() {
    let mut merge = Merge::new(2, 3);
    merge.looked(1, 10);
    for time in [5, 20, 30] {
        merge.push(
            0,
            0,
            Part::Rows(vec![graph(time, 0, Step::Entry, 0, 8).record]),
            0,
        );
    }
    let times = |merge: &mut Merge| -> Vec<(u64, bool)> {
        let popped = popped(merge);
        popped
            .iter()
            .map(|timed| (timed.time_ns, timed.is_late))
            .collect()
    };
    let certain = times(&mut merge);
    assert_eq!(
        certain,
        [(5, false)],
        "ring 1 may still bring something after 10"
    );
    let more = [40, 50].map(|time| graph(time, 0, Step::Entry, 0, 8).record);
    merge.push(0, 0, Part::Rows(more.into()), 0);
    assert_eq!(times(&mut merge), [], "two of them have just come");
    assert_eq!(times(&mut merge), [(20, false)], "too much waits");
    merge.push(
        1,
        1,
        Part::Rows(vec![graph(15, 1, Step::Entry, 0, 8).record]),
        0,
    );
    assert_eq!(times(&mut merge), [(20, true)]);
}

#[test]
fn memory_is_bounded_however_many_stacks_there_are() {
    let mut threads = Threads::new(STACK).unwrap();
    let mut steps = Vec::new();
    for stack in 0..threads::THREADS_MAX as u64 + 10 {
        threads.record(
            &graph(stack, 0, Step::Entry, 1, stack * STACK),
            Found::Nothing,
            &mut steps,
        );
    }
    assert_eq!(threads.anomalies().count(Anomaly::NoRoom), 10);
    assert_eq!(steps.len(), threads::THREADS_MAX);
    let mut chain = Vec::new();
    for time in 0..100_000 {
        threads.record(
            &graph(time, 0, Step::Tail, 1, 64),
            Found::Nothing,
            &mut chain,
        );
    }
    assert!(chain.iter().all(|step| step.depth <= 1 << 14));
}

#[test]
fn thresholds_are_durations_and_microseconds_without_a_unit() {
    for (text, nanoseconds) in [
        ("5ns", 5),
        ("10us", 10_000),
        ("1.5ms", 1_500_000),
        ("10", 10_000),
    ] {
        assert_eq!(text.parse(), Ok(Threshold { nanoseconds }));
    }
    let error = "10m".parse::<Threshold>().unwrap_err().to_string();
    assert!(error.contains("'10m' is no duration"), "{error}");
}

#[test]
fn stack_sizes_are_powers_of_two() {
    for bytes in [0, 1, 4095, 3 << 12, 1 << 31] {
        assert!(
            Threads::new(bytes)
                .unwrap_err()
                .to_string()
                .contains("power of two")
        );
    }
}

fn step(time_ns: u64, thread: u32, kind: EventKind) -> Event {
    event(time_ns, 0, thread, 0, kind)
}

#[test]
fn a_call_that_is_open_at_the_end_is_shown_from_the_threshold_on() {
    let is_shown = |nanoseconds| {
        let threshold = Some(Threshold { nanoseconds });
        let mut selection = Selection::new(Rules {
            threshold,
            ..Rules::default()
        });
        let mut shown = Vec::new();
        selection.call(step(10, 0, EventKind::Entry(FunctionId(0))), &mut shown);
        selection.call(step(60, 1, EventKind::Lost(1)), &mut shown);
        selection.finish(&mut shown);
        shown.iter().any(|step| step.thread == 0)
    };
    assert!(is_shown(50) && !is_shown(51));
}

/// A directory that somebody else wrote names threads as it likes.
#[test]
fn a_thread_of_any_number_takes_no_more_room_than_another() {
    let mut selection = Selection::new(Rules {
        max_depth: std::num::NonZeroU32::new(1),
        ..Rules::default()
    });
    selection.add_function("f", None);
    let mut shown = Vec::new();
    for thread in [u32::MAX, 0, u32::MAX] {
        selection.call(
            step(10, thread, EventKind::Entry(FunctionId(0))),
            &mut shown,
        );
    }
    selection.finish(&mut shown);
    let threads: Vec<u32> = shown.iter().map(|step| step.thread).collect();
    assert_eq!(threads, [u32::MAX, 0]);
}
