//! The scheduler: one run queue for all vCPUs, round robin, preemptive.
//!
//! ```text
//!   spawn ──▶ ready ──pick──▶ running ──exit──▶ free
//!               ▲                │  │
//!               └─tick, yield────┘  └─join──▶ waiting (until every other thread has ended) ──▶ ready
//! ```
//!
//! A thread that is preempted continues on whichever vCPU picks it next, unless it is pinned. The queue
//! is a bit per thread: ring 0 may be emulated at 0.6 µs per instruction, so a switch must be short.

use crate::context;
use crate::layout::{MAX_THREADS, MAX_VCPUS};
use crate::lock::SpinLock;
use crate::segments;
use crate::vcpu;

/// Any vCPU, in [`spawn`].
pub const ANY_VCPU: u64 = u64::MAX;

// A bit for each.
const _: () = assert!(MAX_THREADS == 64);

struct RunQueue {
    /// Threads that could run now.
    ready: u64,
    /// Threads that exist.
    live: u64,
    /// Threads that wait for all others to end: at most one, the main thread.
    waiting: u64,
    /// Threads that run on one vCPU only.
    pinned: u64,
    /// Which of `pinned` belong to which vCPU.
    own: [u64; MAX_VCPUS],
    /// The thread that was picked last.
    last: u32,
    threads_in_ring_0: bool,
}

static QUEUE: SpinLock<RunQueue> = SpinLock::new(RunQueue {
    ready: 0,
    live: 0,
    waiting: 0,
    pinned: 0,
    own: [0; MAX_VCPUS],
    last: 0,
    threads_in_ring_0: false,
});

impl RunQueue {
    /// Takes the next thread for this vCPU, in turn.
    fn pick(&mut self, vcpu: u64) -> Option<u64> {
        let own = usize::try_from(vcpu)
            .ok()
            .and_then(|vcpu| self.own.get(vcpu))
            .copied();
        let candidates = self.ready & (!self.pinned | own.unwrap_or(0));
        if candidates == 0 {
            return None;
        }
        let first = self.last + 1;
        let distance = candidates.rotate_right(first).trailing_zeros();
        self.last = (first + distance) % u64::BITS;
        self.ready &= !(1 << self.last);
        Some(u64::from(self.last))
    }

    /// Makes `next` the thread of this vCPU; answers with its frame.
    fn switch_to(&mut self, vcpu: u64, next: u64) -> u64 {
        // SAFETY: `pick` has just taken it, so it runs nowhere, and the queue is locked.
        let Some(context) = (unsafe { context::of_thread(next) }) else {
            return 0;
        };
        context.restore_xmm();
        segments::set_trap_stack(vcpu, context.trap_stack());
        vcpu::set_current(next);
        (&raw const context.frame) as u64
    }

    /// Saves what the kernel has not touched so far of the running thread.
    fn save_rest(&mut self, thread: u64) {
        // SAFETY: the thread ran on this vCPU until now, and is in no queue yet.
        if let Some(context) = unsafe { context::of_thread(thread) } {
            context.save_xmm();
        }
    }

    /// Runs the next thread, or idles.
    fn run_next(&mut self, vcpu: u64) -> Next {
        match self.pick(vcpu) {
            Some(next) => Next::Frame(self.switch_to(vcpu, next)),
            None => {
                segments::set_trap_stack(vcpu, context::idle_trap_stack(vcpu));
                vcpu::set_current(vcpu::IDLE);
                Next::Idle
            }
        }
    }
}

/// What a vCPU does after a trap.
pub enum Next {
    /// Goes on with the frame that it came with.
    Same,
    /// Resumes the frame at this address.
    Frame(u64),
    /// Waits for an interrupt.
    Idle,
}

/// Chooses the ring of all threads. Before the first [`spawn`].
pub fn set_up(threads_in_ring_0: bool) {
    QUEUE.lock().threads_in_ring_0 = threads_in_ring_0;
}

/// Makes a thread; it may start at once on another vCPU. `None`: no room for one more.
pub fn spawn(entry: u64, arguments: [u64; 3], vcpu: u64) -> Option<u64> {
    let mut queue = QUEUE.lock();
    let free = queue.live.trailing_ones();
    let bit = 1u64.checked_shl(free)?;
    let thread = u64::from(free);
    if vcpu == ANY_VCPU {
        queue.pinned &= !bit;
    } else {
        queue.pinned |= bit;
        for (number, own) in (0u64..).zip(&mut queue.own) {
            *own = if number == vcpu {
                *own | bit
            } else {
                *own & !bit
            };
        }
    }
    let in_ring_0 = queue.threads_in_ring_0;
    // SAFETY: the thread does not exist yet, and the queue is locked.
    unsafe { context::of_thread(thread) }?.start(thread, entry, arguments, in_ring_0);
    queue.live |= bit;
    queue.ready |= bit;
    Some(thread)
}

/// The running thread's time is over, or it gives way: the next one's turn, if there is one.
pub fn give_way() -> Next {
    let vcpu = vcpu::index();
    let current = vcpu::current();
    let mut queue = QUEUE.lock();
    if current == vcpu::IDLE {
        return queue.run_next(vcpu);
    }
    let Some(next) = queue.pick(vcpu) else {
        return Next::Same;
    };
    queue.save_rest(current);
    queue.ready |= 1 << current;
    Next::Frame(queue.switch_to(vcpu, next))
}

/// How many threads there are.
pub fn live() -> u64 {
    u64::from(QUEUE.lock().live.count_ones())
}

/// The running thread ends.
pub fn exit() -> Next {
    let current = vcpu::current();
    let mut queue = QUEUE.lock();
    queue.live &= !(1 << current);
    if queue.live == queue.waiting {
        queue.ready |= queue.waiting;
        queue.waiting = 0;
    }
    queue.run_next(vcpu::index())
}

/// The running thread waits until it is the only one.
pub fn join() -> Next {
    let current = vcpu::current();
    let mut queue = QUEUE.lock();
    if queue.live == 1 << current {
        return Next::Same;
    }
    queue.save_rest(current);
    queue.waiting |= 1 << current;
    queue.run_next(vcpu::index())
}
