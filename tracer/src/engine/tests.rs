use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::digest::text_digest;
use crate::image::SITE_LENGTH;
use crate::image::testing::nop_image;
use crate::insn::jump::jump;
use crate::mock::{Faults, MockTarget, Rights};
use crate::patch::poke::SiteBytes;
use crate::ring::geometry::{Geometry, Position};
use crate::ring::reader::Mode;
use crate::session::{SessionConfig, TracerKind};
use crate::stub::recorder::Clock;
use crate::target::TargetMemory;

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
        return_hook: crate::stub::graph::ReturnHook::Balanced,
        geometry: Geometry::with_bytes(4096).unwrap(),
        mode: Mode::Overwrite,
        clock: Clock::Tsc,
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
    let before = (engine.stub_bytes(), digest(&engine, &target));
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    assert_eq!((engine.stub_bytes(), digest(&engine, &target)), before);
    assert_eq!(engine.patched(), 4);
    assert!(matches!(
        engine.strategy(),
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
    assert_eq!((applied.restored, engine.patched()), (40, 0));
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
        engine.state(FunctionId(3)),
        FunctionState::Skipped(_)
    ));
    assert!(engine.frozen().is_none());
    // When the other's patch has gone, the next start takes the function along.
    target.write(at, &crate::patch::normalise::NOP5).unwrap();
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
    let before = digest(&engine, &target);
    let error = change(&mut engine, &mut target, session, []).unwrap_err();
    assert!(matches!(error, ApplyError::Frozen(_)), "{error}");
    assert_eq!(digest(&engine, &target), before);
    assert!(engine.frozen().is_some());
    // Nothing at all is written any more, though this site is sound.
    let error = change(&mut engine, &mut target, session, 0..6).unwrap_err();
    assert!(matches!(error, ApplyError::Frozen(_)), "{error}");
    assert_eq!(digest(&engine, &target), before);
    target.write(at, &ours).unwrap();
    engine.thaw();
    change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!(engine.patched(), 0);
}

#[test]
fn a_rollback_that_fails_freezes_patching() {
    let (mut engine, mut target, session) = attached(6);
    let plan = engine.plan(&mut target, session, &select(0..6)).unwrap();
    // The write takes only in part, and the bytes then stay what they are.
    let at = engine.image().sites[3].address;
    let jump = plan.changes[3].poke.new;
    target.write(at, &jump.as_slice()[..1]).unwrap();
    target.faults.sticky.insert(at);
    let error = engine.apply(&mut target, &plan);
    // A foreign byte before the change is no reason to freeze.
    assert_eq!(error.unwrap().skipped.len(), 1);
    assert!(engine.frozen().is_none());
    change(&mut engine, &mut target, session, []).unwrap();
    target.faults = Faults::default();
    target.write(at, &crate::patch::normalise::NOP5).unwrap();
    target.faults.sticky.insert(at.wrapping_add(1));
    let before = digest(&engine, &target);
    let error = change(&mut engine, &mut target, session, 0..6).unwrap_err();
    assert!(matches!(error, ApplyError::Transaction(_)), "{error}");
    assert!(engine.frozen().is_none());
    assert_eq!((digest(&engine, &target), engine.patched()), (before, 0));
}

#[test]
fn a_plan_that_was_overtaken_is_refused() {
    let (mut engine, mut target, session) = attached(6);
    let stale = engine.plan(&mut target, session, &select(0..3)).unwrap();
    change(&mut engine, &mut target, session, 0..6).unwrap();
    let before = digest(&engine, &target);
    assert_eq!(engine.apply(&mut target, &stale), Err(ApplyError::Stale));
    assert_eq!((digest(&engine, &target), engine.patched()), (before, 6));
    change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!(engine.patched(), 0);
}

#[test]
fn a_stub_that_could_not_be_written_is_written_the_next_time() {
    let (mut engine, mut target, session) = attached(6);
    let physical = target.region().start;
    for address in physical.0..physical.0 + 4096 {
        target
            .faults
            .unwritable_physical
            .insert(crate::addr::Gpa(address));
    }
    let refused = engine.plan(&mut target, session, &select(0..6));
    assert!(matches!(refused, Err(ApplyError::Stub(_))), "{refused:?}");
    target.faults = Faults::default();
    change(&mut engine, &mut target, session, 0..6).unwrap();
    for function in 0..6 {
        let FunctionState::Patched { stub, .. } = engine.state(FunctionId(function)) else {
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
    let FunctionState::Patched { stub, .. } = *engine.state(FunctionId(0)) else {
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
fn sixteen_sessions_have_memory_of_their_own_and_the_seventeenth_is_refused() {
    let (mut engine, mut target, first) = attached(2);
    let mut all = vec![first];
    for number in 1..16 {
        let name = number.to_string();
        all.push(engine.create_session(&mut target, config(&name)).unwrap());
    }
    let error = engine
        .create_session(&mut target, config("last"))
        .unwrap_err();
    assert!(
        matches!(&error, AttachError::TooManySessions { name } if name == "last"),
        "{error}"
    );
    let mut words: Vec<u64> = Vec::new();
    for id in all {
        let memory = &engine.session(id).unwrap().memory;
        assert_eq!(memory.cells.len(), 2);
        words.extend(memory.cells.iter().map(|cell| cell.0));
        words.push(memory.rings.0);
    }
    words.sort_unstable();
    assert!(words.windows(2).all(|pair| pair[1] - pair[0] >= 64));
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
        let Some((CpuStrategy::Shared, Some(_))) = engine.strategy() else {
            panic!("{:?}", engine.strategy());
        };
        let id = engine.create_session(&mut target, config("s")).unwrap();
        assert_eq!(engine.session(id).unwrap().memory.cells.len(), 1);
    }
}

#[test]
fn more_functions_than_a_record_can_number_are_refused() {
    let (engine, mut target) = machine(2);
    let mut image = (**engine.image()).clone();
    image
        .functions
        .resize(FUNCTIONS_MAX as usize, crate::image::Function::default());
    let mut engine = Engine::new(Arc::new(image));
    let region = target.region();
    let error = engine.attach(&mut target, region).unwrap_err();
    assert!(matches!(error, AttachError::TooManyFunctions(_)), "{error}");
}

#[test]
fn says_what_is_missing() {
    let (mut engine, mut target) = machine(2);
    let refused = engine.create_session(&mut target, config("x"));
    assert_eq!(refused, Err(AttachError::Window(WindowError::NoVcpu)));
    let plan = Plan::default();
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

#[test]
fn names_are_unique_and_a_deleted_one_is_free_again() {
    let (mut engine, mut target, first) = attached(2);
    let error = engine
        .create_session(&mut target, config("one"))
        .unwrap_err();
    assert!(
        matches!(&error, AttachError::NameTaken { name } if name == "one"),
        "{error}"
    );
    engine.delete_session(&mut target, first).unwrap();
    assert_eq!(
        engine.delete_session(&mut target, first),
        Err(ApplyError::NoSession(0))
    );
    engine.create_session(&mut target, config("one")).unwrap();
}

#[test]
fn a_session_that_is_traced_into_is_not_deleted() {
    let (mut engine, mut target, session) = attached(4);
    change(&mut engine, &mut target, session, 0..3).unwrap();
    let error = engine.delete_session(&mut target, session).unwrap_err();
    let expected = ApplyError::StillTracing {
        events: 0,
        name: "one".to_owned(),
        functions: 3,
    };
    assert_eq!(error, expected);
    change(&mut engine, &mut target, session, []).unwrap();
    engine.delete_session(&mut target, session).unwrap();
}

fn word(target: &MockTarget, at: crate::addr::Gpa) -> u64 {
    let mut bytes = [0; 8];
    target.read_physical(at, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn rings_are_used_again_from_behind_what_late_writers_can_store() {
    let (mut engine, mut target, session) = attached(2);
    let before = engine.session(session).unwrap().memory.clone();
    let stubs = engine.stub_bytes();
    let slots = before.geometry.slots();
    for (ring, cell) in (0u16..).zip(&before.cells) {
        let head = Position(slots * 3 + 7).word(ring);
        target.write_word(*cell, head).unwrap();
        target.write_word(cell.wrapping_add(8), u64::MAX).unwrap();
    }
    engine.delete_session(&mut target, session).unwrap();
    for cell in &before.cells {
        assert_eq!(word(&target, cell.wrapping_add(8)), 0, "the limit is off");
    }
    // Another size or kind does not get them, though its number would be free.
    let large = SessionConfig {
        geometry: Geometry::with_bytes(8192).unwrap(),
        ..config("large")
    };
    let other = engine.create_session(&mut target, large).unwrap();
    assert_ne!(engine.session(other).unwrap().memory.rings, before.rings);
    assert_ne!(other, session);
    let again = engine.create_session(&mut target, config("two")).unwrap();
    let after = &engine.session(again).unwrap().memory;
    assert_eq!((again, after.rings), (session, before.rings));
    assert_eq!(after.first, vec![Position(slots * 4 + 7); 2]);
    assert_eq!(engine.stub_bytes(), stubs);
}

#[test]
fn rings_whose_head_is_the_guests_invention_are_not_used_again() {
    let (mut engine, mut target, session) = attached(2);
    let before = engine.session(session).unwrap().memory.clone();
    target.write_word(before.cells[1], u64::MAX).unwrap();
    engine.delete_session(&mut target, session).unwrap();
    let again = engine.create_session(&mut target, config("two")).unwrap();
    assert_ne!(engine.session(again).unwrap().memory.rings, before.rings);
}

#[test]
fn a_profile_session_begins_with_zeros_and_its_counters_are_used_again() {
    let (mut engine, mut target) = machine(300);
    target = {
        let image = nop_image(300);
        drop(target);
        MockTarget::with_image(2, 256 << 20, &image, Rights::ALL).unwrap()
    };
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let profile = |name: &str| SessionConfig {
        tracer: TracerKind::Profile,
        ..config(name)
    };
    let id = engine.create_session(&mut target, profile("p")).unwrap();
    let session = engine.session(id).unwrap();
    let (table, layout) = (session.memory.rings, session.profile.unwrap().layout);
    assert!(session.recorder.is_none());
    let text = digest(&engine, &target);
    change(&mut engine, &mut target, id, 0..300).unwrap();
    assert_eq!(engine.patched(), 300);
    target.write_word(table, 77).unwrap();
    change(&mut engine, &mut target, id, []).unwrap();
    assert_eq!(digest(&engine, &target), text);
    engine.delete_session(&mut target, id).unwrap();
    let again = engine.create_session(&mut target, profile("q")).unwrap();
    assert_eq!(engine.session(again).unwrap().memory.rings, table);
    assert_eq!(word(&target, table), 0);
    assert!(layout.bytes() >= 300 * 32 * 2);
}

#[derive(Debug, Clone)]
enum Op {
    Create { graph: bool, large: bool },
    Delete(usize),
    Select(usize, Vec<u32>),
}

fn op() -> impl Strategy<Value = Op> {
    let functions = prop::collection::vec(0..12u32, 0..12);
    prop_oneof![
        2 => (any::<bool>(), any::<bool>()).prop_map(|(graph, large)| Op::Create { graph, large }),
        1 => (0..20usize).prop_map(Op::Delete),
        3 => (0..20usize, functions).prop_map(|(session, functions)| Op::Select(session, functions)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Sessions that come, go and change what they trace, against sets of function numbers: the
    /// engine has the same sessions and the same functions patched, no two sessions share memory,
    /// and at the end the text is what it was.
    #[test]
    fn sessions_live_as_the_model_says(ops in prop::collection::vec(op(), 1..60)) {
        let image = nop_image(12);
        let mut target = MockTarget::with_image(2, 256 << 20, &image, Rights::ALL).unwrap();
        let mut engine = Engine::new(Arc::new(image));
        let region = target.region();
        engine.attach(&mut target, region).unwrap();
        let text = digest(&engine, &target);
        let mut model: Vec<(SessionId, BTreeSet<u32>)> = Vec::new();
        for (number, op) in ops.into_iter().enumerate() {
            match op {
                Op::Create { graph, large } => {
                    let tracer = if graph { TracerKind::Graph } else { TracerKind::Function };
                    let geometry = Geometry::with_bytes(if large { 8192 } else { 4096 }).unwrap();
                    let config = SessionConfig { tracer, geometry, ..config(&number.to_string()) };
                    match engine.create_session(&mut target, config) {
                        Ok(id) => {
                            prop_assert!(model.iter().all(|(known, _)| *known != id));
                            model.push((id, BTreeSet::new()));
                        }
                        Err(error) => {
                            let expected = AttachError::TooManySessions { name: number.to_string() };
                            prop_assert_eq!(error, expected);
                            prop_assert_eq!(model.len(), 16);
                        }
                    }
                }
                Op::Delete(which) if !model.is_empty() => {
                    let (id, functions) = model.swap_remove(which % model.len());
                    if !functions.is_empty() {
                        prop_assert!(engine.delete_session(&mut target, id).is_err());
                        change(&mut engine, &mut target, id, []).unwrap();
                    }
                    engine.delete_session(&mut target, id).unwrap();
                }
                Op::Select(which, functions) if !model.is_empty() => {
                    let index = which % model.len();
                    model[index].1 = functions.iter().copied().collect();
                    change(&mut engine, &mut target, model[index].0, functions).unwrap();
                }
                Op::Delete(_) | Op::Select(..) => {}
            }
            for function in 0..12 {
                let expected: BTreeSet<u8> = model
                    .iter()
                    .filter(|(_, functions)| functions.contains(&function))
                    .map(|(id, _)| id.0)
                    .collect();
                let found: BTreeSet<u8> =
                    engine.table.sessions(FunctionId(function)).iter().collect();
                prop_assert_eq!(&found, &expected);
                let nop = site(&engine, &target, function) == crate::patch::normalise::NOP5;
                prop_assert_eq!(nop, expected.is_empty());
            }
            let mut places: Vec<(u64, u64)> = Vec::new();
            for (id, _) in &model {
                let memory = &engine.session(*id).unwrap().memory;
                let words = 1 + u64::from(memory.details.is_some());
                places.push((memory.rings.0, words * 2 * memory.geometry.bytes()));
                places.extend(memory.cells.iter().map(|cell| (cell.0, 64)));
            }
            places.sort_unstable();
            prop_assert!(places.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
        }
        for (id, _) in model {
            change(&mut engine, &mut target, id, []).unwrap();
            engine.delete_session(&mut target, id).unwrap();
        }
        prop_assert_eq!(digest(&engine, &target), text);
    }
}

mod locks {
    use super::*;
    use crate::engine::locks::LockError;
    use crate::image::LockSite;
    use crate::insn::lock::{DS, LOCK};
    use crate::patch::locks::LockPrefixes::{Off, On};

    const COUNT: u64 = 5;

    fn address(number: u64) -> Gva {
        Gva(crate::image::testing::TEXT + 16 * number + 8)
    }

    /// Each function has a lock prefix behind its site.
    fn machine(vcpus: u64) -> (Engine, MockTarget) {
        let mut image = nop_image(COUNT);
        image.locks = (0u32..)
            .zip(0..COUNT)
            .map(|(function, number)| LockSite {
                address: address(number),
                function: FunctionId(function),
            })
            .collect();
        let mut target = MockTarget::with_image(vcpus, REGION, &image, Rights::ALL).unwrap();
        for number in 0..COUNT {
            target.write(address(number), &[LOCK]).unwrap();
        }
        (Engine::new(Arc::new(image)), target)
    }

    fn prefixes(target: &MockTarget) -> Vec<u8> {
        let byte = |number| {
            let mut byte = [0];
            target.read(address(number), &mut byte).unwrap();
            byte[0]
        };
        (0..COUNT).map(byte).collect()
    }

    #[test]
    fn off_and_on_again_restores_the_text() {
        let (mut engine, mut target) = machine(1);
        let before = digest(&engine, &target);
        assert_eq!(engine.switch_locks(&mut target, Off, 1), Ok(5));
        assert_eq!(prefixes(&target), [DS; 5]);
        assert_eq!(engine.switch_locks(&mut target, Off, 1), Ok(0));
        assert_eq!(engine.switch_locks(&mut target, On, 1), Ok(5));
        assert_eq!(digest(&engine, &target), before);
    }

    #[test]
    fn off_is_refused_with_two_vcpus_even_if_only_one_runs() {
        let (mut engine, mut target) = machine(2);
        target.vcpus_mut()[1].online = false;
        let error = engine.switch_locks(&mut target, Off, 2).unwrap_err();
        assert_eq!(error, LockError::SeveralVcpus { vcpus: 2 });
        assert_eq!(prefixes(&target), [LOCK; 5]);
        assert_eq!(target.writes, 5, "those of the set-up only");
    }

    #[test]
    fn one_foreign_byte_leaves_all_as_they_were() {
        let (mut engine, mut target) = machine(1);
        target.write(address(3), &[0x90]).unwrap();
        let message = engine
            .switch_locks(&mut target, Off, 1)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("f3") && message.contains("holds 90, expected f0"),
            "{message}"
        );
        assert_eq!(prefixes(&target), [LOCK, LOCK, LOCK, 0x90, LOCK]);
        assert_eq!(engine.locks(), (On, 5));
    }

    #[test]
    fn an_image_without_a_list_is_told_from_one_with() {
        let (mut engine, mut target) = super::machine(1);
        let error = engine.switch_locks(&mut target, Off, 1).unwrap_err();
        assert_eq!(error, LockError::NoList);
    }
}

/// Where the mock guest's `system_state` lies, and the value from which on init text is gone.
const STATE: Gpa = Gpa(0x8000);
const FREEING: u32 = 3;

/// A Linux with 8 functions, the last 4 of which are init text.
fn booting_linux() -> (Engine, MockTarget, SessionId) {
    use crate::image::linux::{InitState, Linux};
    let mut image = nop_image(8);
    let text = TextRange {
        start: image.functions[0].address,
        end: image.functions[4].address,
    };
    image.linux = Some(Linux {
        version: "6.1.0".to_owned(),
        text: Some(text),
        init_text: None,
        rodata: None,
        init: Some(InitState {
            at: STATE,
            gone_from: FREEING,
        }),
        modules: None,
        tasks: None,
        prepares_sites: true,
    });
    let mut target = MockTarget::with_image(2, REGION, &image, Rights::ALL).unwrap();
    target.write_physical(STATE, &2_u32.to_le_bytes()).unwrap();
    let mut engine = Engine::new(Arc::new(image));
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let session = engine.create_session(&mut target, config("one")).unwrap();
    (engine, target, session)
}

#[test]
fn freed_init_text_is_never_written() {
    let (mut engine, mut target, session) = booting_linux();
    let applied = change(&mut engine, &mut target, session, 0..8).unwrap();
    assert_eq!(
        (applied.patched, engine.patched(), engine.gone()),
        (8, 8, 0)
    );
    // The guest frees the text and uses the memory; one word of it happens to look like our jump.
    let ours = site(&engine, &target, 7);
    let plan = engine.plan(&mut target, session, &select([])).unwrap();
    assert_eq!(plan.changes.len(), 8);
    let freed = engine.image().functions[4].address;
    target.write(freed, &[0x5a; 64]).unwrap();
    let last = engine.image().site_of(FunctionId(7)).unwrap().address;
    target.write(last, &ours).unwrap();
    target
        .write_physical(STATE, &FREEING.to_le_bytes())
        .unwrap();
    let writes = target.writes;
    let applied = engine.apply(&mut target, &plan).unwrap();
    assert_eq!((applied.restored, applied.skipped.len()), (4, 0));
    assert_eq!(target.writes, writes + 4);
    assert_eq!((engine.patched(), engine.gone()), (0, 4));
    assert_eq!(site(&engine, &target, 7), ours);
    assert!(engine.frozen().is_none());
    // They cannot be traced any more; the others can.
    let applied = change(&mut engine, &mut target, session, 0..8).unwrap();
    assert_eq!((applied.patched, engine.patched()), (4, 4));
}

#[test]
fn init_text_counts_as_gone_when_the_guest_cannot_be_asked() {
    let (mut engine, mut target, session) = booting_linux();
    let mut image = (**engine.image()).clone();
    if let Some(linux) = &mut image.linux {
        linux.init = None;
    }
    engine.image = Arc::new(image);
    let applied = change(&mut engine, &mut target, session, 0..8).unwrap();
    assert_eq!((applied.patched, engine.gone()), (4, 4));
}

/// A Linux with 8 functions of its own that stay, and modules.
fn linux_with_modules() -> (Engine, crate::module::testing::Guest, SessionId) {
    let (engine, target, _) = booting_linux();
    let guest = crate::module::testing::Guest::on(target);
    let mut image = (**engine.image()).clone();
    if let Some(linux) = &mut image.linux {
        linux.modules = Some(guest.layout.clone());
        linux.text = image.text.first().copied();
    }
    let mut guest = guest;
    let mut engine = Engine::new(Arc::new(image));
    let region = guest.target.region();
    engine.attach(&mut guest.target, region).unwrap();
    let session = engine
        .create_session(&mut guest.target, config("one"))
        .unwrap();
    (engine, guest, session)
}

fn all(engine: &Engine) -> std::ops::Range<u32> {
    0..u32::try_from(engine.image().functions.len()).unwrap()
}

#[test]
fn functions_of_modules_come_are_traced_and_leave_without_a_write() {
    let (mut engine, mut guest, session) = linux_with_modules();
    guest.module("one", &["one_open", "one_read"]);
    guest.module("two", &["two_read"]);
    let moved = engine.take_in(&guest.target).unwrap();
    assert_eq!(moved.came, [Arc::from("one"), Arc::from("two")]);
    assert_eq!(engine.image().functions.len(), 11);
    assert_eq!(&*engine.image().functions[10].name, "two_read");
    assert!(!engine.take_in(&guest.target).unwrap().is_change());
    let everything = all(&engine);
    let applied = change(&mut engine, &mut guest.target, session, everything).unwrap();
    assert_eq!((applied.patched, applied.skipped.len()), (11, 0));
    // A plan is made, then the module goes and something else uses its memory.
    let plan = engine
        .plan(&mut guest.target, session, &select([]))
        .unwrap();
    assert_eq!(plan.changes.len(), 11);
    guest.unload_last();
    let writes = guest.target.writes;
    let applied = engine.apply(&mut guest.target, &plan).unwrap();
    assert_eq!((applied.restored, guest.target.writes - writes), (10, 10));
    assert_eq!((engine.patched(), engine.gone()), (0, 1));
    assert!(engine.is_gone(FunctionId(10)));
    // Its text was not touched: our jump is still there.
    assert_eq!(site(&engine, &guest.target, 10)[0], 0xe9);
}

#[test]
fn a_module_that_was_loaded_again_at_its_old_place_is_another_one() {
    let (mut engine, mut guest, session) = linux_with_modules();
    guest.module("one", &["one_open", "one_read"]);
    engine.take_in(&guest.target).unwrap();
    let everything = all(&engine);
    change(&mut engine, &mut guest.target, session, everything).unwrap();
    let at = guest.unload_last();
    guest.load_at(at, "one", &["one_open", "one_read"]);
    let moved = engine.take_in(&guest.target).unwrap();
    assert_eq!((moved.left.len(), moved.came.len()), (1, 1));
    assert_eq!((engine.patched(), engine.gone()), (8, 2));
    let everything = all(&engine);
    let applied = change(&mut engine, &mut guest.target, session, everything).unwrap();
    assert_eq!((applied.patched, engine.patched()), (2, 10));
    assert!(engine.frozen().is_none());
}

#[test]
fn a_list_that_cannot_be_read_leaves_no_module_to_write_to() {
    let (mut engine, mut guest, session) = linux_with_modules();
    guest.module("one", &["one_open"]);
    engine.take_in(&guest.target).unwrap();
    let everything = all(&engine);
    change(&mut engine, &mut guest.target, session, everything).unwrap();
    guest.tie_to("one", 0x1000);
    let writes = guest.target.writes;
    change(&mut engine, &mut guest.target, session, []).unwrap();
    assert_eq!(guest.target.writes - writes, 8);
    engine.take_in(&guest.target).unwrap_err();
    assert_eq!(engine.gone(), 1);
}

/// Functions 4 to 7 are a module's: they are not there at the start.
fn with_module() -> (Engine, MockTarget, SessionId, Gva) {
    let mut image = nop_image(8);
    let start = image.functions[4].address;
    image.parts.push(crate::image::Part {
        name: Arc::from("one"),
        text: TextRange {
            start,
            end: start.wrapping_add(64),
        },
        at_start: false,
    });
    let target = MockTarget::with_image(2, REGION, &image, Rights::ALL).unwrap();
    let mut target = target;
    let mut engine = Engine::new(Arc::new(image));
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let session = engine.create_session(&mut target, config("one")).unwrap();
    (engine, target, session, start)
}

#[test]
fn a_module_is_written_only_between_its_coming_and_its_going() {
    let (mut engine, mut target, session, start) = with_module();
    let applied = change(&mut engine, &mut target, session, 0..8).unwrap();
    assert_eq!((applied.patched, engine.gone()), (4, 4));
    for _ in 0..3 {
        assert_eq!(engine.part_came(&mut target, start), Ok(4));
        assert_eq!(engine.part_came(&mut target, start), Ok(0));
        let applied = change(&mut engine, &mut target, session, 0..8).unwrap();
        assert_eq!((applied.patched, engine.patched()), (4, 8));
        // Planned while it was there, applied when it is gone.
        let plan = engine.plan(&mut target, session, &select([])).unwrap();
        assert_eq!(engine.part_goes(start), 4);
        target.write(start, &[0xcc; 64]).unwrap();
        let applied = engine.apply(&mut target, &plan).unwrap();
        assert_eq!((applied.restored, engine.patched()), (4, 0));
        let mut poison = [0; 64];
        target.read(start, &mut poison).unwrap();
        assert_eq!(poison, [0xcc; 64]);
        // The guest loads it again: with its nops.
        for site in engine.image().sites.clone().iter().skip(4) {
            target.write(site.address, &site.original).unwrap();
        }
        change(&mut engine, &mut target, session, 0..8).unwrap();
    }
    assert!(engine.frozen().is_none());
    assert_eq!(engine.part_came(&mut target, Gva(1)), Ok(0), "no such part");
}
