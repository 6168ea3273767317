//! What a vCPU thread and its controller share: the order, and the mailbox where the thread says what
//! it is doing and takes requests while it is parked.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_regs, kvm_sregs};
use terms::addr::Gva;

use super::brief;
use super::gate::Gate;
use super::registers::FullRegisters;
use super::sync::{AtomicU8, AtomicU64, Condvar, Mutex, MutexGuard};
use tracer::clock::Sample;

/// What the controller wants of the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Run the guest.
    Run,
    /// Park, consistent.
    Hold,
    /// End.
    Stop,
}

/// What the thread is doing, as everybody may see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VcpuState {
    /// In the guest, or on the way in or out.
    Running,
    /// Out of the guest and consistent.
    Parked,
    /// At the attach breakpoint; parked until it is released from there.
    Trapped,
    /// Its guest has announced something; parked until that has been seen to.
    Announcing,
    /// Its guest has found a ring full; parked until the reader has been there.
    Waiting,
    /// Out of the guest for good: the guest has ended or crashed.
    Exited,
    /// The thread has ended.
    Stopped,
}

impl VcpuState {
    /// Whether the vCPU waits for more than an order.
    pub(super) fn waits(self) -> bool {
        matches!(self, Self::Trapped | Self::Announcing)
    }

    /// Whether the vCPU executes nothing and is consistent.
    #[must_use]
    pub fn is_out_of_guest(self) -> bool {
        self != Self::Running
    }
}

/// What a parked vCPU thread can be asked to do with its vCPU.
#[derive(Debug, Clone, Copy)]
pub enum Request {
    /// Set the general registers.
    SetGeneral(kvm_regs),
    /// Set the system registers.
    SetSystem(kvm_sregs),
    /// Arm one breakpoint, or none.
    SetBreakpoint(Option<Gva>),
    /// Execute one instruction each time that the vCPU is freed from the breakpoint: every
    /// instruction is then one. Replaces a breakpoint; [`Request::SetBreakpoint`] ends it.
    SingleStep,
    /// Read `IA32_KERNEL_GS_BASE` into the registers.
    ReadKernelGsBase,
    /// Read `IA32_LSTAR`: where system calls enter the kernel.
    ReadSyscallEntry,
    /// Read `IA32_TIME_STAMP_COUNTER` as KVM reports it, with the host's counter around it: the tightest of so many.
    ReadTsc(u32),
}

/// The answer to a [`Request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Done,
    /// Where system calls enter the kernel; 0 when it has not said so yet.
    SyscallEntry(Gva),
    /// The guest's counter, and the host's before and after.
    Tsc(Sample),
}

/// A request on its way through the mailbox.
#[derive(Debug, Default)]
pub(super) enum Pending {
    #[default]
    None,
    Asked(Box<Request>),
    Answered(Result<Reply, kvm_ioctls::Error>),
}

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum NoReply {
    /// The vCPU is in the guest, or has ended.
    NotParked,
    /// Not in time.
    TimedOut,
    /// KVM refused.
    Refused(kvm_ioctls::Error),
}

/// What a thread does while it rests.
pub(super) trait Resting {
    /// Does what is asked, and says in the mailbox that it has.
    fn serve(&mut self, mailbox: &mut Mailbox, request: Request);
    /// Whether what it rests for is over.
    fn may_go(&self, mailbox: &Mailbox) -> bool;
}

/// The part under the lock.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) state: VcpuState,
    /// Valid while the vCPU is out of the guest.
    pub(super) registers: Option<FullRegisters>,
    pub(super) pending: Pending,
    /// The last pass that the thread has made.
    pub(super) passed: u64,
    /// When the pass was asked for that is yet to be made.
    pub(super) asked: Option<Instant>,
    /// From asking for a pass until it was made, all of them together.
    pub(super) away: Duration,
    /// When the thread went on its way into the guest after it was released last; none before it has.
    pub(super) resumed: Option<Instant>,
}

impl Mailbox {
    /// The thread goes on its way into the guest.
    pub(super) fn goes_on(&mut self) {
        self.state = VcpuState::Running;
        self.registers = None;
        // Of the last pause; it may have rested for another reason since.
        self.resumed.get_or_insert_with(Instant::now);
    }
}

/// The shared state of one vCPU.
#[derive(Debug)]
pub(super) struct Shared {
    order: AtomicU8,
    /// The number of the pass that the thread is to make: out of the guest, over a serialising point, and
    /// on.
    pass: AtomicU64,
    mailbox: Mutex<Mailbox>,
    /// The thread has changed the mailbox.
    pub(super) acknowledged: Condvar,
    /// Where the thread waits for a new order or a request.
    pub(super) gate: Arc<Gate>,
}

impl Shared {
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        let mailbox = Mailbox {
            state: VcpuState::Running,
            registers: None,
            pending: Pending::None,
            passed: 0,
            asked: None,
            away: Duration::ZERO,
            resumed: None,
        };
        Self {
            order: AtomicU8::new(Order::Run as u8),
            pass: AtomicU64::new(0),
            mailbox: Mutex::new(mailbox),
            acknowledged: Condvar::new(),
            gate,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn order(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            order if order == Order::Run as u8 => Order::Run,
            order if order == Order::Hold as u8 => Order::Hold,
            _ => Order::Stop,
        }
    }

    /// Whether the thread is to leave the guest, or what it does for the guest: for an order, or for a
    /// pass after `passed`.
    pub(super) fn is_wanted(&self, passed: u64) -> bool {
        self.order() != Order::Run || self.wanted_pass() != passed
    }

    /// The number of the pass that is wanted.
    pub(super) fn wanted_pass(&self) -> u64 {
        self.pass.load(Ordering::Acquire)
    }

    /// Wants one more pass; its number.
    pub(super) fn want_pass(&self) -> u64 {
        self.pass.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Changes the order, with the mailbox locked by the caller. A vCPU that was told to stop stays
    /// so. Parked threads see it when the gate opens.
    pub(super) fn give(&self, _seat: &mut MutexGuard<'_, Mailbox>, order: Order) {
        if self.order() != Order::Stop {
            self.order.store(order as u8, Ordering::Release);
        }
    }

    /// The thread's rest: until it may go and is to run; then it has the mailbox. `None`: it is to end.
    pub(super) fn rest<'a>(
        &'a self,
        mut mailbox: MutexGuard<'a, Mailbox>,
        thread: &mut impl Resting,
    ) -> Option<MutexGuard<'a, Mailbox>> {
        loop {
            // Before the look: what comes after it opens the gate.
            let seen = self.gate.changes();
            if let Pending::Asked(request) = &mailbox.pending {
                let request = **request;
                thread.serve(&mut mailbox, request);
                self.acknowledged.notify_all();
                continue;
            }
            match self.order() {
                Order::Stop => return None,
                Order::Run if thread.may_go(&mailbox) => return Some(mailbox),
                Order::Run | Order::Hold => {}
            }
            drop(mailbox);
            self.gate.wait(seen);
            mailbox = self.lock();
        }
    }

    /// Has the thread do `request`, which must rest.
    pub(super) fn ask(&self, request: Request, deadline: Instant) -> Result<Reply, NoReply> {
        let mut mailbox = self.lock();
        if !mailbox.state.is_out_of_guest() || mailbox.state == VcpuState::Stopped {
            return Err(NoReply::NotParked);
        }
        mailbox.pending = Pending::Asked(Box::new(request));
        self.gate.open();
        let answered = |mailbox: &Mailbox| matches!(mailbox.pending, Pending::Answered(_));
        let Some(mut mailbox) = self.wait(mailbox, deadline, answered) else {
            // A late answer must not be taken for that of the next request.
            self.lock().pending = Pending::None;
            return Err(NoReply::TimedOut);
        };
        match std::mem::take(&mut mailbox.pending) {
            Pending::Answered(reply) => reply.map_err(NoReply::Refused),
            Pending::None | Pending::Asked(_) => Err(NoReply::TimedOut),
        }
    }

    /// Waits for the thread until `ready` holds; `None` when `deadline` passes first.
    pub(super) fn wait<'a>(
        &'a self,
        mut mailbox: MutexGuard<'a, Mailbox>,
        deadline: Instant,
        ready: impl Fn(&Mailbox) -> bool,
    ) -> Option<MutexGuard<'a, Mailbox>> {
        if !ready(&mailbox) {
            drop(mailbox);
            brief::wait(|| ready(&self.lock()));
            mailbox = self.lock();
        }
        while !ready(&mailbox) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.acknowledged.wait_timeout(mailbox, left);
            mailbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(mailbox)
    }
}
