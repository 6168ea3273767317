//! Memory of sessions that were deleted, which later ones use again.

use super::*;
use crate::record::{MARK_MASK, Record};
use crate::ring::geometry::Lap;
use crate::session::{SessionMemory, WantedHalt};
use crate::stub::cell::{LIMIT, SESSIONS_MAX};
use trace::glob::Pattern;
use trace::live::Occasion;

fn word(target: &MockTarget, at: terms::addr::Gpa) -> u64 {
    let mut bytes = [0; 8];
    target.read_physical(at, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn rings_are_used_again_from_after_what_late_writers_can_store() {
    let (mut engine, mut target, session) = attached(2);
    let before = engine.sessions().get(session).unwrap().memory.clone();
    let stubs = engine.foothold().unwrap().stub_bytes();
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
    assert_ne!(
        engine.sessions().get(other).unwrap().memory.rings,
        before.rings
    );
    assert_ne!(other, session);
    let again = engine.create_session(&mut target, config("two")).unwrap();
    let after = &engine.sessions().get(again).unwrap().memory;
    assert_eq!((again, after.rings), (session, before.rings));
    assert_eq!(after.first, vec![Position(slots * 4 + 7); 2]);
    assert_eq!(engine.foothold().unwrap().stub_bytes(), stubs);
}

/// It was once: probes of a session that came later had records of the room that an earlier one's needed.
#[test]
fn event_rings_are_used_again_by_records_that_need_their_room() {
    let (mut engine, mut target, mut session) = attached(2);
    let mut rings = Vec::new();
    for bytes in [64, 4096, 64, 4096, 256] {
        engine
            .make_event_rings(&mut target, session, bytes)
            .unwrap();
        let made = engine.sessions().get(session).unwrap();
        let (calls, events) = (made.memory.clone(), made.events.clone().unwrap());
        assert_eq!(1 << events.recorder.payload_log2, bytes);
        let of_before = rings.iter().rfind(|(before, _, _)| *before == bytes);
        if let Some((_, at, first)) = of_before {
            assert_eq!(events.memory.rings, *at);
            assert!(events.memory.first[0] > *first, "after late writers");
        } else {
            assert!(rings.iter().all(|(_, at, _)| *at != events.memory.rings));
        }
        rings.push((bytes, events.memory.rings, events.memory.first[0]));
        for memory in [&calls, &events.memory] {
            for (ring, cell) in (0u16..).zip(&memory.cells) {
                let head = memory.first[0].after(5).word(ring);
                target.write_word(*cell, head).unwrap();
            }
        }
        engine.delete_session(&mut target, session).unwrap();
        session = engine.create_session(&mut target, config("next")).unwrap();
    }
}

/// It was once: probes of sessions that came and went took more of the window each time that they had room for something else.
#[test]
fn event_rings_become_those_of_other_rooms_when_the_window_is_half_used() {
    let (mut engine, mut target, _) = attached(2);
    let of_size = |name: &str| SessionConfig {
        geometry: Geometry::with_bytes(1 << 20).unwrap(),
        ..config(name)
    };
    let window = |engine: &Engine| {
        let window = engine.foothold().unwrap().window();
        (window.left(), window.bytes())
    };
    for number in 0.. {
        let (left, bytes) = window(&engine);
        if left < bytes / 2 {
            break;
        }
        let other = of_size(&format!("other-{number}"));
        engine.create_session(&mut target, other).unwrap();
    }
    let create = |engine: &mut Engine, target: &mut MockTarget| {
        engine.create_session(target, of_size("probes")).unwrap()
    };
    let mut session = create(&mut engine, &mut target);
    let mut left = None;
    for round in 0..40 {
        let log2 = 6 + round % 4;
        engine
            .make_event_rings(&mut target, session, 1 << log2)
            .unwrap();
        let events = engine.sessions().get(session).unwrap().events.clone();
        let events = events.unwrap();
        assert_eq!(events.recorder.payload_log2, log2);
        let (memory, rings) = (&events.memory, events.memory.first.len() as u64);
        let records = events.payload.0 - memory.rings.0;
        assert_eq!(
            events.recorder.payload.0 - events.recorder.recorder.rings.0,
            records
        );
        assert_eq!(events.recorder.recorder.geometry, memory.geometry);
        assert!(
            rings * memory.geometry.bytes() <= records,
            "no payload was there"
        );
        let payloads = (rings * memory.geometry.slots()) << log2;
        assert!(records + payloads <= memory.room, "no record was there");
        // Nothing there is a record of the laps that come.
        let slots = memory.geometry.slots();
        let lap = memory.first[0].0 / slots;
        if memory.first[0].0 % slots == 0 {
            let marked = word(&target, memory.rings) & MARK_MASK;
            assert_eq!(marked, (lap - 1) & MARK_MASK, "{round}");
        }
        let calls = engine.sessions().get(session).unwrap().memory.clone();
        for memory in [&calls, memory] {
            for (ring, cell) in (0u16..).zip(&memory.cells) {
                let head = memory.first[0].after(5).word(ring);
                target.write_word(*cell, head).unwrap();
            }
        }
        let now = window(&engine).0;
        assert_eq!(
            *left.get_or_insert(now),
            now,
            "{round}: nothing new is taken"
        );
        engine.delete_session(&mut target, session).unwrap();
        session = create(&mut engine, &mut target);
    }
}

#[test]
fn rings_whose_head_is_the_guests_invention_are_not_used_again() {
    let (mut engine, mut target, session) = attached(2);
    let before = engine.sessions().get(session).unwrap().memory.clone();
    target.write_word(before.cells[1], u64::MAX).unwrap();
    engine.delete_session(&mut target, session).unwrap();
    let again = engine.create_session(&mut target, config("two")).unwrap();
    assert_ne!(
        engine.sessions().get(again).unwrap().memory.rings,
        before.rings
    );
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
    let session = engine.sessions().get(id).unwrap();
    let (table, layout) = (session.memory.rings, session.profile.unwrap().layout);
    assert!(session.recorder.is_none());
    let text = digest(&engine, &target);
    change(&mut engine, &mut target, id, 0..300).unwrap();
    assert_eq!(engine.sites().patched(), 300);
    target.write_word(table, 77).unwrap();
    change(&mut engine, &mut target, id, []).unwrap();
    assert_eq!(digest(&engine, &target), text);
    engine.delete_session(&mut target, id).unwrap();
    let again = engine.create_session(&mut target, profile("q")).unwrap();
    assert_eq!(engine.sessions().get(again).unwrap().memory.rings, table);
    assert_eq!(word(&target, table), 0);
    assert!(layout.bytes() >= 300 * 32 * 2);
}

/// It was once taken by a session that traced what had come since, and none of that was counted.
#[test]
fn counters_of_a_profile_are_not_those_of_more_functions() {
    let mut image = nop_image(300);
    let mut target = MockTarget::with_image(2, 256 << 20, &image, Rights::ALL).unwrap();
    let mut engine = Engine::new(Arc::new(image.clone()));
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let profile = |name: &str| SessionConfig {
        tracer: TracerKind::Profile,
        ..config(name)
    };
    let mut layouts = Vec::new();
    for functions in [300, 301, 300 + 4096, 300] {
        let function = image.functions[0].clone();
        image.functions.resize(functions, function);
        engine.image = Arc::new(image.clone());
        let id = engine.create_session(&mut target, profile("p")).unwrap();
        let session = engine.sessions().get(id).unwrap();
        let layout = session.profile.unwrap().layout;
        assert!(layout.functions() as usize >= functions);
        layouts.push((session.memory.rings, layout.functions()));
        engine.delete_session(&mut target, id).unwrap();
    }
    assert_eq!(layouts[0], layouts[1]);
    assert_ne!(layouts[1], layouts[2]);
    // Either is good for these.
    assert!(layouts[..3].contains(&layouts[3]));
}

/// Sessions of every kind and size, up to six at once: once there was room for those, there always is.
#[test]
fn sessions_that_come_and_go_do_not_use_the_window_up() {
    const ROUNDS: usize = 4000;
    let image = nop_image(12);
    let mut target = MockTarget::with_image(2, 512 << 20, &image, Rights::ALL).unwrap();
    let mut engine = Engine::new(Arc::new(image));
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap() % below
    };
    let mut open: Vec<SessionId> = Vec::new();
    let mut left = Vec::new();
    for round in 0..ROUNDS {
        if open.len() == 6 || !open.is_empty() && random(2) == 0 {
            let id = open.swap_remove(random(open.len()));
            write_heads(&mut target, &engine, id, random(5000) as u64);
            engine.delete_session(&mut target, id).unwrap();
        } else {
            let kinds = [TracerKind::Function, TracerKind::Graph, TracerKind::Profile];
            let clocks = [Clock::Tsc, Clock::None];
            // There is room beside the mirror for no more than two profiles.
            let is_profile =
                |id: &&SessionId| engine.sessions().get(**id).unwrap().profile.is_some();
            let profiles = open.iter().filter(is_profile).count();
            let config = SessionConfig {
                tracer: kinds[random(if profiles < 2 { 3 } else { 2 })],
                clock: clocks[random(2)],
                geometry: Geometry::with_bytes(4096 << random(6)).unwrap(),
                ..config(&round.to_string())
            };
            let id = engine.create_session(&mut target, config).unwrap();
            assert_is_before_the_first_record(&target, &engine, id);
            open.push(id);
        }
        left.push(engine.foothold.as_ref().unwrap().window.left());
    }
    assert_eq!(left[ROUNDS / 4], left[ROUNDS - 1], "nothing new is needed");
}

fn write_heads(target: &mut MockTarget, engine: &Engine, id: SessionId, records: u64) {
    let memory = engine.sessions().get(id).unwrap().memory.clone();
    for ((ring, cell), first) in (0u16..).zip(&memory.cells).zip(&memory.first) {
        let head = first.after(records).word(ring);
        target.write_word(*cell, head).unwrap();
    }
}

/// No slot of a new session's rings holds what its reader would take for a record or for a later one.
fn assert_is_before_the_first_record(target: &MockTarget, engine: &Engine, id: SessionId) {
    let memory = &engine.sessions().get(id).unwrap().memory;
    for (ring, first) in (0u64..).zip(&memory.first) {
        for position in [
            *first,
            first.after(1),
            first.after(memory.geometry.slots() - 1),
        ] {
            let offset = ring * memory.geometry.bytes() + memory.geometry.slot(position) * 8;
            let record = Record(word(target, memory.rings.wrapping_add(offset)));
            let lap = memory.geometry.compare(record, position);
            assert_eq!(lap, Lap::Earlier, "{record:?} at {position:?}");
        }
    }
}

#[test]
fn rings_of_another_kind_and_size_are_used_again_where_memory_is_scarce() {
    let image = nop_image(2);
    let mut target = MockTarget::with_image(2, 24 << 20, &image, Rights::ALL).unwrap();
    let mut engine = Engine::new(Arc::new(image));
    let region = target.region();
    engine.attach(&mut target, region).unwrap();
    let large = |name: &str, tracer, bytes| SessionConfig {
        tracer,
        geometry: Geometry::with_bytes(bytes).unwrap(),
        ..config(name)
    };
    let left = |engine: &Engine| engine.foothold.as_ref().unwrap().window.left();
    let bytes = (left(&engine) / 4 + 1).next_power_of_two();
    let before = large("before", TracerKind::Function, bytes);
    let id = engine.create_session(&mut target, before).unwrap();
    let rings = engine.sessions().get(id).unwrap().memory.rings;
    write_heads(&mut target, &engine, id, bytes);
    let head = engine.sessions().get(id).unwrap().memory.first[0].after(bytes);
    engine.delete_session(&mut target, id).unwrap();
    let room = left(&engine);
    let after = large("after", TracerKind::Function, bytes / 2);
    let again = engine.create_session(&mut target, after).unwrap();
    let memory = &engine.sessions().get(again).unwrap().memory;
    assert_eq!((again, memory.rings), (id, rings));
    assert_eq!(left(&engine), room);
    // After the last lap, counted in the old size.
    let lap = memory.first[0].0 / memory.geometry.slots();
    assert!(lap > head.0 / (bytes / 8), "{lap}");
    assert_is_before_the_first_record(&target, &engine, again);
}

/// The first bytes after so many of `memory` cannot be written.
fn spoil(target: &mut MockTarget, memory: &SessionMemory, after: u64) {
    let at = memory.rings.wrapping_add(after);
    target.faults.unwritable_physical.insert(at);
}

/// It was once lost for good: the next session of another size got none, where there was no room for new rings.
#[test]
fn rings_that_could_not_be_made_anothers_are_there_for_the_next_session() {
    let image = nop_image(2);
    let before = |name: &str| SessionConfig {
        geometry: Geometry::with_bytes(4 << 20).unwrap(),
        ..config(name)
    };
    let after = |name: &str| SessionConfig {
        geometry: Geometry::with_bytes(2 << 20).unwrap(),
        ..config(name)
    };
    // The next one can be of the same size as the one before, or of another.
    for is_of_old_size in [true, false] {
        let mut target = MockTarget::with_image(2, 24 << 20, &image, Rights::ALL).unwrap();
        let mut engine = Engine::new(Arc::new(image.clone()));
        let region = target.region();
        engine.attach(&mut target, region).unwrap();
        let id = engine.create_session(&mut target, before("a")).unwrap();
        let memory = engine.sessions().get(id).unwrap().memory.clone();
        write_heads(&mut target, &engine, id, 3 * memory.geometry.slots());
        engine.delete_session(&mut target, id).unwrap();
        // A part of them has been written by then.
        spoil(&mut target, &memory, 1 << 20);
        for _ in 0..3 {
            let error = engine.create_session(&mut target, after("b")).unwrap_err();
            let is_it = matches!(&error, AttachError::Rings { name, .. } if name == "b");
            assert!(is_it, "{error}");
        }
        target.faults = Faults::default();
        let next = match is_of_old_size {
            true => before("c"),
            false => after("c"),
        };
        let again = engine.create_session(&mut target, next).unwrap();
        let reused = &engine.sessions().get(again).unwrap().memory;
        assert_eq!((again, reused.rings), (id, memory.rings));
        assert_is_before_the_first_record(&target, &engine, again);
    }
}

/// A session can be deleted whose cells cannot be switched off: its rings are nobody's any more, for whoever is still in a stub can write
/// there. Its name was once taken from then on.
#[test]
fn rings_of_a_session_whose_cells_cannot_be_reached_are_never_used_again() {
    let (mut engine, mut target, id) = attached(2);
    let of = |engine: &Engine, id| engine.sessions().get(id).unwrap().memory.clone();
    let before = of(&engine, id);
    let limit = before.cells[1].wrapping_add(LIMIT.unsigned_abs().into());
    target.faults.unwritable_physical.insert(limit);
    let config = engine.sessions().get(id).unwrap().config.clone();
    engine.delete_session(&mut target, id).unwrap();
    target.faults = Faults::default();
    let made: Vec<_> = (0..SESSIONS_MAX)
        .map(|number| SessionConfig {
            name: match number {
                0 => config.name.clone(),
                _ => number.to_string(),
            },
            ..config.clone()
        })
        .map(|config| engine.create_session(&mut target, config).unwrap())
        .collect();
    // Its number can be used, when no other one is left.
    assert_eq!(made.last(), Some(&id));
    assert!(made.iter().all(|id| of(&engine, *id).rings != before.rings));
}

/// Those of calls stay after the last step of making a session, too, and those of events with their number.
#[test]
fn what_a_session_was_made_for_in_vain_is_there_for_the_next_one() {
    let (mut engine, mut target, first) = attached(2);
    let left = |engine: &Engine| engine.foothold.as_ref().unwrap().window.left();
    let halting = |name: &str| SessionConfig {
        halts: vec![WantedHalt {
            occasion: Occasion::Call(Pattern::new("f0").unwrap()),
            ticks: 0,
            times: 1,
            counts_lost: false,
        }],
        geometry: Geometry::with_bytes(1 << 20).unwrap(),
        ..config(name)
    };
    let (_, words) = engine.foothold().unwrap().halts_at();
    let room = left(&engine);
    // The words of every session.
    let words = (0..4096).map(|offset| words.wrapping_add(offset));
    target.faults.unwritable_physical.extend(words);
    let mut rooms = Vec::new();
    for _ in 0..3 {
        engine
            .create_session(&mut target, halting("halts"))
            .unwrap_err();
        rooms.push(left(&engine));
    }
    assert!(rooms[0] < room, "rings were made");
    assert_eq!(rooms, [rooms[0]; 3], "and used again");
    target.faults = Faults::default();
    let made = engine
        .create_session(&mut target, halting("halts"))
        .unwrap();
    assert_eq!(left(&engine), rooms[0]);
    assert_ne!(made, first);

    // Half of the window is used, so that event rings become those of another room.
    while left(&engine) >= engine.foothold().unwrap().window().bytes() / 2 {
        let name = left(&engine).to_string();
        let large = Geometry::with_bytes(1 << 20).unwrap();
        let large = SessionConfig {
            geometry: large,
            ..config(&name)
        };
        engine.create_session(&mut target, large).unwrap();
    }
    engine.make_event_rings(&mut target, first, 64).unwrap();
    let events = engine.sessions().get(first).unwrap().events.clone();
    let memory = events.unwrap().memory;
    write_heads(&mut target, &engine, first, 5);
    for (ring, cell) in (0u16..).zip(&memory.cells) {
        let head = memory.first[0].after(5).word(ring);
        target.write_word(*cell, head).unwrap();
    }
    engine.delete_session(&mut target, first).unwrap();
    let again = engine.create_session(&mut target, config("two")).unwrap();
    assert_eq!(again, first);
    spoil(&mut target, &memory, 0);
    let room = left(&engine);
    for _ in 0..3 {
        let error = engine.make_event_rings(&mut target, again, 128);
        assert!(matches!(error, Err(AttachError::Rings { .. })), "{error:?}");
    }
    target.faults = Faults::default();
    engine.make_event_rings(&mut target, again, 128).unwrap();
    let events = engine.sessions().get(again).unwrap().events.clone();
    assert_eq!(events.unwrap().memory.rings, memory.rings);
    assert_eq!(left(&engine), room);
}
