//! The order of events, and what continues with what: ties, looks that say nothing new, and the end.

use crate::testing::functions;
use terms::field::FieldValue;
use terms::function::FunctionId;

use super::{STACK, graph};
use crate::event::Step;
use crate::event::{CallValues, Event, EventKind, Moment};
use crate::graph::join::{Found, Join};
use crate::graph::merge::Merge;
use crate::graph::pipeline::{Pipeline, WAITING_MAX};
use crate::graph::selection::{Rules, Selection, Threshold};
use crate::graph::{CallEvent, CallKind};

/// An entry into function 0 on a stack of the ring's own.
fn entry(ring: u16, time_ns: u64) -> Event {
    graph(
        time_ns,
        ring,
        Step::Entry,
        0,
        (u64::from(ring) + 1) * STACK - 64,
    )
    .event
}

/// Ring and time of all events that are certain.
fn popped(merge: &mut Merge) -> Vec<(u16, u64)> {
    let next = || merge.pop();
    let events = std::iter::from_fn(next);
    events
        .map(|timed| (timed.event.vcpu, timed.event.time_ns))
        .collect()
}

#[test]
fn an_event_at_the_time_of_a_look_is_certain() {
    let mut merge = Merge::new(2, 9);
    merge.looked(1, 10);
    merge.push(0, entry(0, 10), 0);
    merge.push(0, entry(0, 11), 0);
    assert_eq!(popped(&mut merge), [(0, 10)]);
}

#[test]
fn a_look_for_an_earlier_time_says_nothing_new() {
    let mut merge = Merge::new(2, 9);
    merge.looked(1, 10);
    merge.looked(1, 5);
    merge.push(0, entry(0, 8), 0);
    assert_eq!(popped(&mut merge), [(0, 8)]);
}

#[test]
fn of_the_same_time_the_first_ring_goes_first() {
    let mut merge = Merge::new(3, 9);
    for ring in [2, 0, 1] {
        merge.push(ring.into(), entry(ring, 7), 0);
        merge.looked(ring.into(), 100);
    }
    assert_eq!(popped(&mut merge), [(0, 7), (1, 7), (2, 7)]);
}

#[test]
fn a_rings_time_never_goes_back() {
    let mut merge = Merge::new(1, 9);
    merge.push(0, entry(0, 20), 0);
    merge.push(0, entry(0, 10), 0);
    assert_eq!(popped(&mut merge), [(0, 20), (0, 20)]);
}

#[test]
fn a_loss_is_after_what_the_ring_was_looked_at_for() {
    let mut merge = Merge::new(1, 9);
    merge.looked(0, 10);
    let kind = EventKind::Lost(1);
    let (time_ns, vcpu) = (5, 0);
    merge.push(
        0,
        Event {
            time_ns,
            vcpu,
            kind,
        },
        12,
    );
    let loss = merge.pop().unwrap();
    assert_eq!((loss.event.time_ns, loss.until_ns), (10, 12));
}

#[test]
fn an_event_at_the_time_of_what_went_on_without_it_is_not_late() {
    let mut merge = Merge::new(2, 1);
    merge.push(0, entry(0, 20), 0);
    merge.push(0, entry(0, 30), 0);
    assert_eq!(merge.pop().unwrap().event.time_ns, 20, "too much waits");
    merge.push(1, entry(1, 20), 0);
    merge.push(1, entry(1, 25), 0);
    let is_late = |merge: &mut Merge| merge.pop().unwrap().is_late;
    assert!(!is_late(&mut merge) && !is_late(&mut merge));
}

fn values(slot: u64) -> CallValues {
    CallValues {
        function: FunctionId(0),
        moment: Moment::Entry,
        slot,
        values: [FieldValue::Unsigned(1)].into(),
    }
}

#[test]
fn a_loss_that_ends_before_another_ends_nothing() {
    let mut join = Join::default();
    join.lost(20);
    join.lost(5);
    join.captured(10, false, values(64));
    let found = join.record(false, FunctionId(0), Step::Entry, 64);
    assert_eq!(found, Found::Nothing);
    assert_eq!(join.joined().unclaimed, 1);
}

#[test]
fn values_that_others_take_the_place_of_are_counted() {
    let mut join = Join::default();
    join.captured(10, false, values(64));
    join.captured(11, false, values(64));
    assert_eq!(join.joined().unclaimed, 1);
}

#[test]
fn a_trace_without_values_takes_none() {
    let mut pipeline = Pipeline::new(1, STACK, WAITING_MAX).unwrap();
    let call = entry(0, 10);
    pipeline.push_values(9, 0, values(STACK - 64));
    pipeline.push(call, 0);
    let mut seen: Vec<CallEvent> = Vec::new();
    pipeline.finish(&mut seen);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].values, None);
}

#[test]
fn a_look_at_values_is_not_one_at_records() {
    let mut pipeline = Pipeline::with_values(2, STACK, WAITING_MAX).unwrap();
    let mut seen: Vec<CallEvent> = Vec::new();
    pipeline.push(entry(0, 50), 0);
    for ring in 0..2 {
        pipeline.looked_at_values(ring, 60);
    }
    pipeline.run(&mut seen);
    assert_eq!(seen.len(), 0, "the other vCPU may have made a call before");
    pipeline.looked(1, 60);
    pipeline.run(&mut seen);
    assert_eq!(seen.len(), 1);
}

/// What was captured before a loss may belong to a call whose record was lost.
#[test]
fn a_loss_of_records_takes_values_with_it() {
    let mut pipeline = Pipeline::with_values(1, STACK, WAITING_MAX).unwrap();
    let kind = EventKind::Lost(1);
    let (time_ns, vcpu) = (6, 0);
    pipeline.push_values(5, 0, values(STACK - 64));
    pipeline.push(
        Event {
            time_ns,
            vcpu,
            kind,
        },
        7,
    );
    pipeline.push(entry(0, 10), 0);
    let mut seen: Vec<CallEvent> = Vec::new();
    pipeline.finish(&mut seen);
    assert!(seen.iter().all(|step| step.values.is_none()), "{seen:?}");
    assert_eq!(pipeline.joined().unclaimed, 1);
}

/// It waits for its duration, and the trace ends: it has taken as long as that.
#[test]
fn a_call_that_is_open_at_the_end_is_shown_when_it_was_long() {
    let mut pipeline = Pipeline::new(2, STACK, WAITING_MAX).unwrap();
    let rules = Rules {
        threshold: Some(Threshold { nanoseconds: 40 }),
        ..Rules::default()
    };
    pipeline.select(rules, &functions(2));
    for (ring, time) in [(0, 10), (1, 60)] {
        pipeline.push(entry(ring, time), 0);
    }
    let mut seen: Vec<CallEvent> = Vec::new();
    pipeline.finish(&mut seen);
    let entries: Vec<_> = seen.iter().map(|step| (step.vcpu, step.kind)).collect();
    assert_eq!(entries, [(0, CallKind::Entry(FunctionId(0)))]);
}

#[test]
fn a_root_that_no_function_is_is_missing() {
    for (roots, is_missing) in [(vec![], false), (vec!["f1"], false), (vec!["g*"], true)] {
        let roots: Vec<String> = roots.into_iter().map(str::to_owned).collect();
        let rules = Rules::new(None, &roots, &[], None).unwrap();
        let mut selection = Selection::new(rules);
        for function in ["f0", "f1"] {
            selection.add_function(&[function]);
        }
        assert_eq!(selection.root_is_missing(), is_missing, "{roots:?}");
    }
}
