//! Sessions from their door, on a guest without a hypervisor: several vCPUs, calls whose number is known, toggling at
//! random, and a guest that writes where it should not.

use std::path::Path;
use std::sync::Mutex;

use image::testing::nop_image;
use proptest::prelude::*;
use terms::addr::Gpa;
use terms::function::FunctionId;

use super::closing::Closing;
use super::filters::{FilterEdit, Globs};
use super::options::{ClockSource, DEFAULT_SESSION, PatchMethod, SessionOptions, Tracer};
use super::*;
use crate::collect::{Poller, SharedDrain};
use crate::mock::{self, MockGuest, MockTarget, NoPollers, Rights};
use crate::stub::cell::{HEAD, LIMIT, LOST};
use status::SwitchedSites;
use trace::export::uftrace::Tally;

const VCPUS: u16 = 2;
const FUNCTIONS: u64 = 40;
const WINDOW: u64 = 64 << 20;

fn host() -> Host {
    Host {
        clock: mock::HOST,
        pollers: Box::new(NoPollers),
        command_line: "test".to_owned(),
    }
}

fn small(output: Option<&Path>) -> SessionOptions {
    SessionOptions {
        ring_bytes: 4096,
        output: output.map(Path::to_owned),
        ..SessionOptions::default()
    }
}

/// A guest that nobody traces yet, and its tracing.
fn prepared(session: SessionOptions) -> (Tracing, MockGuest) {
    prepared_of(nop_image(FUNCTIONS), session)
}

fn prepared_of(image: Image, session: SessionOptions) -> (Tracing, MockGuest) {
    prepared_with(image, session, |_| host())
}

/// The same, of a host that knows the guest.
fn prepared_with(
    image: Image,
    session: SessionOptions,
    host: impl FnOnce(&MockGuest) -> Host,
) -> (Tracing, MockGuest) {
    let target = MockTarget::with_image(VCPUS.into(), WINDOW, &image, Rights::ALL).unwrap();
    let guest = MockGuest::new(target);
    let options = TracingOptions {
        session,
        vcpus: VCPUS,
        ..TracingOptions::default()
    };
    let kernel = Kernel {
        image,
        debug: None,
        name: "kernel".to_owned(),
    };
    let tracing = Tracing::new(options, kernel, host(&guest)).unwrap();
    (tracing, guest)
}

/// Its times would be anything.
#[test]
fn a_counter_that_does_not_run_as_the_hosts_times_no_records() {
    for (clock, is_refused) in [(ClockSource::Tsc, true), (ClockSource::None, false)] {
        let options = SessionOptions {
            clock,
            ..small(None)
        };
        let (mut tracing, guest) = prepared(options);
        guest.clocks().runs_at(1, 3_000_000, 2_600_000);
        let started = tracing.start(&guest, DEFAULT_SESSION, None, &everything());
        match (started, is_refused) {
            (Ok(_), false) => {}
            (Err(error @ TracingError::ClockSpeed { .. }), true) => {
                let text = error.to_string();
                let said = ["vCPU 1", "3000000", "2600000"];
                assert!(said.iter().all(|one| text.contains(one)), "{text}");
            }
            (other, _) => panic!("{clock:?}: {other:?}"),
        }
    }
}

fn everything() -> Globs {
    Globs::default()
}

fn only(glob: &str) -> Globs {
    Globs {
        filter: vec![glob.to_owned()],
        ..Globs::default()
    }
}

fn patched(tracing: &Tracing) -> u64 {
    tracing.status().patched
}

fn tally(finished: &Finished) -> Tally {
    match &finished.closings[..] {
        [Closing::Written { tally, .. }] => *tally,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_starts_stops_and_leaves_every_byte_as_it_was() {
    let (mut tracing, guest) = prepared(small(None));
    let before = tracing.digest(&guest).unwrap();
    let changed = tracing
        .start(&guest, DEFAULT_SESSION, None, &everything())
        .unwrap();
    assert_eq!((changed.traced, patched(&tracing)), (FUNCTIONS, FUNCTIONS));
    assert_ne!(tracing.digest(&guest).unwrap(), before);
    let again = tracing.start(&guest, DEFAULT_SESSION, None, &everything());
    assert!(matches!(again, Err(TracingError::AlreadyStarted { .. })));
    tracing.stop(&guest, DEFAULT_SESSION).unwrap();
    assert_eq!(patched(&tracing), 0);
    assert_eq!(tracing.digest(&guest).unwrap(), before);
}

/// An exception of a BPF program once met a stub where it looked for the program, and the guest's kernel went by a null pointer.
#[test]
fn functions_whose_caller_a_linux_unwinds_are_seen_at_their_entries_only() {
    let named = |linux: Option<image::Linux>| {
        let mut image = nop_image(FUNCTIONS);
        for (id, name) in [
            (0, "bpf_throw"),
            (1, "arch_bpf_stack_walk"),
            (2, "bpf_throws"),
        ] {
            image.functions[id].name = name.into();
        }
        image.linux = linux;
        image
    };
    let linux = image::Linux {
        version: "6.12.0".to_owned(),
        text: None,
        init_text: None,
        rodata: None,
        prepares_sites: false,
        identity: image::Identity::default(),
    };
    for (linux, are_left) in [(Some(linux), [true, true, false]), (None, [false; 3])] {
        let (tracing, _) = prepared_of(named(linux), small(None));
        let image = tracing.attachment.engine.image();
        let is_left = |id| image.unhookable(FunctionId(id)).is_some();
        assert_eq!([0, 1, 2].map(is_left), are_left);
    }
}

#[test]
fn every_call_of_each_vcpu_is_in_the_trace_or_counted_as_lost() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (mut tracing, guest) = prepared(small(Some(&output)));
    tracing
        .start(&guest, DEFAULT_SESSION, None, &everything())
        .unwrap();
    let place = tracing.rings_of(DEFAULT_SESSION).unwrap();
    let slots = place.geometry.slots();
    // As many as one ring has room for, then twice as many on the other without a look between them.
    let calls = [slots, 2 * slots];
    for (vcpu, calls) in (0..).zip(calls) {
        for call in 0..calls {
            let function = FunctionId(u32::try_from(call % FUNCTIONS).unwrap());
            let ticks = (1 << 40) - 10_000 + call;
            assert!(guest.call(&place, vcpu, function, ticks).unwrap());
        }
    }
    let tally = tally(&tracing.finish(&guest, None).unwrap());
    assert_eq!(tally.calls + tally.lost, calls.iter().sum::<u64>());
    assert_eq!((tally.calls, tally.functions), (2 * slots, FUNCTIONS));
}

/// A poller that asks at its end.
struct Asking(Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Asking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asking")
    }
}

impl Pollers for Asking {
    fn start(&self, _: Arc<SharedDrain>) -> std::io::Result<Box<dyn Poller>> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }
}

impl Poller for Asking {
    fn end(self: Box<Self>, last: Box<dyn FnOnce() + Send>, _: &dyn Fn() -> bool) -> bool {
        (self.0)();
        last();
        true
    }
}

/// It once stood still for as long as the disk took.
#[test]
fn a_guest_that_goes_on_is_not_held_until_its_trace_is_complete() {
    for goes_on in [false, true] {
        let held = Arc::new(Mutex::new(None));
        let told = Arc::clone(&held);
        let (mut tracing, mut guest) =
            prepared_with(nop_image(FUNCTIONS), small(None), move |guest| {
                let is_stopped = guest.is_stopped();
                let ask = move || *told.lock().unwrap() = Some(is_stopped());
                Host {
                    pollers: Box::new(Asking(Arc::new(ask))),
                    ..host()
                }
            });
        guest.goes_on = goes_on;
        tracing
            .start(&guest, DEFAULT_SESSION, None, &everything())
            .unwrap();
        tracing.finish(&guest, None).unwrap();
        assert_eq!(held.lock().unwrap().take(), Some(!goes_on));
    }
}

#[test]
fn a_guest_that_does_not_stop_is_left_as_it_is() {
    let (mut tracing, mut guest) = prepared(small(None));
    let before = tracing.digest(&guest).unwrap();
    guest.stuck = Some(1);
    let error = tracing
        .start(&guest, DEFAULT_SESSION, None, &everything())
        .unwrap_err();
    assert!(error.to_string().contains("vCPU 1"), "{error}");
    guest.stuck = None;
    assert_eq!(tracing.digest(&guest).unwrap(), before);
    tracing
        .start(&guest, DEFAULT_SESSION, None, &everything())
        .unwrap();
    assert_eq!(patched(&tracing), FUNCTIONS);
}

#[test]
fn each_way_to_change_text_leaves_the_same() {
    let methods = [PatchMethod::Quiesce, PatchMethod::Live, PatchMethod::Atomic];
    let digests = methods.map(|method| {
        let (mut tracing, mut guest) = prepared(small(None));
        tracing.attachment.patching = Patching::new(method, None, mock::HOST);
        (guest.serves_breakpoints, guest.is_mapped) = (true, true);
        let changed = tracing.start(&guest, DEFAULT_SESSION, None, &only("f1*"));
        // In one the rings are made, whatever the method.
        let pauses = 1 + u64::from(method == PatchMethod::Quiesce);
        assert_eq!(changed.unwrap().pauses, pauses);
        assert_eq!(guest.stops(), pauses);
        let SwitchedSites {
            stopped,
            live,
            atomic,
        } = tracing.status().switched;
        let switched = match method {
            PatchMethod::Quiesce => stopped,
            PatchMethod::Live => live,
            PatchMethod::Atomic => atomic,
        };
        assert_eq!((switched, stopped + live + atomic), (11, 11));
        tracing.digest(&guest).unwrap()
    });
    assert_eq!(
        digests,
        [digests[0].clone(), digests[0].clone(), digests[0].clone()]
    );
}

mod announced;
mod changing;
mod halfway;
mod reading;
mod words;

/// What somebody does to sessions.
#[derive(Debug, Clone)]
enum Deed {
    Start(usize, String),
    Stop(usize),
    Edit(usize, FilterEdit, String),
    Switch(usize, bool),
    Delete(usize),
    Create(usize, Tracer),
}

const NAMES: [&str; 3] = [DEFAULT_SESSION, "one", "two"];

fn deed() -> impl Strategy<Value = Deed> {
    let glob = || (0..FUNCTIONS).prop_map(|number| format!("f{}*", number / 10));
    let session = || 0..NAMES.len();
    let tracer = prop_oneof![Just(Tracer::Function), Just(Tracer::Graph)];
    let edits = vec![FilterEdit::Add, FilterEdit::Remove, FilterEdit::Set];
    let edit = proptest::sample::select(edits);
    prop_oneof![
        4 => (session(), glob()).prop_map(|(at, glob)| Deed::Start(at, glob)),
        2 => session().prop_map(Deed::Stop),
        5 => (session(), edit, glob()).prop_map(|(at, edit, glob)| Deed::Edit(at, edit, glob)),
        1 => (session(), any::<bool>()).prop_map(|(at, on)| Deed::Switch(at, on)),
        1 => session().prop_map(Deed::Delete),
        2 => (session(), tracer).prop_map(|(at, tracer)| Deed::Create(at, tracer)),
    ]
}

/// Also answers how often that is said to have paused the guest, where it is said.
fn do_it(
    tracing: &mut Tracing,
    guest: &MockGuest,
    deed: &Deed,
) -> Result<Option<u64>, TracingError> {
    let pauses = |changed: status::Changed| Some(changed.pauses);
    match deed {
        Deed::Start(at, glob) => tracing
            .start(guest, NAMES[*at], None, &only(glob))
            .map(pauses),
        Deed::Stop(at) => tracing.stop(guest, NAMES[*at]).map(pauses),
        Deed::Edit(at, edit, glob) => tracing
            .change_filter(guest, NAMES[*at], *edit, &only(glob))
            .map(pauses),
        Deed::Switch(at, on) => {
            let session = tracing.session(NAMES[*at]);
            session.and_then(|one| one.switch(*on)).map(|_| Some(0))
        }
        Deed::Delete(at) => tracing.delete(guest, NAMES[*at]).map(|_| None),
        Deed::Create(at, tracer) => tracing
            .create(NAMES[*at], *tracer, small(None))
            .map(|_| Some(0)),
    }
}

/// What is done to sessions, each after each other: text is what they want, and each pause is told.
fn each_deed_is_done(tracing: &mut Tracing, guest: &MockGuest, deeds: &[Deed]) {
    let before = tracing.digest(guest).unwrap();
    for deed in deeds {
        let stops = guest.stops();
        // What is refused changes nothing: looked at after each.
        if let Ok(Some(told)) = do_it(tracing, guest, deed) {
            assert_eq!(told, guest.stops() - stops, "pauses of {deed:?}");
        }
        assert_eq!(patched(tracing), wanted(tracing), "after {deed:?}");
        assert!(tracing.status().frozen.is_none());
    }
    for name in NAMES {
        let _ = tracing.stop(guest, name);
    }
    assert_eq!(tracing.digest(guest).unwrap(), before);
}

/// The functions that some started session selects.
fn wanted(tracing: &Tracing) -> u64 {
    let image = tracing.image();
    let started = || {
        tracing
            .attachment
            .sessions
            .iter()
            .filter(|session| session.started)
    };
    let is_wanted = |id: &FunctionId| {
        started().any(|session| {
            let selected = session.filter.select(image, &Sources::default()).unwrap();
            selected.selected.contains(id)
        })
    };
    (0..FUNCTIONS)
        .map(|number| FunctionId(u32::try_from(number).unwrap()))
        .filter(is_wanted)
        .count() as u64
}

proptest! {
    // A mock guest of maps is slow: what is tested is each deed after each other, not many of them.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn whatever_is_done_to_sessions_text_is_what_they_want(deeds in prop::collection::vec(deed(), 1..24)) {
        let (mut tracing, guest) = prepared(small(None));
        each_deed_is_done(&mut tracing, &guest, &deeds);
    }

    #[test]
    fn words_of_the_guests_in_its_rings_end_nothing_and_nothing_is_made_up(
        words in prop::collection::vec((0..3usize, 0..VCPUS, any::<u64>(), 0..512u64), 0..30),
        calls in 0..700u64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("trace");
        let (mut tracing, guest) = prepared(small(Some(&output)));
        tracing.start(&guest, DEFAULT_SESSION, None, &everything()).unwrap();
        let place = tracing.rings_of(DEFAULT_SESSION).unwrap();
        for call in 0..calls {
            let vcpu = u16::try_from(call % 2).unwrap();
            let function = FunctionId(u32::try_from(call % FUNCTIONS).unwrap());
            let _ = guest.call(&place, vcpu, function, (1 << 40) - 10_000 + call);
        }
        for (which, vcpu, word, slot) in words {
            let offset = [HEAD, LIMIT, LOST][which];
            let cell = place.cells[usize::from(vcpu)];
            let ring = place.rings.wrapping_add(u64::from(vcpu) * place.geometry.bytes());
            let at: [Gpa; 2] = [cell.wrapping_add(u64::from(offset.unsigned_abs())), ring.wrapping_add(slot * 8)];
            for at in at {
                guest.target().write_word(at, word).unwrap();
            }
        }
        let status = tracing.status();
        for ring in &status.sessions[0].rings {
            let told = ring.read.saturating_add(ring.overwritten).saturating_add(ring.abandoned);
            prop_assert!(told.saturating_add(ring.invalid) <= ring.written, "{:?}", ring);
        }
        tracing.stop(&guest, DEFAULT_SESSION).unwrap();
        prop_assert_eq!(patched(&tracing), 0);
        let tally = tally(&tracing.finish(&guest, None).unwrap());
        prop_assert!(tally.calls <= 2 * place.geometry.slots());
    }
}
