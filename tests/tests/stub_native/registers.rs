//! Every register, the stack above and below, in every state of a ring.

use tracer::record::{Detail, Format, Record};
use tracer::ring::geometry::{LIMIT_NONE, LIMIT_OFF};
use tracer::ring::reader::{CellWord, Mode, RingMemory, RingReader};
use tracer::stub::recorder::Clock;
use tracer::stub::spec::{ReturnHook, SiteShape};

use crate::bodies::shape_without_hooks;
use crate::cpu::{Registers, STATUS_FLAGS, call, return_address};
use crate::ground::{FUNCTIONS, Ground, MIRROR_LOG2, PAGE};
use crate::random::Random;
use crate::setup::{PLACES, Place, Records, Setup};

const RUNS: u32 = 60;
/// What a stub may use below the stack pointer: four registers, and three words more where callers may know of r11 and the
/// flags; or what the prologue before it has used.
const STACK_USED: usize = 56;
const STACK_CHECKED: usize = 1024;
/// No convention keeps it from call to function.
pub const R11: usize = 10;

/// Which sessions there are.
pub const SESSIONS: [&[Records]; 6] = {
    use Records::{Callers, Calls};
    [
        &[Calls],
        &[Calls; 2],
        &[Calls; 4],
        &[Callers],
        &[Calls, Callers],
        &[Callers, Calls, Callers],
    ]
};

/// A ground without hooked returns, with sites in all kinds of places.
pub fn setup(place: Place, records: &[Records], clock: Clock) -> Setup {
    Setup {
        place,
        sessions: records.to_vec(),
        profiles: 0,
        ring_bytes: 4096,
        clock,
        variant: ReturnHook::Balanced,
        mirror_log2: MIRROR_LOG2,
        captures: false,
        has_all_shapes: true,
        halt: None,
        tasks: None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RingState {
    Recording,
    Full,
    Off,
}

pub fn registers(random: &mut Random, rsp: u64) -> Registers {
    let mut registers = Registers {
        rsp,
        // Exceptions stay masked; rounding, flush-to-zero and flags vary.
        mxcsr: 0x1f80 | (random.next() & 0xe07f),
        flags: random.next() & STATUS_FLAGS,
        ..Registers::default()
    };
    registers.general.fill_with(|| random.next());
    registers.xmm.fill_with(|| [random.next(), random.next()]);
    registers
}

fn check_call(ground: &Ground, random: &mut Random) -> u32 {
    let number = random.below(FUNCTIONS);
    let rsp = ground.stack_top() - 8 * u64::from(random.below(64));
    let below = rsp - STACK_CHECKED as u64;
    let fill: Vec<u8> = (0..2 * STACK_CHECKED)
        .map(|_| random.next() as u8)
        .collect();
    ground.write(below, &fill);
    ground.write(rsp, &return_address().to_le_bytes());
    let stack = ground.read(below, 2 * STACK_CHECKED);
    let before = registers(random, rsp);
    let bodies = ground.body_calls(number);
    // SAFETY: the function returns to the address that was put on its stack, which has room.
    let after = unsafe { call(ground.function(number), &before) };
    let mut expected = Registers {
        rsp: rsp + 8,
        ..before
    };
    if !shape_without_hooks(number).keeps_all() {
        expected.general[R11] = after.general[R11];
        expected.flags = after.flags;
    }
    assert_eq!(after, expected);
    assert_eq!(ground.body_calls(number), bodies + 1);
    let changed = ground.read(below, 2 * STACK_CHECKED);
    let untouched = STACK_CHECKED - STACK_USED;
    assert_eq!(changed[..untouched], stack[..untouched], "below the stack");
    assert_eq!(changed[STACK_CHECKED..], stack[STACK_CHECKED..], "above it");
    number
}

fn check(place: Place, clock: Clock, records: &[Records], state: RingState, random: &mut Random) {
    let ground = Ground::with(setup(place, records, clock));
    let sessions = records.len() as u64;
    ground.enter_vcpu(0);
    let geometry = ground.recorders[0].geometry;
    for session in 0..sessions {
        let memory = ground.session(session);
        RingReader::new(0, geometry, Mode::Overwrite, FUNCTIONS).initialise(&memory);
        let limit = match state {
            RingState::Recording => LIMIT_NONE,
            RingState::Full => geometry.first().word(0),
            RingState::Off => LIMIT_OFF,
        };
        memory.store(0, CellWord::Limit, limit);
    }
    for _ in 0..RUNS {
        check_call(&ground, random);
    }
    for session in 0..sessions {
        let memory = ground.session(session);
        let (recorded, lost) = match state {
            RingState::Recording => (RUNS, 0),
            RingState::Full => (0, RUNS),
            RingState::Off => (0, 0),
        };
        let head = geometry.first().after(u64::from(recorded)).word(0);
        assert_eq!(memory.load(0, CellWord::Head), head);
        assert_eq!(memory.load(0, CellWord::Lost), u64::from(lost));
        let mut slots = [0; 512];
        memory.copy(0, 0, &mut slots);
        check_callers(&ground, session, &slots);
        let written = slots.iter().filter(|word| **word != 0).count();
        assert_eq!(written, recorded as usize, "{place:?} {state:?}");
    }
}

/// What lies beside the words of a ring's first lap: who made each of the calls, if that is recorded.
fn check_callers(ground: &Ground, session: u64, slots: &[u64]) {
    let recorder = &ground.recorders[session as usize];
    if recorder.format != Format::Callers {
        return;
    }
    let mut details = vec![0; slots.len()];
    ground.session(session).copy_details(0, 0, &mut details);
    let mark = recorder.geometry.mark(recorder.geometry.first());
    for (word, detail) in slots.iter().zip(details).filter(|(word, _)| **word != 0) {
        let detail = Detail(detail);
        let function = Record(*word).function().0;
        let expected = match shape_without_hooks(function) {
            SiteShape::EntryOnly => 0,
            _ => return_address(),
        };
        assert_eq!((detail.caller(), detail.mark()), (expected, mark));
    }
}

#[test]
fn every_register_and_the_stack_survive() {
    let mut random = Random::new("every_register_and_the_stack_survive");
    for place in PLACES {
        for clock in [Clock::Tsc, PAGE, Clock::None] {
            for records in SESSIONS {
                for state in [RingState::Recording, RingState::Full, RingState::Off] {
                    check(place, clock, records, state, &mut random);
                }
            }
        }
    }
}
