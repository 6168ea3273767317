//! Changes that fail, and of which not all can be taken back.

use super::journal::written;
use super::*;
use crate::text::frozen::Frozen;
use crate::text::journal::Entry;
use crate::text::word::{WordError, WordWrite};

const DATA: Gva = Gva(0xffff_ffff_9000_0000);

fn at(engine: &Engine, function: usize) -> Gva {
    engine.image().sites[function].address
}

/// The fourth of six functions cannot be patched, and the second, which has been, cannot be given back.
fn stuck() -> (Engine, MockTarget, SessionId, String) {
    let (mut engine, mut target, session) = attached(6);
    let before = digest(&engine, &target);
    target.faults.sticky.insert(at(&engine, 3));
    target.faults.once.insert(at(&engine, 1));
    let error = change(&mut engine, &mut target, session, 0..6).unwrap_err();
    assert!(
        matches!(&error, ApplyError::Transaction(error) if error.stuck.len() == 1),
        "{error}"
    );
    assert!(engine.sites().frozen().is_some());
    (engine, target, session, before)
}

fn ours(engine: &Engine) -> Vec<Entry> {
    engine.sites().ours().collect()
}

/// Nobody took it for ours: the window was once closed below the jump, and who came later found nothing of it in the journal.
#[test]
fn a_jump_that_could_not_be_taken_back_is_ours_until_it_is() {
    let (mut engine, mut target, session, before) = stuck();
    let first = at(&engine, 1);
    assert_eq!(site(&engine, &target, 1)[0], 0xe9);
    let places = |engine: &Engine| ours(engine).iter().map(|one| one.at).collect::<Vec<_>>();
    assert_eq!(places(&engine), [first], "the others were taken back");
    assert_eq!(written(&engine, &target), ours(&engine));
    assert_eq!(engine.sites().traced_by(session.0), 1);
    let leads = ApplyError::StillLeads { sites: 1, first };
    assert_eq!(engine.leave(&mut target, Leaving::LastTry), Err(leads));
    // Who comes after a tracer that is killed now gives it back.
    let mut killed = target.clone();
    killed.faults = Faults::default();
    let region = target.region();
    let restored = crate::engine::restore(&mut killed, region, None, Leaving::LastTry).unwrap();
    assert!(
        restored.places == 1 && restored.inside.is_nobody(),
        "{restored:?}"
    );
    assert_eq!(digest(&engine, &killed), before);
    // It cannot be written yet.
    let refused = engine.commit().thaw(&mut target).unwrap_err();
    assert!(matches!(refused, ApplyError::Transaction(_)), "{refused}");
    assert!(engine.sites().frozen().is_some());
    assert_eq!(
        (places(&engine), written(&engine, &target)),
        (vec![first], ours(&engine))
    );
    target.faults = Faults::default();
    assert_eq!(engine.commit().thaw(&mut target), Ok(0));
    assert_eq!(digest(&engine, &target), before);
    assert_eq!((ours(&engine), written(&engine, &target)), (vec![], vec![]));
    assert!(
        engine
            .leave(&mut target, Leaving::LastTry)
            .unwrap()
            .is_nobody()
    );
}

/// What somebody wants there since is not taken away when patching is frozen once more, for whatever reason.
#[test]
fn what_was_taken_back_can_be_traced_again() {
    let (mut engine, mut target, session, _) = stuck();
    target.faults = Faults::default();
    engine.commit().thaw(&mut target).unwrap();
    let applied = change(&mut engine, &mut target, session, 0..6).unwrap();
    assert_eq!(applied.patched, 6);
    let all = ours(&engine);
    engine.sites_mut().freeze(FrozenBy::Replaced);
    engine.commit().thaw(&mut target).unwrap();
    assert_eq!((ours(&engine), site(&engine, &target, 1)[0]), (all, 0xe9));
}

/// By hand, or by the guest: then there is nothing to be taken back.
#[test]
fn what_stands_there_again_by_itself_is_the_guests() {
    let (mut engine, mut target, _, before) = stuck();
    target.faults = Faults::default();
    let first = at(&engine, 1);
    target.write(first, &NOP5).unwrap();
    let writes = target.writes;
    assert_eq!(engine.commit().thaw(&mut target), Ok(0));
    assert_eq!((target.writes, digest(&engine, &target)), (writes, before));
    assert_eq!((ours(&engine), written(&engine, &target)), (vec![], vec![]));
}

/// The breakpoint goes again, and then our byte comes back: as long as that is so the place is ours.
#[test]
fn a_breakpoint_of_the_guests_own_over_such_a_jump_is_waited_for() {
    let (mut engine, mut target, _, before) = stuck();
    target.faults = Faults::default();
    let first = at(&engine, 1);
    target.write(first, &[0xcc]).unwrap();
    assert_eq!(engine.commit().thaw(&mut target), Ok(0));
    assert_eq!(site(&engine, &target, 1)[0], 0xcc);
    let leads = ApplyError::StillLeads { sites: 1, first };
    assert_eq!(engine.leave(&mut target, Leaving::LastTry), Err(leads));
    target.write(first, &[0xe9]).unwrap();
    engine.sites_mut().freeze(FrozenBy::Replaced);
    engine.commit().thaw(&mut target).unwrap();
    assert_eq!(digest(&engine, &target), before);
}

/// Each byte is an old one or a new one.
#[test]
fn a_jump_that_was_written_in_part_is_taken_back_as_it_stands() {
    let (mut engine, mut target, session) = attached(2);
    let before = digest(&engine, &target);
    let first = at(&engine, 0);
    target.faults.sticky.insert(first.wrapping_add(2));
    target.faults.once.insert(first);
    change(&mut engine, &mut target, session, 0..2).unwrap_err();
    let part = site(&engine, &target, 0);
    assert_eq!((part[0], part[2]), (0xe9, NOP5[2]));
    let [entry] = ours(&engine)[..] else {
        panic!("{:?}", ours(&engine));
    };
    assert_eq!((entry.at, entry.ours), (first, SiteBytes::new(part)));
    assert_eq!(written(&engine, &target), [entry]);
    target.faults = Faults::default();
    engine.commit().thaw(&mut target).unwrap();
    assert_eq!(digest(&engine, &target), before);
}

/// What it is to become is what stood there first, however often it is tried.
#[test]
fn what_is_taken_back_in_part_is_taken_back_when_that_can_be() {
    let (mut engine, mut target, _, before) = stuck();
    let first = at(&engine, 1);
    target.faults = Faults::default();
    target.faults.sticky.insert(first.wrapping_add(2));
    target.faults.once.insert(first);
    engine.commit().thaw(&mut target).unwrap_err();
    assert_eq!(site(&engine, &target, 1)[0], NOP5[0]);
    assert_eq!(ours(&engine).len(), 1);
    assert_eq!(written(&engine, &target), ours(&engine));
    target.faults = Faults::default();
    engine.commit().thaw(&mut target).unwrap();
    assert_eq!(digest(&engine, &target), before);
    assert_eq!((ours(&engine), written(&engine, &target)), (vec![], vec![]));
}

/// Its memory is not there just now: nobody knows what it holds.
#[test]
fn a_place_that_cannot_be_read_is_ours_until_it_can() {
    let (mut engine, mut target, session) = attached(4);
    let before = digest(&engine, &target);
    let first = at(&engine, 1);
    let plan = engine.plan(&mut target, session, &select(1..2)).unwrap();
    engine.commit().note(&mut target, &plan).unwrap();
    let edit = &plan.steps[0].edits[0];
    target.write(first, edit.poke.new.as_slice()).unwrap();
    target.faults.unreadable.insert(first);
    engine.sites_mut().was_not_taken_back(&target, edit);
    engine.commit().thaw(&mut target).unwrap();
    assert_eq!(written(&engine, &target), ours(&engine));
    target.faults = Faults::default();
    let places = ours(&engine).iter().map(|one| one.at).collect::<Vec<_>>();
    assert_eq!(places, [first]);
    assert_eq!(site(&engine, &target, 1)[0], 0xe9);
    engine.commit().thaw(&mut target).unwrap();
    assert_eq!(digest(&engine, &target), before);
}

/// A sessions's function leads to it still when its end has failed: what the guest has again is its own all the same.
#[test]
fn what_was_given_back_and_could_not_be_taken_again_is_the_guests() {
    let (mut engine, mut target, session) = attached(6);
    change(&mut engine, &mut target, session, 0..6).unwrap();
    target.faults.sticky.insert(at(&engine, 3));
    target.faults.once.insert(at(&engine, 1));
    change(&mut engine, &mut target, session, []).unwrap_err();
    assert_eq!(site(&engine, &target, 1), NOP5);
    assert_eq!(engine.sites().traced_by(session.0), 5);
    assert_eq!(written(&engine, &target), ours(&engine));
    target.faults = Faults::default();
    engine.commit().thaw(&mut target).unwrap();
    assert_eq!(site(&engine, &target, 1), NOP5);
    change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!((ours(&engine), written(&engine, &target)), (vec![], vec![]));
}

fn word(at: Gva, old: u64, new: u64) -> WordWrite {
    WordWrite {
        what: "it".into(),
        at,
        old,
        new,
    }
}

/// A plan of these functions and of two words, of which the second cannot be written.
fn with_words(functions: std::ops::Range<u32>) -> (Engine, MockTarget, Plan, String) {
    let (mut engine, mut target, session) = attached(6);
    target
        .map(DATA, Gpa(0x800_0000), 4096, Rights::ALL)
        .unwrap();
    let second = DATA.wrapping_add(8);
    target.write(DATA, &5u64.to_le_bytes()).unwrap();
    target.write(second, &6u64.to_le_bytes()).unwrap();
    let before = digest(&engine, &target);
    let plan = engine
        .plan(&mut target, session, &select(functions))
        .unwrap();
    let is_breakpoint = false;
    let words = [word(DATA, 5, 50), word(second, 6, 60)].map(|word| PlanStep {
        word: Some(word),
        ..PlanStep::of(What::Place { is_breakpoint }, Vec::new())
    });
    target.faults.unwritable.insert(second);
    let plan = Plan::whole(plan.steps.into_iter().chain(words).collect());
    (engine, target, plan, before)
}

fn word_at(target: &MockTarget, at: Gva) -> u64 {
    let mut bytes = [0; 8];
    target.read(at, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// It was once held for the guest's, and led to a list of ours with nobody knowing.
#[test]
fn a_word_that_could_not_be_taken_back_is_ours_until_it_is() {
    let (mut engine, mut target, plan, before) = with_words(0..2);
    target.faults.once.insert(DATA);
    let error = engine.apply(&mut target, &plan).unwrap_err();
    let why = WordError::Stuck {
        what: "it".into(),
        at: DATA,
        now: 50,
    };
    assert_eq!(error, ApplyError::Frozen(Frozen(why.into())));
    assert!(engine.sites().frozen().is_some());
    assert_eq!(
        (word_at(&target, DATA), digest(&engine, &target)),
        (50, before)
    );
    assert_eq!(engine.sites().word(DATA), Some(50));
    let entries = |target: &MockTarget, engine: &Engine| {
        let all = written(engine, target);
        all.iter().map(|one| one.at).collect::<Vec<_>>()
    };
    assert_eq!(entries(&target, &engine), [DATA]);
    let leads = ApplyError::StillLeads {
        sites: 1,
        first: DATA,
    };
    assert_eq!(engine.leave(&mut target, Leaving::LastTry), Err(leads));
    engine.commit().thaw(&mut target).unwrap_err();
    assert_eq!(entries(&target, &engine), [DATA]);
    assert!(engine.sites().frozen().is_some());
    target.faults = Faults::default();
    engine.commit().thaw(&mut target).unwrap();
    assert_eq!(word_at(&target, DATA), 5);
    assert_eq!((entries(&target, &engine), ours(&engine)), (vec![], vec![]));
    let left = engine.leave(&mut target, Leaving::LastTry).unwrap();
    assert!(left.is_nobody());
}

/// Where the words fail all text was once left as it had become, if a single place of it could not be taken back.
#[test]
fn text_that_cannot_be_taken_back_after_words_have_failed_keeps_no_other() {
    let (mut engine, mut target, plan, before) = with_words(0..4);
    let stays = at(&engine, 1);
    target.faults.once.insert(stays);
    let error = engine.apply(&mut target, &plan).unwrap_err();
    assert!(matches!(error, ApplyError::Frozen(_)), "{error}");
    assert_eq!(word_at(&target, DATA), 5);
    let places = ours(&engine).iter().map(|one| one.at).collect::<Vec<_>>();
    assert_eq!(places, [stays]);
    for function in [0, 2, 3] {
        assert_eq!(site(&engine, &target, function), NOP5);
    }
    assert_eq!(written(&engine, &target), ours(&engine));
    target.faults = Faults::default();
    engine.commit().thaw(&mut target).unwrap();
    assert_eq!(digest(&engine, &target), before);
}
