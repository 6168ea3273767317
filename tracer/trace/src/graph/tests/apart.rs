//! Many steps at a time, and rings apart, come to what single records in the order of time come to.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::{Act, Guest, Rules, STACK, act_or_death, calls, columns};
use crate::columns::Part;
use crate::event::{Event, EventKind, KeepsApart, Moment, Record, RecordKind, Sink, Step, Timed};
use crate::form::Form;
use crate::graph::join::Found;
use crate::graph::run::OPEN_MAX;
use crate::graph::threads::Threads;
use crate::graph::{Anomalies, Anomaly, Death};
use crate::host::{HostStep, HostThread};
use crate::stream::{Origin, Pass, Stream};
use crate::testing::{Apart, Taking, ThreadEach, functions};
use terms::function::FunctionId;

/// What happens next in a guest whose threads move now and then.
#[derive(Debug, Clone)]
enum Next {
    /// A thread does something.
    Does(u64, Act),
    /// All threads move on to the next vCPU.
    Move,
    /// This vCPU's ring loses the last so many records that it has.
    Lose(usize, usize),
}

fn next() -> impl Strategy<Value = Next> {
    prop_oneof![
        200 => (0..6u64, act_or_death()).prop_map(|(thread, act)| Next::Does(thread, act)),
        3 => Just(Next::Move),
        1 => (0..3usize, 1..9usize).prop_map(|(ring, count)| Next::Lose(ring, count)),
    ]
}

/// The rings of such a guest.
fn rings(story: &[Next]) -> Vec<Vec<Record>> {
    let mut guest = Guest::new(3);
    let mut moved = 0;
    for next in story {
        match next {
            Next::Does(thread, act) => {
                let vcpu = usize::try_from(thread + moved).unwrap() % 3;
                guest.act(*thread, vcpu, *act, 7);
            }
            Next::Move => moved += 1,
            Next::Lose(ring, count) => {
                let ring = &mut guest.rings[*ring];
                let kept = ring.len().saturating_sub(*count);
                let lost = ring.split_off(kept).len() as u64;
                let time_ns = ring.last().map_or(0, |last| last.time_ns);
                let kind = RecordKind::Lost(lost);
                ring.extend((lost > 0).then_some(Record { time_ns, kind }));
            }
        }
    }
    guest.rings
}

/// Feeds the rings in rounds that end at these times, with what is passed on in the middle of each.
fn stream(rings: &[Vec<Record>], ends: &[u64], to: &mut impl Taking) -> Anomalies {
    let mut stream = Stream::of_graph(3, STACK, usize::MAX).unwrap();
    let mut done = [0; 3];
    for end_ns in ends.iter().copied().chain([u64::MAX]) {
        for (vcpu, ring) in (0..).zip(rings) {
            let from = &mut done[usize::from(vcpu)];
            let until = ring.partition_point(|record| record.time_ns < end_ns);
            let records = ring.get(*from..until).unwrap_or_default();
            stream
                .rings()
                .push(Origin::Calls(vcpu), columns(records), end_ns);
            stream.rings().looked(Origin::Calls(vcpu), end_ns);
            *from = until.max(*from);
            to.take(&mut stream, Pass::Certain);
        }
        to.take(&mut stream, Pass::Round);
    }
    to.take(&mut stream, Pass::All);
    stream.anomalies().unwrap()
}

fn by_thread(events: Vec<Event>) -> BTreeMap<u32, Vec<Event>> {
    let mut threads: BTreeMap<u32, Vec<Event>> = BTreeMap::new();
    for event in events {
        threads.entry(event.thread).or_default().push(event);
    }
    threads
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Each thread's events are the same ones in the same order, with the same number, and as much does not fit.
    #[test]
    fn who_keeps_threads_apart_gets_each_as_in_the_order_of_time(
        story in prop::collection::vec(next(), 1..600),
        rounds in prop::collection::vec(1..500u64, 0..9),
        keeps in prop::option::weighted(0.3, 0..6u32),
    ) {
        let rings = rings(&story);
        let ends: Vec<u64> = rounds.iter().scan(0, |end, length| {
            *end += length * 7;
            Some(*end)
        }).collect();
        let (mut ordered, mut apart) = (Vec::new(), Apart::without(keeps));
        let expected = stream(&rings, &ends, &mut ordered);
        let anomalies = stream(&rings, &ends, &mut apart);
        calls(&ordered);
        prop_assert_eq!(anomalies, expected);
        prop_assert_eq!(by_thread(apart.events), by_thread(ordered));
    }

    /// On stacks that others died on, after losses, with tail calls, jumps and without room for hooks.
    #[test]
    fn steps_at_once_are_what_they_are_one_by_one(
        story in prop::collection::vec((0..3u64, act_or_death(), 0..60usize), 1..400),
        deaths in prop::collection::vec((any::<prop::sample::Index>(), 0..3u32, 0..90u64), 0..4),
        losses in prop::collection::vec((any::<prop::sample::Index>(), 0..90u64), 0..3),
    ) {
        let mut guest = Guest::new(1);
        let mut parts = Vec::new();
        for (thread, act, ends) in story {
            guest.act(thread, 0, act, 7);
            if (1..6).contains(&ends) {
                // Nobody knows that it is missing, as where a thread jumps out of its calls.
                guest.rings[0].pop();
            }
            if ends == 0 {
                parts.push(std::mem::take(&mut guest.rings[0]));
            }
        }
        parts.push(std::mem::take(&mut guest.rings[0]));
        let both = [true, false].map(|at_once| {
            let mut threads = Threads::new(STACK).unwrap();
            let mut events = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                let begins = part.first().map_or(0, |first| first.time_ns);
                for (at, thread, alive) in &deaths {
                    if at.index(parts.len()) == index {
                        let alive_ns = begins.saturating_sub(*alive);
                        let gone_ns = alive_ns + 2 * alive;
                        threads.died(Death { thread: *thread, alive_ns, gone_ns });
                    }
                }
                for (at, length) in &losses {
                    if at.index(parts.len()) == index {
                        let record = Record { time_ns: begins, kind: RecordKind::Lost(3) };
                        let lost = Timed { until_ns: begins + length, ..Timed::alone(0, record) };
                        threads.record(&lost, Found::Nothing, &mut events);
                    }
                }
                match columns(part).into_parts().pop() {
                    Some(Part::Steps(steps)) if at_once => threads.steps(steps.all(0), &mut events),
                    _ => for record in part {
                        let timed = Timed::alone(0, record.clone());
                        threads.record(&timed, Found::Nothing, &mut events);
                    },
                }
            }
            threads.advance(u64::MAX, &mut events);
            (events, threads.anomalies().clone(), [0, 1].map(|vcpu| threads.on(vcpu)))
        });
        prop_assert_eq!(&both[0], &both[1]);
    }
}

#[test]
fn calls_are_selected_also_in_rings_that_are_apart() {
    let guest = two_threads();
    let rules = Rules {
        max_depth: NonZero::new(1),
        ..Rules::default()
    };
    let shown = |to: &mut dyn FnMut(&mut Stream, Pass)| {
        let mut stream = Stream::of_graph(3, STACK, usize::MAX).unwrap();
        stream.select(rules.clone(), &functions(4));
        for (vcpu, ring) in (0..).zip(&guest.rings) {
            let (first, rest) = ring.split_at(ring.len().min(1));
            stream.rings().push(Origin::Calls(vcpu), columns(first), 0);
            stream.rings().push(Origin::Calls(vcpu), columns(rest), 0);
        }
        to(&mut stream, Pass::All);
    };
    let (mut ordered, mut apart) = (Vec::new(), Apart::default());
    shown(&mut |stream, pass| ordered.take(stream, pass));
    shown(&mut |stream, pass| apart.take(stream, pass));
    assert_eq!(ordered.len(), 2, "the outermost, which do not end");
    assert_eq!(by_thread(apart.events), by_thread(ordered));
}

/// Threads that each stay on their vCPU, all of which were seen before.
fn two_threads() -> Guest {
    let mut guest = Guest::new(3);
    for thread in 0..2 {
        guest.act(thread, usize::try_from(thread).unwrap(), Act::Call(1), 7);
    }
    for _ in 0..20 {
        for thread in 0..2 {
            let vcpu = usize::try_from(thread).unwrap();
            guest.act(thread, vcpu, Act::Call(2), 7);
            guest.act(thread, vcpu, Act::Return, 7);
        }
    }
    guest
}

/// How often the vCPU changes from one event to the next.
fn turns(rings: &[Vec<Record>]) -> usize {
    let mut apart = Apart::default();
    stream(rings, &[15], &mut apart);
    let pairs = apart.events.windows(2);
    pairs.filter(|pair| pair[0].vcpu != pair[1].vcpu).count()
}

#[test]
fn rings_whose_threads_stay_come_one_after_the_other() {
    let guest = two_threads();
    // The two that are new, and then one ring after the other.
    assert!(turns(&guest.rings) <= 4, "{}", turns(&guest.rings));
}

/// A call that nobody knows the end of is one also where its thread was lent, on the thread's vCPU.
#[test]
fn who_is_seen_on_a_vcpu_after_its_threads_were_lent_is_who_was_last() {
    let mut guest = Guest::new(3);
    for thread in [0, 1, 2] {
        let vcpu = usize::try_from(thread % 2).unwrap();
        guest.act(thread, vcpu, Act::Call(1), 7);
    }
    for thread in [0, 1, 2, 0, 1] {
        let vcpu = usize::try_from(thread % 2).unwrap();
        guest.act(thread, vcpu, Act::Call(2), 7);
    }
    let lost = |time_ns| Record {
        time_ns,
        kind: RecordKind::Lost(9),
    };
    guest.rings[0].push(lost(guest.time + 1));
    guest.rings[1].push(lost(guest.time + 2));
    let (mut ordered, mut apart) = (Vec::new(), Apart::default());
    let expected = stream(&guest.rings, &[25], &mut ordered);
    assert_eq!(stream(&guest.rings, &[25], &mut apart), expected);
    let losses = |events: Vec<Event>| {
        let lost = |event: &Event| matches!(event.kind, EventKind::Lost(9));
        let losses = events.into_iter().filter(lost);
        losses
            .map(|event| (event.vcpu, event.thread))
            .collect::<Vec<_>>()
    };
    assert_eq!(losses(ordered), [(0, 0), (1, 1)]);
    assert_eq!(losses(apart.events), [(0, 0), (1, 1)]);
}

#[test]
fn rings_come_in_the_order_of_time_where_a_thread_moves_or_is_new() {
    let mut moves = two_threads();
    moves.act(1, 0, Act::Return, 7);
    assert!(turns(&moves.rings) > 30, "a thread has moved");
    let mut is_new = two_threads();
    is_new.act(2, 0, Act::Call(3), 7);
    assert!(turns(&is_new.rings) > 30, "nobody has a number for it");
}

/// All of this guest, both threads of which were seen before, and in the middle of it what the host did with vCPU 0.
fn with_the_host(guest: &Guest, to: &mut impl Taking) {
    let mut stream = Stream::of_graph(3, STACK, usize::MAX).unwrap();
    for (vcpu, ring) in (0..).zip(&guest.rings) {
        let first = ring.get(..1).unwrap_or_default();
        stream.rings().push(Origin::Calls(vcpu), columns(first), 0);
        stream.rings().looked(Origin::Calls(vcpu), 15);
    }
    to.take(&mut stream, Pass::Round);
    for (vcpu, ring) in (0..).zip(&guest.rings) {
        let rest = ring.get(1..).unwrap_or_default();
        stream.rings().push(Origin::Calls(vcpu), columns(rest), 0);
    }
    let step = Record {
        time_ns: guest.time / 2,
        kind: RecordKind::Host(Box::new(HostStep::Entry(HostThread::default()))),
    };
    stream.rings().push(Origin::Host(0), vec![step], 0);
    to.take(&mut stream, Pass::All);
}

/// It is inside of the calls that were open then.
#[test]
fn what_else_happens_among_rings_that_are_apart_comes_in_its_place() {
    let guest = two_threads();
    let (mut ordered, mut apart) = (Vec::new(), Apart::default());
    with_the_host(&guest, &mut ordered);
    with_the_host(&guest, &mut apart);
    let before = |events: &[Event]| {
        let is_host = |event: &Event| matches!(event.kind, EventKind::Host(_));
        let at = events.iter().position(is_host).unwrap();
        let (before, from) = events.split_at(at);
        let last = before.iter().rev().find(|event| event.vcpu == 0).cloned();
        (from.first().cloned(), last)
    };
    assert_eq!(before(&apart.events), before(&ordered));
}

/// Its end would be put to a call that another vCPU has not brought yet.
#[test]
fn a_thread_that_dies_meanwhile_is_closed_in_its_place() {
    let guest = two_threads();
    let half = guest.time / 2;
    let ended = |to: &mut dyn FnMut(&mut Stream)| {
        let mut stream = Stream::of_graph(3, STACK, usize::MAX).unwrap();
        for (vcpu, ring) in (0..).zip(&guest.rings) {
            let (first, rest) = ring.split_at(ring.len().min(1));
            stream.rings().push(Origin::Calls(vcpu), columns(first), 0);
            stream.rings().push(Origin::Calls(vcpu), columns(rest), 0);
        }
        stream.died(Death {
            thread: 1,
            alive_ns: 14,
            gone_ns: half,
        });
        to(&mut stream);
    };
    let (mut ordered, mut apart) = (Vec::new(), Apart::default());
    ended(&mut |stream| ordered.take(stream, Pass::All));
    ended(&mut |stream| apart.take(stream, Pass::All));
    let of_it = |events| by_thread(events).remove(&1).unwrap_or_default();
    let expected = of_it(ordered);
    assert_eq!(of_it(apart.events), expected);
    let exits = expected.iter().filter(
        |event| matches!(event.kind, EventKind::Exit { function, .. } if function == FunctionId(1)),
    );
    assert_eq!(exits.count(), 1, "it was closed");
}

/// What is not said one by one is said when it is read.
#[test]
fn columns_are_the_records_that_came() {
    proptest!(|(story in prop::collection::vec(next(), 1..200), narrow in any::<bool>())| {
        for ring in rings(&story) {
            let mut records = ring;
            if narrow {
                records.iter_mut().for_each(|record| record.time_ns %= 50);
            }
            let mut expected: Vec<Record> = Vec::new();
            records.iter().for_each(|record| expected.record(record));
            let gathered = columns(&records);
            prop_assert_eq!(gathered.records(), expected.len());
            for part in gathered.clone().into_parts() {
                let Part::Steps(steps) = part else { continue };
                let times = steps.times();
                prop_assert_eq!(steps.is_ascending(), times.is_sorted());
                let slots = steps.all(0).records().filter_map(|record| match record.kind {
                    RecordKind::Graph { slot, .. } => Some(slot / STACK),
                    _ => None,
                });
                let stacks: BTreeSet<u64> = slots.collect();
                let told = steps.stacks().map(|told| told.iter().copied().collect());
                prop_assert_eq!(told, (stacks.len() <= 16).then_some(stacks));
            }
            let mut rows = Vec::new();
            gathered.decode(&mut rows);
            prop_assert_eq!(rows, expected);
        }
    });
}

/// A guest may use as many as it likes: they are not all looked for again and again.
#[test]
fn of_many_stacks_none_is_told() {
    let on_stacks = |count: u64| {
        let records = (0..4 * count).map(|index| Record {
            time_ns: index,
            kind: RecordKind::Graph {
                function: FunctionId(0),
                step: Step::Entry,
                slot: (index % count + 1) * STACK - 64,
            },
        });
        let parts = columns(&records.collect::<Vec<_>>()).into_parts();
        match parts.as_slice() {
            [Part::Steps(steps)] => steps.stacks().map(<[u64]>::len),
            _ => panic!("{parts:?}"),
        }
    };
    assert_eq!(on_stacks(16), Some(16));
    assert_eq!(on_stacks(17), None);
    assert_eq!(on_stacks(5000), None);
}

#[test]
fn steps_never_go_back_on_their_stack() {
    let step = |time_ns, step| Record {
        time_ns,
        kind: RecordKind::Graph {
            function: FunctionId(0),
            step,
            slot: STACK - 64,
        },
    };
    let mut threads = Threads::new(STACK).unwrap();
    let mut events = Vec::new();
    let first = Timed::alone(0, step(100, Step::Entry));
    threads.record(&first, Found::Nothing, &mut events);
    let before = [
        step(50, Step::Exit),
        step(60, Step::Entry),
        step(70, Step::Exit),
    ];
    for part in columns(&before).into_parts() {
        if let Part::Steps(steps) = part {
            threads.steps(steps.all(1), &mut events);
        }
    }
    let times: Vec<u64> = events.iter().map(|event| event.time_ns).collect();
    assert_eq!(times, [100; 4]);
}

/// Whose turn it is to open a call is not known side by side.
#[test]
fn threads_are_lent_as_long_as_all_their_calls_have_room() {
    let mut guest = Guest::new(1);
    (0..2).for_each(|_| guest.act(0, 0, Act::Call(1), 7));
    let mut threads = Threads::new(STACK).unwrap();
    let Some(Part::Steps(steps)) = columns(&guest.rings[0]).into_parts().pop() else {
        panic!("steps came as something else");
    };
    threads.steps(steps.all(0), &mut Vec::new());
    assert!(threads.lend(steps.all(0), OPEN_MAX - 1).is_none());
    let lent = threads.lend(steps.all(0), OPEN_MAX - 2).unwrap();
    assert_eq!(lent.threads().collect::<Vec<_>>(), [0]);
    threads.take_back(0, lent);
    assert_eq!(threads.on(0), (0, 2));
}

/// They may be in a ring of points, which is looked at with those of calls.
#[test]
fn values_of_calls_are_missed_also_in_rings_that_are_apart() {
    let guest = two_threads();
    let missed = |to: &mut dyn FnMut(&mut Stream, Pass)| {
        let mut stream = Stream::of_graph(3, STACK, usize::MAX).unwrap();
        stream = stream.with_values();
        stream.expect_values(FunctionId(2), Moment::Entry);
        for (vcpu, ring) in (0..).zip(&guest.rings) {
            let (first, rest) = ring.split_at(ring.len().min(1));
            stream.rings().push(Origin::Calls(vcpu), columns(first), 0);
            stream.rings().looked(Origin::Points(vcpu), u64::MAX);
            stream.rings().looked(Origin::Calls(vcpu), 15);
            to(&mut stream, Pass::Round);
            stream.rings().push(Origin::Calls(vcpu), columns(rest), 0);
        }
        to(&mut stream, Pass::All);
        stream.anomalies().unwrap().count(Anomaly::NoValues)
    };
    let (mut ordered, mut apart) = (Vec::new(), Apart::default());
    assert_eq!(missed(&mut |stream, pass| ordered.take(stream, pass)), 40);
    assert_eq!(missed(&mut |stream, pass| apart.take(stream, pass)), 40);
}

/// Who takes what is apart, and fails at some event.
#[derive(Debug)]
struct Failing;

#[derive(Debug)]
struct FailingPart;

impl Sink for Failing {
    fn event(&mut self, _event: Event) {}
}

impl Sink for FailingPart {
    fn event(&mut self, event: Event) {
        assert_ne!(event.time_ns, 7 * 30, "it is to fail");
    }
}

impl KeepsApart for Failing {
    type Part = FailingPart;

    fn lend(&mut self, _threads: &[u32]) -> Option<FailingPart> {
        Some(FailingPart)
    }

    fn take_back(&mut self, _part: FailingPart) {}
}

/// The stream goes on after that: what was lent is back.
#[test]
fn who_fails_side_by_side_fails_the_one_who_asked() {
    let guest = two_threads();
    let mut stream = Stream::of_graph(3, STACK, usize::MAX).unwrap();
    let mut pass = |from: usize, until: usize| {
        for (vcpu, ring) in (0..).zip(&guest.rings) {
            let until = until.min(ring.len());
            let records = ring.get(from..until).unwrap_or_default();
            stream
                .rings()
                .push(Origin::Calls(vcpu), columns(records), 0);
        }
        let all = || stream.pass_apart(Pass::All, &mut Failing, &ThreadEach);
        catch_unwind(AssertUnwindSafe(all)).is_ok()
    };
    assert_eq!([pass(0, 1), pass(1, 30), pass(30, 99)], [true, false, true]);
    assert_eq!(stream.anomalies(), Some(Anomalies::default()));
}
