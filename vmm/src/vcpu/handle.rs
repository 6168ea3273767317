//! The controller's end of a vCPU: start, hold, release, ask, stop.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::confine::{self, Role};

use super::cpu_time::CpuTime;
use super::kick;
use super::mailbox::{Mailbox, NoReply, Order, Reply, Request, Shared, VcpuState};
use super::registers::FullRegisters;
use super::thread::Vcpu;

/// Why a parked vCPU did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AskVcpuError {
    /// It is in the guest.
    #[error("vCPU {vcpu} is running; it can be asked only while it is paused")]
    NotParked {
        /// Which vCPU.
        vcpu: u16,
    },
    /// No answer in time.
    #[error("vCPU {vcpu} did not answer {request} in time")]
    TimedOut {
        /// Which vCPU.
        vcpu: u16,
        /// What was asked.
        request: String,
    },
    /// KVM refused.
    #[error("vCPU {vcpu}: KVM refused {request}: {source}")]
    Refused {
        /// Which vCPU.
        vcpu: u16,
        /// What was asked.
        request: String,
        /// What KVM said.
        #[source]
        source: kvm_ioctls::Error,
    },
}

/// One vCPU thread as its controller sees it.
#[derive(Debug)]
pub struct VcpuHandle {
    number: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl VcpuHandle {
    /// Starts the thread of `vcpu`; it enters the guest at once.
    pub(super) fn start(vcpu: Vcpu, number: u16, shared: Arc<Shared>) -> std::io::Result<Self> {
        let thread = std::thread::Builder::new()
            .name(format!("{}{number}", Role::Vcpu.name()))
            .spawn(move || {
                confine::enter(Role::Vcpu);
                vcpu.run();
            })?;
        Ok(Self {
            number,
            shared,
            thread: Some(thread),
        })
    }

    /// Of a vCPU whose thread is not ours to start, to kick or to join.
    #[cfg(test)]
    pub(super) fn without_thread(number: u16, shared: Arc<Shared>) -> Self {
        Self {
            number,
            shared,
            thread: None,
        }
    }

    /// The vCPU's number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The CPU time of its thread.
    pub(crate) fn cpu_time(&self) -> Option<CpuTime> {
        self.thread.as_ref().and_then(CpuTime::of)
    }

    /// What the vCPU is doing.
    #[must_use]
    pub fn state(&self) -> VcpuState {
        self.shared.lock().state
    }

    /// Tells the thread to park. Does not wait.
    pub(crate) fn hold(&self) {
        self.order(Order::Hold);
    }

    /// Lets a parked thread run again when the gate opens. A trapped one stays until
    /// [`VcpuHandle::untrap`].
    pub(crate) fn release(&self) {
        let mut mailbox = self.shared.lock();
        // Who rests for another reason goes on when that is over: the pause is over for it now.
        mailbox.resumed = (mailbox.state != VcpuState::Parked).then(Instant::now);
        self.shared.give(&mut mailbox, Order::Run);
    }

    /// Frees a vCPU from the breakpoint; it runs when it is released.
    pub(crate) fn untrap(&self) {
        self.free_from(VcpuState::Trapped);
    }

    /// What the vCPU's guest has announced has been seen to. It tells us before it parks, so that may take
    /// a moment yet.
    pub(crate) fn acknowledge(&self, deadline: Instant) {
        self.wait_parked(deadline);
        self.free_from(VcpuState::Announcing);
    }

    fn free_from(&self, state: VcpuState) {
        let mut mailbox = self.shared.lock();
        if mailbox.state == state {
            mailbox.state = VcpuState::Parked;
        }
        drop(mailbox);
        self.shared.gate.open();
    }

    /// Waits until the vCPU is out of the guest. Says whether it is, at the deadline at the latest.
    pub(crate) fn wait_parked(&self, deadline: Instant) -> bool {
        let parked = |mailbox: &Mailbox| mailbox.state.is_out_of_guest();
        self.shared
            .wait(self.shared.lock(), deadline, parked)
            .is_some()
    }

    /// When the vCPU continued after `released`, waiting for it until `deadline`. `None` when it has
    /// not (yet), or has nowhere to continue at.
    pub(crate) fn resumed_after(&self, released: Instant, deadline: Instant) -> Option<Instant> {
        let since = |mailbox: &Mailbox| mailbox.resumed.filter(|resumed| *resumed >= released);
        let settled = |mailbox: &Mailbox| {
            let stays = !matches!(mailbox.state, VcpuState::Running | VcpuState::Parked);
            stays || since(mailbox).is_some()
        };
        let mailbox = self.shared.wait(self.shared.lock(), deadline, settled)?;
        since(&mailbox)
    }

    /// Has the vCPU pass a serialising point; does not wait. The number of the pass.
    pub(crate) fn ask_pass(&self) -> u64 {
        let wanted = self.shared.want_pass();
        let mut mailbox = self.shared.lock();
        let running = mailbox.state == VcpuState::Running;
        // It may have come by on its way since.
        let is_due = running && mailbox.passed < wanted;
        mailbox.asked = is_due.then(Instant::now);
        drop(mailbox);
        if running && let Some(thread) = &self.thread {
            kick::kick(thread);
        }
        wanted
    }

    /// Has the vCPU leave the guest for a moment, if it is there.
    pub(crate) fn nudge(&self) {
        let running = self.shared.lock().state == VcpuState::Running;
        if running && let Some(thread) = &self.thread {
            kick::kick(thread);
        }
    }

    /// Waits until that pass was made, or the vCPU is out of the guest anyway: it passes such a point
    /// before it enters again. False: not until `deadline`.
    pub(crate) fn wait_passed(&self, wanted: u64, deadline: Instant) -> bool {
        let passed =
            |mailbox: &Mailbox| mailbox.passed >= wanted || mailbox.state.is_out_of_guest();
        let waited = self.shared.wait(self.shared.lock(), deadline, passed);
        waited.is_some()
    }

    /// How long it took to make the passes that were asked for, all together: the guest has lost no more
    /// than that.
    pub(crate) fn away(&self) -> Duration {
        self.shared.lock().away
    }

    /// The registers of a vCPU that is out of the guest.
    pub(crate) fn registers(&self) -> Option<FullRegisters> {
        self.shared.lock().registers
    }

    /// Has the parked thread do `request`.
    ///
    /// # Errors
    /// [`AskVcpuError`] when it is not parked, does not answer or KVM refuses.
    pub(crate) fn ask(&self, request: Request, deadline: Instant) -> Result<Reply, AskVcpuError> {
        let vcpu = self.number;
        let what = || {
            format!("{request:?}")
                .split('(')
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        let reply = self.shared.ask(request, deadline);
        reply.map_err(|why| match why {
            NoReply::NotParked => AskVcpuError::NotParked { vcpu },
            NoReply::TimedOut => AskVcpuError::TimedOut {
                vcpu,
                request: what(),
            },
            NoReply::Refused(source) => AskVcpuError::Refused {
                vcpu,
                request: what(),
                source,
            },
        })
    }

    /// Tells the thread to end. Does not wait.
    pub(crate) fn stop(&self) {
        self.order(Order::Stop);
    }

    /// Waits for the thread to end. Says whether it did.
    pub(crate) fn join(&mut self, deadline: Instant) -> bool {
        let mailbox = self.shared.lock();
        let stopped = |mailbox: &Mailbox| mailbox.state == VcpuState::Stopped;
        let finished = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        if !finished && self.shared.wait(mailbox, deadline, stopped).is_none() {
            return false;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of vCPU {} panicked", self.number);
        }
        true
    }

    fn order(&self, order: Order) {
        let mut mailbox = self.shared.lock();
        self.shared.give(&mut mailbox, order);
        let running = mailbox.state == VcpuState::Running;
        drop(mailbox);
        if order == Order::Stop {
            self.shared.gate.open();
        }
        if running && let Some(thread) = &self.thread {
            kick::kick(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_the_console_is_wanted_for_passes_too() {
        let shared = Shared::new(Arc::default());
        assert!(!shared.is_wanted(0));
        let pass = shared.want_pass();
        assert!(shared.is_wanted(0) && !shared.is_wanted(pass));
        shared.give(&mut shared.lock(), Order::Hold);
        assert!(shared.is_wanted(pass));
    }
}
