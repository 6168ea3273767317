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
    let begin = |live| {
        let image = Arc::new(nop_image(FUNCTIONS));
        let stream = Stream::of_graph(1, STACK, WAITING_MAX).unwrap();
        Ok::<_, ()>(Output::told(&image, stream, live))
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
    ended(tail)
}

fn ended(tail: &Tail) -> Vec<(u64, Option<u64>, Option<String>)> {
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

/// The calls of function 1 that a dump has, as [`calls`] has those of a trace.
fn dumped(polled: &Polled, rings: u16) -> Vec<(u64, Option<u64>, Option<String>)> {
    dumped_from(polled, rings, 0)
}

/// The same from a time on.
fn dumped_from(
    polled: &Polled,
    rings: u16,
    from_ns: u64,
) -> Vec<(u64, Option<u64>, Option<String>)> {
    let (tail, listener) = tail(|| ());
    let stream = Stream::of_graph(rings, STACK, usize::MAX).unwrap();
    let mut output = Output::told(&Arc::new(nop_image(FUNCTIONS)), stream, Live::default());
    let mut backlog = Backlog::default();
    backlog.news.listeners.push(listener);
    output.take(&mut backlog, &Alone);
    let dump = polled.lock().dumping().begin(output, false, |_| from_ns);
    let dumped = dump.write(|| {}).0.unwrap();
    assert!(dumped.records > 0);
    ended(&tail)
}

/// Rings that nobody reads.
fn unread(rings: u16) -> (MockGuest, SessionMemory, Polled) {
    let guest = MockGuest::new(MockTarget::new(1, 1 << 20));
    let place = place_in(&guest, RecordFormat::Graph, rings, 4096);
    TICKS.set(BEGUN);
    let polled = reader_at(&guest, &place, None, paged(TICKING));
    (guest, place, polled)
}

/// A dump once had none: what was open while recording was off took as long as that, with certainty.
#[test]
fn a_dump_has_the_gaps_of_before_too() {
    for is_read in [false, true] {
        let (guest, place, polled) = unread(1);
        let _heard = is_read.then(|| {
            let (tail, listener) = tail(|| ());
            let begin = |live| {
                let stream = Stream::of_graph(1, STACK, WAITING_MAX).unwrap();
                Ok::<_, ()>(Output::told(&Arc::new(nop_image(FUNCTIONS)), stream, live))
            };
            polled.lock().listen(listener, begin).unwrap();
            tail
        });
        step(&guest, &place, Step::Entry, NOW - 5000);
        step(&guest, &place, Step::Exit, NOW - 4000);
        step(&guest, &place, Step::Entry, NOW - 3000);
        gap(&polled, NOW);
        TICKS.set(NOW + 1000);
        step(&guest, &place, Step::Exit, NOW + 3);
        step(&guest, &place, Step::Entry, NOW + 7);
        step(&guest, &place, Step::Exit, NOW + 11);
        for _ in 0..2 {
            // The second one has the gap that the first has made, after all of these.
            let calls = dumped(&polled, 1);
            assert_eq!(calls[0], (NOW - 5000, Some(1000), None));
            assert!(calls[1].2.is_some(), "{calls:?}");
            assert_eq!(calls[2..], [(NOW + 7, Some(4), None)]);
        }
    }
}

/// The first ring says where a gap was, and what it had before that can be written over long since.
#[test]
fn a_gap_is_in_a_dump_also_where_the_ring_that_tells_of_it_went_on() {
    let (guest, place, polled) = unread(2);
    let on_other = |step: Step, ticks| {
        let step = Some((step, SLOT));
        assert!(guest.step(&place, 1, FunctionId(1), ticks, step).unwrap());
    };
    on_other(Step::Entry, NOW - 3000);
    other(&guest, &place);
    gap(&polled, NOW);
    TICKS.set(NOW + 10_000);
    for call in 0..600 {
        let step = |step, ticks| {
            let step = Some((step, OTHER - 128));
            assert!(guest.step(&place, 0, FunctionId(2), ticks, step).unwrap());
        };
        step(Step::Entry, NOW + 10 + 2 * call);
        step(Step::Exit, NOW + 11 + 2 * call);
    }
    on_other(Step::Exit, NOW + 3000);
    let calls = dumped(&polled, 2);
    assert!(calls[0].2.is_some(), "{calls:?}");
}

/// A call of function 1 on this vCPU.
fn call_of(guest: &MockGuest, place: &SessionMemory, vcpu: u16, (begun, ended): (u64, u64)) {
    for (step, ticks) in [(Step::Entry, begun), (Step::Exit, ended)] {
        let step = Some((step, SLOT));
        assert!(guest.step(place, vcpu, FunctionId(1), ticks, step).unwrap());
    }
}

/// Where one vCPU had done nothing since, all calls of the others were once uncertain up to the end.
#[test]
fn a_dump_from_a_time_on_is_certain_though_a_vcpu_was_idle_since() {
    for busy in [0, 1] {
        let (guest, place, polled) = unread(2);
        let old = (NOW - 5000, NOW - 4500);
        call_of(&guest, &place, 1 - busy, old);
        call_of(&guest, &place, busy, old);
        call_of(&guest, &place, busy, (NOW - 3000, NOW - 2000));
        TICKS.set(NOW);
        let calls = dumped_from(&polled, 2, NOW - 3500);
        assert_eq!(calls, [(NOW - 3000, Some(1000), None)]);
    }
}

#[test]
fn what_is_lost_over_the_beginning_of_a_dump_leaves_nothing_certain() {
    let (guest, place, polled) = unread(2);
    other(&guest, &place);
    reserve(&guest, &place);
    call_of(&guest, &place, 1, (NOW - 3000, NOW - 2000));
    TICKS.set(NOW);
    let calls = dumped_from(&polled, 2, NOW - 3500);
    assert!(calls[0].2.is_some(), "{calls:?}");
}

/// It once lasted until the next record of the ring that tells of it, or to the end, and from when a record was missing in front of it.
#[test]
fn a_gap_of_a_dump_ends_where_it_ended_whatever_its_ring_brings() {
    for is_missing in [false, true] {
        let (guest, place, polled) = unread(2);
        other(&guest, &place);
        if is_missing {
            reserve(&guest, &place);
        }
        let on_other = |step: Step, ticks| {
            let step = Some((step, SLOT));
            assert!(guest.step(&place, 1, FunctionId(1), ticks, step).unwrap());
        };
        on_other(Step::Entry, NOW - 3000);
        gap(&polled, NOW);
        on_other(Step::Exit, NOW + 3);
        call_of(&guest, &place, 1, (NOW + 7, NOW + 11));
        gap(&polled, NOW + 500);
        call_of(&guest, &place, 1, (NOW + 507, NOW + 512));
        TICKS.set(NOW + 1000);
        let calls = dumped(&polled, 2);
        assert!(calls[0].2.is_some(), "{calls:?}");
        let certain = [(NOW + 7, Some(4), None), (NOW + 507, Some(5), None)];
        assert_eq!(calls[1..], certain);
    }
}

/// What is open at the end has lasted as long: until recording ended, however long the rings were read after that.
#[test]
fn a_trace_says_up_to_when_something_would_have_been_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let said = |name: &str, ends: fn(&mut Drain)| {
        let output = folder.path().join(name);
        let guest = MockGuest::new(MockTarget::new(1, 1 << 20));
        let place = place_in(&guest, RecordFormat::Graph, 1, 4096);
        TICKS.set(BEGUN);
        let mut polled = reader_at(&guest, &place, Some(&output), paged(TICKING));
        step(&guest, &place, Step::Entry, BEGUN + 1);
        TICKS.set(NOW);
        ends(&mut polled.lock());
        TICKS.set(NOW + 5000);
        polled.round();
        polled.finish().unwrap();
        let side = fs::read_to_string(output.join("exotrace.json")).unwrap();
        let side: trace::export::uftrace::SideFile = serde_json::from_str(&side).unwrap();
        side.until_ns
    };
    assert_eq!(said("off", |drain| drain.switch(false)), NOW);
    let dead = |drain: &mut Drain| drain.ended_ns = Some(drain.recorded_until_ns());
    assert_eq!(said("dead", dead), NOW);
    assert_eq!(said("alive", |_| ()), NOW + 5000);
}

/// The same of one that the guest has ended itself: when that was, its last record says.
#[test]
fn what_the_guest_has_ended_does_not_go_on() {
    let (guest, place, polled, _tail) = graph();
    step(&guest, &place, Step::Entry, NOW - 3000);
    assert_eq!(polled.lock().recorded_until_ns(), TICKS.get());
    let limit = cell_word(&place, 0, LIMIT);
    guest.target().write_word(limit, LIMIT_HOLD).unwrap();
    assert_eq!(polled.lock().recorded_until_ns(), 0);
    polled.lock().switch(false);
    assert_eq!(polled.lock().recorded_until_ns(), 0);
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
