//! Changes that are made while every vCPU runs, as far as they can be: what lies in one word; the rest in pauses, in the same
//! transaction.

use std::time::Duration;

use image::testing::{TEXT, mixed_image};

use super::*;
use crate::engine::Leaving;
use crate::target::{PhysicalMemory, TargetMemory, TextMemory};
use insn::nop::NOP5;

/// Half of the sites cross a word.
const HALF: u64 = FUNCTIONS / 2;
const FOREIGN: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x01];

fn mixed(max_pause: Option<Duration>) -> (Tracing, MockGuest) {
    mixed_by(PatchMethod::Atomic, max_pause)
}

fn mixed_by(method: PatchMethod, max_pause: Option<Duration>) -> (Tracing, MockGuest) {
    changed_by(mixed_image(FUNCTIONS), method, max_pause)
}

fn changed_by(
    image: Image,
    method: PatchMethod,
    max_pause: Option<Duration>,
) -> (Tracing, MockGuest) {
    let (mut tracing, mut guest) = prepared_of(image, small(None));
    tracing.attachment.patching = Patching::new(method, max_pause, mock::HOST);
    (guest.is_mapped, guest.serves_breakpoints) = (true, true);
    (tracing, guest)
}

fn switched(tracing: &Tracing) -> (u64, u64) {
    let SwitchedSites {
        atomic, stopped, ..
    } = tracing.status().switched;
    (atomic, stopped)
}

fn start(tracing: &mut Tracing, guest: &MockGuest, glob: &str) -> status::Changed {
    let started = tracing.start(guest, DEFAULT_SESSION, None, &only(glob));
    started.unwrap()
}

fn set(
    tracing: &mut Tracing,
    guest: &MockGuest,
    globs: &Globs,
) -> Result<status::Changed, TracingError> {
    tracing.change_filter(guest, DEFAULT_SESSION, FilterEdit::Set, globs)
}

fn site(guest: &MockGuest, at: Gva) -> [u8; 5] {
    let mut bytes = [0; 5];
    guest.target().read(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_lies_in_a_word_stops_nobody_and_the_rest_is_of_the_same_change() {
    let (mut tracing, guest) = mixed(None);
    let before = tracing.digest(&guest).unwrap();
    let changed = start(&mut tracing, &guest, "*");
    // The rings are made in another one.
    assert_eq!((changed.patched, changed.pauses), (FUNCTIONS, 2));
    assert_eq!(switched(&tracing), (HALF, HALF));
    // Those with even numbers.
    let stops = guest.stops();
    for glob in ["f1*", "f2*", "f18"] {
        set(&mut tracing, &guest, &only(glob)).unwrap();
    }
    let changed = set(&mut tracing, &guest, &only("f?8")).unwrap();
    assert_eq!(
        (changed.patched, changed.restored, changed.pauses),
        (2, 0, 0)
    );
    assert_eq!(guest.stops(), stops + 3, "all three had others");
    tracing.stop(&guest, DEFAULT_SESSION).unwrap();
    assert_eq!(guest.stops(), stops + 3);
    assert_eq!(tracing.digest(&guest).unwrap(), before);
}

#[test]
fn one_of_many_functions_stops_nobody() {
    let (mut tracing, guest) = mixed(None);
    start(&mut tracing, &guest, "f38");
    let stops = guest.stops();
    for round in 0..20 {
        let changed = set(&mut tracing, &guest, &only(["f38", "f[3-4]8"][round % 2])).unwrap();
        assert_eq!(changed.pauses, 0);
        let add = Globs {
            filter: vec!["f38".to_owned(), "f0".to_owned()],
            ..Globs::default()
        };
        let changed = set(&mut tracing, &guest, &add).unwrap();
        assert_eq!((changed.patched, changed.pauses), (1, 0));
    }
    assert_eq!(guest.stops(), stops);
}

fn everything_fails_while_nobody_stops(tracing: &mut Tracing, guest: &mut MockGuest) {
    guest.stuck = Some(1);
    let error = set(tracing, guest, &everything()).unwrap_err();
    assert!(matches!(error, TracingError::Stop(_)), "{error}");
    guest.stuck = None;
}

/// What was exchanged before is exchanged back, while nobody can be stopped.
#[test]
fn when_nobody_can_be_stopped_for_the_rest_all_is_taken_back() {
    for max_pause in [None, Some(Duration::from_millis(1))] {
        let (mut tracing, mut guest) = mixed(max_pause);
        start(&mut tracing, &guest, "f4");
        let before = tracing.digest(&guest).unwrap();
        everything_fails_while_nobody_stops(&mut tracing, &mut guest);
        assert_eq!(tracing.digest(&guest).unwrap(), before);
        assert_eq!((patched(&tracing), tracing.status().frozen), (1, None));
        assert_eq!(site(&guest, Gva(TEXT)), NOP5);
        set(&mut tracing, &guest, &everything()).unwrap();
        assert_eq!(patched(&tracing), FUNCTIONS);
    }
}

/// The first slice is written, and nobody stops for the second: what was exchanged needs no stop to be exchanged back.
#[test]
fn a_part_that_cannot_be_taken_back_does_not_keep_the_others() {
    let image = mixed_image(160);
    let millisecond = Some(Duration::from_millis(1));
    let (mut tracing, mut guest) = changed_by(image, PatchMethod::Atomic, millisecond);
    start(&mut tracing, &guest, "f4");
    (guest.stuck, guest.stuck_from) = (Some(1), guest.stops() + 1);
    let error = set(&mut tracing, &guest, &everything()).unwrap_err();
    assert!(matches!(error, TracingError::Stop(_)), "{error}");
    // Of the 80 that need a pause 64 were written in the first slice.
    assert_eq!(patched(&tracing), 1 + 64);
    assert_eq!(site(&guest, Gva(TEXT)), NOP5);
    // Who leaves the guest takes out what stayed, or does not leave.
    let error = tracing.leave(&guest, false).unwrap_err();
    assert!(matches!(error, TracingError::Stop(_)), "{error}");
    guest.stuck = None;
    assert!(tracing.leave(&guest, false).unwrap().is_nobody());
    assert_eq!(patched(&tracing), 0);
}

/// A session that is not started any more, for its end has failed, has text of the guest all the same.
#[test]
fn nobody_leaves_a_guest_whose_text_leads_to_stubs() {
    let (mut tracing, guest) = mixed(None);
    let before = tracing.digest(&guest).unwrap();
    start(&mut tracing, &guest, "f4");
    let engine = &mut tracing.attachment.engine;
    let refused = engine.leave(&mut guest.stop().unwrap(), Leaving::LastTry);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("1 place of the guest's text"), "{refused}");
    assert!(engine.foothold().is_some());
    for session in tracing.attachment.sessions.iter_mut() {
        session.started = false;
    }
    assert!(tracing.leave(&guest, false).unwrap().is_nobody());
    assert_eq!(tracing.digest(&guest).unwrap(), before);
}

/// What changes nothing stops nobody, whatever the method.
#[test]
fn an_empty_change_takes_no_pause() {
    for method in [PatchMethod::Quiesce, PatchMethod::Live, PatchMethod::Atomic] {
        let (mut tracing, guest) = mixed_by(method, None);
        start(&mut tracing, &guest, "f4");
        let stops = guest.stops();
        assert_eq!(set(&mut tracing, &guest, &only("f4")).unwrap().pauses, 0);
        assert_eq!(guest.stops(), stops, "{method:?}");
    }
}

/// Live, too: here what is left to a pause is of a module.
#[test]
fn what_was_written_live_is_taken_back_with_what_may_go() {
    let mut image = mixed_image(FUNCTIONS);
    image.functions[6].module = Some("m".into());
    let (mut tracing, mut guest) = changed_by(image, PatchMethod::Live, None);
    start(&mut tracing, &guest, "f4");
    let before = tracing.digest(&guest).unwrap();
    everything_fails_while_nobody_stops(&mut tracing, &mut guest);
    assert_eq!(tracing.digest(&guest).unwrap(), before);
    assert_eq!((patched(&tracing), tracing.status().frozen), (1, None));
    let changed = set(&mut tracing, &guest, &everything()).unwrap();
    assert_eq!((patched(&tracing), changed.pauses), (FUNCTIONS, 1));
    let SwitchedSites { stopped, live, .. } = tracing.status().switched;
    assert_eq!((stopped, live), (1, 1 + 3 * (FUNCTIONS - 2)));
}

#[test]
fn a_later_slice_that_fails_takes_back_what_was_exchanged_and_the_slices_before() {
    // Of 80 that need a pause the first slice has 64.
    let image = mixed_image(160);
    let millisecond = Some(Duration::from_millis(1));
    let (mut tracing, guest) = changed_by(image, PatchMethod::Atomic, millisecond);
    start(&mut tracing, &guest, "f4");
    let before = tracing.digest(&guest).unwrap();
    let last = Gva(TEXT + 16 * 159 + 4);
    guest.target().faults.unwritable.insert(last);
    let error = set(&mut tracing, &guest, &everything()).unwrap_err();
    assert!(error.to_string().contains("f159"), "{error}");
    assert_eq!(tracing.digest(&guest).unwrap(), before);
    assert_eq!((patched(&tracing), tracing.status().frozen), (1, None));
    // Exchanged there and back, 64 and then 16 of them written, of which 64 were taken back.
    assert_eq!(switched(&tracing), (1 + 79 + 79, 64 + 64));
}

#[test]
fn a_site_that_the_guest_takes_meanwhile_is_left_to_it_and_told() {
    let (mut tracing, mut guest) = mixed(None);
    start(&mut tracing, &guest, "f4");
    guest.meanwhile = Some(|target, at| {
        if at == Gva(TEXT + 32) {
            target.write(at, &FOREIGN).unwrap();
        }
    });
    let changed = set(&mut tracing, &guest, &everything()).unwrap();
    assert_eq!(changed.patched, FUNCTIONS - 2);
    let skipped: Vec<_> = changed
        .skipped
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(skipped, ["f2"]);
    assert_eq!(site(&guest, Gva(TEXT + 32)), FOREIGN);
    assert_eq!(tracing.status().frozen, None);
    // Whose it is, is not asked for again.
    guest.meanwhile = None;
    tracing.stop(&guest, DEFAULT_SESSION).unwrap();
    assert_eq!(site(&guest, Gva(TEXT + 32)), FOREIGN);
}

/// The guest has written over a jump of ours, right before it is taken out.
#[test]
fn a_jump_that_the_guest_writes_over_meanwhile_freezes_patching() {
    let (mut tracing, mut guest) = mixed(None);
    start(&mut tracing, &guest, "*");
    guest.meanwhile = Some(|target, at| {
        if at == Gva(TEXT + 32) {
            target.write(at, &FOREIGN).unwrap();
        }
    });
    let error = tracing.stop(&guest, DEFAULT_SESSION).unwrap_err();
    assert!(error.to_string().contains("f2"), "{error}");
    let frozen = tracing.status().frozen.unwrap();
    assert_eq!(frozen.function.as_deref(), Some("f2"));
    assert_eq!(site(&guest, Gva(TEXT + 32)), FOREIGN);
    // What had been taken out before is there again: all or nothing.
    assert_eq!(patched(&tracing), FUNCTIONS);
    assert_eq!(site(&guest, Gva(TEXT))[0], 0xe9);
    guest.meanwhile = None;
    let error = set(&mut tracing, &guest, &only("f1")).unwrap_err();
    assert!(error.to_string().contains("frozen"), "{error}");
}

/// A window that the guest has cleared is put back in a pause, so there has to be one.
#[test]
fn a_window_that_is_not_as_it_was_takes_a_pause() {
    for method in [PatchMethod::Atomic, PatchMethod::Live] {
        for at_the_last_moment in [false, true] {
            a_cleared_window_takes_a_pause(method, at_the_last_moment);
        }
    }
}

/// The entry of the guest's page tables that leads to the window, and what it holds.
fn window_entry(target: &MockTarget) -> (Gpa, [u8; 8]) {
    let found = target.own_memory().into_iter().find_map(|(at, page)| {
        let (words, _) = page.as_chunks::<8>();
        let leads = |word: &&[u8; 8]| {
            u64::from_le_bytes(**word) & 0xffff_ffe0_0080 == crate::mock::REGION_START.0 | 0x80
        };
        let (entry, word) = words.iter().enumerate().find(|(_, word)| leads(word))?;
        Some((Gpa(at + 8 * entry as u64), *word))
    });
    found.unwrap()
}

fn clear_window(target: &mut MockTarget) {
    let (entry, _) = window_entry(target);
    target.write_word(entry, 0).unwrap();
}

fn a_cleared_window_takes_a_pause(method: PatchMethod, at_the_last_moment: bool) {
    let (mut tracing, mut guest) = mixed_by(method, None);
    start(&mut tracing, &guest, "f4");
    let window = tracing.attachment.engine.foothold().unwrap().window();
    assert!(window.is_untouched(guest.memory()));
    let (entry, old) = window_entry(&guest.target());
    // Now, or right after it was seen that nobody has touched it.
    match at_the_last_moment {
        true => guest.before_running = Some(clear_window),
        false => clear_window(&mut guest.target()),
    }
    let changed = set(&mut tracing, &guest, &only("f[46]")).unwrap();
    assert_eq!((changed.patched, changed.pauses), (1, 1));
    guest.before_running = None;
    let mut now = [0; 8];
    guest.memory().read_physical(entry, &mut now).unwrap();
    assert_eq!(now, old);
    let changed = set(&mut tracing, &guest, &only("f[468]")).unwrap();
    assert_eq!((changed.patched, changed.pauses), (1, 0));
}

/// No operation asked for these pauses: nobody else tells of them.
#[test]
fn a_look_at_the_window_is_a_pause_that_is_counted() {
    let (mut tracing, mut guest) = mixed(None);
    start(&mut tracing, &guest, "f4");
    let looks = |tracing: &Tracing| {
        let status = tracing.status();
        (status.looks, status.longest_look_us)
    };
    // Not due yet, and nobody has touched it.
    assert!(!tracing.look_at_window(&guest));
    assert_eq!(looks(&tracing), (0, 0.0));
    for (count, us, longest) in [(1, 40, 40.0), (2, 70, 70.0), (3, 50, 70.0)] {
        guest.pause = Duration::from_micros(us);
        clear_window(&mut guest.target());
        let before = guest.stops();
        assert!(!tracing.look_at_window(&guest));
        assert_eq!(guest.stops(), before + 1);
        assert_eq!(looks(&tracing), (count, longest));
    }
    // One that does not stop has not been paused.
    guest.stuck = Some(1);
    clear_window(&mut guest.target());
    assert!(!tracing.look_at_window(&guest));
    assert_eq!(looks(&tracing), (3, 70.0));
}

/// Also by what needs no window, for it only takes jumps back: who has cleared it may have changed more than that.
#[test]
fn what_is_taken_back_under_a_cleared_window_takes_a_pause() {
    for method in [PatchMethod::Atomic, PatchMethod::Live] {
        for (is_cleared, pauses) in [(false, 0), (true, 1)] {
            let (mut tracing, guest) = mixed_by(method, None);
            start(&mut tracing, &guest, "f[46]");
            if is_cleared {
                clear_window(&mut guest.target());
            }
            let changed = set(&mut tracing, &guest, &only("f4")).unwrap();
            assert_eq!((changed.restored, changed.pauses), (1, pauses));
        }
    }
}

/// Where it was loaded its bytes may still stand, but nobody executes them.
#[test]
fn text_that_has_moved_takes_pauses() {
    for method in [PatchMethod::Atomic, PatchMethod::Live] {
        let (mut tracing, mut guest) = mixed_by(method, None);
        // To where there is memory, too.
        guest.moved_by = 16;
        let changed = start(&mut tracing, &guest, "*");
        assert_eq!((changed.patched, changed.pauses), (FUNCTIONS, 2));
        assert_eq!(switched(&tracing), (0, FUNCTIONS));
    }
}

#[test]
fn memory_that_is_not_mapped_here_takes_pauses() {
    let (mut tracing, mut guest) = mixed(None);
    guest.is_mapped = false;
    let changed = start(&mut tracing, &guest, "*");
    assert_eq!((changed.patched, changed.pauses), (FUNCTIONS, 2));
    assert_eq!(switched(&tracing), (0, FUNCTIONS));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn whatever_is_done_to_sessions_text_is_what_they_want(deeds in prop::collection::vec(deed(), 1..24)) {
        let (mut tracing, guest) = mixed(Some(Duration::from_millis(1)));
        each_deed_is_done(&mut tracing, &guest, &deeds);
    }
}
