//! Calls out of a few records: each thing that can go wrong with a call, by itself.

use Step::{Entry, Exit, Tail, Unhooked};
use terms::field::FieldValue;
use terms::function::FunctionId;

use super::{Act, Guest, STACK, graph, reconstruct, run};
use crate::event::{End, Event, EventKind, Record, RecordKind, Sink, Step, Timed, Values};
use crate::graph::anomaly::Anomaly;
use crate::graph::join::Found;
use crate::graph::threads::Threads;

/// Slots of one stack, the outer one first.
const OUTER: u64 = 0x1f00;
const INNER: u64 = 0x1e00;

/// Records may be missing from `time_ns` on, up to `until_ns`.
fn lost(time_ns: u64, until_ns: u64, count: u64) -> Timed {
    let kind = RecordKind::Lost(count);
    Timed {
        record: Record { time_ns, kind },
        vcpu: 0,
        time_ns,
        until_ns,
        is_late: false,
        is_tied: false,
    }
}

/// Function, end and duration of each call that ended.
fn ends(steps: &[Event]) -> Vec<(u32, End, Option<u64>)> {
    let end = |step: &Event| match step.kind {
        EventKind::Exit {
            function,
            end,
            duration,
        } => Some((function.0, end, duration)),
        _ => None,
    };
    steps.iter().filter_map(end).collect()
}

/// A new thread's first call, where the stack's last thread had died.
#[test]
fn a_call_whose_return_is_not_hooked_ends_what_was_at_its_place() {
    let (steps, anomalies) = run(&[
        graph(1, 0, Entry, 1, OUTER),
        graph(2, 0, Unhooked, 2, OUTER),
    ]);
    let expected = [(1, End::Unreturned, None), (2, End::Unhooked, None)];
    assert_eq!(ends(&steps), expected);
    assert_eq!(anomalies.count(Anomaly::Unreturned), 1);
    assert!(steps.iter().all(|step| step.depth == 0), "{steps:?}");
}

#[test]
fn a_call_that_was_entered_anew_was_not_taken_for_ended() {
    let (_, anomalies) = run(&[
        graph(1, 0, Entry, 1, OUTER),
        graph(2, 0, Entry, 2, INNER),
        // A jump out of the inner one.
        graph(3, 0, Exit, 1, OUTER),
        graph(4, 0, Entry, 2, INNER),
        graph(5, 0, Exit, 2, INNER),
        // What the guest makes up.
        graph(6, 0, Exit, 2, INNER),
    ]);
    assert_eq!(anomalies.count(Anomaly::SharedStack), 0);
    assert_eq!(anomalies.count(Anomaly::UnmatchedExit), 1);
}

#[test]
fn an_exit_of_another_function_is_not_that_of_the_call() {
    let (steps, anomalies) = run(&[
        graph(1, 0, Entry, 1, OUTER),
        graph(2, 0, Exit, 2, OUTER),
        graph(3, 0, Exit, 1, INNER),
    ]);
    assert_eq!(ends(&steps), [(1, End::NotSeen, None)]);
    assert_eq!(anomalies.count(Anomaly::UnmatchedExit), 2);
}

/// What the guest makes up: it was entered by a tail jump, so its return is that of the call before it.
#[test]
fn a_call_that_was_jumped_to_does_not_end_by_an_exit_of_its_own() {
    let (steps, anomalies) = run(&[
        graph(1, 0, Entry, 1, OUTER),
        graph(2, 0, Tail, 2, OUTER),
        graph(3, 0, Exit, 2, OUTER),
    ]);
    assert_eq!(
        ends(&steps),
        [(2, End::NotSeen, None), (1, End::NotSeen, None)]
    );
    assert_eq!(anomalies.count(Anomaly::UnmatchedExit), 1);
}

#[test]
fn a_loss_makes_open_calls_unsure_and_what_may_be_before_its_end() {
    let (steps, anomalies) = run(&[
        graph(1, 0, Entry, 1, OUTER),
        lost(2, 10, 3),
        graph(5, 0, Entry, 2, INNER),
        graph(12, 0, Exit, 2, INNER),
        graph(13, 0, Entry, 3, INNER),
        graph(15, 0, Exit, 3, INNER),
        graph(16, 0, Exit, 1, OUTER),
    ]);
    let expected = [
        (2, End::Unsure, None),
        (3, End::Returned, Some(2)),
        (1, End::Unsure, None),
    ];
    assert_eq!(ends(&steps), expected);
    assert_eq!(anomalies.count(Anomaly::Unsure), 2);
    let shown = steps.iter().filter(|step| step.kind == EventKind::Lost(3));
    assert_eq!(shown.count(), 1);
}

#[test]
fn a_loss_of_unknown_size_is_not_shown_but_counts() {
    let (steps, _) = run(&[
        graph(1, 0, Entry, 1, OUTER),
        lost(2, 3, 0),
        graph(4, 0, Exit, 1, OUTER),
    ]);
    assert_eq!(ends(&steps), [(1, End::Unsure, None)]);
    assert_eq!(steps.len(), 2);
}

#[test]
fn a_record_that_is_late_makes_open_calls_unsure() {
    let late = Timed {
        is_late: true,
        ..graph(3, 1, Entry, 2, INNER)
    };
    let (steps, anomalies) = run(&[
        graph(1, 0, Entry, 1, OUTER),
        late,
        graph(5, 0, Exit, 1, OUTER),
    ]);
    assert_eq!(ends(&steps)[1], (1, End::Unsure, None));
    assert_eq!(anomalies.count(Anomaly::Late), 1);
}

#[test]
fn a_threads_time_never_goes_back() {
    let (steps, _) = run(&[
        graph(10, 0, Entry, 1, OUTER),
        graph(5, 1, Exit, 1, OUTER),
        lost(7, 8, 1),
        // Something of another thread.
        graph(6, 1, Entry, 1, OUTER + STACK),
    ]);
    let times: Vec<u64> = steps.iter().map(|step| step.time_ns).collect();
    assert_eq!(times, [10, 10, 10, 6]);
    assert_eq!(ends(&steps), [(1, End::Returned, Some(0))]);
}

/// They are found to have ended when the time of their thread was that of its last record.
#[test]
fn a_call_that_did_not_return_ends_with_its_threads_last_record() {
    let (steps, anomalies) = run(&[
        graph(1, 0, Entry, 1, OUTER),
        graph(2, 0, Entry, 2, INNER),
        graph(9, 0, Exit, 1, OUTER),
    ]);
    let times: Vec<u64> = steps.iter().map(|step| step.time_ns).collect();
    assert_eq!(times, [1, 2, 2, 9]);
    assert_eq!(anomalies.count(Anomaly::NotSeen), 1);
}

#[test]
fn what_a_loss_leaves_open_is_not_said_to_have_ended_otherwise() {
    let (steps, anomalies) = run(&[
        graph(1, 0, Entry, 1, OUTER),
        graph(2, 0, Entry, 2, INNER),
        lost(3, 4, 1),
        graph(5, 0, Exit, 1, OUTER),
        // It may have returned among what was lost, and have been called again.
        graph(6, 0, Exit, 2, INNER),
    ]);
    assert_eq!(ends(&steps)[0], (2, End::NotSeen, None));
    let counts = [Anomaly::LostExit, Anomaly::NotSeen, Anomaly::SharedStack];
    assert_eq!(counts.map(|anomaly| anomalies.count(anomaly)), [1, 0, 0]);
}

#[test]
fn a_chain_whose_first_call_is_missing_ends_with_its_exit() {
    let (steps, anomalies) = run(&[graph(1, 0, Tail, 2, OUTER), graph(4, 0, Exit, 1, OUTER)]);
    assert_eq!(ends(&steps), [(2, End::Returned, Some(3))]);
    assert_eq!(anomalies.count(Anomaly::UnmatchedExit), 0);
}

/// An exit is that of the call that was hooked, so one of the others is nonsense.
#[test]
fn a_call_that_was_jumped_to_has_no_exit_of_its_own() {
    let (_, anomalies) = run(&[
        graph(1, 0, Entry, 1, OUTER),
        graph(2, 0, Entry, 2, INNER),
        graph(3, 0, Tail, 3, INNER),
        graph(4, 0, Exit, 1, OUTER),
        graph(5, 0, Exit, 3, INNER),
    ]);
    assert_eq!(anomalies.count(Anomaly::NotSeen), 2);
    assert_eq!(anomalies.count(Anomaly::UnmatchedExit), 1);
    assert_eq!(anomalies.count(Anomaly::SharedStack), 0);
}

#[test]
fn what_a_chain_returns_is_said_of_its_first_call() {
    let returned: Values = [FieldValue::Unsigned(5)].into();
    let mut threads = Threads::new(STACK).unwrap();
    let mut steps: Vec<Event> = Vec::new();
    for (record, found) in [
        (graph(1, 0, Entry, 1, OUTER), Found::Nothing),
        (graph(2, 0, Tail, 2, OUTER), Found::Nothing),
        (graph(3, 0, Exit, 1, OUTER), Found::Values(returned.clone())),
    ] {
        threads.record(&record, found, &mut steps);
    }
    assert_eq!(ends(&steps).len(), 2);
    let with = steps.iter().filter(|step| step.values.is_some());
    let kinds: Vec<EventKind> = with.map(|step| step.kind).collect();
    let expected = EventKind::Exit {
        function: FunctionId(1),
        end: End::Returned,
        duration: Some(2),
    };
    assert_eq!(kinds, [expected]);
}

/// Counts what it is given.
#[derive(Default)]
struct Entries(u64);

impl Sink for Entries {
    fn event(&mut self, event: Event) {
        self.0 += u64::from(matches!(event.kind, EventKind::Entry(_)));
    }
}

#[test]
fn so_many_calls_are_open_at_once_on_all_stacks() {
    let mut threads = Threads::new(STACK).unwrap();
    let mut entries = Entries::default();
    let (stacks, depth) = (65, 1 << 14);
    for stack in 0..stacks {
        for _ in 0..depth {
            let record = graph(1, 0, Tail, 1, stack * STACK + 64);
            threads.record(&record, Found::Nothing, &mut entries);
        }
    }
    // Each call is shown, and those that there is no room for are not followed.
    assert_eq!(entries.0, stacks * depth);
    let over = stacks * depth - (1 << 20);
    assert_eq!(threads.anomalies().count(Anomaly::NoRoom), over);
}

/// A guest whose threads die and whose stacks are used again: what was left open is ended when its place is used.
#[test]
fn what_a_dead_thread_left_open_ends_when_its_stack_is_used() {
    let mut guest = Guest::new(1);
    for act in [
        Act::Call(1),
        Act::Call(2),
        Act::Die,
        Act::Call(3),
        Act::Return,
    ] {
        guest.act(0, 0, act, 10);
    }
    let (steps, anomalies) = reconstruct(&guest.rings, &[1]);
    let expected = [
        (2, End::Unreturned, None),
        (1, End::Unreturned, None),
        (3, End::Returned, Some(10)),
    ];
    assert_eq!(ends(&steps), expected);
    assert_eq!(anomalies.count(Anomaly::Unreturned), 2);
}
