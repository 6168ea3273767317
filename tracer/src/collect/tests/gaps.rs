//! Stretches in which nothing was recorded, and the calls around them.

use super::*;
use crate::ring::geometry::{LIMIT_HOLD, LIMIT_NONE, LIMIT_OFF};
use crate::stub::cell::LIMIT;

/// Where the return address of the call lies that is looked at, and of another thread's.
const SLOT: u64 = 5 * STACK - 64;
const OTHER: u64 = 6 * STACK - 64;

/// A graph of one ring, which stubs can end, and who listens to it.
fn graph() -> (MockGuest, SessionMemory, Polled, Tail) {
    let guest = MockGuest::new(MockTarget::new(1, 1 << 20));
    let place = SessionMemory {
        halts_left: Some(guest.window().start.wrapping_add(1024)),
        ..place_in(&guest, RecordFormat::Graph, 1, 4096)
    };
    TICKS.set(BEGUN);
    let polled = reader_at(&guest, &place, None, paged(TICKING));
    let (tail, listener) = tail(|| ());
    let begin = || {
        let image = Arc::new(nop_image(FUNCTIONS));
        let stream = Stream::of_graph(1, STACK, WAITING_MAX).unwrap();
        Ok::<_, ()>(Output::told(&image, stream))
    };
    polled.lock().listen(listener, begin).unwrap();
    (guest, place, polled, tail)
}

fn step(guest: &MockGuest, place: &SessionMemory, step: Step, ticks: u64) {
    let step = Some((step, SLOT));
    assert!(guest.step(place, 0, FunctionId(1), ticks, step).unwrap());
}

/// Recording is off for some time, up to this one.
fn gap(polled: &Polled, until: u64) {
    TICKS.set(until - 100);
    polled.lock().switch(false);
    TICKS.set(until);
    polled.lock().switch(true);
}

/// The call of the other thread.
fn other(guest: &MockGuest, place: &SessionMemory) {
    let step = Some((Step::Entry, OTHER));
    assert!(
        guest
            .step(place, 0, FunctionId(2), NOW - 4000, step)
            .unwrap()
    );
}

/// When each call that has returned was entered, how long it took, and what is said of its end.
fn calls(mut polled: Polled, tail: &Tail) -> Vec<(u64, Option<u64>, Option<String>)> {
    assert!(polled.finish().unwrap().is_none());
    let mut entered = 0;
    let of = |event: trace::live::LiveEvent| match event.what {
        Happening::Call { function, .. } if function.ends_with('1') => {
            entered = event.time_ns;
            None
        }
        Happening::Return {
            function,
            duration_ns,
            remark,
            ..
        } if function.ends_with('1') => Some((entered, duration_ns, remark)),
        _ => None,
    };
    tail.take(usize::MAX).into_iter().filter_map(of).collect()
}

/// It was once: a slot in front of them was waited for, so they came after the gap, at its time, and took no time at all.
#[test]
fn calls_before_a_gap_are_before_it_also_when_they_are_read_later() {
    for has_more in [false, true] {
        let (guest, place, polled, tail) = graph();
        let slot = reserve(&guest, &place);
        step(&guest, &place, Step::Entry, NOW - 3000);
        step(&guest, &place, Step::Exit, NOW - 1000);
        gap(&polled, NOW);
        TICKS.set(NOW + 1000);
        if has_more {
            // The round that reads them finds what comes after the gap, too.
            step(&guest, &place, Step::Entry, NOW + 10);
            step(&guest, &place, Step::Exit, NOW + 15);
        }
        comes_late(&guest, &place, slot, || other(&guest, &place));
        polled.round();
        let calls = calls(polled, &tail);
        assert_eq!(calls[0], (NOW - 3000, Some(2000), None));
        let after = has_more.then_some((NOW + 10, Some(5), None));
        assert_eq!(calls.get(1), after.as_ref());
    }
}

#[test]
fn what_is_open_over_a_gap_is_not_certain_also_when_it_is_read_later() {
    for is_read_before in [true, false] {
        let (guest, place, polled, tail) = graph();
        let slot = reserve(&guest, &place);
        step(&guest, &place, Step::Entry, NOW - 3000);
        let late = || comes_late(&guest, &place, slot, || other(&guest, &place));
        if is_read_before {
            late();
            polled.round();
        }
        gap(&polled, NOW);
        if !is_read_before {
            late();
        }
        TICKS.set(NOW + 1000);
        step(&guest, &place, Step::Exit, NOW + 3);
        step(&guest, &place, Step::Entry, NOW + 7);
        step(&guest, &place, Step::Exit, NOW + 11);
        polled.round();
        let calls = calls(polled, &tail);
        assert!(calls[0].2.is_some(), "{calls:?}");
        assert_eq!(
            calls[1],
            (NOW + 7, Some(4), None),
            "it begins after the gap"
        );
    }
}

#[test]
fn each_gap_has_its_place() {
    let (guest, place, polled, tail) = graph();
    let slot = reserve(&guest, &place);
    let begun = [NOW - 3000, NOW - 2000, NOW - 1000];
    for begun in begun {
        step(&guest, &place, Step::Entry, begun);
        step(&guest, &place, Step::Exit, begun + 500);
        gap(&polled, begun + 900);
        polled.round();
    }
    TICKS.set(NOW);
    comes_late(&guest, &place, slot, || other(&guest, &place));
    polled.round();
    let calls = calls(polled, &tail);
    assert_eq!(calls, begun.map(|begun| (begun, Some(500), None)));
}

/// Else a gap would be where its ring was seen to, after what other rings have brought by then.
#[test]
fn a_ring_is_seen_to_what_comes_after_its_gaps() {
    let (guest, place, polled, _tail) = graph();
    let slot = reserve(&guest, &place);
    for until in [NOW, NOW + 500] {
        gap(&polled, until);
    }
    TICKS.set(NOW + 1000);
    comes_late(&guest, &place, slot, || other(&guest, &place));
    polled.lock().refresh();
    let mut backlog = Backlog::default();
    let _ = polled.lock().hand_over(&mut backlog);
    let looked: Vec<_> = backlog.drain().map(|batch| batch.looked_ns).collect();
    let (last, before) = looked.split_last().unwrap();
    assert_eq!(*last, Some(NOW + 1000));
    assert!(before.iter().all(Option::is_none), "{looked:?}");
}

#[test]
fn switching_on_what_is_on_is_no_gap() {
    let (guest, place, polled, tail) = graph();
    step(&guest, &place, Step::Entry, NOW - 3000);
    TICKS.set(NOW - 2000);
    polled.lock().switch(true);
    step(&guest, &place, Step::Exit, NOW - 1000);
    TICKS.set(NOW);
    polled.round();
    assert!(polled.told().anomalies.is_empty());
    assert_eq!(calls(polled, &tail), [(NOW - 3000, Some(2000), None)]);
}

#[test]
fn what_a_stub_has_ended_goes_on_after_a_gap() {
    for limit in [LIMIT_OFF, LIMIT_HOLD] {
        let (guest, place, polled, tail) = graph();
        step(&guest, &place, Step::Entry, NOW - 3000);
        TICKS.set(NOW - 2000);
        let at = cell_word(&place, 0, LIMIT);
        guest.target().write_word(at, limit).unwrap();
        polled.round();
        assert_eq!(guest.target().read_word(at).unwrap(), limit);
        polled.lock().switch(true);
        assert_eq!(guest.target().read_word(at).unwrap(), LIMIT_NONE);
        step(&guest, &place, Step::Exit, NOW - 1000);
        TICKS.set(NOW);
        polled.round();
        let calls = calls(polled, &tail);
        assert!(calls[0].2.is_some(), "{calls:?}");
    }
}
