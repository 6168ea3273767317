//! Runs made by hand: threads that end inside calls, stacks taken for one, jumps out of calls, interrupts.

use super::*;

/// A thread ends in the middle of its calls, and its stack is given to another one, which begins below them.
#[test]
fn what_a_dead_thread_left_open_is_closed_once_and_is_not_around_its_successors_calls() {
    use Step::{Entry, Exit};
    let before = [
        graph(1, 0, Entry, 1, 0x1f00),
        graph(2, 0, Entry, 2, 0x1e00),
        // Returns after the thread was seen last, before it ends.
        graph(3, 0, Entry, 3, 0x1d00),
        graph(5, 0, Exit, 3, 0x1d00),
    ];
    let after = [
        graph(6, 0, Entry, 4, 0x1c00),
        graph(9, 0, Exit, 4, 0x1c00),
        graph(10, 0, Entry, 5, 0x1c00),
        graph(11, 0, Exit, 5, 0x1c00),
    ];
    let death = Death {
        thread: 0,
        alive_ns: 4,
        gone_ns: 7,
    };
    // Told before its last records have come, and after the first of its successor.
    for told in [0, 2, 4, 5] {
        let mut threads = Threads::new(STACK).unwrap();
        let mut steps = Vec::new();
        for (index, event) in before.iter().chain(&after).enumerate() {
            if index == told {
                threads.died(death);
            }
            threads.record(event, Found::Nothing, &mut steps);
        }
        threads.advance(u64::MAX, &mut steps);
        let entered = |function| {
            let kind = EventKind::Entry(FunctionId(function));
            steps.iter().find(|step| step.kind == kind).unwrap().depth
        };
        // What it calls before the look is still inside; what follows is not.
        assert_eq!((entered(4), entered(5)), (2, 0), "{told}");
        let ends: Vec<(u32, End, u32)> = steps
            .iter()
            .filter_map(|step| match step.kind {
                EventKind::Exit { function, end, .. } => Some((function.0, end, step.depth)),
                _ => None,
            })
            .collect();
        let expected = [
            (3, End::Returned, 2),
            (4, End::Returned, 2),
            (2, End::Unreturned, 1),
            (1, End::Unreturned, 0),
            (5, End::Returned, 0),
        ];
        assert_eq!(ends, expected, "{told}");
        assert_eq!(threads.anomalies().count(Anomaly::Died), 2);
    }
}

/// Nothing comes after it: what is open is closed at the end.
#[test]
fn the_last_thread_of_a_stack_is_closed_without_a_record_after_it() {
    let mut threads = Threads::new(STACK).unwrap();
    let mut steps = Vec::new();
    threads.record(
        &graph(1, 0, Step::Entry, 1, 0x1f00),
        Found::Nothing,
        &mut steps,
    );
    threads.record(
        &graph(5, 0, Step::Entry, 2, 0x1e00),
        Found::Nothing,
        &mut steps,
    );
    // The inner one may be another's: then the outer one has to wait.
    threads.died(Death {
        thread: 0,
        alive_ns: 4,
        gone_ns: 9,
    });
    threads.died(Death {
        thread: 7,
        alive_ns: 4,
        gone_ns: 9,
    });
    threads.advance(u64::MAX, &mut steps);
    assert_eq!(steps.len(), 2);
    threads.died(Death {
        thread: 0,
        alive_ns: 6,
        gone_ns: 9,
    });
    threads.advance(u64::MAX, &mut steps);
    threads.advance(u64::MAX, &mut steps);
    assert_eq!(steps.len(), 4);
}

#[test]
fn two_stacks_taken_for_one_are_noticed_and_have_entries_only() {
    use Step::{Entry, Exit};
    let (steps, anomalies) = run(&[
        graph(1, 0, Entry, 1, 0x1f00),
        // Another thread, in the lower half.
        graph(2, 1, Entry, 2, 0x0f00),
        graph(3, 0, Exit, 1, 0x1f00),
        graph(4, 1, Exit, 2, 0x0f00),
        graph(5, 0, Entry, 1, 0x1f00),
        graph(6, 0, Exit, 1, 0x1f00),
    ]);
    let ends = steps.iter().filter_map(|step| match step.kind {
        EventKind::Exit {
            function,
            end,
            duration,
        } => Some((function.0, end, duration)),
        _ => None,
    });
    let ends: Vec<_> = ends.collect();
    assert_eq!(
        ends,
        [
            (2, End::NotSeen, None),
            (1, End::Returned, Some(2)),
            (1, End::EntryOnly, None),
        ]
    );
    assert_eq!(anomalies.count(Anomaly::SharedStack), 1);
    let (_, seen) = anomalies
        .iter()
        .find(|(kind, _)| *kind == Anomaly::SharedStack)
        .unwrap();
    assert_eq!((seen.function, seen.thread), (FunctionId(2), 0));
}

#[test]
fn a_call_that_a_jump_left_is_no_contradiction() {
    use Step::{Entry, Exit};
    let (steps, anomalies) = run(&[
        graph(1, 0, Entry, 1, 0x1f00),
        graph(2, 0, Entry, 2, 0x1e00),
        graph(3, 0, Exit, 1, 0x1f00),
        graph(4, 0, Entry, 2, 0x1e00),
        graph(6, 0, Exit, 2, 0x1e00),
    ]);
    assert_eq!(anomalies.count(Anomaly::NotSeen), 1);
    assert_eq!(anomalies.count(Anomaly::SharedStack), 0);
    let durations: Vec<_> = calls(&steps).iter().map(|call| call.duration).collect();
    assert_eq!(durations, [Some(2), None, Some(2)]);
}

#[test]
fn an_interrupt_is_nested_in_what_it_interrupts() {
    use Step::{Entry, Exit};
    let (steps, anomalies) = run(&[
        graph(1, 0, Entry, 1, 0x1f00),
        graph(2, 0, Entry, 7, 0x1e00),
        graph(3, 0, Exit, 7, 0x1e00),
        // The next one has a stack of its own.
        graph(4, 0, Entry, 7, 0x9_0000),
        graph(5, 0, Exit, 7, 0x9_0000),
        graph(6, 0, Exit, 1, 0x1f00),
    ]);
    assert_eq!(anomalies, Anomalies::default());
    let places: Vec<_> = steps.iter().map(|step| (step.thread, step.depth)).collect();
    assert_eq!(places, [(0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (0, 0)]);
}
