//! A vCPU thread without KVM, for tests of what controls one: it parks as the real one does, or does
//! not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::gate::Gate;
use super::handle::VcpuHandle;
use super::mailbox::{Mailbox, Order, Shared, VcpuState};
use super::registers::FullRegisters;

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct FakeVcpu {
    number: u16,
    shared: Arc<Shared>,
    conduct: Arc<Conduct>,
    thread: Option<JoinHandle<()>>,
}

/// How it behaves.
#[derive(Debug)]
struct Conduct {
    obeys: AtomicBool,
    has_registers: AtomicBool,
    /// How often it is still met in a guest of the guest when it parks.
    nested: AtomicU32,
}

impl FakeVcpu {
    /// Starts to run.
    pub(crate) fn start(number: u16, gate: &Arc<Gate>) -> Self {
        let shared = Arc::new(Shared::new(Arc::clone(gate)));
        let conduct = Arc::new(Conduct {
            obeys: AtomicBool::new(true),
            has_registers: AtomicBool::new(true),
            nested: AtomicU32::new(0),
        });
        let (theirs, conducted) = (Arc::clone(&shared), Arc::clone(&conduct));
        let thread = std::thread::spawn(move || run(&theirs, &conducted));
        Self {
            number,
            shared,
            conduct,
            thread: Some(thread),
        }
    }

    /// Its controller's end.
    pub(crate) fn handle(&self) -> VcpuHandle {
        VcpuHandle::without_thread(self.number, Arc::clone(&self.shared))
    }

    /// Whether it parks when it is told to.
    pub(crate) fn obey(&self, obeys: bool) {
        self.conduct.obeys.store(obeys, Ordering::SeqCst);
    }

    /// From now on it parks without its registers.
    pub(crate) fn forget_registers(&self) {
        self.conduct.has_registers.store(false, Ordering::SeqCst);
    }

    /// So often it is in a guest of the guest when it parks.
    pub(crate) fn be_nested(&self, times: u32) {
        self.conduct.nested.store(times, Ordering::SeqCst);
    }

    /// It rests for a reason of its own.
    pub(crate) fn begin_rest(&self) {
        self.shared.lock().state = VcpuState::Waiting;
    }

    /// Its own reason is over.
    pub(crate) fn end_rest(&self) {
        self.shared.lock().goes_on();
    }

    /// Waits until it is in this state.
    pub(crate) fn wait_until(&self, state: VcpuState, patience: Duration) {
        let deadline = Instant::now() + patience;
        let ready = |mailbox: &Mailbox| mailbox.state == state;
        let mailbox = self.shared.wait(self.shared.lock(), deadline, ready);
        assert!(mailbox.is_some(), "vCPU {} is never {state:?}", self.number);
    }
}

impl Drop for FakeVcpu {
    fn drop(&mut self) {
        self.handle().stop();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()));
    }
}

fn run(shared: &Shared, conduct: &Conduct) {
    loop {
        match shared.order() {
            Order::Stop => return,
            Order::Hold if conduct.obeys.load(Ordering::SeqCst) => park(shared, conduct),
            Order::Run | Order::Hold => std::thread::yield_now(),
        }
    }
}

fn park(shared: &Shared, conduct: &Conduct) {
    let mut mailbox = shared.lock();
    mailbox.state = VcpuState::Parked;
    let left = |times: u32| times.checked_sub(1);
    let nested = &conduct.nested;
    let registers = FullRegisters {
        is_nested: nested
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, left)
            .is_ok(),
        ..FullRegisters::default()
    };
    let has_registers = conduct.has_registers.load(Ordering::SeqCst);
    mailbox.registers = has_registers.then_some(registers);
    shared.acknowledged.notify_all();
    loop {
        let seen = shared.gate.changes();
        if shared.order() != Order::Hold {
            break;
        }
        drop(mailbox);
        shared.gate.wait(seen);
        mailbox = shared.lock();
    }
    mailbox.goes_on();
    shared.acknowledged.notify_all();
}
