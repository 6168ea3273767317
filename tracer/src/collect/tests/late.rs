//! Records that were passed over, because their writers were away, and come after others of their ring.

use super::*;

/// So many are a quarter of a ring: then no slot is waited for.
const MANY: u64 = 130;
const SLOT: u64 = 5 * STACK - 64;
const OTHER: u64 = 6 * STACK - 64;

/// A call is passed over, and comes after later ones.
fn passes_over(guest: &MockGuest, place: &SessionMemory, polled: &Polled) {
    TICKS.set(NOW);
    let slot = reserve(guest, place);
    call_on(0, guest, place, 1..1 + MANY);
    polled.round();
    assert_eq!(polled.lock().status()[0].read, MANY);
    comes_late(guest, place, slot, || call_on(0, guest, place, 0..1));
    polled.round();
}

/// It was once: shown at the time of a later one, and nobody heard of it.
#[test]
fn a_call_without_a_return_that_comes_late_has_its_own_time() {
    let (guest, place, polled) = reader_by(None, paged(TICKING));
    let tail = begins_to_listen(&polled);
    passes_over(&guest, &place, &polled);
    let times = tail.take(usize::MAX).into_iter();
    let last = times.map(|event| event.time_ns).next_back();
    assert_eq!(last, Some(NOW - 1_000_000));
}

#[test]
fn a_call_that_comes_late_is_counted_where_it_cannot_have_its_own_time() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled) = reader_by(Some(&output), paged(TICKING));
    passes_over(&guest, &place, &polled);
    assert_eq!(polled.finish().unwrap().unwrap().tally().calls, 1 + MANY);
    let side = fs::read(output.join("exotrace.json")).unwrap();
    let side: serde_json::Value = serde_json::from_slice(&side).unwrap();
    assert_eq!(side["totals"][0]["reordered"], 1, "{side}");
}

/// The entry of a call is shown when its place in the ring is: how long the call takes is not known.
#[test]
fn a_call_whose_entry_comes_late_has_no_certain_duration() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (format, clock) = (RecordFormat::Graph, paged(TICKING));
    let (guest, place, mut polled) = reader_in(format, Some(&output), clock, 1, 4096);
    TICKS.set(NOW);
    let tail = listens_too(&polled);
    let step = |function, step, ticks, slot| {
        let step = Some((step, slot));
        let function = FunctionId(function);
        assert!(guest.step(&place, 0, function, ticks, step).unwrap());
    };
    let slot = reserve(&guest, &place);
    for call in 0..MANY {
        step(2, Step::Entry, NOW - 5000 + call, OTHER);
        step(2, Step::Exit, NOW - 5000 + call, OTHER);
    }
    polled.round();
    comes_late(&guest, &place, slot, || {
        step(1, Step::Entry, NOW - 9000, SLOT);
    });
    step(1, Step::Exit, NOW - 1000, SLOT);
    step(1, Step::Entry, NOW - 900, SLOT);
    step(1, Step::Exit, NOW - 800, SLOT);
    polled.round();
    polled.finish().unwrap();
    let returned = tail.take(usize::MAX).into_iter().filter_map(|event| {
        let Happening::Return {
            function, remark, ..
        } = event.what
        else {
            return None;
        };
        function.ends_with('1').then_some(remark.is_some())
    });
    assert_eq!(returned.collect::<Vec<_>>(), [true, false]);
}
