//! Everything that comes into ring 0 after boot: interrupts, kernel calls, accidents.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::announce;
use crate::apic;
use crate::console;
use crate::context::Frame;
use crate::cpu;
use crate::hostile;
use crate::layout;
use crate::sched::{self, Next};
use crate::tables;
use crate::text;
use crate::vcpu;

/// `tick=` of the command line.
static TICK: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    fn idle() -> !;
    fn resume_frame(frame: u64) -> !;
}

unsafe extern "C" {
    /// trap.s: written from outside while our text is changed there.
    static breakpoints_from_outside: AtomicU64;
}

/// What the word is when breakpoints are not served: threads in ring 0 would be interrupted in the middle of
/// the kernel's own work, and some hosts cannot run `int3` there.
const NOT_SERVED: u64 = 1 << 63;

/// Says that nobody may use breakpoints.
pub fn refuse_breakpoints() {
    // SAFETY: trap.s defines it as a word; only atomics and the handler touch it.
    unsafe { &breakpoints_from_outside }.store(NOT_SERVED, Ordering::Relaxed);
}

/// Sets how long a thread runs at most while others are ready.
pub fn set_tick(microseconds: u64) {
    TICK.store(microseconds, Ordering::Relaxed);
}

/// Called by trap.s with the interrupted frame; answers with the frame to resume.
#[unsafe(no_mangle)]
extern "C" fn trap(frame: *mut Frame) -> u64 {
    // SAFETY: trap.s has just pushed it, into memory that is this vCPU's while it handles the trap.
    let frame = unsafe { &mut *frame };
    let next = match frame.vector {
        vector if vector == u64::from(layout::VECTOR_TIMER) => {
            apic::end_of_interrupt();
            let next = sched::give_way();
            // Last, so that the whole tick is the thread's, however long the switch took.
            apic::arm_timer(TICK.load(Ordering::Relaxed));
            next
        }
        vector if vector == u64::from(layout::VECTOR_RESCHEDULE) => {
            apic::end_of_interrupt();
            if vcpu::current() == vcpu::IDLE {
                sched::give_way()
            } else {
                Next::Same
            }
        }
        vector if vector == u64::from(layout::VECTOR_SPURIOUS) => Next::Same,
        layout::VECTOR_UNDEFINED if frame.rip == layout::kernel_call_address() => {
            kernel_call(frame)
        }
        _ if hostile::survives(frame) => sched::exit(),
        _ => unexpected(frame),
    };
    match next {
        Next::Frame(next) => next,
        Next::Same if vcpu::current() != vcpu::IDLE => (&raw const *frame) as u64,
        // SAFETY: the interrupted frame is the idle vCPU's, or its thread waits or is gone.
        Next::Same | Next::Idle => unsafe { idle() },
    }
}

/// Length of `ud2`.
const KERNEL_CALL_LENGTH: u64 = 2;

/// The numbers are those of `control::kernel_call`.
fn kernel_call(frame: &mut Frame) -> Next {
    frame.rip += KERNEL_CALL_LENGTH;
    let arguments = [frame.rsi, frame.rdx, frame.rcx];
    match frame.rdi {
        0 => return sched::exit(),
        1 => {
            // SAFETY: ring 3 is ours and passes what it owns. A wrong address ends in `unexpected`.
            unsafe { console::write_bytes(frame.rsi, frame.rdx) };
        }
        2 => {
            let [entry, argument, vcpu] = arguments;
            frame.rax = sched::spawn(entry, [argument, 0, 0], vcpu).unwrap_or(u64::MAX);
            apic::nudge_others();
        }
        3 => return sched::join(),
        4 => frame.rax = console::read_byte().map_or(u64::MAX, u64::from),
        5 => return sched::give_way(),
        6 => end(u8::try_from(frame.rsi).unwrap_or(u8::MAX)),
        // SAFETY: ring 3 is ours and passes a word of its text. A wrong address ends in `unexpected`.
        7 => frame.rax = unsafe { text::exchange(frame.rsi, frame.rdx) },
        8 => announce::announce(frame.rsi, frame.rdx),
        9 => announce::free_init(),
        10 => announce::ring(frame.rsi, frame.rdx, frame.rcx),
        11 => frame.rax = hostile::window(frame.rsi).unwrap_or(u64::MAX),
        12 => hostile::twist(frame.rsi, frame.rdx),
        13 => {
            hostile::survive();
            frame.rax = sched::live();
        }
        14 => frame.rax = u64::from(cpu::set_timestamp_ahead(frame.rsi)),
        // SAFETY: ring 3 is ours and passes pages that it uses for nothing else.
        15 => unsafe { tables::renew(frame.rsi, frame.rdx) },
        // SAFETY: the caller vouches for it, as with 7.
        16 => frame.rax = unsafe { text::replace(frame.rsi, frame.rdx, frame.rcx) },
        _ => unexpected(frame),
    }
    Next::Same
}

/// Starts scheduling on this vCPU.
pub fn run() -> ! {
    apic::arm_timer(TICK.load(Ordering::Relaxed));
    match sched::give_way() {
        // SAFETY: the scheduler answers with the saved frame of a thread that is now this vCPU's.
        Next::Frame(frame) => unsafe { resume_frame(frame) },
        // SAFETY: nothing runs here yet.
        Next::Same | Next::Idle => unsafe { idle() },
    }
}

/// Ends the VM with this status.
pub fn end(status: u8) -> ! {
    cpu::write_port(layout::EXIT_PORT, status);
    cpu::halt()
}

/// An exception that is nobody's plan: says what is known, and ends.
fn unexpected(frame: &Frame) -> ! {
    for (name, value) in [
        ("exception vector ", frame.vector),
        (" error ", frame.error),
        (" rip ", frame.rip),
        (" cr2 ", cpu::fault_address()),
        (" cs ", frame.cs),
        (" rsp ", frame.rsp),
        (" vcpu ", vcpu::index()),
        (" thread ", vcpu::current()),
    ] {
        console::say(name);
        console::say_hex(value);
    }
    console::say("\n");
    end(layout::status::EXCEPTION)
}
