//! A thread that is preempted and moved to another vCPU between any two instructions of a stub: the
//! stub is single-stepped, and at each of its instructions in turn the trap handler changes the GS
//! base, calls traced functions itself as another thread on that vCPU would, or both.

use std::arch::asm;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use tracer::record::Record;
use tracer::ring::moment::ROUND;
use tracer::ring::reader::{Mode, Patience, RingMemory, RingReader};
use tracer::stub::recorder::Clock;

use crate::ground::{FUNCTIONS, Ground};
use crate::rings::{Heard, looked};
use crate::setup::Place;

pub const TRAP_FLAG: i64 = 1 << 8;
/// More than any stub here has instructions.
const STEPS_MAX: u32 = 1000;

/// Trap handlers belong to the process: one test at a time steps.
pub static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// The ground that is stepped through.
static GROUND: AtomicPtr<Ground> = AtomicPtr::new(std::ptr::null_mut());
static IS_STEPPING: AtomicBool = AtomicBool::new(false);
/// Instructions of the stub executed so far.
static STEP: AtomicU32 = AtomicU32::new(0);
/// Where in the stub it happens.
static AT_STEP: AtomicU32 = AtomicU32::new(0);
/// The vCPU that the thread is moved to.
static TO: AtomicU32 = AtomicU32::new(0);
/// The calls that are made meanwhile.
static CALLS: AtomicU32 = AtomicU32::new(0);
static STUBS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Runs after every instruction while the trap flag is set; clear of it itself.
extern "C" fn trapped(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel hands the handler a context that is its own until it returns.
    let context = unsafe { &mut *context };
    let registers = &mut context.uc_mcontext.gregs;
    let flags = &mut registers[libc::REG_EFL as usize];
    if IS_STEPPING.load(Ordering::SeqCst) {
        *flags |= TRAP_FLAG;
    } else {
        *flags &= !TRAP_FLAG;
    }
    let rip = registers[libc::REG_RIP as usize].cast_unsigned();
    let [start, end] = STUBS.each_ref().map(|word| word.load(Ordering::SeqCst));
    if !(start..end).contains(&rip) {
        return;
    }
    if STEP.fetch_add(1, Ordering::SeqCst) != AT_STEP.load(Ordering::SeqCst) {
        return;
    }
    // SAFETY: set by `step_through`, which outlives the stepping; shared access only.
    let ground = unsafe { &*GROUND.load(Ordering::SeqCst) };
    for _ in 0..CALLS.load(Ordering::SeqCst) {
        ground.call(FUNCTIONS - 1);
    }
    ground.enter_vcpu(TO.load(Ordering::SeqCst) as u16);
}

/// Calls function 0 on vCPU `from`; at instruction `at` of its stub, `calls` others are made there, and the
/// thread is moved to vCPU `to`. Returns how many instructions of the stub were executed.
fn step_through(ground: &Ground, at: u32, calls: u32, (from, to): (u16, u16)) -> u32 {
    ground.enter_vcpu(from);
    let (start, code) = &ground.stubs[0];
    STUBS[0].store(*start, Ordering::SeqCst);
    STUBS[1].store(start + code.len() as u64, Ordering::SeqCst);
    GROUND.store(std::ptr::from_ref(ground).cast_mut(), Ordering::SeqCst);
    STEP.store(0, Ordering::SeqCst);
    AT_STEP.store(at, Ordering::SeqCst);
    TO.store(to.into(), Ordering::SeqCst);
    CALLS.store(calls, Ordering::SeqCst);
    IS_STEPPING.store(true, Ordering::SeqCst);
    // SAFETY: the handler takes the breakpoint and sets the trap flag; nothing else happens.
    unsafe { asm!("int3") };
    ground.call(0);
    IS_STEPPING.store(false, Ordering::SeqCst);
    STEP.load(Ordering::SeqCst)
}

/// What handles a trap.
pub type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::ucontext_t);

/// Has `handler` called after each instruction while the trap flag is set; `flags` as for sigaction.
pub fn catch_traps(handler: Handler, flags: libc::c_int) {
    // SAFETY: zeros are a valid sigaction: default handler, empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | flags;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for.
    let result = unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// Every way to interrupt one call; each of them must be accounted for.
fn interrupt_everywhere(place: Place, sessions: u64, mode: Mode, ring_bytes: u64, calls: u32) {
    let _guard = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    catch_traps(trapped, 0);
    let ground = Ground::new(place, sessions, ring_bytes, Clock::Tsc);
    let geometry = ground.recorders[0].geometry;
    let rings = if place == Place::Shared { 1 } else { 2 };
    let mut readers = Vec::new();
    for session in 0..sessions {
        for ring in 0..rings {
            let mut reader = RingReader::new(ring, geometry, mode, FUNCTIONS);
            reader.initialise(&ground.session(session));
            reader.switch(&ground.session(session), true);
            readers.push((session, reader, Heard::default()));
        }
    }
    let mut drain = || {
        for (session, reader, heard) in &mut readers {
            reader.look(&ground.session(*session));
            reader.drain(
                &ground.session(*session),
                &looked(reader),
                Patience::Over,
                heard,
            );
        }
    };
    let steps = step_through(&ground, STEPS_MAX, 0, (0, 0));
    assert!((20..STEPS_MAX).contains(&steps), "{steps} instructions");
    // Down as well: only then is a head with its ring's number above the other ring's limit.
    let moves = [(0, 0), (0, 1), (1, 0)]
        .into_iter()
        .filter(|(from, to)| *from.max(to) < rings);
    for at in 0..steps {
        for way in moves.clone() {
            drain();
            step_through(&ground, at, calls, way);
        }
    }
    drain();
    let made: Vec<u64> = (0..FUNCTIONS).map(|n| ground.body_calls(n)).collect();
    let total: u64 = made.iter().sum();
    assert!(total >= u64::from(steps) * (1 + u64::from(calls)));
    for session in 0..sessions {
        let of_session = readers.iter().filter(|(of, ..)| *of == session);
        let mut counts = vec![0; FUNCTIONS as usize];
        let mut lost = 0;
        for (_, reader, heard) in of_session {
            let losses = reader.losses();
            lost += losses.records();
            assert_eq!((losses.invalid, losses.corrupt), (0, 0));
            // A writer that is late by a lap puts its record over a later one.
            if u64::from(calls) < geometry.slots() / 2 {
                let unread = (losses.overwritten, losses.abandoned);
                assert_eq!(unread, (0, 0), "{place:?} {mode:?}");
            }
            for record in &heard.records {
                counts[record.function.index()] += 1;
            }
        }
        assert_eq!(
            counts.iter().sum::<u64>() + lost,
            total,
            "{place:?} {mode:?}"
        );
        if lost == 0 {
            assert_eq!(counts, made);
        }
        // A ring that has room loses nothing, whichever ring's head was compared with its limit.
        let may_lose = u64::from(calls) >= geometry.slots() / 2;
        assert!(lost == 0 || may_lose, "{lost} lost");
    }
}

#[test]
fn a_call_that_migrates_anywhere_in_its_stub_is_recorded_once() {
    for place in [
        Place::GsBelow,
        Place::GsFar,
        Place::Shared,
        Place::GsElsewhere,
    ] {
        for mode in [Mode::Overwrite, Mode::Discard] {
            interrupt_everywhere(place, 1, mode, 4096, 0);
            interrupt_everywhere(place, 3, mode, 4096, 5);
        }
    }
}

#[test]
fn a_call_that_is_preempted_for_laps_is_counted_once() {
    for place in [Place::GsBelow, Place::GsFar, Place::Shared] {
        for mode in [Mode::Overwrite, Mode::Discard] {
            interrupt_everywhere(place, 1, mode, 4096, 1500);
        }
    }
}

/// The time is read before the slot is reserved: so a call that is interrupted in its stub is never newer than those
/// whose slots come after its own. The reader relies on it, and sorts by it.
#[test]
fn an_interrupted_call_is_not_newer_than_those_behind_it() {
    const CALLS: usize = 3;
    let _guard = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    catch_traps(trapped, 0);
    for place in [Place::GsBelow, Place::GsFar, Place::Shared] {
        let ground = Ground::new(place, 1, 4096, Clock::Tsc);
        let geometry = ground.recorders[0].geometry;
        let memory = ground.session(0);
        let mut reader = RingReader::new(0, geometry, Mode::Overwrite, FUNCTIONS);
        reader.initialise(&memory);
        reader.switch(&memory, true);
        let steps = step_through(&ground, STEPS_MAX, 0, (0, 0));
        let mut orders = [0; CALLS + 1];
        for at in 0..steps {
            let first = reader.look(&memory);
            step_through(&ground, at, CALLS as u32, (0, 0));
            let record = |number: usize| {
                let position = first.after(number as u64);
                let mut word = [0];
                memory.copy(0, geometry.slot(position), &mut word);
                Record(word[0]).without(geometry.spill(position.word(0)))
            };
            let records: Vec<Record> = (0..=CALLS).map(record).collect();
            let own = records.iter().position(|record| record.function().0 == 0);
            let own = own.expect("the call itself");
            orders[own] += 1;
            for behind in &records[own..] {
                let newer = behind.time().wrapping_sub(records[own].time()) & (ROUND - 1);
                assert!(
                    newer < ROUND / 2,
                    "{place:?}, instruction {at}: {records:?}"
                );
            }
        }
        // Interrupted before it has its slot, and after: both were seen, and nothing else.
        assert!(orders[0] > 0 && orders[CALLS] > 0, "{orders:?}");
        assert_eq!(orders[0] + orders[CALLS], steps);
    }
}
