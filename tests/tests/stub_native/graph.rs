//! Hooked returns: what the body finds, what the caller gets back, and what is recorded of it, for
//! each way to hook, in every state of rings and mirror.

use std::sync::atomic::Ordering;

use trace::event::Step;
use tracer::ring::geometry::Geometry;
use tracer::ring::reader::{CellWord, Mode, Patience, RingMemory, RingReader};
use tracer::stub::recorder::Clock;
use tracer::stub::spec::ReturnHook;

use crate::bodies::{self, PROLOGUE, RECURSIVE, VALUES};
use crate::cpu::{Registers, call, return_address};
use crate::expected::{Seen, calls};
use crate::ground::{FUNCTIONS, Ground, MIRROR_LOG2, PAGE};
use crate::random::Random;
use crate::registers::{R11, registers};
use crate::rings::{Heard, looked, now};
use crate::setup::{HaltWhen, PLACES, Place, Records, Setup};

pub const VARIANTS: [ReturnHook; 3] = [ReturnHook::Balanced, ReturnHook::Jmp, ReturnHook::Ret];
const STACK_CHECKED: usize = 4096;
/// What a stub may use below the return address: six registers, and four of a function session, and two words where callers
/// may know of r11 and the flags.
const STACK_USED: u64 = 96;
const RING_BYTES: u64 = 8192;
const RUNS: u32 = 24;
const DEPTH_MAX: u32 = 200;
const RAX: usize = 0;
const RDX: usize = 3;
const RDI: usize = 5;
const RBP: usize = 6;
/// rsi, rdi, r8, r9, r10, r11: what no caller finds again after a call.
const FREE_AT_RETURN: [usize; 6] = [4, RDI, 7, 8, 9, R11];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Recording,
    Full,
    Off,
    /// Every place of the mirror belongs to another page.
    NoRoom,
}

/// What one call is expected to have done, and the calls that it consists of.
struct Call {
    number: u32,
    slot: u64,
    depth: u64,
}

impl Call {
    fn random(ground: &Ground, random: &mut Random) -> Self {
        Self {
            number: random.below(FUNCTIONS),
            slot: ground.stack_top() - 8 * u64::from(random.below(64)),
            depth: u64::from(1 + random.below(DEPTH_MAX)),
        }
    }

    /// How far below its slot anything is written.
    fn reach(&self) -> u64 {
        let frames = if self.number == RECURSIVE {
            self.depth
        } else {
            3
        };
        8 * frames + STACK_USED
    }

    fn returns_values(&self) -> bool {
        !matches!(
            self.number,
            RECURSIVE | bodies::LEAF | bodies::NESTED | bodies::OTHER_RETURN
        )
    }

    /// Makes the call with every register set, and checks everything that can be seen of it but
    /// its records.
    fn make(&self, ground: &Ground, random: &mut Random) {
        let below = self.slot - STACK_CHECKED as u64;
        let fill: Vec<u8> = (0..2 * STACK_CHECKED)
            .map(|_| random.next() as u8)
            .collect();
        ground.write(below, &fill);
        ground.write(self.slot, &return_address().to_le_bytes());
        let stack = ground.read(below, 2 * STACK_CHECKED);
        let results: Vec<u64> = (0..6).map(|_| random.next()).collect();
        for (word, number) in results.iter().zip(0..) {
            let at = ground.results() + 8 * number;
            ground.word(at).store(*word, Ordering::SeqCst);
        }
        let mut before = registers(random, self.slot);
        if self.number == RECURSIVE {
            before.general[RDI] = self.depth;
        }
        // SAFETY: the function returns to the address that was put on its stack, which has room.
        let after = unsafe { call(ground.function(self.number), &before) };
        let mut expected = Registers {
            rsp: self.slot + 8,
            ..before
        };
        if self.returns_values() {
            expected.general[RAX] = results[0];
            expected.general[RDX] = results[1];
            expected.xmm[0] = [results[2], results[3]];
            expected.xmm[1] = [results[4], results[5]];
            let argument = ground.word(self.slot + 8).load(Ordering::SeqCst);
            self.check_body(ground, &before, argument);
        }
        if !bodies::shape(self.number).keeps_all() {
            for free in FREE_AT_RETURN {
                expected.general[free] = after.general[free];
            }
            expected.flags = after.flags;
        }
        assert_eq!(after, expected, "function {}", self.number);
        let changed = ground.read(below, 2 * STACK_CHECKED);
        let untouched = STACK_CHECKED - self.reach() as usize;
        assert_eq!(changed[..untouched], stack[..untouched], "below the stack");
        let above = STACK_CHECKED + 8;
        assert_eq!(changed[above..], stack[above..], "above it");
    }

    /// What the last body in the chain of tail calls has found in registers and on the stack.
    fn check_body(&self, ground: &Ground, before: &Registers, argument: u64) {
        let last = match self.number {
            PROLOGUE | bodies::TAIL_TO_PROLOGUE => PROLOGUE,
            _ => VALUES,
        };
        let frame = bodies::prologue_pushes(bodies::shape(last));
        let mut general = before.general;
        if last == PROLOGUE {
            general[RBP] = self.slot - 8;
        }
        let seen: Vec<u64> = (0..17)
            .map(|n| ground.word(ground.seen() + 8 * n).load(Ordering::SeqCst))
            .collect();
        general[R11] = seen[R11];
        assert_eq!(seen[..15], general, "function {}", self.number);
        assert_eq!(seen[15], self.slot - frame, "stack pointer of the body");
        assert_eq!(seen[16], argument, "argument on the stack");
    }
}

fn check(setup: Setup, state: State, random: &mut Random) {
    let label = format!("{setup:?} {state:?}");
    let ground = Ground::with(setup);
    let sessions = || (0u64..).zip(&ground.setup.sessions);
    ground.enter_vcpu(0);
    if state == State::NoRoom {
        let words = ground.directory();
        words.for_each(|word| word.store(0x1234_5678, Ordering::SeqCst));
    }
    let geometry = Geometry::with_bytes(RING_BYTES).unwrap();
    let mut readers: Vec<RingReader> = sessions()
        .map(|(session, _)| {
            let mut reader = RingReader::new(0, geometry, Mode::Overwrite, FUNCTIONS);
            let memory = ground.session(session);
            reader.initialise(&memory);
            match state {
                State::Recording | State::NoRoom => reader.switch(&memory, true),
                State::Full => memory.store(0, CellWord::Limit, geometry.first().word(0)),
                State::Off => reader.switch(&memory, false),
            }
            reader.of(ground.recorders[session as usize].format)
        })
        .collect();
    (0..ground.setup.profiles).for_each(|one| ground.switch_profile(one, state != State::Off));
    let mut hits = [0; FUNCTIONS as usize];
    let mut lost = vec![0; readers.len()];
    for _ in 0..RUNS {
        let call = Call::random(&ground, random);
        let start = now();
        call.make(&ground, random);
        let end = now();
        let all = calls(call.number, call.slot, call.depth, &|_| {
            state != State::NoRoom
        });
        check_captures(&ground, &call, &all, state, &label);
        if state != State::Off {
            let entered = all.iter().filter(|(_, step, _)| *step != Step::Exit);
            entered.for_each(|(function, ..)| hits[*function as usize] += 1);
        }
        for ((session, records), reader) in sessions().zip(&mut readers) {
            let memory = ground.session(session);
            let expected = Seen::by(&all, *records);
            let mut heard = Heard::default();
            reader.look(&memory);
            if matches!(state, State::Recording | State::NoRoom) {
                reader.drain(
                    &memory,
                    &looked(reader),
                    Patience::Ticks(u64::MAX),
                    &mut heard,
                );
                check_times(&heard, ground.setup.clock, start, end);
            } else if state == State::Full {
                lost[session as usize] += expected.len() as u64;
            }
            assert_eq!(memory.load(0, CellWord::Lost), lost[session as usize]);
            let recorded = Seen::heard(&heard, &ground);
            if matches!(state, State::Recording | State::NoRoom) {
                assert_eq!(recorded, expected, "{label}");
            } else {
                let first = geometry.first().word(0);
                assert_eq!(memory.load(0, CellWord::Head), first, "{label}");
            }
        }
    }
    check_counters(&ground, &hits, state, &label);
}

/// What captures is called once for each step, right where it happens, and finds what is returned.
fn check_captures(
    ground: &Ground,
    call: &Call,
    all: &[(u32, Step, u64)],
    state: State,
    label: &str,
) {
    let notes = ground.captured();
    if !ground.setup.captures {
        assert_eq!(notes, [], "{label}");
        return;
    }
    // What is switched off may hook nothing.
    let is_seen = |is_exit: bool| !is_exit || state != State::Off;
    let found = notes.iter().filter(|note| is_seen(note.is_exit));
    let found: Vec<(u32, bool, u64)> = found
        .map(|note| (note.function, note.is_exit, note.rsp))
        .collect();
    let has_hooks = ground.setup.has_hooks();
    let all = all
        .iter()
        .filter(|(_, step, _)| is_seen(*step == Step::Exit));
    let expected = all.map(|(function, step, slot)| {
        let is_exit = *step == Step::Exit;
        // The call of the routine is on the stack: where the return address was, or below it and what a prologue has
        // pushed.
        let frame = match has_hooks && !is_exit {
            true => bodies::prologue_pushes(bodies::shape(*function)),
            false => 0,
        };
        let called = if is_exit { 0 } else { 8 };
        (*function, is_exit, slot - frame - called)
    });
    assert_eq!(found, expected.collect::<Vec<_>>(), "{label}");
    let returned = |place: u64| {
        ground
            .word(ground.results() + 8 * place)
            .load(Ordering::SeqCst)
    };
    for note in notes
        .iter()
        .filter(|note| note.is_exit && call.returns_values())
    {
        assert_eq!((note.rax, note.rdx), (returned(0), returned(1)), "{label}");
    }
}

/// Counters are exact, and times make sense: those of functions that only tail jumps lead to are
/// their callers'.
fn check_counters(ground: &Ground, hits: &[u64], state: State, label: &str) {
    for profile in 0..ground.setup.profiles {
        for (number, expected) in (0..FUNCTIONS).zip(hits) {
            let [found, total, own, clamped] = ground.counted(profile, number);
            assert_eq!(found, *expected, "{label}: function {number}");
            assert_eq!(clamped, 0, "{label}: function {number}");
            assert!(own <= total, "{label}: function {number}");
            let is_hooked = number == bodies::NESTED || number == RECURSIVE;
            let is_timed = ground.setup.clock == Clock::Tsc && state != State::NoRoom;
            assert_eq!(
                total > 0,
                is_timed && *expected > 0 && (is_hooked || total > 0),
                "{label}: function {number}"
            );
        }
    }
}

fn check_times(heard: &Heard, clock: Clock, start: u64, end: u64) {
    if clock == Clock::Tsc {
        let times: Vec<u64> = heard.records.iter().map(|record| record.ticks).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(times.iter().all(|time| (start..=end).contains(time)));
    }
}

#[test]
fn callers_and_bodies_notice_nothing_and_records_are_exact() {
    let mut random = Random::new("callers_and_bodies_notice_nothing_and_records_are_exact");
    use Records::{Callers, Calls, Graph};
    let sessions: [(&[Records], Clock, u64); 13] = [
        (&[], Clock::Tsc, 1),
        (&[], Clock::None, 2),
        (&[Graph, Calls], Clock::Tsc, 2),
        (&[Graph], Clock::Tsc, 0),
        (&[Graph], PAGE, 0),
        (&[Graph], Clock::None, 0),
        (&[Graph, Graph], Clock::Tsc, 0),
        (&[Calls, Graph], Clock::Tsc, 0),
        (&[Graph, Calls, Graph, Calls], Clock::Tsc, 0),
        (&[Callers, Graph], Clock::Tsc, 0),
        (&[Graph, Callers], PAGE, 1),
        (&[Callers, Graph, Calls], Clock::None, 0),
        (&[Callers], Clock::Tsc, 1),
    ];
    for place in PLACES {
        for variant in VARIANTS {
            for (sessions, clock, profiles) in sessions {
                for state in [State::Recording, State::Full, State::Off, State::NoRoom] {
                    let captures = random.below(2) == 0;
                    // There is none left: everything else is as without.
                    let halt = match random.below(3) {
                        0 => Some(HaltWhen::Entered),
                        1 if clock != Clock::None => Some(HaltWhen::Longer(0)),
                        _ => None,
                    };
                    let setup = Setup {
                        place,
                        sessions: sessions.to_vec(),
                        profiles,
                        ring_bytes: RING_BYTES,
                        clock,
                        variant,
                        mirror_log2: MIRROR_LOG2,
                        captures,
                        has_all_shapes: false,
                        halt,
                        tasks: None,
                    };
                    check(setup, state, &mut random);
                }
            }
        }
    }
}

/// A mirror with places for three pages of stack (the fourth is nobody's).
#[test]
fn calls_without_room_in_the_mirror_are_counted_as_such() {
    let mut random = Random::new("calls_without_room_in_the_mirror_are_counted_as_such");
    for variant in VARIANTS {
        let ground = Ground::with(Setup {
            place: Place::GsBelow,
            sessions: vec![Records::Graph],
            profiles: 0,
            ring_bytes: RING_BYTES,
            clock: Clock::Tsc,
            variant,
            mirror_log2: 2,
            captures: false,
            has_all_shapes: false,
            halt: None,
            tasks: None,
        });
        ground.enter_vcpu(0);
        let memory = ground.session(0);
        let geometry = ground.recorders[0].geometry;
        let mut reader =
            RingReader::new(0, geometry, Mode::Overwrite, FUNCTIONS).of(ground.recorders[0].format);
        reader.initialise(&memory);
        reader.switch(&memory, true);
        let mut places: Vec<u64> = Vec::new();
        let mut unhooked = 0;
        for _ in 0..500 {
            let mut call = Call::random(&ground, &mut random);
            // In the middle of one of eight pages; never across two.
            call.slot = ground.stack_top() - 4096 * u64::from(1 + random.below(8)) + 3072;
            let page = call.slot >> 12;
            let is_hooked = call.number != bodies::OTHER_RETURN;
            if is_hooked && places.len() < 3 && !places.contains(&page) {
                places.push(page);
            }
            call.make(&ground, &mut random);
            let mut heard = Heard::default();
            reader.look(&memory);
            reader.drain(
                &memory,
                &looked(&reader),
                Patience::Ticks(u64::MAX),
                &mut heard,
            );
            let has_room = |slot: u64| places.contains(&(slot >> 12));
            let all = calls(call.number, call.slot, call.depth, &has_room);
            assert_eq!(Seen::heard(&heard, &ground), Seen::by(&all, Records::Graph));
            unhooked += u32::from(!has_room(call.slot));
        }
        assert!((100..400).contains(&unhooked), "{unhooked}");
    }
}
