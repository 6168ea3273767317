//! Hooked calls that are interrupted before any instruction of their stubs, of the claim routine and
//! of their bodies, as in ring 0: the interrupt pushes its frame right below the stack pointer, and
//! what it runs there calls the same functions.
//!
//! Two ways to continue: the handler makes calls on the interrupted stack and returns, perhaps on another
//! vCPU; or it is a scheduler, and another thread continues where it was interrupted.

use std::arch::asm;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use trace::event::Step;
use tracer::ring::reader::{Mode, Patience, RingReader};
use tracer::stub::recorder::Clock;
use tracer::stub::spec::ReturnHook;

use crate::bodies::{LEAF, NESTED, PROLOGUE_TAIL, RECURSIVE, TAIL, VALUES};
use crate::expected::{Seen, calls};
use crate::ground::{FUNCTIONS, Ground, MIRROR_LOG2, PAGE, RINGS_MAX, set_gs};
use crate::migration::{ONE_AT_A_TIME, TRAP_FLAG, catch_traps};
use crate::random::Random;
use crate::rings::{Heard, looked};
use crate::setup::{Place, Records, Setup};

const SIGNAL_STACK: usize = 1 << 16;
const NEVER: u32 = u32::MAX;
/// rdi of every call here.
const DEPTH: u64 = 3;
/// What is called on the stack of an interrupted call.
const NESTED_CALLS: [u32; 4] = [NESTED, TAIL, RECURSIVE, PROLOGUE_TAIL];
/// Bytes of an interrupt frame with an error code.
const FRAME: u64 = 48;
/// A trap for every instruction is slow: not every place with every way to hook. With a number of profile
/// sessions: without one there is a fast way.
const WAYS: [(Place, ReturnHook, u64, Clock); 10] = [
    (Place::GsBelow, ReturnHook::Balanced, 0, Clock::Tsc),
    (Place::GsBelow, ReturnHook::Balanced, 0, Clock::None),
    (Place::GsBelow, ReturnHook::Balanced, 1, Clock::Tsc),
    (Place::GsBelow, ReturnHook::Jmp, 1, Clock::Tsc),
    (Place::GsBelow, ReturnHook::Ret, 0, Clock::Tsc),
    (Place::GsFar, ReturnHook::Balanced, 1, Clock::Tsc),
    (Place::GsFar, ReturnHook::Balanced, 0, Clock::None),
    (Place::GsElsewhere, ReturnHook::Balanced, 0, Clock::Tsc),
    (Place::Shared, ReturnHook::Balanced, 0, Clock::None),
    (Place::Shared, ReturnHook::Jmp, 1, Clock::Tsc),
];

static GROUND: AtomicPtr<Ground> = AtomicPtr::new(std::ptr::null_mut());
static IS_STEPPING: AtomicBool = AtomicBool::new(false);
static STEP: AtomicU32 = AtomicU32::new(0);
static AT_STEP: AtomicU32 = AtomicU32::new(0);
static TO: AtomicU32 = AtomicU32::new(0);
/// Where the stack was that nested calls were made on.
static NESTED_TOP: AtomicU64 = AtomicU64::new(0);
static THREADS: Mutex<Option<Threads>> = Mutex::new(None);

/// Calls `target` on the stack that ends at `top`, with [`DEPTH`] in rdi.
///
/// # Safety
/// `top` must be a multiple of 16 with room below, and `target` a function of the ground.
pub unsafe fn call_on(top: u64, target: u64) {
    // SAFETY: the caller vouches for stack and target, which keep the calling convention.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, rsi",
            "call rdx",
            "mov rsp, r12",
            in("rdx") target,
            in("rsi") top,
            inout("rdi") DEPTH => _,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

fn context<'a>(context: *mut libc::ucontext_t) -> &'a mut [i64; 23] {
    // SAFETY: the kernel hands a handler a context that is its own until it returns.
    unsafe { &mut (*context).uc_mcontext.gregs }
}

fn ground<'a>() -> &'a Ground {
    // SAFETY: set by the tests below to a ground that outlives the stepping; shared access only.
    unsafe { &*GROUND.load(Ordering::SeqCst) }
}

fn go_on_stepping(registers: &mut [i64; 23]) {
    let flags = &mut registers[libc::REG_EFL as usize];
    if IS_STEPPING.load(Ordering::SeqCst) {
        *flags |= TRAP_FLAG;
    } else {
        *flags &= !TRAP_FLAG;
    }
}

/// Makes the nested calls at the chosen step, on the interrupted stack.
extern "C" fn interrupted(_: libc::c_int, _: *mut libc::siginfo_t, at: *mut libc::ucontext_t) {
    let registers = context(at);
    let step = STEP.load(Ordering::SeqCst);
    if AT_STEP.load(Ordering::SeqCst) < step {
        IS_STEPPING.store(false, Ordering::SeqCst);
    }
    go_on_stepping(registers);
    let rip = registers[libc::REG_RIP as usize].cast_unsigned();
    if !ground().code_range().contains(&rip) {
        return;
    }
    if STEP.fetch_add(1, Ordering::SeqCst) != AT_STEP.load(Ordering::SeqCst) {
        return;
    }
    let rsp = registers[libc::REG_RSP as usize].cast_unsigned();
    let top = (rsp & !15) - FRAME;
    ground().write(top, &[0xcc; FRAME as usize]);
    NESTED_TOP.store(top, Ordering::SeqCst);
    for number in NESTED_CALLS {
        // SAFETY: an interrupt in ring 0 would do the same; the handler has a stack of its own.
        unsafe { call_on(top, ground().function(number)) };
    }
    ground().enter_vcpu(TO.load(Ordering::SeqCst) as u16);
}

/// Signals are handled on a stack of their own.
fn use_signal_stack() -> Vec<u8> {
    let mut memory = vec![0; SIGNAL_STACK];
    let stack = libc::stack_t {
        ss_sp: memory.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: memory.len(),
    };
    // SAFETY: the memory outlives its use: it is kept until the tests take the next one.
    let result = unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
    assert_eq!(result, 0);
    memory
}

fn leave_signal_stack() {
    let none = libc::stack_t {
        ss_sp: std::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: no signal is being handled.
    let result = unsafe { libc::sigaltstack(&raw const none, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// The readers of one graph session, and what they have heard.
struct Readers<'a> {
    ground: &'a Ground,
    readers: Vec<RingReader>,
}

impl<'a> Readers<'a> {
    fn new(ground: &'a Ground) -> Self {
        let rings = match ground.setup.place {
            Place::Shared => 1,
            _ => RINGS_MAX,
        };
        let geometry = ground.recorders[0].geometry;
        let memory = ground.session(0);
        let readers = (0..rings)
            .map(|ring| {
                let reader = RingReader::new(ring, geometry, Mode::Overwrite, FUNCTIONS);
                let mut reader = reader.of(ground.recorders[0].format);
                reader.initialise(&memory);
                reader.switch(&memory, true);
                reader
            })
            .collect();
        Self { ground, readers }
    }

    /// Everything recorded since the last time; of different rings, in no order.
    fn drain(&mut self) -> Vec<Seen> {
        let memory = self.ground.session(0);
        let mut all = Vec::new();
        // Only that the room for notes does not run out.
        self.ground.captured();
        for reader in &mut self.readers {
            let mut heard = Heard::default();
            reader.look(&memory);
            reader.drain(&memory, &looked(reader), Patience::Over, &mut heard);
            assert_eq!(heard.lost, 0);
            all.extend(Seen::heard(&heard, self.ground));
        }
        all
    }

    fn rings(&self) -> u32 {
        self.readers.len() as u32
    }
}

fn setup((place, variant, profiles, clock): (Place, ReturnHook, u64, Clock)) -> Setup {
    Setup {
        place,
        sessions: vec![Records::Graph],
        profiles,
        ring_bytes: 1 << 16,
        clock,
        variant,
        mirror_log2: MIRROR_LOG2,
        captures: true,
        has_all_shapes: false,
        halt: None,
        tasks: None,
    }
}

/// Calls `number` with its return address at `top - 8`, single-stepped, interrupted before step `at`.
/// Returns how many instructions there were.
fn step_through(number: u32, top: u64, at: u32, to: u32) -> u32 {
    ground().clear_mirror();
    ground().enter_vcpu(0);
    STEP.store(0, Ordering::SeqCst);
    AT_STEP.store(at, Ordering::SeqCst);
    TO.store(to, Ordering::SeqCst);
    IS_STEPPING.store(true, Ordering::SeqCst);
    // SAFETY: the handler takes the breakpoint and sets the trap flag; nothing else happens.
    unsafe { asm!("int3") };
    // SAFETY: the ground has a stack there.
    unsafe { call_on(top, ground().function(number)) };
    IS_STEPPING.store(false, Ordering::SeqCst);
    STEP.load(Ordering::SeqCst)
}

fn of_call(number: u32, top: u64) -> Vec<Seen> {
    let all: Vec<(u32, Step, u64)> = calls(number, top - 8, DEPTH, &|_| true);
    Seen::by(&all, Records::Graph)
}

fn interrupt_everywhere(setup: Setup) {
    let label = format!("{:?} {:?}", setup.place, setup.variant);
    let (profiles, clock) = (setup.profiles, setup.clock);
    let ground = Ground::with(setup);
    GROUND.store(std::ptr::from_ref(&ground).cast_mut(), Ordering::SeqCst);
    let mut readers = Readers::new(&ground);
    (0..profiles).for_each(|profile| ground.switch_profile(profile, true));
    let mut hits = [0u64; FUNCTIONS as usize];
    let mut count = |seen: &[Seen]| {
        let entered = seen.iter().filter(|one| one.step != Some(Step::Exit as u8));
        entered.for_each(|one| hits[one.function as usize] += 1);
        for profile in 0..profiles {
            let of = |function| ground.counted(profile, function)[0];
            let found: Vec<u64> = (0..FUNCTIONS).map(of).collect();
            assert_eq!(found, hits, "counters");
        }
    };
    // Of the records without a time the head word is foreseen.
    let foreseen = if clock == Clock::None { 2 } else { 1 };
    let calls = [VALUES, TAIL, PROLOGUE_TAIL].map(|number| [(number, true), (number, false)]);
    for (number, is_foreseen) in calls.iter().flat_map(|ways| &ways[..foreseen]).copied() {
        let top = ground.stack_top() - u64::from(number) * 4096;
        ground.foresee(is_foreseen);
        let steps = step_through(number, top, NEVER, 0);
        assert_eq!(readers.drain(), of_call(number, top), "{label}");
        count(&of_call(number, top));
        for at in 0..steps {
            ground.foresee(is_foreseen);
            step_through(number, top, at, at % readers.rings());
            let nested_top = NESTED_TOP.load(Ordering::SeqCst);
            let mut expected = of_call(number, top);
            for nested in NESTED_CALLS {
                expected.extend(of_call(nested, nested_top));
            }
            let mut seen = readers.drain();
            seen.sort_unstable();
            expected.sort_unstable();
            assert_eq!(seen, expected, "{label}: function {number}, step {at}");
            count(&expected);
        }
    }
}

fn alone(test: impl FnOnce()) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = use_signal_stack();
    test();
    leave_signal_stack();
    drop(memory);
}

#[test]
fn an_interrupt_before_any_instruction_may_use_the_stack_and_the_functions() {
    alone(|| {
        catch_traps(interrupted, libc::SA_ONSTACK);
        WAYS.map(setup).into_iter().for_each(interrupt_everywhere);
    });
}

/// Has the clock page's time go back before each instruction of the ground.
extern "C" fn time_goes_back(_: libc::c_int, _: *mut libc::siginfo_t, at: *mut libc::ucontext_t) {
    let registers = context(at);
    go_on_stepping(registers);
    let rip = registers[libc::REG_RIP as usize].cast_unsigned();
    if ground().code_range().contains(&rip) {
        ground().counter().fetch_sub(1, Ordering::SeqCst);
    }
}

/// It was once a call that takes no time.
#[test]
fn a_time_below_zero_is_counted_as_such() {
    alone(|| {
        catch_traps(time_goes_back, libc::SA_ONSTACK);
        for (place, profiles) in [(Place::GsBelow, 1), (Place::GsFar, 2), (Place::Shared, 1)] {
            for variant in [ReturnHook::Balanced, ReturnHook::Jmp, ReturnHook::Ret] {
                let ground = Ground::with(Setup {
                    sessions: Vec::new(),
                    ..setup((place, variant, profiles, PAGE))
                });
                GROUND.store(std::ptr::from_ref(&ground).cast_mut(), Ordering::SeqCst);
                ground.counter().store(1 << 40, Ordering::SeqCst);
                (0..profiles).for_each(|profile| ground.switch_profile(profile, true));
                step_through(VALUES, ground.stack_top(), NEVER, 0);
                for profile in 0..profiles {
                    let of = ground.counted(profile, VALUES);
                    // Without calls inside, nothing is left of its zero for them.
                    assert_eq!(of, [1, 0, 0, 1], "{place:?} {variant:?}");
                }
            }
        }
    });
}

/// Threads of a guest: contexts that the trap handler switches between.
struct Threads {
    contexts: Vec<[i64; 23]>,
    current: usize,
    random: Random,
    vcpus: u32,
}

/// Preempts: keeps the interrupted thread's registers, and continues with some thread on some vCPU.
extern "C" fn preempted(_: libc::c_int, _: *mut libc::siginfo_t, at: *mut libc::ucontext_t) {
    let registers = context(at);
    go_on_stepping(registers);
    if !IS_STEPPING.load(Ordering::SeqCst) {
        return;
    }
    let mut guard = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(threads) = guard.as_mut() else {
        return;
    };
    let Threads {
        contexts,
        current,
        random,
        vcpus,
    } = threads;
    // Elsewhere a thread has vector registers in use, which are not switched.
    let rip = registers[libc::REG_RIP as usize].cast_unsigned();
    if *current != 0 && !ground().code_range().contains(&rip) {
        return;
    }
    let next = random.below(contexts.len() as u32) as usize;
    contexts[*current] = *registers;
    *registers = contexts[next];
    go_on_stepping(registers);
    *current = next;
    ground().enter_vcpu(random.below(*vcpus) as u16);
}

/// What a thread calls, one after the other.
const PROGRAM: [u32; 10] = [
    VALUES,
    NESTED,
    TAIL,
    RECURSIVE,
    PROLOGUE_TAIL,
    LEAF,
    NESTED,
    3,
    7,
    RECURSIVE,
];
const ROUNDS: u64 = 2;
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// The first instructions of a thread: it makes its calls from the top of its stack and ends there.
extern "C" fn thread(top: u64) -> ! {
    for _ in 0..ROUNDS {
        for number in PROGRAM {
            // SAFETY: the upper half of the stack is left for these calls.
            unsafe { call_on(top, ground().function(number)) };
        }
    }
    RUNNING.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: a jump to itself; the thread is never seen again.
    unsafe { asm!("jmp {idle}", idle = in(reg) ground().idle(), options(noreturn)) }
}

const THREAD_STACK: u64 = 0x4000;
const THREAD_COUNT: u64 = 5;

/// The stack of a thread: its calls are made from its top, it runs itself in the lower half.
fn stack_of(thread: u64) -> Range<u64> {
    let end = ground().stack_top() - thread * THREAD_STACK;
    end - THREAD_STACK..end
}

fn schedule(setup: Setup, seed: u64) {
    let label = format!("{:?} {:?} {seed}", setup.place, setup.variant);
    let ground = Ground::with(setup);
    GROUND.store(std::ptr::from_ref(&ground).cast_mut(), Ordering::SeqCst);
    let mut readers = Readers::new(&ground);
    // The test itself is the first thread; the others begin as copies of it with other registers.
    let mut contexts = vec![[0; 23]];
    RUNNING.store(THREAD_COUNT as u32, Ordering::SeqCst);
    let code: extern "C" fn(u64) -> ! = thread;
    for number in 0..THREAD_COUNT {
        let stack = stack_of(number);
        let mut registers = own_registers();
        registers[libc::REG_RIP as usize] = (code as usize as u64).cast_signed();
        registers[libc::REG_RSP as usize] = (stack.start + THREAD_STACK / 2 - 8).cast_signed();
        registers[libc::REG_RDI as usize] = stack.end.cast_signed();
        contexts.push(registers);
    }
    *THREADS.lock().unwrap_or_else(PoisonError::into_inner) = Some(Threads {
        contexts,
        current: 0,
        random: Random::of(seed),
        vcpus: readers.rings(),
    });
    ground.enter_vcpu(0);
    IS_STEPPING.store(true, Ordering::SeqCst);
    // SAFETY: from here on the handler switches between the threads, until this one has seen the end.
    unsafe { asm!("int3") };
    while RUNNING.load(Ordering::SeqCst) > 0 {
        std::hint::spin_loop();
    }
    IS_STEPPING.store(false, Ordering::SeqCst);
    *THREADS.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let mut expected = Vec::new();
    for number in 0..THREAD_COUNT {
        let top = stack_of(number).end;
        for _ in 0..ROUNDS {
            expected.extend(PROGRAM.iter().flat_map(|called| of_call(*called, top)));
        }
    }
    let mut seen = readers.drain();
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen.len(), expected.len(), "{label}");
    assert_eq!(seen, expected, "{label}");
}

/// The registers that a new thread begins with: segments and flags of this one.
fn own_registers() -> [i64; 23] {
    // SAFETY: zeros are a valid context, and getcontext fills it.
    let mut own: libc::ucontext_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let result = unsafe { libc::getcontext(&raw mut own) };
    assert_eq!(result, 0);
    let mut registers = own.uc_mcontext.gregs;
    // What getcontext leaves out: interrupts on, and the segments of a Linux process.
    registers[libc::REG_EFL as usize] = 0x202;
    registers[libc::REG_CSGSFS as usize] = 0x002b_0000_0000_0033;
    registers
}

#[test]
fn threads_that_are_preempted_and_migrate_at_every_instruction_stay_apart() {
    let mut random = Random::new("threads_that_are_preempted_and_migrate_at_every_instruction");
    alone(|| {
        catch_traps(preempted, libc::SA_ONSTACK);
        for setup in WAYS.map(setup) {
            schedule(setup, random.next());
        }
    });
    set_gs(0);
}
