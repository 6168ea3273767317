//! Stubs that ask whose calls they record: all or nothing of a call is recorded, of whichever task the vCPU runs, and nothing
//! that is not recorded is lost.

use tracer::ring::reader::{CellWord, Mode, RingMemory, RingReader};
use tracer::stub::recorder::Clock;
use tracer::stub::spec::ReturnHook;
use tracer::stub::task::NameWords;

use crate::bodies::{LEAF, RECURSIVE};
use crate::ground::{FUNCTIONS, Ground, MIRROR_LOG2};
use crate::setup::{Asked, Place, Records, Setup};

const ASKED: [Asked; 3] = [Asked::Number, Asked::Task, Asked::Name];
const NEAR: [Place; 3] = [Place::GsBelow, Place::GsAbove, Place::GsElsewhere];
const NAME: &[u8; 16] = b"worker\0of before";

fn setup(place: Place, sessions: &[Records], asked: Asked) -> Setup {
    Setup {
        place,
        sessions: sessions.to_vec(),
        profiles: 0,
        ring_bytes: 4096,
        clock: Clock::Tsc,
        variant: ReturnHook::Balanced,
        mirror_log2: MIRROR_LOG2,
        captures: false,
        has_all_shapes: true,
        halt: None,
        tasks: Some(asked),
    }
}

fn switch_on(ground: &Ground, sessions: u64) {
    for session in 0..sessions {
        let memory = ground.session(session);
        let geometry = ground.recorders[0].geometry;
        for ring in 0..2 {
            let mut reader = RingReader::new(ring, geometry, Mode::Overwrite, FUNCTIONS);
            reader.initialise(&memory);
            reader.switch(&memory, true);
        }
    }
}

/// Records that a session has on each of two vCPUs.
fn written(ground: &Ground, session: u64) -> [u64; 2] {
    let memory = ground.session(session);
    [0, 1].map(|ring| {
        assert_eq!(memory.load(ring, CellWord::Lost), 0);
        let head = memory.load(ring, CellWord::Head);
        let first = ground.recorders[0].geometry.first().word(ring);
        head.wrapping_sub(first) / 8
    })
}

#[test]
fn what_is_recorded_is_what_its_number_says_on_each_vcpu() {
    let all: [&[Records]; 4] = [
        &[Records::Calls],
        &[Records::Calls, Records::Callers],
        &[Records::Graph],
        &[Records::Graph, Records::Calls],
    ];
    for (place, asked) in NEAR
        .into_iter()
        .flat_map(|place| ASKED.map(|asked| (place, asked)))
    {
        for sessions in all {
            let ground = Ground::with(setup(place, sessions, asked));
            let count = sessions.len() as u64;
            switch_on(&ground, count);
            for is_not in [false, true] {
                let before: Vec<_> = (0..count).map(|one| written(&ground, one)).collect();
                ground.name_tasks(is_not, &[7], &[]);
                ground.run_task(0, 7, NAME);
                ground.run_task(1, 8, NAME);
                for vcpu in [0, 1] {
                    ground.enter_vcpu(vcpu);
                    for function in (0..FUNCTIONS).filter(|one| *one != RECURSIVE) {
                        ground.call(function);
                    }
                }
                for (session, before) in (0..count).zip(before) {
                    let after = written(&ground, session);
                    let (named, other) = (after[0] - before[0], after[1] - before[1]);
                    let (more, none) = if is_not {
                        (other, named)
                    } else {
                        (named, other)
                    };
                    assert_eq!(none, 0, "{place:?} {asked:?} {sessions:?} {is_not}");
                    assert!(
                        more >= u64::from(FUNCTIONS) - 1,
                        "{place:?} {asked:?} {sessions:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn names_are_compared_to_their_end_or_by_their_beginning() {
    let ground = Ground::with(setup(Place::GsBelow, &[Records::Calls], Asked::Name));
    switch_on(&ground, 1);
    ground.enter_vcpu(0);
    let name = |text, is_all| NameWords::new(text, is_all).unwrap();
    let lists: [(&[NameWords], bool); 6] = [
        (&[name("worker", true)], true),
        (&[name("work", true)], false),
        (&[name("work", false)], true),
        (&[name("workers", false)], false),
        (&[name("sh", true), name("worker", true)], true),
        (&[], false),
    ];
    ground.run_task(0, 9, NAME);
    for (names, matches) in lists {
        for is_not in [false, true] {
            let before = written(&ground, 0)[0];
            ground.name_tasks(is_not, &[], names);
            ground.call(LEAF);
            let recorded = written(&ground, 0)[0] - before;
            assert_eq!(recorded, u64::from(matches != is_not), "{names:?} {is_not}");
        }
    }
}

/// The task of each call is another one when it ends: every second call is recorded, as a whole.
#[test]
fn a_graph_has_both_ends_of_a_call_or_none() {
    let hooks = [ReturnHook::Balanced, ReturnHook::Jmp, ReturnHook::Ret];
    let beside: [&[Records]; 3] = [&[], &[Records::Graph], &[Records::Calls, Records::Graph]];
    for (variant, beside) in hooks
        .into_iter()
        .flat_map(|hook| beside.map(|one| (hook, one)))
    {
        let sessions = [&[Records::Graph], beside].concat();
        let ground = Ground::with(Setup {
            variant,
            ..setup(Place::GsBelow, &sessions, Asked::Calls(LEAF))
        });
        switch_on(&ground, sessions.len() as u64);
        ground.enter_vcpu(0);
        let even: Vec<u32> = (0..100).filter(|number| number % 2 == 0).collect();
        ground.name_tasks(false, &even, &[]);
        for call in 0..6 {
            let before: Vec<u64> = (0..)
                .zip(&sessions)
                .map(|(one, _)| written(&ground, one)[0])
                .collect();
            ground.call(LEAF);
            for ((session, records), before) in (0..).zip(&sessions).zip(before) {
                let each = if *records == Records::Graph { 2 } else { 1 };
                let expected = if call % 2 == 0 { each } else { 0 };
                let recorded = written(&ground, session)[0] - before;
                assert_eq!(
                    recorded, expected,
                    "{variant:?} {sessions:?} {session} {call}"
                );
            }
        }
    }
}

#[test]
fn a_profile_counts_what_its_task_does() {
    for asked in ASKED {
        for profiles in [1, 2] {
            let ground = Ground::with(Setup {
                profiles,
                ..setup(Place::GsBelow, &[], asked)
            });
            ground.enter_vcpu(0);
            ground.name_tasks(false, &[7], &[]);
            for profile in 0..profiles {
                ground.switch_profile(profile, true);
            }
            for (number, calls) in [(7, 5), (8, 3), (7, 2)] {
                ground.run_task(0, number, NAME);
                (0..calls).for_each(|_| ground.call(LEAF));
            }
            for profile in 0..profiles {
                assert_eq!(ground.counted(profile, LEAF)[0], 7, "{asked:?} {profiles}");
            }
        }
    }
}
