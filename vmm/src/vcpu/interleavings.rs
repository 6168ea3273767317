//! Every way in which a vCPU's thread and its controller can meet at the gate and in the mailbox, one after the other (loom).
//! The code is that of the files itself, with a model of locks and atomics in the place of the system's. What waits for ever
//! in any of the ways is found as well.

use std::sync::Arc;
use std::time::{Duration, Instant};

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::registers;
use gate::Gate;
use mailbox::{Mailbox, Order, Pending, Reply, Request, Resting, Shared, VcpuState};
use sync::AtomicU64;

#[path = "gate.rs"]
#[expect(clippy::duplicate_mod, reason = "with a model of what it waits by")]
mod gate;
#[path = "mailbox.rs"]
#[expect(clippy::duplicate_mod, reason = "with a model of what it waits by")]
#[expect(dead_code, reason = "a model has no passes")]
mod mailbox;

mod sync {
    use loom::sync::atomic::Ordering;

    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

    /// Loads are additions of nothing: the model forgets a load of one thread when another thread loads the same, and then
    /// never tries the first one after a change of the other's. So stores read, too, which gives all of them an order.
    macro_rules! atomic {
        ($name:ident, $number:ty) => {
            #[derive(Debug)]
            pub(super) struct $name(loom::sync::atomic::$name);

            impl $name {
                pub(super) fn new(value: $number) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub(super) fn load(&self, _order: Ordering) -> $number {
                    self.0.fetch_add(0, Ordering::AcqRel)
                }

                pub(super) fn store(&self, value: $number, _order: Ordering) {
                    self.0.swap(value, Ordering::AcqRel);
                }
            }
        };
    }

    atomic!(AtomicU8, u8);
    atomic!(AtomicU64, u64);

    impl AtomicU64 {
        pub(super) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_add(value, order)
        }
    }
}

mod brief {
    /// Once: a model has no time.
    pub(super) fn wait(mut done: impl FnMut() -> bool) {
        let _ = done();
    }
}

/// How often one thread can be interrupted by another: errors need few (Musuvathi and Qadeer, PLDI 2007), and each more
/// multiplies the ways.
const PREEMPTIONS_MAX: usize = 2;

fn in_every_way(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(model);
}

#[test]
fn no_thread_misses_that_the_gate_opens() {
    in_every_way(|| {
        let gate = Arc::new(Gate::default());
        let work = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (gate, work) = (Arc::clone(&gate), Arc::clone(&work));
                thread::spawn(move || {
                    loop {
                        let seen = gate.changes();
                        if work.load(Ordering::Acquire) == 1 {
                            return;
                        }
                        gate.wait(seen);
                    }
                })
            })
            .collect();
        work.store(1, Ordering::Release);
        gate.open();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// A vCPU's thread, as far as its controller sees it.
struct Vcpu {
    shared: Shared,
    /// `immediate_exit` of KVM, which a kick sets, and the wait in `KVM_RUN`.
    is_kicked: AtomicBool,
    kick: Notify,
    is_in_guest: AtomicBool,
    served: AtomicU64,
}

struct AtRest<'a>(&'a Vcpu);

impl Resting for AtRest<'_> {
    fn serve(&mut self, mailbox: &mut Mailbox, _request: Request) {
        self.0.served.fetch_add(1, Ordering::Relaxed);
        mailbox.pending = Pending::Answered(Ok(Reply::Done));
    }

    fn may_go(&self, mailbox: &Mailbox) -> bool {
        !mailbox.state.waits()
    }
}

impl Vcpu {
    fn new() -> Self {
        Self {
            shared: Shared::new(Arc::new(Gate::default())),
            is_kicked: AtomicBool::new(false),
            kick: Notify::new(),
            is_in_guest: AtomicBool::new(false),
            served: AtomicU64::new(0),
        }
    }

    /// The steps of `thread.rs`: into the guest, out of it when kicked, and to rest when that is wanted.
    fn run(&self) {
        loop {
            self.is_kicked.swap(false, Ordering::AcqRel);
            if self.shared.order() == Order::Run {
                self.is_in_guest.store(true, Ordering::Relaxed);
                while !self.is_kicked.load(Ordering::Acquire) {
                    self.kick.wait();
                }
                self.is_in_guest.store(false, Ordering::Relaxed);
                continue;
            }
            let mut mailbox = self.shared.lock();
            mailbox.state = VcpuState::Parked;
            self.shared.acknowledged.notify_all();
            let Some(mut mailbox) = self.shared.rest(mailbox, &mut AtRest(self)) else {
                break;
            };
            mailbox.goes_on();
            drop(mailbox);
            self.shared.acknowledged.notify_all();
        }
        self.shared.lock().state = VcpuState::Stopped;
        self.shared.acknowledged.notify_all();
    }

    /// As `VcpuHandle` does.
    fn order(&self, order: Order) {
        let mut mailbox = self.shared.lock();
        self.shared.give(&mut mailbox, order);
        let is_running = mailbox.state == VcpuState::Running;
        drop(mailbox);
        if order == Order::Stop {
            self.shared.gate.open();
        }
        if is_running {
            self.is_kicked.swap(true, Ordering::AcqRel);
            self.kick.notify();
        }
    }

    fn wait(&self, ready: impl Fn(&Mailbox) -> bool) {
        let reached = self.shared.wait(self.shared.lock(), far(), ready);
        drop(reached.expect("a model has no time"));
    }
}

/// Later than any model ends.
fn far() -> Instant {
    Instant::now() + Duration::from_hours(1)
}

/// A vCPU whose thread has begun, anywhere, and what a controller does with it.
fn with_a_vcpu(controls: impl Fn(&Vcpu) + Sync + Send + 'static) {
    in_every_way(move || {
        let vcpu = Arc::new(Vcpu::new());
        let theirs = Arc::clone(&vcpu);
        let thread = thread::spawn(move || theirs.run());
        controls(&vcpu);
        vcpu.order(Order::Stop);
        vcpu.wait(|mailbox| mailbox.state == VcpuState::Stopped);
        thread.join().unwrap();
        assert!(!vcpu.is_in_guest.load(Ordering::Relaxed));
    });
}

#[test]
fn a_vcpu_that_is_held_is_out_of_the_guest_until_it_is_released() {
    with_a_vcpu(|vcpu| {
        vcpu.order(Order::Hold);
        vcpu.wait(|mailbox| mailbox.state.is_out_of_guest());
        assert!(!vcpu.is_in_guest.load(Ordering::Relaxed));
        // Whatever opens the gate meanwhile: others wait there, too.
        vcpu.shared.gate.open();
        assert!(!vcpu.is_in_guest.load(Ordering::Relaxed));
        vcpu.shared.give(&mut vcpu.shared.lock(), Order::Run);
        vcpu.shared.gate.open();
        vcpu.wait(|mailbox| mailbox.resumed.is_some());
    });
}

#[test]
fn who_is_asked_at_rest_answers_once_for_each_request() {
    with_a_vcpu(|vcpu| {
        let ask = || vcpu.shared.ask(Request::ReadSyscallEntry, far());
        // It is refused while it is in the guest, or on its way.
        let _ = ask().unwrap_err();
        vcpu.order(Order::Hold);
        vcpu.wait(|mailbox| mailbox.state.is_out_of_guest());
        for number in 1..=2 {
            assert_eq!(ask().unwrap(), Reply::Done);
            assert_eq!(vcpu.served.load(Ordering::Relaxed), number);
        }
    });
}

#[test]
fn who_is_told_to_stop_is_not_talked_into_going_on() {
    with_a_vcpu(|vcpu| {
        vcpu.order(Order::Stop);
        vcpu.order(Order::Run);
        assert_eq!(vcpu.shared.order(), Order::Stop);
    });
}
