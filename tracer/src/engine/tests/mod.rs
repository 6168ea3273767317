//! What is attached and how its text changes, against the mock target.

use image::testing::{TEXT, nop_image};
use image::{Site, SiteForm};
use insn::jump::jump;
use insn::nop::NOP5;
use terms::site::SITE_LENGTH;
use terms::site::SiteBytes;

use super::plan::{Obstacles, PlanStep};
use terms::addr::Gpa;

use super::*;
use crate::digest::text_digest;
use crate::filter::Selection;
use crate::mock::{Faults, MockTarget, Rights};
use crate::record::FUNCTIONS_MAX;
use crate::ring::geometry::{Geometry, Position};
use crate::session::{SessionConfig, SessionId, TracerKind};
use crate::stub::recorder::Clock;
use crate::stub::store::StoreError;
use crate::target::{PhysicalMemory, TargetMemory, TextMemory};
use crate::text::edit::Lead;
use crate::text::poke::PokeError;
use crate::text::sites::State;
use crate::window::WindowError;

pub(super) mod journal;
mod locks;
mod probes;
mod reuse;
mod sessions;
mod stuck;
mod transient;

const REGION: u64 = 64 << 20;

fn machine(functions: u64) -> (Engine, MockTarget) {
    let image = nop_image(functions);
    let target = MockTarget::with_image(2, REGION, &image, Rights::ALL).unwrap();
    (Engine::new(Arc::new(image)), target)
}

fn config(name: &str) -> SessionConfig {
    SessionConfig {
        name: name.to_owned(),
        tracer: TracerKind::Function,
        return_hook: crate::stub::spec::ReturnHook::Balanced,
        geometry: Geometry::with_bytes(4096).unwrap(),
        clock: Clock::Tsc,
        halts: Vec::new(),
        waits: false,
        callers: false,
    }
}

fn attached(functions: u64) -> (Engine, MockTarget, SessionId) {
    let (mut engine, mut target) = machine(functions);
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let session = engine.create_session(&mut target, config("one")).unwrap();
    (engine, target, session)
}

fn select(functions: impl IntoIterator<Item = u32>) -> Selection {
    Selection {
        selected: functions.into_iter().map(FunctionId).collect(),
        ..Selection::default()
    }
}

fn change(
    engine: &mut Engine,
    target: &mut MockTarget,
    session: SessionId,
    functions: impl IntoIterator<Item = u32>,
) -> Result<Applied, ApplyError> {
    let plan = engine.plan(target, session, &select(functions))?;
    engine.apply(target, &plan)
}

fn site(engine: &Engine, target: &MockTarget, function: u32) -> [u8; SITE_LENGTH] {
    let mut bytes = [0; SITE_LENGTH];
    let at = engine
        .image()
        .site_of(FunctionId(function))
        .unwrap()
        .address;
    target.read(at, &mut bytes).unwrap();
    bytes
}

/// How many functions with a site are gone.
fn gone(engine: &Engine) -> usize {
    engine
        .image
        .sites
        .iter()
        .filter(|site| engine.sites.is_gone(site.function))
        .count()
}

fn digest(engine: &Engine, target: &MockTarget) -> String {
    text_digest(target, engine.image()).unwrap()
}

#[test]
fn a_gs_base_that_has_moved_is_noticed() {
    let (mut engine, mut target, _) = attached(4);
    let region = target.region();
    target.vcpus_mut()[1].gs_base += 4096;
    let error = engine.attach(&mut target, region).unwrap_err();
    assert!(
        matches!(error, AttachError::GsMoved(moved) if moved.vcpu == 1),
        "{error}"
    );
}

#[test]
fn attaching_again_changes_nothing() {
    let (mut engine, mut target, session) = attached(4);
    change(&mut engine, &mut target, session, 0..4).unwrap();
    let before = (
        engine.foothold().unwrap().stub_bytes(),
        digest(&engine, &target),
    );
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    assert_eq!(
        (
            engine.foothold().unwrap().stub_bytes(),
            digest(&engine, &target)
        ),
        before
    );
    assert_eq!(engine.sites().patched(), 4);
    assert!(matches!(
        engine.foothold().map(Foothold::strategy),
        Some((CpuStrategy::Gs { .. }, None))
    ));
}

#[test]
fn an_attach_that_fails_can_be_tried_again_for_ever() {
    let (mut engine, mut target) = machine(4);
    let small = Region {
        bytes: 2 << 20,
        ..target.region()
    };
    for _ in 0..1100 {
        let error = engine.attach(&mut target, small).unwrap_err();
        assert!(
            matches!(
                error,
                AttachError::Window(WindowError::RegionFull { left: 0, .. })
            ),
            "{error}"
        );
    }
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
}

#[test]
fn stopping_restores_every_byte() {
    let (mut engine, mut target, session) = attached(40);
    let before = digest(&engine, &target);
    let applied = change(&mut engine, &mut target, session, 0..40).unwrap();
    assert_eq!((applied.patched, applied.skipped.len()), (40, 0));
    assert_ne!(digest(&engine, &target), before);
    let applied = change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!((applied.restored, engine.sites().patched()), (40, 0));
    assert_eq!(digest(&engine, &target), before);
}

#[test]
fn foreign_bytes_are_skipped_and_stay() {
    let (mut engine, mut target, session) = attached(6);
    let at = engine.image().sites[3].address;
    target.write(at, &[0xcc]).unwrap();
    let gone = engine.image().sites[4].address;
    target.faults.unreadable.insert(gone);
    let before = site(&engine, &target, 3);
    let applied = change(&mut engine, &mut target, session, 0..6).unwrap();
    assert_eq!(applied.patched, 4);
    let [(FunctionId(3), foreign), (FunctionId(4), unread)] = &applied.skipped[..] else {
        panic!("{applied:?}");
    };
    assert!(matches!(foreign, PokeError::Unexpected { .. }));
    assert!(matches!(unread, PokeError::CannotRead { .. }));
    assert_eq!(site(&engine, &target, 3), before);
    assert!(matches!(
        engine.sites().state(FunctionId(3)),
        State::Foreign(_)
    ));
    assert!(engine.sites().frozen().is_none());
    // When the other's patch has gone, the next start takes the function along.
    target.write(at, &insn::nop::NOP5).unwrap();
    target.faults = Faults::default();
    let applied = change(&mut engine, &mut target, session, 0..6).unwrap();
    assert_eq!(applied.patched, 2);
}

#[test]
fn a_changed_jump_of_ours_freezes_patching_until_thawed() {
    let (mut engine, mut target, session) = attached(6);
    change(&mut engine, &mut target, session, 0..5).unwrap();
    let at = engine.image().sites[2].address;
    let ours = site(&engine, &target, 2);
    target.write(at, &[0xcc]).unwrap();
    let before = (digest(&engine, &target), target.writes);
    let error = change(&mut engine, &mut target, session, []).unwrap_err();
    assert!(matches!(error, ApplyError::Frozen(_)), "{error}");
    // Not even those before it were written, and put back.
    let after = (digest(&engine, &target), target.writes);
    assert_eq!(after, before);
    let before = before.0;
    assert!(engine.sites().frozen().is_some());
    // Nothing at all is written any more, though this site is sound.
    let error = change(&mut engine, &mut target, session, 0..6).unwrap_err();
    assert!(matches!(error, ApplyError::Frozen(_)), "{error}");
    assert_eq!(digest(&engine, &target), before);
    target.write(at, &ours).unwrap();
    engine.sites_mut().thaw();
    change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!(engine.sites().patched(), 0);
}

#[test]
fn a_rollback_that_fails_freezes_patching() {
    let (mut engine, mut target, session) = attached(6);
    let plan = engine.plan(&mut target, session, &select(0..6)).unwrap();
    // The write takes only in part, and the bytes then stay what they are.
    let at = engine.image().sites[3].address;
    let third: &PlanStep = &plan.steps[3];
    assert_eq!(third.function(), Some(FunctionId(3)));
    let jump = third.edits[0].poke.new;
    target.write(at, &jump.as_slice()[..1]).unwrap();
    target.faults.sticky.insert(at);
    let error = engine.apply(&mut target, &plan);
    // A foreign byte before the change is no reason to freeze.
    assert_eq!(error.unwrap().skipped.len(), 1);
    assert!(engine.sites().frozen().is_none());
    change(&mut engine, &mut target, session, []).unwrap();
    target.faults = Faults::default();
    target.write(at, &insn::nop::NOP5).unwrap();
    target.faults.sticky.insert(at.wrapping_add(1));
    let before = digest(&engine, &target);
    let error = change(&mut engine, &mut target, session, 0..6).unwrap_err();
    assert!(matches!(error, ApplyError::Transaction(_)), "{error}");
    assert!(engine.sites().frozen().is_none());
    assert_eq!(
        (digest(&engine, &target), engine.sites().patched()),
        (before, 0)
    );
}

#[test]
fn a_plan_that_was_overtaken_is_refused() {
    let (mut engine, mut target, session) = attached(6);
    let stale = engine.plan(&mut target, session, &select(0..3)).unwrap();
    change(&mut engine, &mut target, session, 0..6).unwrap();
    let before = digest(&engine, &target);
    assert_eq!(engine.apply(&mut target, &stale), Err(ApplyError::Stale));
    assert_eq!(
        (digest(&engine, &target), engine.sites().patched()),
        (before, 6)
    );
    change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!(engine.sites().patched(), 0);
}

/// The nop that was put there is what the site goes back to: not the instructions that stood there before.
#[test]
fn what_was_made_one_nop_stays_one_after_tracing() {
    const SPLIT: [u8; SITE_LENGTH] = [0x66, 0x90, 0x0f, 0x1f, 0x00];
    let mut image = nop_image(3);
    (image.sites[1].form, image.sites[1].original) = (SiteForm::MultiNop, SPLIT);
    let mut target = MockTarget::with_image(2, REGION, &image, Rights::ALL).unwrap();
    let mut engine = Engine::new(Arc::new(image));
    assert_eq!(site(&engine, &target, 1), SPLIT);
    assert_eq!(engine.normalise(&mut target).unwrap(), 1);
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let session = engine.create_session(&mut target, config("one")).unwrap();
    for _ in 0..2 {
        let applied = change(&mut engine, &mut target, session, 0..3).unwrap();
        assert_eq!(applied.patched, 3);
        change(&mut engine, &mut target, session, 0..0).unwrap();
        assert_eq!(site(&engine, &target, 1), NOP5);
    }
}

/// Whoever comes to a guest that runs finds a call of the profiling function, or several nops, and leaves them.
#[test]
fn what_nobody_has_made_one_nop_comes_back_as_it_was() {
    const SPLIT: [u8; SITE_LENGTH] = [0x66, 0x90, 0x0f, 0x1f, 0x00];
    const CALL: [u8; SITE_LENGTH] = [0xe8, 0x10, 0, 0, 0];
    let mut image = nop_image(4);
    let target = Gva(TEXT + 0x20);
    (image.sites[1].form, image.sites[1].original) = (SiteForm::MultiNop, SPLIT);
    (image.sites[2].form, image.sites[2].original) = (SiteForm::RawCall { target }, CALL);
    (image.sites[3].form, image.sites[3].original) = (SiteForm::RawCall { target }, CALL);
    let mut target = MockTarget::with_image(2, REGION, &image, Rights::ALL).unwrap();
    // This one somebody has made a nop.
    target.write(image.sites[3].address, &NOP5).unwrap();
    let second = image.sites[1].address.wrapping_add(2);
    let mut engine = Engine::new(Arc::new(image));
    let before = digest(&engine, &target);
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let session = engine.create_session(&mut target, config("one")).unwrap();
    for _ in 0..2 {
        let applied = change(&mut engine, &mut target, session, 0..4).unwrap();
        assert_eq!((applied.patched, applied.skipped), (4, Vec::new()));
        change(&mut engine, &mut target, session, 0..0).unwrap();
        assert_eq!(digest(&engine, &target), before);
    }
    // A thread that was interrupted between the nops keeps them.
    let held = Gva(TEXT + 0x800);
    target.write(held, &second.0.to_le_bytes()).unwrap();
    let applied = change(&mut engine, &mut target, session, 0..4).unwrap();
    assert_eq!(applied.patched, 3);
    let (function, why) = &applied.skipped[0];
    assert!(matches!(why, PokeError::ThreadInside { .. }), "{why}");
    assert_eq!(*function, FunctionId(1));
}

/// A plan of which nothing may be left out waits for the thread; one that may is made without that step.
#[test]
fn a_thread_between_instructions_that_become_one_is_in_the_way() {
    for obstacles in [Obstacles::Refuse, Obstacles::LeaveOut] {
        let (mut engine, mut target, session) = attached(3);
        let before = digest(&engine, &target);
        let mut plan = engine.plan(&mut target, session, &select(0..3)).unwrap();
        plan.obstacles = obstacles;
        let edit = &mut plan.steps[1].edits[0];
        let inside = edit.poke.at.wrapping_add(2);
        edit.closes.push(inside);
        // It does not run: where it goes on lies in memory.
        let held = Gva(TEXT + 0x800);
        target.write(held, &inside.0.to_le_bytes()).unwrap();
        let applied = engine.apply(&mut target, &plan);
        match obstacles {
            Obstacles::Refuse => {
                let error = applied.unwrap_err();
                assert!(error.to_string().contains("f1"), "{error}");
                assert_eq!(digest(&engine, &target), before);
                target.write(held, &[0; 8]).unwrap();
                assert_eq!(engine.apply(&mut target, &plan).unwrap().patched, 3);
            }
            Obstacles::LeaveOut => {
                let applied = applied.unwrap();
                assert_eq!((applied.patched, applied.skipped[0].0), (2, FunctionId(1)));
            }
        }
    }
}

#[test]
fn a_stub_that_could_not_be_written_is_written_the_next_time() {
    let (mut engine, mut target, session) = attached(6);
    let physical = target.region().start;
    for address in physical.0..physical.0 + 2 * 4096 {
        target
            .faults
            .unwritable_physical
            .insert(terms::addr::Gpa(address));
    }
    let refused = engine.plan(&mut target, session, &select(0..6));
    assert!(
        matches!(refused, Err(ApplyError::Store(StoreError::Write(_)))),
        "{refused:?}"
    );
    target.faults = Faults::default();
    change(&mut engine, &mut target, session, 0..6).unwrap();
    for function in 0..6 {
        let State::Ours(Lead { to: stub, .. }) = engine.sites().state(FunctionId(function)) else {
            panic!("not patched");
        };
        let at = engine.image().sites[function as usize].address;
        assert_eq!(Some(site(&engine, &target, function)), jump(at, *stub));
        let mut code = [0; 2];
        target.read(*stub, &mut code).unwrap();
        assert_eq!(code, [0x65, 0x4c], "every stub begins with its head word");
    }
}

#[test]
fn a_window_that_the_guest_took_hinders_starting_but_not_stopping() {
    let (mut engine, mut target, session) = attached(6);
    let before = digest(&engine, &target);
    change(&mut engine, &mut target, session, 0..3).unwrap();
    let State::Ours(Lead { to: stub, .. }) = *engine.sites().state(FunctionId(0)) else {
        panic!("not patched");
    };
    let entry = target.entry(stub, 2).unwrap();
    target.write_word(entry, 0x40_0083).unwrap();
    let error = change(&mut engine, &mut target, session, 0..6).unwrap_err();
    assert!(
        matches!(error, ApplyError::Window(WindowError::Taken { .. })),
        "{error}"
    );
    change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!(digest(&engine, &target), before);
}

#[test]
fn another_kernel_in_the_place_of_ours_is_noticed_and_not_written() {
    let (mut engine, mut target, session) = attached(6);
    let vcpus = crate::target::StoppedTarget::vcpus(&target).to_vec();
    let look = |engine: &mut Engine, target: &mut MockTarget| engine.check_foothold(target, &vcpus);
    look(&mut engine, &mut target).unwrap();
    change(&mut engine, &mut target, session, 0..3).unwrap();
    look(&mut engine, &mut target).unwrap();
    let State::Ours(Lead { to: stub, .. }) = *engine.sites().state(FunctionId(0)) else {
        panic!("not patched");
    };
    let entry = target.entry(stub, 2).unwrap();
    let sites: Vec<Site> = engine.image().sites.clone();
    // The guest writes over two of our jumps; it is the same kernel still, so what it clears is put back.
    for site in &sites[..2] {
        target.write(site.address, &site.original).unwrap();
    }
    target.write_word(entry, 0).unwrap();
    look(&mut engine, &mut target).unwrap();
    assert_ne!(target.read_word(entry).unwrap(), 0);
    // The same kernel loaded anew, with the same page tables at the same place.
    target.write(sites[2].address, &sites[2].original).unwrap();
    target.write_word(entry, 0).unwrap();
    assert_eq!(look(&mut engine, &mut target), Err(FrozenBy::Replaced));
    assert_eq!(target.read_word(entry).unwrap(), 0);
    // What cannot be read tells nothing.
    let unreadable = sites.iter().map(|site| site.address);
    target.faults.unreadable.extend(unreadable);
    look(&mut engine, &mut target).unwrap();
    engine.sites_mut().freeze(FrozenBy::Replaced);
    let refused = change(&mut engine, &mut target, session, []);
    assert!(matches!(refused, Err(ApplyError::Frozen(_))), "{refused:?}");
}

#[test]
fn gs_bases_that_tell_nothing_lead_to_one_shared_ring() {
    type Spoil = fn(&mut [crate::target::VcpuRegisters]);
    let cases: [Spoil; 5] = [
        |vcpus| vcpus[1].gs_base = vcpus[0].gs_base,
        |vcpus| vcpus[1].gs_base = 0x7fff_0000_0000,
        |vcpus| vcpus[1].online = false,
        |vcpus| vcpus[0].gs_base = 0xffff_8000_0000_0000,
        |vcpus| vcpus[0].gs_base += 8,
    ];
    for spoil in cases {
        let (mut engine, mut target) = machine(2);
        spoil(target.vcpus_mut());
        let region = target.region();
        engine.attach(&mut target, region).unwrap();
        let Some((CpuStrategy::Shared, Some(_))) = engine.foothold().map(Foothold::strategy) else {
            panic!("{:?}", engine.foothold().map(Foothold::strategy));
        };
        let id = engine.create_session(&mut target, config("s")).unwrap();
        assert_eq!(engine.sessions().get(id).unwrap().memory.cells.len(), 1);
    }
}

#[test]
fn more_functions_than_a_record_can_number_are_refused() {
    let (engine, mut target) = machine(2);
    let mut image = (**engine.image()).clone();
    image
        .functions
        .resize(FUNCTIONS_MAX as usize, terms::function::Function::default());
    let mut engine = Engine::new(Arc::new(image));
    let region = target.region();
    let error = engine.attach(&mut target, region).unwrap_err();
    assert!(matches!(error, AttachError::TooManyFunctions(_)), "{error}");
}

#[test]
fn says_what_is_missing() {
    let (mut engine, mut target) = machine(2);
    let refused = engine.create_session(&mut target, config("x"));
    assert_eq!(refused, Err(AttachError::NotAttached));
    // A plan of another guest: what leads into a window needs one.
    let (mut other, mut its, session) = attached(2);
    let plan = other.plan(&mut its, session, &select([0])).unwrap();
    assert_eq!(
        engine.apply(&mut target, &plan),
        Err(ApplyError::NotAttached)
    );
    let planned = engine.plan(&mut target, SessionId(3), &select([]));
    assert_eq!(planned, Err(ApplyError::NoSession(3)));
    let empty = Image::default();
    let region = target.region();
    let error = Engine::new(Arc::new(empty)).attach(&mut target, region);
    assert_eq!(error, Err(AttachError::NoText));
    assert_eq!(SiteBytes::new([0x90; 5]).to_string(), "90 90 90 90 90");
}
