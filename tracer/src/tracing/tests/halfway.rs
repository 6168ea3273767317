//! Sessions whose start or stop fails half way: what is left of it can be taken away.

use std::time::Duration;

use image::Marker;
use image::marker::MarkerSite;
use image::testing::{TEXT, mixed_image};
use insn::nop::NOP5;
use terms::event_format::EventFormat;

use super::*;
use crate::target::TextMemory;

const EVENT: &str = "net:sent";
/// After the first instruction of a function.
const MARKER: Gva = Gva(TEXT + 16 * 3 + 10);

/// A guest with a marker, whose default session records that, and is started and stopped in pauses.
fn with_event() -> (Tracing, MockGuest) {
    let mut image = nop_image(FUNCTIONS);
    let site = MarkerSite {
        at: MARKER,
        nop: NOP5,
        operands: Vec::new(),
        function: FunctionId(3),
    };
    image.markers.push(Marker {
        format: EventFormat::new(EVENT.into(), Vec::new()),
        sites: vec![site],
    });
    let options = SessionOptions {
        event: vec![EVENT.to_owned()],
        ..small(None)
    };
    let (mut tracing, guest) = prepared_of(image, options);
    guest.target().write(MARKER, &NOP5).unwrap();
    tracing.attachment.patching = Patching::new(PatchMethod::Quiesce, None, mock::HOST);
    (tracing, guest)
}

fn is_event_on(tracing: &Tracing) -> bool {
    let events = tracing.events().events;
    let event = events.iter().find(|event| event.name == EVENT);
    event.unwrap().state != "nop"
}

/// Nobody stops any more after so many times.
fn stops_only(guest: &mut MockGuest, times: u64) {
    (guest.stuck, guest.stuck_from) = (Some(1), guest.stops() + times);
}

fn start(tracing: &mut Tracing, guest: &MockGuest) -> Result<status::Changed, TracingError> {
    tracing.start(guest, DEFAULT_SESSION, None, &everything())
}

/// It took the session's name, and left its jumps in the guest with nobody to take them away.
#[test]
fn a_session_whose_start_froze_half_way_is_deleted_with_its_jumps_or_not_at_all() {
    let (mut tracing, guest) = prepared_of(mixed_image(160), small(None));
    let millisecond = Some(Duration::from_millis(1));
    tracing.attachment.patching = Patching::new(PatchMethod::Quiesce, millisecond, mock::HOST);
    let before = tracing.digest(&guest).unwrap();
    // Of two slices the first is made; in the second one site does not change, and one does not change back.
    let at = |function: u64| Gva(TEXT + 16 * function);
    guest.target().faults.sticky.insert(at(150));
    guest.target().faults.once.insert(at(140));
    start(&mut tracing, &guest).unwrap_err();
    assert!(tracing.status().frozen.is_some());
    let left = patched(&tracing);
    assert!(left > 1, "the first slice is there still: {left}");
    guest.target().faults = mock::Faults::default();
    for _ in 0..2 {
        let refused = tracing.delete(&guest, DEFAULT_SESSION).unwrap_err();
        assert!(refused.to_string().contains("frozen"), "{refused}");
        let mut started = tracing.attachment.sessions.started();
        assert!(
            started.next().is_none(),
            "patching that is frozen has ended it"
        );
        let session = &tracing.list().sessions[0];
        assert_eq!((&*session.name, session.traced), (DEFAULT_SESSION, left));
    }
    assert!(tracing.thaw(&guest).unwrap().changed);
    assert_eq!(
        patched(&tracing),
        left - 1,
        "what was stuck is not any more"
    );
    let (deleted, _) = tracing.delete(&guest, DEFAULT_SESSION).unwrap();
    assert_eq!(
        deleted.stopped.map(|changed| changed.restored),
        Some(left - 1)
    );
    assert_eq!(tracing.digest(&guest).unwrap(), before);
    tracing
        .create(DEFAULT_SESSION, Tracer::Function, small(None))
        .unwrap();
    start(&mut tracing, &guest).unwrap();
}

#[test]
fn what_had_begun_before_functions_could_not_be_traced_ends() {
    let (mut tracing, guest) = with_event();
    let before = tracing.digest(&guest).unwrap();
    guest.target().faults.unwritable.insert(Gva(TEXT + 16 * 7));
    let error = start(&mut tracing, &guest).unwrap_err();
    assert!(error.to_string().contains("f7"), "{error}");
    assert!(!is_event_on(&tracing));
    assert_eq!(tracing.digest(&guest).unwrap(), before);
    let refused = tracing.stop(&guest, DEFAULT_SESSION).unwrap_err();
    assert!(
        matches!(refused, TracingError::NotStarted { .. }),
        "{refused}"
    );
    guest.target().faults = mock::Faults::default();
    start(&mut tracing, &guest).unwrap();
    assert!(is_event_on(&tracing));
}

/// The session was not started, and nobody could stop it; it could not be deleted, but was gone.
#[test]
fn what_could_not_be_taken_back_of_a_start_is_stopped_or_deleted_later() {
    for deletes in [false, true] {
        let (mut tracing, mut guest) = with_event();
        let before = tracing.digest(&guest).unwrap();
        // For the rings of either kind, and for the event.
        stops_only(&mut guest, 3);
        let error = start(&mut tracing, &guest).unwrap_err();
        assert!(matches!(error, TracingError::Stop(_)), "{error}");
        assert!(is_event_on(&tracing));
        assert_eq!(tracing.list().sessions[0].state, "off");
        let refused = match deletes {
            true => tracing.delete(&guest, DEFAULT_SESSION).unwrap_err(),
            false => tracing.stop(&guest, DEFAULT_SESSION).unwrap_err(),
        };
        assert!(matches!(refused, TracingError::Stop(_)), "{refused}");
        guest.stuck = None;
        match deletes {
            true => drop(tracing.delete(&guest, DEFAULT_SESSION).unwrap()),
            false => drop(tracing.stop(&guest, DEFAULT_SESSION).unwrap()),
        }
        assert!(!is_event_on(&tracing));
        assert_eq!(tracing.digest(&guest).unwrap(), before);
    }
}

/// The window would have been closed below what leads there of an event.
#[test]
fn who_leaves_takes_what_is_left_of_a_start_along() {
    let (mut tracing, mut guest) = with_event();
    let before = tracing.digest(&guest).unwrap();
    stops_only(&mut guest, 3);
    start(&mut tracing, &guest).unwrap_err();
    guest.stuck = None;
    assert!(tracing.leave(&guest, false).unwrap().is_nobody());
    assert_eq!(tracing.digest(&guest).unwrap(), before);
}

#[test]
fn a_stop_that_fails_half_way_is_tried_again() {
    for at in 0..2 {
        let (mut tracing, mut guest) = with_event();
        let before = tracing.digest(&guest).unwrap();
        start(&mut tracing, &guest).unwrap();
        stops_only(&mut guest, at);
        let error = tracing.stop(&guest, DEFAULT_SESSION).unwrap_err();
        assert!(matches!(error, TracingError::Stop(_)), "{error}");
        // Functions end first.
        let functions = if at == 0 { FUNCTIONS } else { 0 };
        assert_eq!(
            (patched(&tracing), is_event_on(&tracing)),
            (functions, true)
        );
        guest.stuck = None;
        tracing.stop(&guest, DEFAULT_SESSION).unwrap();
        assert_eq!((patched(&tracing), is_event_on(&tracing)), (0, false));
        assert_eq!(tracing.digest(&guest).unwrap(), before);
        start(&mut tracing, &guest).unwrap();
        assert_eq!(patched(&tracing), FUNCTIONS);
    }
}
