use super::*;
use crate::mock::{MockTarget, Rights};
use crate::text::edit::Wanted;
use terms::addr::Gpa;

const AT: Gva = Gva(0xffff_ffff_8100_0000);
const OTHER: Gva = Gva(AT.0 + 64);
const NOP: SiteBytes = SiteBytes::new([0x0f, 0x1f, 0x44, 0, 0]);
const CALL: SiteBytes = SiteBytes::new([0xe8, 9, 9, 9, 9]);
const JUMP: SiteBytes = SiteBytes::new([0xe9, 1, 2, 3, 4]);
const STUB: Gva = Gva(0xffff_ffff_8200_0000);

fn wanted(point: Point, function: u32, at: Gva, session: Option<u8>) -> Wanted {
    let ours = session.map(|session| {
        let lead = Lead {
            to: STUB,
            traced_by: SessionSet::default().with(session),
            own: Some(STUB),
            ..Lead::default()
        };
        (JUMP, lead)
    });
    Wanted::new(point, FunctionId(function), at, NOP, ours)
}

fn function(session: Option<u8>) -> Wanted {
    wanted(Point::Function, 0, AT, session)
}

fn foreign() -> PokeError {
    PokeError::Unexpected {
        symbol: "f".into(),
        at: AT,
        expected: NOP,
        found: JUMP,
    }
}

#[test]
fn a_site_goes_from_state_to_state_by_what_was_made() {
    let mut sites = Sites::default();
    let state = |sites: &Sites| sites.state(FunctionId(0)).clone();
    assert_eq!(state(&sites), State::Original);
    let on = sites.edit(function(Some(1))).unwrap();
    assert_eq!(state(&sites), State::Original, "planned only");
    sites.left(&on, foreign());
    assert_eq!(state(&sites), State::Foreign(foreign()));
    assert!(sites.is_current(&on), "it is tried again");
    sites.made(&on);
    assert_eq!(sites.sessions(FunctionId(0)), SessionSet::of_bits(2));
    assert_eq!(sites.edit(function(Some(1))), None, "it is so");
    sites.left(&on, foreign());
    assert!(state(&sites).lead().is_some(), "what is ours stays so");
    let other = sites.edit(function(Some(2))).unwrap();
    assert_eq!((other.before, other.is_write()), (on.after, false));
    let off = sites.edit(function(None)).unwrap();
    assert_eq!(off, on.reverse());
    sites.made(&off);
    assert_eq!(state(&sites), State::Original);
    sites.gone([FunctionId(0)]);
    assert_eq!(state(&sites), State::Gone);
    sites.came(FunctionId(0));
    assert_eq!(state(&sites), State::Original);
}

/// A plan must not be carried out on a site that has its number from one that is gone.
#[test]
fn a_plan_for_text_that_is_gone_is_never_current_again() {
    let mut sites = Sites::default();
    let on = sites.edit(function(Some(1))).unwrap();
    sites.gone([FunctionId(0)]);
    let other = sites.edit(wanted(Point::Function, 1, OTHER, Some(1)));
    let other = other.unwrap();
    assert_eq!(other.site, on.site, "numbers are used again");
    assert!(sites.is_current(&other) && !sites.is_current(&on));
    sites.came(FunctionId(0));
    assert!(!sites.is_current(&on));
    sites.made(&other);
    assert_eq!((sites.patched(), sites.traced_by(1)), (1, 1));
    assert_eq!(sites.lead(Point::Function, AT), None);
}

/// The second finds the bytes of the first, which for it are somebody else's.
#[test]
fn two_kinds_at_one_place_have_a_site_each() {
    let mut sites = Sites::default();
    let one = sites.edit(wanted(Point::Marker, 0, AT, Some(1))).unwrap();
    let two = sites.edit(wanted(Point::Probe, 0, AT, Some(1))).unwrap();
    sites.made(&one);
    assert!(sites.is_current(&two) && two.before.is_none());
    assert_eq!(two.poke.expected, NOP);
    assert!(sites.lead(Point::Marker, AT).is_some());
    assert_eq!(sites.lead(Point::Probe, AT), None);
}

#[test]
fn what_was_made_normal_is_what_the_guest_has() {
    let mut sites = Sites::default();
    let raw = Wanted {
        original: CALL,
        ..function(None)
    };
    let normal = sites.normalise(&raw, NOP).unwrap();
    assert_eq!((normal.poke.expected, normal.poke.new), (CALL, NOP));
    sites.made(&normal);
    assert!(!sites.is_current(&normal), "once and for all");
    let on = sites.edit(function(Some(1))).unwrap();
    assert_eq!(on.poke.expected, NOP);
    sites.made(&on);
    assert_eq!(sites.edit(function(None)).unwrap().poke.new, NOP);
}

#[test]
fn a_word_is_current_until_it_holds_another_value() {
    let mut sites = Sites::default();
    let word = |old, new| WordWrite {
        what: "it".into(),
        at: AT,
        old,
        new,
    };
    assert!(sites.is_word_current(&word(5, 6)), "nothing is known of it");
    sites.made_word(&word(5, 6));
    assert!(!sites.is_word_current(&word(5, 7)) && sites.is_word_current(&word(6, 7)));
    assert_eq!(sites.word(AT), Some(6));
}

#[test]
fn jumps_that_all_are_something_else_are_lost() {
    let mut target = MockTarget::new(1, 1 << 21);
    target.map(AT, Gpa(0x800_0000), 4096, Rights::ALL).unwrap();
    let write = |target: &mut MockTarget, at, bytes: SiteBytes| {
        crate::target::TextMemory::write(target, at, bytes.as_slice()).unwrap();
    };
    let mut sites = Sites::default();
    assert!(!sites.has_lost_its_jumps(&target), "there are none");
    for (number, at) in [(0, AT), (1, OTHER)] {
        let on = sites.edit(wanted(Point::Function, number, at, Some(1)));
        sites.made(&on.unwrap());
        write(&mut target, at, JUMP);
    }
    write(&mut target, AT, NOP);
    assert!(!sites.has_lost_its_jumps(&target));
    write(&mut target, OTHER, NOP);
    assert!(sites.has_lost_its_jumps(&target));
    // Another kernel has calls there at first; a probe of the guest's own is no other kernel.
    let call = SiteBytes::new([0xe8, 1, 2, 3, 4]);
    for (others, are_lost) in [(call, true), (JUMP.with_start(&[0xcc]), false)] {
        write(&mut target, AT, others);
        write(&mut target, OTHER, others);
        assert_eq!(sites.has_lost_its_jumps(&target), are_lost);
    }
}
