//! What is saved of a thread, or of an idle vCPU, while it does not run.

use core::cell::UnsafeCell;

use crate::layout::{self, MAX_THREADS, MAX_VCPUS};
use crate::segments;

/// Registers in the order in which trap.s pushes them, lowest address first.
#[repr(C)]
pub struct Frame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rbp: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rbx: u64,
    pub rax: u64,
    pub vector: u64,
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// A frame and the xmm registers. MXCSR and x87 are not switched: no workload changes them.
///
/// The CPU aligns its stack to 16 bytes before it pushes, so the end of the frame must be aligned.
#[repr(C, align(16))]
pub struct Context {
    pub frame: Frame,
    xmm: [u64; 32],
}

const _: () = assert!(size_of::<Frame>().is_multiple_of(16));

/// One context per thread, then one per vCPU for when it idles.
struct Contexts([UnsafeCell<Context>; MAX_THREADS + MAX_VCPUS]);

// SAFETY: a context belongs to the vCPU that runs its thread, or else to the holder of the run
// queue's lock (sched.rs).
unsafe impl Sync for Contexts {}

// SAFETY: a frame is plain numbers, for which zero is a value.
const NO_FRAME: Frame = unsafe { core::mem::zeroed() };

static CONTEXTS: Contexts = Contexts(
    [const {
        UnsafeCell::new(Context {
            frame: NO_FRAME,
            xmm: [0; 32],
        })
    }; MAX_THREADS + MAX_VCPUS],
);

/// Interrupts on, and the bit that is always set.
const INITIAL_FLAGS: u64 = 0x202;

impl Context {
    /// A thread that starts with `entry(arguments[0], arguments[1], arguments[2])`.
    pub fn start(&mut self, thread: u64, entry: u64, arguments: [u64; 3], in_ring_0: bool) {
        let [rdi, rsi, rdx] = arguments;
        let (cs, ss) = if in_ring_0 {
            (segments::KERNEL_CODE, segments::KERNEL_DATA)
        } else {
            (segments::USER_CODE, segments::USER_DATA)
        };
        let top = layout::thread_stacks_start() + (thread + 1) * layout::THREAD_STACK_SIZE;
        let frame = &mut self.frame;
        frame.rdi = rdi;
        frame.rsi = rsi;
        frame.rdx = rdx;
        frame.rip = entry;
        frame.cs = cs;
        frame.rflags = INITIAL_FLAGS;
        // As after a call. The entry never returns.
        frame.rsp = top - 8;
        frame.ss = ss;
    }

    /// Keeps the xmm registers, which are still those of this thread.
    pub fn save_xmm(&mut self) {
        // SAFETY: trap.s stores 256 bytes there.
        unsafe { xmm_save(&raw mut self.xmm) };
    }

    /// Puts the xmm registers back.
    pub fn restore_xmm(&self) {
        // SAFETY: trap.s loads 256 bytes from there; ring 0 itself does not use the registers.
        unsafe { xmm_restore(&raw const self.xmm) };
    }

    /// Where the CPU starts to push.
    pub fn trap_stack(&self) -> u64 {
        (&raw const self.frame) as u64 + size_of::<Frame>() as u64
    }
}

unsafe extern "C" {
    fn xmm_save(to: *mut [u64; 32]);
    fn xmm_restore(from: *const [u64; 32]);
}

/// The context of a thread. `None`: there is no such thread.
///
/// # Safety
/// The thread runs on this vCPU, or it runs nowhere and the run queue is locked; and no other
/// reference to it is in use.
pub unsafe fn of_thread(thread: u64) -> Option<&'static mut Context> {
    let cell = CONTEXTS
        .0
        .get(..MAX_THREADS)?
        .get(usize::try_from(thread).ok()?)?;
    // SAFETY: the caller's promise is what keeps it unique.
    Some(unsafe { &mut *cell.get() })
}

/// Where traps of an idle vCPU save what nobody needs.
pub fn idle_trap_stack(vcpu: u64) -> u64 {
    let start = (&raw const CONTEXTS) as u64;
    start + (MAX_THREADS as u64 + vcpu) * size_of::<Context>() as u64 + size_of::<Frame>() as u64
}
