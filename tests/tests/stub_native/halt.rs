//! Stubs that end recording by themselves: with the record that is waited for, on all vCPUs, as often as is left, and no
//! call is in no count.

use std::sync::atomic::Ordering;

use tracer::ring::geometry::LIMIT_NONE;
use tracer::ring::reader::{CellWord, Mode, Patience, RingMemory, RingReader};
use tracer::stub::cell::{EVENT_CELL, LIMIT};
use tracer::stub::recorder::Clock;

use crate::bodies::{LEAF, NESTED};
use crate::graph::VARIANTS;
use crate::ground::{FUNCTIONS, Ground, MIRROR_LOG2, PAGE, RINGS_MAX};
use crate::rings::{Heard, looked};
use crate::setup::{HaltWhen, PLACES, Place, Records, Setup};

const RING_BYTES: u64 = 8192;
const HOLD: u64 = 1;

/// A ground in which everything is recorded, and its readers.
struct Recording {
    ground: Ground,
    readers: Vec<RingReader>,
}

impl Recording {
    fn new(setup: Setup) -> Self {
        let ground = Ground::with(setup);
        let rings = match ground.setup.place {
            Place::Shared => 1,
            _ => RINGS_MAX,
        };
        let reader = |ring| {
            let geometry = ground.recorders[0].geometry;
            let reader = RingReader::new(ring, geometry, Mode::Overwrite, FUNCTIONS);
            let mut reader = reader.of(ground.recorders[0].format);
            reader.initialise(&ground.session(0));
            reader.switch(&ground.session(0), true);
            reader
        };
        let readers: Vec<_> = (0..rings).map(reader).collect();
        for ring in 0..rings {
            let events = ground.cell(0, ring) + u64::from(LIMIT.unsigned_abs()) + EVENT_CELL;
            ground.word(events).store(LIMIT_NONE, Ordering::SeqCst);
        }
        Self { ground, readers }
    }

    /// Calls a function on a vCPU; how many steps were recorded, and how many lost.
    fn call(&mut self, vcpu: u16, function: u32) -> (usize, u64) {
        let memory = self.ground.session(0);
        self.ground.enter_vcpu(vcpu);
        let lost = |memory: &dyn Fn(u16) -> u64| (0..RINGS_MAX).map(memory).sum::<u64>();
        let before = lost(&|ring| memory.load(ring, CellWord::Lost));
        self.ground.call(function);
        let mut heard = Heard::default();
        for reader in &mut self.readers {
            reader.look(&memory);
            let timeline = looked(reader);
            // The reader of a session whose stubs end recording leaves that alone; this one knows of none.
            let limit = memory.load(reader.ring(), CellWord::Limit);
            reader.drain(&memory, &timeline, Patience::Ticks(u64::MAX), &mut heard);
            memory.store(reader.ring(), CellWord::Limit, limit);
        }
        let after = lost(&|ring| memory.load(ring, CellWord::Lost));
        (heard.records.len(), after - before)
    }

    fn limits(&self) -> Vec<(u64, u64)> {
        let word = |at: u64| self.ground.word(at).load(Ordering::SeqCst);
        let limit = |reader: &RingReader| {
            let at = self.ground.cell(0, reader.ring()) + u64::from(LIMIT.unsigned_abs());
            (word(at), word(at + EVENT_CELL))
        };
        self.readers.iter().map(limit).collect()
    }

    fn switch_on(&mut self) {
        for reader in &mut self.readers {
            reader.switch(&self.ground.session(0), true);
        }
    }

    fn set_left(&self, left: u64) {
        self.ground.halt_left(0).store(left, Ordering::SeqCst);
    }

    fn left(&self) -> u64 {
        self.ground.halt_left(0).load(Ordering::SeqCst)
    }
}

fn setup(place: Place, records: Records, clock: Clock, halt: HaltWhen) -> Setup {
    Setup {
        place,
        sessions: vec![records],
        profiles: 0,
        ring_bytes: RING_BYTES,
        clock,
        variant: VARIANTS[0],
        mirror_log2: MIRROR_LOG2,
        captures: false,
        has_all_shapes: false,
        halt: Some(halt),
        tasks: None,
    }
}

#[test]
fn a_place_that_is_passed_ends_it_after_its_record_and_no_more_often_than_is_left() {
    for place in PLACES {
        for records in [Records::Calls, Records::Callers, Records::Graph] {
            for variant in VARIANTS {
                let setup = setup(place, records, Clock::Tsc, HaltWhen::Entered);
                let mut on = Recording::new(Setup { variant, ..setup });
                let steps = if records == Records::Graph { 2 } else { 1 };
                on.set_left(2);
                for left in [1, 0] {
                    // Its entry is there; what comes after is lost.
                    assert_eq!(on.call(0, LEAF), (1, steps - 1), "{place:?} {variant:?}");
                    assert_eq!(on.left(), left);
                    assert!(on.limits().iter().all(|both| *both == (HOLD, HOLD)));
                    let last = on.readers.len() as u16 - 1;
                    assert_eq!(on.call(last, LEAF), (0, steps));
                    on.switch_on();
                }
                assert_eq!(on.call(0, LEAF), (steps as usize, 0));
                assert_eq!(on.left(), 0);
                // Nothing that a guest writes there makes it more.
                on.set_left(u64::MAX);
                assert_eq!(on.call(0, LEAF), (steps as usize, 0));
            }
        }
    }
}

#[test]
fn a_call_that_takes_longer_ends_it_after_the_record_of_its_return() {
    for place in PLACES {
        for variant in VARIANTS {
            let on = |clock, ticks| {
                let setup = setup(place, Records::Graph, clock, HaltWhen::Longer(ticks));
                let on = Recording::new(Setup { variant, ..setup });
                on.set_left(1);
                on
            };
            let mut long = on(Clock::Tsc, 0);
            assert_eq!(long.call(0, LEAF), (2, 0), "{place:?} {variant:?}");
            assert!(long.limits().iter().all(|both| *both == (HOLD, HOLD)));
            assert_eq!((long.left(), long.call(0, LEAF)), (0, (0, 2)));
            let mut nested = on(Clock::Tsc, 0);
            let (recorded, lost) = nested.call(0, NESTED);
            let mut all = on(Clock::Tsc, 1 << 35);
            let (steps, none) = all.call(0, NESTED);
            // The innermost one returns first.
            assert!(recorded < steps && none == 0);
            assert_eq!(recorded as u64 + lost, steps as u64);
            assert_eq!((nested.left(), all.left()), (0, 1));
            // Just as long is not longer.
            let mut equal = on(PAGE, 0);
            equal.ground.clock().store(7 << 28, Ordering::SeqCst);
            assert_eq!((equal.call(0, LEAF), equal.left()), ((2, 0), 1));
        }
    }
}

/// Those of vCPUs that are left out, and of events that nobody reads.
#[test]
fn rings_that_are_closed_stay_so_and_count_nothing() {
    for place in PLACES {
        let setup = setup(place, Records::Calls, Clock::Tsc, HaltWhen::Entered);
        let mut on = Recording::new(setup);
        let Some(last) = on.readers.len().checked_sub(1).filter(|last| *last > 0) else {
            continue;
        };
        on.set_left(1);
        on.readers[last].switch(&on.ground.session(0), false);
        let events = on.ground.cell(0, 0) + u64::from(LIMIT.unsigned_abs()) + EVENT_CELL;
        on.ground.word(events).store(0, Ordering::SeqCst);
        assert_eq!(on.call(0, LEAF), (1, 0), "{place:?}");
        let limits = on.limits();
        assert_eq!((limits[0], limits[last]), ((HOLD, 0), (0, HOLD)));
        assert_eq!(on.call(last as u16, LEAF), (0, 0), "{place:?}");
        assert_eq!(on.call(0, LEAF), (0, 1), "{place:?}");
    }
}
