//! Probes at the sites of functions, against the mock target.

use terms::expression::Expression;
use terms::field::FieldType;

use super::*;
use crate::capture::{Capture, Captured, Source};
use crate::engine::probes::{NewProbe, ProbeError, ProbeId};
use crate::probe::Point;

/// A probe that captures some registers.
fn new(function: u32, registers: u8) -> NewProbe {
    let values = (0..registers).map(|number| Captured {
        name: format!("r{number}").into(),
        kind: FieldType::named("u64").unwrap(),
        source: Source::Number(Expression::Register(number)),
    });
    NewProbe {
        name: format!("f{function}").into(),
        point: Point::Entry(FunctionId(function)),
        capture: Capture {
            values: values.collect(),
            condition: None,
        },
        tactic: None,
        waits_for_module: false,
        again: None,
    }
}

/// A guest with event rings of 64 bytes a record.
fn probing(functions: u64) -> (Engine, MockTarget, SessionId) {
    let (mut engine, mut target, session) = attached(functions);
    engine.make_event_rings(&mut target, session, 64).unwrap();
    (engine, target, session)
}

fn switch(
    engine: &mut Engine,
    target: &mut MockTarget,
    wanted: &[(ProbeId, Option<SessionId>)],
) -> Result<(), ApplyError> {
    let plan = engine.plan_probes(target, wanted)?;
    engine.apply(target, &plan).map(drop)
}

#[test]
fn a_site_is_shared_with_the_function_and_restored_with_the_last() {
    let (mut engine, mut target, session) = probing(4);
    let before = digest(&engine, &target);
    let ids = [(); 2].map(|()| engine.add_probe(new(1, 2)).unwrap());
    assert_eq!(ids, [ProbeId(1), ProbeId(2)]);
    assert_eq!(digest(&engine, &target), before);
    switch(&mut engine, &mut target, &ids.map(|id| (id, Some(session)))).unwrap();
    let both = site(&engine, &target, 1);
    // Tracing comes and goes after them.
    change(&mut engine, &mut target, session, 0..4).unwrap();
    assert_ne!(site(&engine, &target, 1), both);
    switch(&mut engine, &mut target, &[(ids[0], None)]).unwrap();
    change(&mut engine, &mut target, session, []).unwrap();
    assert_eq!(engine.sites().patched(), 1);
    let error = engine.delete_session(&mut target, session).unwrap_err();
    assert!(matches!(error, ApplyError::StillTracing { .. }), "{error}");
    switch(&mut engine, &mut target, &[(ids[0], Some(session))]).unwrap();
    assert_eq!(site(&engine, &target, 1), both, "stubs are found again");
    switch(&mut engine, &mut target, &ids.map(|id| (id, None))).unwrap();
    assert_eq!(digest(&engine, &target), before);
    engine.points_mut().forget_probes(&ids);
    assert_eq!(engine.add_probe(new(1, 2)), Ok(ProbeId(3)));
}

#[test]
fn one_that_cannot_be_set_leaves_none_set() {
    let (mut engine, mut target, session) = probing(40);
    let before = digest(&engine, &target);
    let ids: Vec<ProbeId> = (0..40)
        .map(|function| engine.add_probe(new(function, 1)).unwrap())
        .collect();
    let all: Vec<_> = ids.iter().map(|id| (*id, Some(session))).collect();
    let at = engine.image().sites[33].address;
    target.faults.unwritable.insert(at);
    let error = switch(&mut engine, &mut target, &all).unwrap_err();
    assert!(matches!(error, ApplyError::Transaction(_)), "{error}");
    assert_eq!(digest(&engine, &target), before);
    assert!(
        engine
            .points()
            .probes()
            .iter()
            .all(|probe| probe.session.is_none())
    );
    target.faults = Faults::default();
    // Too much for a record, said before anything is written.
    let large = engine.add_probe(new(3, 5)).unwrap();
    let with_large = [&all[..], &[(large, Some(session))]].concat();
    let error = switch(&mut engine, &mut target, &with_large).unwrap_err();
    let is_room = matches!(
        error,
        ApplyError::Probe(ProbeError::TooLarge {
            wanted: 80,
            room: 64,
            ..
        })
    );
    assert!(is_room, "{error}");
    assert_eq!(digest(&engine, &target), before);
    switch(&mut engine, &mut target, &all).unwrap();
    assert_eq!(engine.sites().patched(), 40);
}

#[test]
fn foreign_bytes_at_our_jump_freeze_and_a_plan_that_is_old_is_stale() {
    let (mut engine, mut target, session) = probing(4);
    let id = engine.add_probe(new(2, 1)).unwrap();
    let other = engine.add_probe(new(2, 1)).unwrap();
    let on = engine
        .plan_probes(&mut target, &[(id, Some(session))])
        .unwrap();
    switch(&mut engine, &mut target, &[(other, Some(session))]).unwrap();
    let error = engine.apply(&mut target, &on).unwrap_err();
    assert_eq!(error, ApplyError::Stale);
    switch(&mut engine, &mut target, &[(id, Some(session))]).unwrap();
    let ours = site(&engine, &target, 2);
    let at = engine.image().sites[2].address;
    target.write(at, &[0xcc]).unwrap();
    let error = switch(&mut engine, &mut target, &[(id, None)]).unwrap_err();
    assert!(matches!(error, ApplyError::Frozen(_)), "{error}");
    target.write(at, &ours).unwrap();
    engine.sites_mut().thaw();
    switch(&mut engine, &mut target, &[(id, None), (other, None)]).unwrap();
    assert_eq!(engine.sites().patched(), 0);
}

/// What stands in a function that probes are set at, too, is theirs until they are taken away.
#[test]
fn a_site_with_a_probe_on_the_way_is_not_given_back() {
    let (mut engine, mut target, session) = probing(4);
    let id = engine.add_probe(new(2, 1)).unwrap();
    switch(&mut engine, &mut target, &[(id, Some(session))]).unwrap();
    let original = engine.sites().ours().next().unwrap().original;
    let at = engine.image().sites[2].address;
    target.write(at, original.as_slice()).unwrap();
    let error = switch(&mut engine, &mut target, &[(id, None)]).unwrap_err();
    assert!(matches!(error, ApplyError::Frozen(_)), "{error}");
    assert_eq!(engine.commit().thaw(&mut target), Ok(0));
    assert_eq!(engine.sites().patched(), 1);
}

/// The table of places: two functions that only hops are possible in, with padding after each.
mod places {
    use image::testing::{ElfFile, TEXT};
    use terms::session_set::SessionSet;

    use super::*;
    use crate::points::probes::{Places, plan};
    use crate::points::tactic::{JumpPlace, Tactic, choose};
    use crate::text::edit::Edit;

    const ONE: SessionSet = SessionSet::of_bits(1);
    const RESUME: Gva = Gva(TEXT + 0x10_0000);
    const STUBS: [Gva; 2] = [Gva(TEXT + 0x20_0000), Gva(TEXT + 0x30_0000)];

    fn hops() -> [JumpPlace; 2] {
        let code = [
            0x31, 0xc0, 0x53, 0x75, 0xfd, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
        ];
        let file = ElfFile::new().text(TEXT, &code.repeat(2));
        let file = file.function("one", TEXT, 6).function("two", TEXT + 12, 6);
        let image = Image::parse(&file.build()).unwrap();
        let places = [TEXT, TEXT + 12].map(|at| choose(&image, Gva(at), None).unwrap());
        assert!(places.iter().all(|place| place.tactic == Tactic::Hop));
        places
    }

    #[test]
    fn a_hop_is_written_last_part_first_and_taken_back_first_part_first() {
        let [place, _] = hops();
        let (mut sites, mut places) = (Sites::default(), Places::default());
        let (at, padding) = (place.at, place.padding.unwrap().at);
        places.add(place.clone(), RESUME);
        let on = plan(&mut sites, &place, Some(STUBS[0]), ONE).unwrap();
        let written: Vec<Gva> = on.iter().map(|edit| edit.poke.at).collect();
        assert_eq!(written, [padding, at]);
        on.iter().for_each(|edit| sites.made(edit));
        let off = plan(&mut sites, &place, None, ONE).unwrap();
        let back: Vec<Edit> = on.iter().rev().map(Edit::reverse).collect();
        assert_eq!(off, back);
        // Nobody may be about to execute what becomes padding again.
        let closes: Vec<_> = off.iter().map(|edit| edit.closes.clone()).collect();
        assert_eq!(closes, [vec![], vec![padding]]);
        // What is displaced in the padding stays so: a thread may be on its way there.
        off.iter().for_each(|edit| sites.made(edit));
        assert_eq!(places.padding().into_iter().collect::<Vec<_>>(), [padding]);
    }

    #[test]
    fn a_plan_that_another_one_has_overtaken_is_not_current_and_what_is_gone_is_forgotten() {
        let [one, two] = hops();
        let (mut sites, mut places) = (Sites::default(), Places::default());
        let (at, other) = (one.at, two.at);
        places.add(one.clone(), RESUME);
        places.add(two, RESUME);
        let plans = STUBS.map(|stub| plan(&mut sites, &one, Some(stub), ONE).unwrap());
        let are_current =
            |sites: &Sites, plan: &[Edit]| plan.iter().all(|edit| sites.is_current(edit));
        assert!(plans.iter().all(|plan| are_current(&sites, plan)));
        plans[0].iter().for_each(|edit| sites.made(edit));
        assert!(!plans.iter().any(|plan| are_current(&sites, plan)));
        places.forget(|place| place.at == at);
        assert!(places.get(at).is_none() && places.get(other).is_some());
    }
}
