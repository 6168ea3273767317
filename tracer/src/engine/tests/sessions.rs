//! Sessions and the memory that they have in the guest.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

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
        let memory = &engine.sessions().get(id).unwrap().memory;
        assert_eq!(memory.cells.len(), 2);
        words.extend(memory.cells.iter().map(|cell| cell.0));
        words.push(memory.rings.0);
    }
    words.sort_unstable();
    assert!(words.windows(2).all(|pair| pair[1] - pair[0] >= 64));
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

/// A kernel that tracks indirect branches (IBT) would have taken the first return for an attack.
#[test]
fn functions_are_not_left_by_jumps_where_branches_are_tracked() {
    use crate::stub::spec::ReturnHook;
    let with = |name: &str, tracer, return_hook| SessionConfig {
        tracer,
        return_hook,
        ..config(name)
    };
    let (mut engine, mut target, _) = attached(2);
    target.vcpus_mut()[1].cr4 |= 1 << 23;
    let jmp = |name| with(name, TracerKind::Graph, ReturnHook::Jmp);
    let error = engine.create_session(&mut target, jmp("jmp")).unwrap_err();
    assert!(
        matches!(&error, AttachError::BranchesTracked { name, vcpu: 1, .. } if name == "jmp"),
        "{error}"
    );
    for (name, tracer, hook) in [
        ("balanced", TracerKind::Graph, ReturnHook::Balanced),
        ("ret", TracerKind::Graph, ReturnHook::Ret),
        ("function", TracerKind::Function, ReturnHook::Jmp),
    ] {
        let made = engine.create_session(&mut target, with(name, tracer, hook));
        made.unwrap();
    }
    target.vcpus_mut()[1].online = false;
    engine.create_session(&mut target, jmp("offline")).unwrap();
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
                    engine.sites.sessions(FunctionId(function)).iter().collect();
                prop_assert_eq!(&found, &expected);
                let nop = site(&engine, &target, function) == insn::nop::NOP5;
                prop_assert_eq!(nop, expected.is_empty());
            }
            let mut places: Vec<(u64, u64)> = Vec::new();
            for (id, _) in &model {
                let memory = &engine.sessions().get(*id).unwrap().memory;
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
