//! Stubs of probes: whatever is captured, and whatever is in the registers, the payload says it and nothing
//! is changed.

mod memory;
mod model;
mod random;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memory::{Memory, STACK_BYTES};
use model::State;
use random::Maker;
use terms::addr::Gva;
use terms::event_format::EventId;
use terms::expression::{Expression, Operator};
use terms::field::{FieldType, FieldValue};
use terms::function::FunctionId;
use tracer::capture::{Capture, CaptureError, Captured, Source};
use tracer::record::Record;
use tracer::ring::geometry::{LIMIT_NONE, LIMIT_OFF, Position};
use tracer::ring::payload::read_payload;
use tracer::stub::capture::{CapturePart, CaptureStub, Standing};
use tracer::stub::cell::{HEAD, LIMIT, LOST};
use tracer::stub::event::Tail;
use tracer::stub::reach::{Reach, Routines};
use tracer::stub::recorder::Clock;
use tracer::stub::template::{StubError, TEMPLATE_MAX};

use crate::cpu::{Registers, call, return_address};
use crate::event_ring::EventRing;
use crate::events::value_of;
use crate::ground::{Ground, PAGE};
use crate::random::Random;
use crate::registers::registers;
use crate::setup;

const ROUNDS: u32 = 60;
const FIRST_EVENT: u32 = 77;
const RED_ZONE: u64 = 128;
/// Bytes that a stub pushes nothing over: those that are looked at above its stack pointer.
const ABOVE: u64 = 512;
/// Where code continues, after the stub.
const ROOM: u64 = 0x8000;

/// Where a stub stands, and how code comes to it.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// By a jump, anywhere in a function.
    Inside,
    /// By a jump, at an entry.
    Entry,
    /// By a call, the stack pointer so many bytes lower than at the probe.
    Called(u32),
}

/// The code of a stub, at its place in the ground. Where it continues in a function, it returns.
fn place(ground: &Ground, stub: &CaptureStub) -> u64 {
    let at = ground.spare();
    let near = Gva(at + TEMPLATE_MAX);
    let go_on = at + ROOM;
    let code = stub
        .template(near)
        .unwrap()
        .stamp(Gva(at), FunctionId(0), Gva(go_on))
        .unwrap();
    assert!((code.len() as u64) < ROOM, "{} bytes", code.len());
    ground.write(at, &code);
    ground.write(go_on, &[0xc3]);
    at
}

fn stub(
    ring: &EventRing<'_>,
    captures: Vec<Capture>,
    way: Way,
    reach: Option<Reach>,
) -> CaptureStub {
    let parts = captures.into_iter().zip(FIRST_EVENT..);
    let parts = parts.map(|(capture, event)| CapturePart {
        recorder: ring.event,
        event: EventId(event),
        capture: Arc::new(capture),
    });
    let (tail, lowered) = match way {
        Way::Inside | Way::Entry => (Tail::Continue, 0),
        Way::Called(lowered) => (Tail::Return, lowered),
    };
    CaptureStub {
        parts: parts.collect(),
        tail,
        lowered,
        standing: match way {
            Way::Entry => Standing::Between,
            Way::Inside | Way::Called(_) => Standing::Inside,
        },
        reach,
    }
}

/// Bytes below the stack pointer that a stub leaves alone. It works on the stack below them: what a capture reads
/// there is the stub's own.
fn kept_below(stub: &CaptureStub) -> u64 {
    if stub.tail == Tail::Continue && stub.standing != Standing::Between {
        RED_ZONE
    } else {
        0
    }
}

/// Calls a stub with random registers; the registers, and that nothing but rings was changed.
fn run(ground: &Ground, stub: &CaptureStub, before: &Registers) {
    let at = place(ground, stub);
    let rsp = before.rsp;
    let kept = kept_below(stub);
    let seen = (kept + ABOVE) as usize;
    ground.write(rsp, &return_address().to_le_bytes());
    let stack = ground.read(rsp - kept, seen);
    // SAFETY: the stub returns to the address that was put on its stack, which has room.
    let after = unsafe { call(at, before) };
    let mut expected = Registers {
        rsp: rsp + 8,
        ..*before
    };
    if stub.standing == Standing::Between {
        expected.flags = after.flags;
    }
    assert_eq!(after, expected, "{stub:?}");
    assert_eq!(ground.read(rsp - kept, seen), stack, "{stub:?}");
}

/// What random captures came to: a test of nothing but faults would be none.
#[derive(Debug, Default)]
struct Counts {
    captures: usize,
    /// Those whose condition held.
    passed: usize,
    values: usize,
    /// Those that are no faults.
    there: usize,
    /// Runs whose captures read what the stub itself keeps on the stack: nobody can say what that is.
    own: usize,
}

impl Counts {
    fn assert_both_ways(&self) {
        let Self {
            captures,
            passed,
            values,
            there,
            own,
        } = *self;
        assert!(own < captures / 100, "{self:?}");
        assert!(passed > captures / 4 && passed < captures, "{self:?}");
        assert!(there > values / 4 && there < values * 9 / 10, "{self:?}");
    }
}

/// Runs random captures.
fn check(
    ground: &Ground,
    ring: &EventRing<'_>,
    way: Way,
    memory: Option<(&Memory<'_>, Reach)>,
    random: &mut Random,
    counts: &mut Counts,
) {
    let geometry = ring.event.recorder.geometry;
    let limits = [LIMIT_NONE, LIMIT_NONE, LIMIT_NONE, LIMIT_OFF, 1];
    let limit = limits[random.below(5) as usize];
    let position = geometry.first().after(u64::from(random.below(5000)));
    ring.set_word(HEAD, position.word(0));
    ring.set_word(LIMIT, limit);
    ring.set_word(LOST, 5);
    let rsp = ground.stack_top() - 1024 - 8 * u64::from(random.below(64));
    let mut before = registers(random, rsp);
    let mut addresses = Vec::new();
    if let Some((memory, _)) = memory {
        addresses.clone_from(&memory.addresses);
        addresses.extend((0..8).map(|number| rsp + 16 + 100 * number));
        for register in &mut before.general {
            if random.below(2) == 0 {
                *register = addresses[random.below(addresses.len() as u32) as usize];
            }
        }
    }
    let mut maker = Maker {
        random,
        addresses: &addresses,
        texts: memory.map_or(&[], |(memory, _)| &memory.texts),
    };
    let captures: Vec<Capture> = (0..1 + maker.random.below(2))
        .map(|_| maker.capture())
        .collect();
    let stub = stub(ring, captures.clone(), way, memory.map(|(_, reach)| reach));
    run(ground, &stub, &before);
    let own = rsp - STACK_BYTES..rsp - kept_below(&stub);
    let reads_own = Cell::new(false);
    let state = State {
        register: &|number| match number {
            4 => rsp + u64::from(stub.lowered),
            _ => value_of(&before, number),
        },
        byte: &|at| {
            let byte = memory.and_then(|(memory, _)| memory.byte(at));
            reads_own.set(reads_own.get() || byte.is_some() && own.contains(&at));
            byte
        },
        has_reach: memory.is_some(),
    };
    let expected: Vec<_> = captures
        .iter()
        .map(|capture| state.values(capture))
        .collect();
    if reads_own.get() {
        counts.own += 1;
        return;
    }
    let mut reserved = 0;
    let mut passed = 0;
    for ((capture, values), event) in captures.iter().zip(expected).zip(FIRST_EVENT..) {
        let Some(values) = values else { continue };
        passed += 1;
        if limit != LIMIT_NONE {
            continue;
        }
        let at = position.after(reserved);
        assert_recorded(ground, ring, at, event, capture, &values);
        counts.values += values.len();
        let there = |value: &&FieldValue| **value != FieldValue::Fault;
        counts.there += values.iter().filter(there).count();
        reserved += 1;
    }
    let lost = if limit == 1 { passed } else { 0 };
    assert_eq!(
        ring.word(HEAD),
        position.after(reserved).word(0),
        "{stub:?}"
    );
    assert_eq!(ring.word(LOST), 5 + lost, "{stub:?}");
    counts.passed += passed as usize;
    counts.captures += captures.len();
}

fn assert_recorded(
    ground: &Ground,
    ring: &EventRing<'_>,
    position: Position,
    event: u32,
    capture: &Capture,
    values: &[FieldValue],
) {
    let record = ground.read(ring.slot(position), 8);
    let record = Record(u64::from_le_bytes(record.try_into().unwrap()));
    assert_eq!(record.function(), FunctionId(event));
    let geometry = ring.event.recorder.geometry;
    let read = read_payload(
        ring,
        geometry,
        0,
        position,
        &capture.format("probe".into()),
        None,
    );
    assert_eq!(read.as_deref(), Ok(values), "{capture:?}");
}

#[test]
fn captured_numbers_are_what_rust_makes_of_them_and_everything_survives() {
    let mut random =
        Random::new("captured_numbers_are_what_rust_makes_of_them_and_everything_survives");
    let mut counts = Counts::default();
    for cells in setup::PLACES {
        for clock in [Clock::Tsc, PAGE, Clock::None] {
            let ground = Ground::new(cells, 1, 4096, clock);
            ground.enter_vcpu(0);
            let ring = EventRing::new(&ground);
            for _ in 0..ROUNDS {
                for way in [
                    Way::Inside,
                    Way::Entry,
                    Way::Called(8 + 8 * random.below(40)),
                ] {
                    check(&ground, &ring, way, None, &mut random, &mut counts);
                }
            }
        }
    }
    counts.assert_both_ways();
}

#[test]
fn memory_is_read_where_there_is_some_and_else_the_value_is_a_fault() {
    let mut random =
        Random::new("memory_is_read_where_there_is_some_and_else_the_value_is_a_fault");
    let mut counts = Counts::default();
    for cells in setup::PLACES {
        for levels in [4, 5] {
            let ground = Ground::new(cells, 1, 4096, PAGE);
            ground.enter_vcpu(0);
            let ring = EventRing::new(&ground);
            let memory = Memory::new(&ground, levels, &mut random);
            let routines = Routines::new(&memory.described()).unwrap();
            let at = ground.spare() + ROOM + 0x1000;
            assert!(at + (routines.bytes.len() as u64) < ground.stack_top() - 0x1_0000);
            ground.write(at, &routines.bytes);
            let reach = routines.at(Gva(at));
            for _ in 0..4 * ROUNDS {
                for way in [Way::Inside, Way::Entry, Way::Called(8)] {
                    let memory = Some((&memory, reach));
                    check(&ground, &ring, way, memory, &mut random, &mut counts);
                }
            }
        }
    }
    counts.assert_both_ways();
}

/// Other processors change page tables and data as they like. A load of what is not there would end this process.
#[test]
fn no_change_of_the_page_tables_is_a_fault_of_the_guest() {
    let mut random = Random::new("no_change_of_the_page_tables_is_a_fault_of_the_guest");
    let ground = Ground::new(setup::Place::GsBelow, 1, 4096, PAGE);
    ground.enter_vcpu(0);
    let ring = EventRing::new(&ground);
    let memory = Memory::new(&ground, 4, &mut random);
    let routines = Routines::new(&memory.described()).unwrap();
    let at = ground.spare() + ROOM + 0x1000;
    ground.write(at, &routines.bytes);
    let reach = routines.at(Gva(at));
    let stop = AtomicBool::new(false);
    let seed = random.next();
    std::thread::scope(|scope| {
        scope.spawn(|| change(memory.words(), &stop, seed));
        for _ in 0..2000 {
            let rsp = ground.stack_top() - 1024;
            let before = registers(&mut random, rsp);
            let mut maker = Maker {
                random: &mut random,
                addresses: &memory.addresses,
                texts: &memory.texts,
            };
            let capture = Capture {
                condition: None,
                ..maker.capture()
            };
            let format = capture.format("probe".into());
            let position = ring.event.recorder.geometry.first();
            ring.set_word(HEAD, position.word(0));
            ring.set_word(LIMIT, LIMIT_NONE);
            run(
                &ground,
                &stub(&ring, vec![capture], Way::Inside, Some(reach)),
                &before,
            );
            let read = read_payload(
                &ring,
                ring.event.recorder.geometry,
                0,
                position,
                &format,
                None,
            );
            assert_eq!(read.map(|values| values.len()), Ok(format.fields.len()));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Writes over entries of tables and other words, and puts them back.
fn change(words: &[AtomicU64], stop: &AtomicBool, seed: u64) {
    let mut random = Random::of(seed);
    while !stop.load(Ordering::Relaxed) {
        // Tables lie in the first pages.
        let tables = random.below(2) == 0;
        let end = if tables { 0x4000 } else { words.len() as u32 };
        let word = &words[random.below(end) as usize];
        let was = word.load(Ordering::Relaxed);
        let garbage = match random.below(4) {
            0 => 0,
            1 => was ^ 1 << random.below(64),
            2 => random.next() | 1,
            _ => u64::from(random.below(0x20_0000)) & !0xffe | 1,
        };
        word.store(garbage, Ordering::Relaxed);
        std::hint::spin_loop();
        word.store(was, Ordering::Relaxed);
    }
}

fn captured(kind: &str, source: Source) -> Captured {
    Captured {
        name: "v".into(),
        kind: FieldType::named(kind).unwrap(),
        source,
    }
}

#[test]
fn what_is_no_capture_is_refused_with_the_reason() {
    let ground = Ground::new(setup::Place::GsBelow, 1, 4096, Clock::None);
    let ring = EventRing::new(&ground);
    let refused = |values: Vec<Captured>| {
        let capture = Capture {
            values,
            condition: None,
        };
        let stub = stub(&ring, vec![capture], Way::Inside, None);
        match stub
            .template(Gva(ground.spare() + TEMPLATE_MAX))
            .unwrap_err()
        {
            StubError::Capture(error) => error,
            error => panic!("{error}"),
        }
    };
    let number = |value| captured("u64", Source::Number(value));
    let one = || number(Expression::Register(1));
    let mut deep = Expression::Register(1);
    for _ in 0..1000 {
        deep = Expression::apply(Operator::Add, Expression::Constant(1), deep);
    }
    assert_eq!(refused(vec![number(deep)]), CaptureError::Depth);
    assert_eq!(
        refused((0..33).map(|_| one()).collect()),
        CaptureError::Values(33)
    );
    assert_eq!(
        refused(
            (0..32)
                .map(|_| number(Expression::Register(0).load(8)))
                .collect()
        ),
        CaptureError::Room {
            needed: 520,
            room: 512
        }
    );
    assert_eq!(
        refused(vec![number(Expression::Register(16))]),
        CaptureError::Register(16)
    );
    assert_eq!(
        refused(vec![number(Expression::Register(0).load(3))]),
        CaptureError::Load(3)
    );
    let bytes = Source::Bytes {
        address: Expression::Register(0),
        length: 3,
    };
    assert_eq!(
        refused(vec![captured("u64", bytes)]),
        CaptureError::Kind("v".into())
    );
}
