//! The order of events, and what continues with what: ties, looks that say nothing new, and the end.

use crate::testing::{functions, popped};
use terms::field::FieldValue;
use terms::function::FunctionId;

use super::{STACK, columns, graph, push, stream};
use crate::columns::Part;
use crate::event::{CallValues, Event, EventKind, Moment, Record, RecordKind, Step};
use crate::graph::join::{Found, Join};
use crate::graph::rules::{Rules, Threshold};
use crate::graph::selection::Selection;
use crate::stream::merge::Merge;
use crate::stream::{Origin, Pass, Stream, WAITING_MAX};

/// An entry into function 0 on a stack of the ring's own.
fn entry(ring: u16, time_ns: u64) -> Record {
    let slot = (u64::from(ring) + 1) * STACK - 64;
    graph(time_ns, ring, Step::Entry, 0, slot).record
}

fn lost(time_ns: u64) -> Record {
    let kind = RecordKind::Lost(1);
    Record { time_ns, kind }
}

/// Ring and time of all records that are certain.
fn places(merge: &mut Merge) -> Vec<(u16, u64)> {
    let popped = popped(merge).into_iter();
    popped.map(|timed| (timed.vcpu, timed.time_ns)).collect()
}

fn bring(merge: &mut Merge, ring: u16, time_ns: u64) {
    merge.push(ring.into(), ring, Part::Rows(vec![entry(ring, time_ns)]), 0);
}

#[test]
fn a_record_at_the_time_of_a_look_is_certain() {
    let mut merge = Merge::new(2, 9);
    merge.looked(1, 10);
    bring(&mut merge, 0, 10);
    bring(&mut merge, 0, 11);
    assert_eq!(places(&mut merge), [(0, 10)]);
}

#[test]
fn a_look_for_an_earlier_time_says_nothing_new() {
    let mut merge = Merge::new(2, 9);
    merge.looked(1, 10);
    merge.looked(1, 5);
    bring(&mut merge, 0, 8);
    assert_eq!(places(&mut merge), [(0, 8)]);
}

#[test]
fn of_the_same_time_the_first_ring_goes_first() {
    let mut merge = Merge::new(3, 9);
    for ring in [2, 0, 1] {
        bring(&mut merge, ring, 7);
        bring(&mut merge, ring, 8);
        merge.looked(ring.into(), 100);
    }
    let expected = [(0, 7), (1, 7), (2, 7), (0, 8), (1, 8), (2, 8)];
    assert_eq!(places(&mut merge), expected);
}

#[test]
fn a_rings_time_never_goes_back() {
    let mut merge = Merge::new(1, 9);
    merge.push(0, 0, Part::Rows(vec![entry(0, 20), entry(0, 10)]), 0);
    bring(&mut merge, 0, 5);
    assert_eq!(places(&mut merge), [(0, 20), (0, 20), (0, 20)]);
}

/// Entries as they are read, many at a time.
fn steps(ring: u16, times: &[u64]) -> Part {
    let records: Vec<Record> = times.iter().map(|time_ns| entry(ring, *time_ns)).collect();
    columns(&records).into_parts().remove(0)
}

#[test]
fn many_steps_at_a_time_do_not_go_back_either() {
    let mut merge = Merge::new(1, 9);
    merge.push(0, 0, steps(0, &[20, 10, 30]), 0);
    merge.push(0, 0, steps(0, &[25, 40]), 0);
    merge.looked(0, 50);
    let expected = [(0, 20), (0, 20), (0, 30), (0, 30), (0, 40)];
    assert_eq!(places(&mut merge), expected);
}

#[test]
fn many_steps_at_a_time_are_late_as_one_is() {
    let mut merge = Merge::new(2, 1);
    merge.push(0, 0, steps(0, &[20, 30]), 0);
    assert_eq!(places(&mut merge), [], "they have just come");
    assert_eq!(places(&mut merge), [(0, 20)], "too much waits");
    merge.push(1, 1, steps(1, &[15, 18, 25]), 0);
    let all: Vec<_> = [1, 2].iter().flat_map(|_| popped(&mut merge)).collect();
    let late = all.iter().map(|timed| (timed.time_ns, timed.is_late));
    let expected = [(20, true), (20, true), (25, false)];
    assert_eq!(late.take(3).collect::<Vec<_>>(), expected);
}

#[test]
fn a_loss_is_after_what_the_ring_was_looked_at_for() {
    let mut merge = Merge::new(1, 9);
    merge.looked(0, 10);
    merge.push(0, 0, Part::Rows(vec![lost(5)]), 12);
    let loss = &popped(&mut merge)[0];
    assert_eq!((loss.time_ns, loss.until_ns), (10, 12));
}

#[test]
fn a_loss_is_before_the_next_record_of_its_ring() {
    let mut merge = Merge::new(1, 9);
    merge.push(0, 0, Part::Rows(vec![lost(5), entry(0, 8), lost(9)]), 12);
    let until = popped(&mut merge)
        .iter()
        .map(|timed| timed.until_ns)
        .collect::<Vec<_>>();
    assert_eq!((until[0], until[2]), (8, 12));
}

#[test]
fn a_record_at_the_time_of_what_went_on_without_it_is_not_late() {
    let mut merge = Merge::new(2, 1);
    bring(&mut merge, 0, 20);
    bring(&mut merge, 0, 30);
    assert_eq!(places(&mut merge), [], "they have just come");
    assert_eq!(places(&mut merge), [(0, 20)], "too much waits");
    bring(&mut merge, 1, 20);
    bring(&mut merge, 1, 25);
    let popped = popped(&mut merge);
    assert!(popped.len() == 2 && popped.iter().all(|timed| !timed.is_late));
}

/// It was once: a vCPU that was about to write when its ring was read made all of it late, where one round of the others
/// brought more than may wait.
#[test]
fn what_one_round_brings_waits_for_the_next_however_much_it_is() {
    let mut merge = Merge::new(2, 1);
    (10..20).for_each(|time_ns| bring(&mut merge, 0, time_ns));
    merge.looked(0, 20);
    assert_eq!(places(&mut merge), []);
    bring(&mut merge, 0, 30);
    bring(&mut merge, 1, 12);
    merge.looked(1, 40);
    merge.looked(0, 40);
    let popped = popped(&mut merge);
    assert!(popped.len() == 12 && popped.iter().all(|timed| !timed.is_late));
    assert!(popped.is_sorted_by_key(|timed| timed.time_ns));
}

/// There are as many as a guest has vCPUs, and most sessions have no points.
#[test]
fn nothing_waits_for_a_ring_that_brings_nothing_until_it_does() {
    let mut merge = Merge::new(2, 9);
    merge.ignore(1);
    bring(&mut merge, 0, 20);
    assert_eq!(places(&mut merge), [(0, 20)]);
    merge.expect(1);
    bring(&mut merge, 0, 30);
    assert_eq!(places(&mut merge), []);
    bring(&mut merge, 1, 25);
    merge.looked(1, 40);
    assert_eq!(places(&mut merge), [(1, 25), (0, 30)]);
}

#[test]
fn room_of_what_has_continued_is_given_back_empty() {
    let mut merge = Merge::new(1, 9);
    merge.push(0, 0, Part::Rows(vec![entry(0, 1), entry(0, 2)]), 0);
    assert_eq!(merge.take_room(), None, "it is still needed");
    assert_eq!(places(&mut merge).len(), 2);
    let room = merge.take_room().unwrap();
    assert!(room.is_empty() && room.room() >= 2);
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

fn push_values(stream: &mut Stream, vcpu: u16, time_ns: u64, slot: u64) {
    let kind = RecordKind::Captured(Box::new(values(slot)));
    stream
        .rings()
        .push(Origin::Points(vcpu), vec![Record { time_ns, kind }], 0);
}

#[test]
fn a_trace_without_values_takes_none() {
    let mut stream = stream(1, WAITING_MAX);
    push_values(&mut stream, 0, 9, STACK - 64);
    push(&mut stream, 0, &entry(0, 10), 0);
    let mut seen: Vec<Event> = Vec::new();
    stream.finish(&mut seen);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].values, None);
}

#[test]
fn a_look_at_values_is_not_one_at_records() {
    let mut stream = stream(2, WAITING_MAX).with_values();
    let mut seen: Vec<Event> = Vec::new();
    push(&mut stream, 0, &entry(0, 50), 0);
    for ring in 0..2 {
        stream.rings().looked(Origin::Points(ring), 60);
    }
    stream.pass_on(Pass::Round, &mut seen);
    assert_eq!(seen.len(), 0, "the other vCPU may have made a call before");
    stream.rings().looked(Origin::Calls(1), 60);
    stream.pass_on(Pass::Round, &mut seen);
    assert_eq!(seen.len(), 1);
}

/// What was captured before a loss may belong to a call whose record was lost.
#[test]
fn a_loss_of_records_takes_values_with_it() {
    let mut stream = stream(1, WAITING_MAX).with_values();
    push_values(&mut stream, 0, 5, STACK - 64);
    push(&mut stream, 0, &lost(6), 7);
    push(&mut stream, 0, &entry(0, 10), 0);
    let mut seen: Vec<Event> = Vec::new();
    stream.finish(&mut seen);
    assert!(seen.iter().all(|step| step.values.is_none()), "{seen:?}");
    assert_eq!(stream.joined().unclaimed, 1);
}

/// It waits for its duration, and the trace ends: it has taken as long as that.
#[test]
fn a_call_that_is_open_at_the_end_is_shown_when_it_was_long() {
    let mut stream = stream(2, WAITING_MAX);
    let rules = Rules {
        threshold: Some(Threshold { nanoseconds: 40 }),
        ..Rules::default()
    };
    stream.select(rules, &functions(2));
    for (ring, time) in [(0, 10), (1, 60)] {
        push(&mut stream, ring.into(), &entry(ring, time), 0);
    }
    let mut seen: Vec<Event> = Vec::new();
    stream.finish(&mut seen);
    let entries: Vec<_> = seen.iter().map(|step| (step.vcpu, step.kind)).collect();
    assert_eq!(entries, [(0, EventKind::Entry(FunctionId(0)))]);
}

#[test]
fn a_root_that_no_function_is_is_missing() {
    for (roots, is_missing) in [(vec![], false), (vec!["f1"], false), (vec!["g*"], true)] {
        let roots: Vec<String> = roots.into_iter().map(str::to_owned).collect();
        let rules = Rules::new(None, &roots, &[], None).unwrap();
        let mut selection = Selection::new(rules);
        for function in ["f0", "f1"] {
            selection.add_function(function, None);
        }
        assert_eq!(selection.root_is_missing(), is_missing, "{roots:?}");
    }
}
