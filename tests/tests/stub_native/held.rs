//! A ring that was held, for a dump, is released while a call is somewhere in its stub: who has seen the ring held counts
//! itself after that. So the count is right only when nobody is in a stub any more.

use std::arch::asm;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use tracer::ring::geometry::LIMIT_NONE;
use tracer::ring::reader::{CellWord, Mode, RingMemory, RingReader};
use tracer::stub::recorder::Clock;

use crate::ground::{FUNCTIONS, Ground};
use crate::migration::{ONE_AT_A_TIME, TRAP_FLAG, catch_traps};
use crate::setup::Place;

const STEPS_MAX: u32 = 1000;

static GROUND: AtomicPtr<Ground> = AtomicPtr::new(std::ptr::null_mut());
static IS_STEPPING: AtomicBool = AtomicBool::new(false);
static STEP: AtomicU32 = AtomicU32::new(0);
static AT_STEP: AtomicU32 = AtomicU32::new(0);
static STUB: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// What the ring had lost when it was released.
static AT_RELEASE: AtomicU64 = AtomicU64::new(0);

/// Releases the ring before the chosen instruction of the stub.
extern "C" fn released(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel hands the handler a context that is its own until it returns.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let flags = &mut registers[libc::REG_EFL as usize];
    if IS_STEPPING.load(Ordering::SeqCst) {
        *flags |= TRAP_FLAG;
    } else {
        *flags &= !TRAP_FLAG;
    }
    let rip = registers[libc::REG_RIP as usize].cast_unsigned();
    let [start, end] = STUB.each_ref().map(|word| word.load(Ordering::SeqCst));
    if !(start..end).contains(&rip)
        || STEP.fetch_add(1, Ordering::SeqCst) != AT_STEP.load(Ordering::SeqCst)
    {
        return;
    }
    // SAFETY: set by `call_held`, which outlives the stepping; shared access only.
    let memory = unsafe { &*GROUND.load(Ordering::SeqCst) }.session(0);
    memory.store(0, CellWord::Limit, LIMIT_NONE);
    AT_RELEASE.store(memory.load(0, CellWord::Lost), Ordering::SeqCst);
}

/// Calls function 0 while the ring is held, and releases it before instruction `at` of the stub. Returns how many
/// instructions of the stub were executed.
fn call_held(ground: &Ground, reader: &mut RingReader, at: u32) -> u32 {
    let (start, code) = &ground.stubs[0];
    STUB[0].store(*start, Ordering::SeqCst);
    STUB[1].store(start + code.len() as u64, Ordering::SeqCst);
    GROUND.store(std::ptr::from_ref(ground).cast_mut(), Ordering::SeqCst);
    STEP.store(0, Ordering::SeqCst);
    AT_STEP.store(at, Ordering::SeqCst);
    reader.hold(&ground.session(0));
    IS_STEPPING.store(true, Ordering::SeqCst);
    // SAFETY: the handler takes the breakpoint and sets the trap flag; nothing else happens.
    unsafe { asm!("int3") };
    ground.call(0);
    IS_STEPPING.store(false, Ordering::SeqCst);
    STEP.load(Ordering::SeqCst)
}

#[test]
fn a_call_that_has_found_its_ring_held_counts_itself_before_it_leaves_its_stub() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    catch_traps(released, 0);
    for place in [Place::GsBelow, Place::GsFar, Place::Shared] {
        let ground = Ground::new(place, 1, 4096, Clock::Tsc);
        ground.enter_vcpu(0);
        let memory = ground.session(0);
        let mut reader =
            RingReader::new(0, ground.recorders[0].geometry, Mode::Overwrite, FUNCTIONS);
        reader.initialise(&memory);
        reader.switch(&memory, true);
        let steps = call_held(&ground, &mut reader, STEPS_MAX);
        let (mut recorded, mut before, mut after) = (0, 0, 0);
        for at in 0..steps {
            let lost = memory.load(0, CellWord::Lost);
            let head = reader.look(&memory);
            call_held(&ground, &mut reader, at);
            let at_release = AT_RELEASE.load(Ordering::SeqCst);
            let counted = memory.load(0, CellWord::Lost);
            recorded += reader.look(&memory).since(head);
            before += at_release - lost;
            after += counted - at_release;
        }
        // Each call was recorded or counted, once. Some had seen the ring held and were counted after it was released:
        // they were in the stub then, for it was stopped there.
        assert_eq!(recorded + before + after, u64::from(steps), "{place:?}");
        assert!(
            recorded > 0 && before > 0 && after > 0,
            "{place:?}: {recorded} {before} {after}"
        );
    }
}
