//! One stream out of rings of calls, rings of points and the clock.

use terms::event_format::EventId;
use terms::field::FieldValue;

use super::merge::Merge;
use super::*;
use crate::columns::Part;
use crate::event::{End, EventKind, Passed, Step};
use crate::graph::rules::Threshold;
use crate::host::{HostStep, HostThread};
use crate::testing::{Apart, Taking, functions, popped, popped_in};

const STACK: u64 = 16 << 10;

fn record(time_ns: u64, kind: RecordKind) -> Record {
    Record { time_ns, kind }
}

fn entry(time_ns: u64, function: u32) -> Record {
    record(time_ns, RecordKind::Entry(FunctionId(function)))
}

fn point(time_ns: u64) -> Record {
    let values = [FieldValue::Unsigned(time_ns)].into();
    let event = EventId(3);
    let passed = Box::new(Passed { event, values });
    record(time_ns, RecordKind::Point(passed))
}

/// Time, thread and what happened.
fn told(events: &[Event]) -> Vec<(u64, u32, EventKind)> {
    let told = events.iter();
    told.map(|event| (event.time_ns, event.thread, event.kind))
        .collect()
}

#[test]
fn calls_without_returns_points_losses_and_stalls_come_in_the_order_of_time() {
    let mut stream = Stream::of_functions(2, WAITING_MAX);
    stream.rings().expect_points();
    let lost = |time_ns, count| record(time_ns, RecordKind::Lost(count));
    stream
        .rings()
        .push(Origin::Calls(0), vec![entry(10, 1), entry(40, 2)], 50);
    stream.rings().push(
        Origin::Calls(1),
        vec![lost(20, 0), lost(20, 7), entry(30, 3)],
        50,
    );
    stream
        .rings()
        .push(Origin::Points(1), vec![point(25), lost(35, 9)], 0);
    let stall = record(28, RecordKind::Stall(5));
    stream.rings().push(Origin::Clock, vec![stall], 28);
    let mut seen: Vec<Event> = Vec::new();
    stream.pass_on(Pass::Round, &mut seen);
    assert_eq!(seen, [], "vCPU 0 may have passed a point before");
    for vcpu in 0..2 {
        stream.rings().looked(Origin::Calls(vcpu), 50);
        stream.rings().looked(Origin::Points(vcpu), 50);
    }
    stream.pass_on(Pass::Round, &mut seen);
    let call = |function| EventKind::Entry(FunctionId(function));
    let expected = [
        (10, 0, call(1)),
        (20, 1, EventKind::Lost(7)),
        (25, 1, EventKind::Point(EventId(3))),
        (28, 0, EventKind::Stall(5)),
        (30, 1, call(3)),
        (35, 1, EventKind::LostPoints(9)),
        (40, 0, call(2)),
    ];
    assert_eq!(told(&seen), expected);
    assert_eq!(
        seen[2].values.as_deref(),
        Some(&[FieldValue::Unsigned(25)][..])
    );
    assert!(seen.iter().all(|event| event.depth == 0));
    stream.finish(&mut seen);
    assert_eq!(seen.len(), expected.len());
}

/// Once the host has told something, its threads are waited for as rings are.
#[test]
fn what_the_host_does_comes_in_the_order_of_time() {
    let mut stream = Stream::of_functions(2, WAITING_MAX);
    let step = HostStep::Entry(HostThread::default());
    let host = |time_ns| record(time_ns, RecordKind::Host(Box::new(step)));
    let mut seen: Vec<Event> = Vec::new();
    stream
        .rings()
        .push(Origin::Host(1), vec![host(15), host(45)], 50);
    stream
        .rings()
        .push(Origin::Calls(1), vec![entry(10, 1), entry(40, 2)], 50);
    for origin in [Origin::Calls(0), Origin::Calls(1), Origin::Host(1)] {
        stream.rings().looked(origin, 50);
    }
    stream.pass_on(Pass::Round, &mut seen);
    assert_eq!(
        seen,
        [],
        "the thread of vCPU 0 may have told something before"
    );
    stream.rings().looked(Origin::Host(0), 20);
    stream.pass_on(Pass::Round, &mut seen);
    let call = |function| EventKind::Entry(FunctionId(function));
    let expected = [
        (10, 1, call(1)),
        (15, 1, EventKind::Host(step)),
        (40, 1, call(2)),
        (45, 1, EventKind::Host(step)),
    ];
    assert_eq!(told(&seen), expected[..2]);
    stream.rings().looked(Origin::Host(0), 50);
    stream.pass_on(Pass::Round, &mut seen);
    assert_eq!(told(&seen), expected);
    stream.rings().push(Origin::Host(2), vec![host(60)], 60);
    assert_eq!(stream.rings().strays(), 1);
}

#[test]
fn who_keeps_threads_apart_waits_for_no_other_ring_unless_calls_are_put_together() {
    let times = |stream: &mut Stream| {
        let mut seen = Apart::default();
        seen.take(stream, Pass::Round);
        let times = seen.events.iter().map(|event| (event.vcpu, event.time_ns));
        times.collect::<Vec<_>>()
    };
    let mut stream = Stream::of_functions(2, WAITING_MAX);
    stream
        .rings()
        .push(Origin::Calls(1), vec![entry(10, 0), entry(30, 0)], 0);
    assert_eq!(times(&mut stream), [(1, 10), (1, 30)]);
    stream.rings().push(Origin::Calls(0), vec![entry(20, 0)], 0);
    assert_eq!(times(&mut stream), [(0, 20)]);
    let mut graph = Stream::of_graph(2, STACK, WAITING_MAX).unwrap();
    let (function, step, slot) = (FunctionId(0), Step::Entry, 64);
    let call = RecordKind::Graph {
        function,
        step,
        slot,
    };
    graph
        .rings()
        .push(Origin::Calls(1), vec![record(10, call)], 0);
    assert_eq!(times(&mut graph), []);
    graph.rings().looked(Origin::Calls(0), 20);
    assert_eq!(times(&mut graph), [(1, 10)]);
}

/// Each vCPU is a thread: nothing is put together across them, so nothing has to be moved.
#[test]
fn a_call_without_a_return_that_comes_late_has_its_own_time() {
    let mut stream = Stream::of_functions(2, 1);
    let mut seen: Vec<Event> = Vec::new();
    stream
        .rings()
        .push(Origin::Calls(0), vec![entry(20, 0), entry(30, 0)], 0);
    (0..2).for_each(|_| stream.pass_on(Pass::Round, &mut seen));
    stream
        .rings()
        .push(Origin::Calls(1), vec![entry(5, 1), entry(35, 1)], 0);
    stream.finish(&mut seen);
    let times: Vec<_> = seen
        .iter()
        .map(|event| (event.time_ns, event.vcpu))
        .collect();
    assert_eq!(times, [(20, 0), (5, 1), (30, 0), (35, 1)]);
}

#[test]
fn a_call_says_where_it_was_made_if_that_is_known() {
    let mut stream = Stream::of_functions(1, WAITING_MAX);
    let mut seen: Vec<Event> = Vec::new();
    let called = |time_ns, caller| {
        let function = FunctionId(3);
        record(time_ns, RecordKind::Called { function, caller })
    };
    let calls = vec![called(1, 0xffff_ffff_8000_0123), called(2, 0)];
    stream.rings().push(Origin::Calls(0), calls, 0);
    stream.finish(&mut seen);
    let kinds = seen.iter().map(|event| (event.kind, event.caller()));
    let entry = EventKind::Entry(FunctionId(3));
    let expected = [(entry, Some(Gva(0xffff_ffff_8000_0123))), (entry, None)];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

/// A graph's points have their own times as well: only calls are put together.
#[test]
fn a_point_that_comes_late_has_its_own_time_among_calls_with_returns() {
    let mut stream = Stream::of_graph(2, STACK, 1).unwrap();
    stream.rings().expect_points();
    let call = |time_ns, step| {
        let (function, slot) = (FunctionId(0), STACK - 64);
        let kind = RecordKind::Graph {
            function,
            step,
            slot,
        };
        record(time_ns, kind)
    };
    let calls = vec![call(20, Step::Entry), call(30, Step::Exit)];
    stream.rings().push(Origin::Calls(0), calls, 0);
    let mut seen: Vec<Event> = Vec::new();
    (0..2).for_each(|_| stream.pass_on(Pass::Round, &mut seen));
    assert_eq!(seen.len(), 1, "one may wait");
    stream.rings().push(Origin::Points(1), vec![point(5)], 0);
    stream.finish(&mut seen);
    let times: Vec<_> = seen.iter().map(|event| event.time_ns).collect();
    assert_eq!(times, [20, 5, 30]);
}

#[test]
fn points_and_calls_that_are_lost_are_told_apart_also_as_they_came() {
    let mut stream = Stream::of_functions(1, WAITING_MAX);
    stream.rings().expect_points();
    let lost = |count| record(10, RecordKind::Lost(count));
    stream.rings().push(Origin::Points(0), vec![lost(3)], 0);
    stream.rings().push(Origin::Calls(0), vec![lost(5)], 0);
    let mut seen = Apart::default();
    seen.take(&mut stream, Pass::Round);
    let expected = [
        (10, 0, EventKind::LostPoints(3)),
        (10, 0, EventKind::Lost(5)),
    ];
    assert_eq!(told(&seen.events), expected);
}

/// A loss among points says nothing of the calls around it.
#[test]
fn points_that_are_lost_leave_the_calls_of_a_graph_as_they_are() {
    let mut stream = Stream::of_graph(1, STACK, WAITING_MAX).unwrap();
    stream.rings().expect_points();
    let call = |time_ns, step| {
        let (function, slot) = (FunctionId(0), STACK - 64);
        let kind = RecordKind::Graph {
            function,
            step,
            slot,
        };
        record(time_ns, kind)
    };
    let calls = vec![call(10, Step::Entry), call(30, Step::Exit)];
    stream.rings().push(Origin::Calls(0), calls, 0);
    let lost = record(20, RecordKind::Lost(7));
    stream.rings().push(Origin::Points(0), vec![lost], 0);
    let mut seen: Vec<Event> = Vec::new();
    stream.finish(&mut seen);
    let function = FunctionId(0);
    let (end, duration) = (End::Returned, Some(20));
    let exit = EventKind::Exit {
        function,
        end,
        duration,
    };
    let expected = [
        (10, 0, EventKind::Entry(function)),
        (20, 0, EventKind::LostPoints(7)),
        (30, 0, exit),
    ];
    assert_eq!(told(&seen), expected);
}

#[test]
fn what_goes_as_it_came_waits_no_longer_and_leaves_its_room() {
    let mut merge = Merge::new(2, 1);
    let records: Vec<Record> = vec![entry(10, 0), entry(20, 0)];
    let room = records.capacity();
    merge.push(0, 0, Part::Rows(records), 0);
    let mut passed = Vec::new();
    merge.pass_all(|ring, _, record| passed.push((ring, record.time_ns)));
    assert_eq!(passed, [(0, 10), (0, 20)]);
    let spare = merge.take_room().unwrap();
    assert!(spare.is_empty() && spare.room() >= room);
    merge.push(0, 0, Part::Rows(vec![entry(30, 0)]), 0);
    for _ in 0..2 {
        assert_eq!(popped(&mut merge), [], "one may wait");
    }
    merge.looked(1, 30);
    let last = popped(&mut merge).into_iter().map(|timed| timed.time_ns);
    assert_eq!(last.collect::<Vec<_>>(), [30]);
    assert_eq!(merge.take_room().map(|room| room.len()), Some(0));
}

#[test]
fn in_the_middle_of_a_round_nothing_waits_in_vain() {
    let mut merge = Merge::new(2, 1);
    merge.push(0, 0, Part::Rows(vec![entry(10, 0), entry(20, 0)]), 0);
    assert_eq!(popped(&mut merge), [], "they have just come");
    assert_eq!(popped_in(&mut merge, Pass::Certain), []);
    merge.push(0, 0, Part::Rows(vec![entry(30, 0)]), 0);
    assert_eq!(popped_in(&mut merge, Pass::Certain), []);
    let times = popped(&mut merge).into_iter().map(|timed| timed.time_ns);
    assert_eq!(
        times.collect::<Vec<_>>(),
        [10],
        "one may wait, and what has just come"
    );
}

#[test]
fn a_point_is_of_the_thread_that_was_seen_last_on_its_vcpu() {
    let mut stream = Stream::of_graph(1, STACK, WAITING_MAX).unwrap();
    stream.rings().expect_points();
    let step = |time_ns, step, stack: u64| {
        let (function, slot) = (FunctionId(0), stack * STACK - 64);
        record(
            time_ns,
            RecordKind::Graph {
                function,
                step,
                slot,
            },
        )
    };
    let calls = [
        step(10, Step::Entry, 1),
        step(20, Step::Entry, 2),
        step(30, Step::Exit, 2),
    ];
    stream.rings().push(Origin::Calls(0), Vec::from(calls), 0);
    let points = [5, 15, 25, 35].map(point);
    stream.rings().push(Origin::Points(0), Vec::from(points), 0);
    let mut seen: Vec<Event> = Vec::new();
    stream.finish(&mut seen);
    let points = seen
        .iter()
        .filter(|event| event.kind == EventKind::Point(EventId(3)));
    let places: Vec<_> = points
        .map(|event| (event.time_ns, event.thread, event.depth))
        .collect();
    assert_eq!(places, [(5, 0, 0), (15, 0, 1), (25, 1, 1), (35, 1, 0)]);
}

#[test]
fn records_of_a_ring_that_there_is_not_are_counted() {
    let mut stream = Stream::of_functions(2, WAITING_MAX);
    stream
        .rings()
        .push(Origin::Calls(9), vec![entry(1, 0), entry(2, 0)], 0);
    stream.rings().push(Origin::Points(2), vec![point(3)], 0);
    let mut seen: Vec<Event> = Vec::new();
    stream.finish(&mut seen);
    assert_eq!((stream.rings().strays(), seen.len()), (3, 0));
}

/// A guest that hangs brings nothing any more: how long is known by when its rings were looked at.
#[test]
fn a_call_that_hangs_is_recorded_if_rings_were_looked_at_long_after_it() {
    let is_recorded = |looked_ns: &[(Origin, u64)], nanoseconds| {
        let mut stream = Stream::of_graph(2, STACK, WAITING_MAX).unwrap();
        let rules = Rules {
            threshold: Some(Threshold { nanoseconds }),
            ..Rules::default()
        };
        stream.select(rules, &functions(1));
        let kind = RecordKind::Graph {
            function: FunctionId(0),
            step: Step::Entry,
            slot: STACK - 64,
        };
        stream
            .rings()
            .push(Origin::Calls(0), vec![record(10, kind)], 10);
        for (origin, time_ns) in looked_ns {
            stream.rings().looked(*origin, *time_ns);
        }
        let mut seen: Vec<Event> = Vec::new();
        stream.pass_on(Pass::Round, &mut seen);
        assert_eq!(seen, [], "nobody knows yet");
        stream.finish(&mut seen);
        !seen.is_empty()
    };
    let looked = [(Origin::Calls(0), 60), (Origin::Calls(1), 40)];
    for looked in [looked, [looked[1], looked[0]]] {
        assert!(is_recorded(&looked, 50));
        assert!(!is_recorded(&looked, 51));
    }
    assert!(
        !is_recorded(&[], 1),
        "rings that are not waited for say nothing"
    );
}
