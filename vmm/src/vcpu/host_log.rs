//! When a vCPU's thread enters the guest, and when and why it is back: told by the thread itself, where nobody else knows.

use std::sync::Arc;

use kvm_ioctls::{VcpuExit, VcpuFd};
use rustix::thread::{gettid, sched_getcpu};
use terms::addr::Gva;
use trace::host::{ExitReason, HostStep, HostThread};
use tracer::host_events::HostEvents;

/// Of one vCPU.
#[derive(Debug)]
pub(super) struct HostLog {
    vcpu: u16,
    events: Arc<HostEvents>,
    /// Why it was back last.
    reason: ExitReason,
    /// Who knows what happens was told whose thread this is.
    is_named: bool,
}

impl HostLog {
    pub fn new(vcpu: u16, events: &Arc<HostEvents>) -> Self {
        Self {
            vcpu,
            events: Arc::clone(events),
            reason: ExitReason::Other,
            is_named: false,
        }
    }

    /// The thread enters the guest now.
    pub fn enters(&mut self, fd: &VcpuFd) {
        if !self.is_named {
            self.is_named = true;
            self.events.executed_by(this_thread(), self.vcpu);
        }
        if self.events.is_known() {
            return;
        }
        self.events.note(self.vcpu, HostStep::Entry(here(fd)));
    }

    /// It is back now.
    pub fn is_back(&mut self, exit: &Result<VcpuExit<'_>, kvm_ioctls::Error>) {
        if self.events.is_known() {
            return;
        }
        self.events.begin(self.vcpu);
        self.reason = reason(exit);
    }

    /// Where the guest was then can be asked now.
    pub fn tells(&self, fd: &VcpuFd) {
        if self.events.is_known() {
            return;
        }
        let step = HostStep::Exit(here(fd), self.reason);
        self.events.note(self.vcpu, step);
    }
}

/// The thread that asks, and where it and its vCPU are.
fn here(fd: &VcpuFd) -> HostThread {
    HostThread {
        rip: Gva(fd.get_regs().map_or(0, |registers| registers.rip)),
        tid: this_thread(),
        cpu: u16::try_from(sched_getcpu()).unwrap_or(u16::MAX),
    }
}

fn this_thread() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Why a vCPU came back.
fn reason(exit: &Result<VcpuExit<'_>, kvm_ioctls::Error>) -> ExitReason {
    match exit {
        Ok(VcpuExit::IoOut(..)) => ExitReason::PortWrite,
        Ok(VcpuExit::IoIn(..)) => ExitReason::PortRead,
        Ok(VcpuExit::MmioWrite(..)) => ExitReason::MmioWrite,
        Ok(VcpuExit::MmioRead(..)) => ExitReason::MmioRead,
        Ok(VcpuExit::Debug(_)) => ExitReason::Debug,
        Ok(VcpuExit::Shutdown) => ExitReason::Shutdown,
        Ok(VcpuExit::Intr) => ExitReason::Kicked,
        Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => ExitReason::Kicked,
        Ok(_) | Err(_) => ExitReason::Other,
    }
}
