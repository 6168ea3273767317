//! Stubs of events: whatever the operands are, and whatever is in the registers, the payload says it and
//! nothing is changed.

use std::sync::Arc;

use image::points::Operand;
use terms::addr::Gva;
use terms::event_format::{EventFormat, EventId};
use terms::field::{Field, FieldType, FieldValue};
use terms::function::FunctionId;
use tracer::capture::Capture;
use tracer::record::Record;
use tracer::ring::geometry::{LIMIT_NONE, LIMIT_OFF};
use tracer::ring::payload::read_payload;
use tracer::stub::capture::{CapturePart, CaptureStub, Standing};
use tracer::stub::cell::{HEAD, LIMIT, LOST};
use tracer::stub::event::{Tail, arguments};
use tracer::stub::recorder::Clock;
use tracer::stub::template::TEMPLATE_MAX;

use crate::cpu::{Registers, call, return_address};
use crate::event_ring::EventRing;
use crate::ground::{Ground, PAGE};
use crate::random::Random;
use crate::registers::registers;
use crate::setup;

const ROUNDS: u32 = 40;
const EVENT: u32 = 77;
const RED_ZONE: usize = 128;
const KINDS: [&str; 10] = [
    "u8",
    "i8",
    "u16",
    "i16",
    "u32",
    "i32",
    "u64",
    "i64",
    "bool",
    "*const u8",
];
/// Where the general registers are in [`Registers`], by the number that instructions have for them; the
/// stack pointer is not among them.
const PLACES: [usize; 16] = [0, 2, 3, 1, 15, 6, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14];
const STACK_POINTER: u8 = 4;

fn kind(random: &mut Random) -> FieldType {
    let name = KINDS[random.below(KINDS.len() as u32) as usize];
    FieldType::named(name).unwrap()
}

pub fn value_of(registers: &Registers, number: u8) -> u64 {
    let general = registers.general.get(PLACES[usize::from(number)]);
    general.copied().unwrap_or(registers.rsp)
}

/// An operand, for which registers that it takes for an address are given one near `memory`.
fn operand(random: &mut Random, registers: &mut Registers, memory: u64) -> Operand {
    let number = random.below(16) as u8;
    match random.below(4) {
        0 => Operand::Constant(random.next().cast_signed()),
        1 => Operand::Register(number),
        _ => {
            if let Some(register) = registers.general.get_mut(PLACES[usize::from(number)]) {
                *register = memory + u64::from(random.below(64));
            }
            let displacement = 8 + random.below(64).cast_signed();
            Operand::Memory {
                base: number,
                displacement,
            }
        }
    }
}

/// What an operand holds.
fn expected(
    ground: &Ground,
    registers: &Registers,
    kind: FieldType,
    operand: Operand,
) -> FieldValue {
    let bits = match operand {
        Operand::Constant(value) => value.cast_unsigned(),
        Operand::Register(number) => value_of(registers, number),
        Operand::Memory { base, displacement } => {
            let at = value_of(registers, base).wrapping_add_signed(displacement.into());
            let bytes = ground.read(at, 8);
            u64::from_le_bytes(bytes.try_into().unwrap())
        }
    };
    kind.value(bits)
}

/// The code of a stub, at its place in the ground. Where it continues in a function, it returns.
fn place(ground: &Ground, stub: &CaptureStub) -> u64 {
    let at = ground.spare();
    let near = Gva(at + TEMPLATE_MAX);
    let go_on = at + 0xf00;
    let code = stub
        .template(near)
        .unwrap()
        .stamp(Gva(at), FunctionId(0), Gva(go_on))
        .unwrap();
    assert!(code.len() < 0xf00, "{} bytes", code.len());
    ground.write(at, &code);
    ground.write(go_on, &[0xc3]);
    at
}

fn check(ground: &Ground, tail: Tail, as_callback: bool, random: &mut Random) {
    let rings = EventRing::new(ground);
    let geometry = rings.event.recorder.geometry;
    let limits = [LIMIT_NONE, LIMIT_NONE, LIMIT_NONE, LIMIT_OFF, 1];
    let limit = limits[random.below(5) as usize];
    let position = geometry.first().after(u64::from(random.below(5000)));
    rings.set_word(HEAD, position.word(0));
    rings.set_word(LIMIT, limit);
    rings.set_word(LOST, 5);
    let rsp = ground.stack_top() - 1024 - 8 * u64::from(random.below(64));
    let memory = ground.stack_top() - 4096;
    let fill: Vec<u8> = (0..4096).map(|_| random.next() as u8).collect();
    ground.write(memory, &fill);
    ground.write(rsp, &return_address().to_le_bytes());
    let mut before = registers(random, rsp);
    let kinds: Vec<FieldType> = (0..random.below(13)).map(|_| kind(random)).collect();
    let fields = if as_callback {
        arguments(kinds)
    } else {
        let mut taken: Vec<Operand> = Vec::new();
        for _ in &kinds {
            taken.push(operand(random, &mut before, memory));
        }
        kinds.into_iter().zip(taken).collect()
    };
    let named = |(kind, operand): &(FieldType, Operand)| {
        let (name, kind) = ("f".into(), kind.clone());
        (Field { name, kind }, *operand)
    };
    let part = CapturePart {
        recorder: rings.event,
        event: EventId(EVENT),
        capture: Arc::new(Capture::of_fields(fields.iter().map(named))),
    };
    let stub = CaptureStub {
        parts: vec![part],
        tail,
        lowered: 0,
        standing: match tail {
            Tail::Return => Standing::Between,
            Tail::Continue => Standing::Marker,
        },
        reach: None,
    };
    let values: Vec<FieldValue> = fields
        .iter()
        .map(|(kind, at)| expected(ground, &before, kind.clone(), *at))
        .collect();
    let at = place(ground, &stub);
    let kept = match tail {
        Tail::Return => 0,
        Tail::Continue => RED_ZONE,
    };
    let stack = ground.read(rsp - kept as u64, kept + 512);
    // SAFETY: the stub returns to the address that was put on its stack, which has room.
    let after = unsafe { call(at, &before) };
    assert_eq!(
        after,
        Registers {
            rsp: rsp + 8,
            flags: after.flags,
            ..before
        },
        "{stub:?}"
    );
    assert_eq!(
        ground.read(rsp - kept as u64, kept + 512),
        stack,
        "{stub:?}"
    );
    let (reserved, lost) = match limit {
        LIMIT_NONE => (1, 0),
        LIMIT_OFF => (0, 0),
        _ => (0, 1),
    };
    assert_eq!(rings.word(HEAD), position.after(reserved).word(0));
    assert_eq!(rings.word(LOST), 5 + lost);
    if reserved == 0 {
        return;
    }
    let record = ground.read(rings.slot(position), 8);
    let record = Record(u64::from_le_bytes(record.try_into().unwrap()));
    assert_eq!(record.function(), FunctionId(EVENT));
    let fields = fields.iter().map(|field| named(field).0);
    let format = EventFormat::new("event".into(), fields.collect());
    let read = read_payload(&rings, geometry, 0, position, &format, None);
    assert_eq!(read, Ok(values), "{stub:?}");
}

#[test]
fn payloads_say_what_the_operands_hold_and_everything_survives() {
    let mut random = Random::new("payloads_say_what_the_operands_hold_and_everything_survives");
    assert_eq!(
        PLACES[usize::from(STACK_POINTER)],
        15,
        "no general register"
    );
    for cells in setup::PLACES {
        for clock in [Clock::Tsc, PAGE, Clock::None] {
            let ground = Ground::new(cells, 1, 4096, clock);
            ground.enter_vcpu(0);
            for _ in 0..ROUNDS {
                check(&ground, Tail::Return, true, &mut random);
                check(&ground, Tail::Return, false, &mut random);
                check(&ground, Tail::Continue, false, &mut random);
            }
        }
    }
}
