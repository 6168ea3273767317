//! The machine as a run drives it: what its vCPU threads report, and its end.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use terms::addr::Gva;
use tracer::guest::StopError;
use tracer::tracing::{Finished, Tracing};

use crate::black_box::Scratch;
use crate::control::status::VcpuStatus;
use crate::exit_status::ExitStatus;
use crate::explain::explain;
use crate::failure::Failure;
use crate::machine::{Machine, PATIENCE};
use crate::memory::Memory;
use crate::outcome::Outcome;
use crate::provider::Provider;
use crate::vcpu::{VcpuEvent, VcpuEventKind, VcpuHandle, VcpuState};

impl Provider for Machine {
    fn bell(&self) -> RawFd {
        self.events().bell().as_raw_fd()
    }

    fn see_to_event(&mut self, tracing: &mut Tracing) -> Option<Outcome> {
        let VcpuEvent { vcpu, kind } = self.events().next()?;
        Some(match kind {
            VcpuEventKind::GuestExit(status) => Outcome::GuestExit(status),
            VcpuEventKind::Reset => Outcome::Reset,
            VcpuEventKind::PowerOff => Outcome::PowerOff,
            VcpuEventKind::Crashed(details) => Outcome::Crashed(format!("vCPU {vcpu}: {details}")),
            VcpuEventKind::Panicked => {
                let message = format!("the thread of vCPU {vcpu} panicked");
                Outcome::Failed(Failure::new(ExitStatus::Bug, message))
            }
            VcpuEventKind::Breakpoint(at) => return self.at_breakpoint(tracing, at),
            VcpuEventKind::Unread(why) => {
                Outcome::Failed(Failure::output(format!("--on-full end: {why}")))
            }
            VcpuEventKind::Announcement => {
                tracing.announcement(self, vcpu);
                self.acknowledge(vcpu);
                return None;
            }
        })
    }

    /// Its vCPUs let themselves go.
    fn let_late_go(&self) -> Option<Duration> {
        None
    }

    /// Its end is told by its vCPUs.
    fn look(&mut self) -> Option<Outcome> {
        None
    }

    /// It goes on, untraced.
    fn lost_window(&mut self) -> Option<Outcome> {
        None
    }

    fn pause(&self) -> Result<bool, StopError> {
        Self::pause(self, PATIENCE)
    }

    fn resume(&self) -> bool {
        Self::resume(self)
    }

    fn state(&self) -> &'static str {
        guest_state(self.handles(), self.is_paused_by_user())
    }

    fn vcpu_states(&self) -> Vec<VcpuStatus> {
        let states = self.handles().iter().map(|vcpu| VcpuStatus {
            vcpu: vcpu.number(),
            state: vcpu_state(vcpu.state()).to_owned(),
        });
        states.collect()
    }

    fn ram_bytes(&self) -> u64 {
        self.memory().ram_bytes()
    }

    fn mapped(&self) -> &Memory {
        self.memory()
    }

    fn nudge_for_clocks(&self) {
        let vcpus = self.handles().iter();
        vcpus
            .filter(|vcpu| self.clocks().is_due(vcpu.number()))
            .for_each(VcpuHandle::nudge);
    }

    fn console_input(&self, bytes: &[u8]) {
        self.ports().console_input(bytes);
    }

    fn not_done(&self, tracing: &Tracing) -> Option<Failure> {
        let waits = self.breakpoint().is_some() && tracing.journal().is_none();
        waits.then(|| {
            Failure::new(
                ExitStatus::TracingFailed,
                "nothing was traced: the attach point was not reached; --attach-at names another one",
            )
        })
    }

    fn finish(
        &mut self,
        tracing: &mut Tracing,
        last: Option<&Scratch>,
    ) -> Result<Finished, Failure> {
        if let Some(at) = self.breakpoint() {
            let place = tracing.place(at);
            match tracing.journal() {
                None => log::warn!(
                    "the guest did not get to the attach point {place} in ring 0: tracing did not begin there"
                ),
                Some(_) => log::warn!(
                    "the guest did not get to {place}, where tracing would have followed its start"
                ),
            }
            if let Err(why) = tracing.check_place(self) {
                log::warn!("{}", explain(&why));
            }
        }
        let finished = tracing.finish(self, last);
        let late = self.stop(PATIENCE);
        if !late.is_empty() {
            log::error!("vCPU threads {late:?} did not end within {PATIENCE:?}");
        }
        Ok(finished?)
    }
}

impl Machine {
    /// Where tracing wants the guest trapped was reached. Other vCPUs may have reached it as well: the first one counts.
    fn at_breakpoint(&mut self, tracing: &mut Tracing, at: Gva) -> Option<Outcome> {
        let mut failed = None;
        if self.breakpoint() == Some(at) {
            failed = self.see_to_trap(tracing).err().map(Outcome::Failed);
        }
        self.leave_breakpoint();
        failed
    }

    fn see_to_trap(&mut self, tracing: &mut Tracing) -> Result<(), Failure> {
        // In this order: on some hosts the breakpoint stands in the text. The vCPU stays there.
        self.set_breakpoint(None).map_err(Failure::tracing)?;
        let next = tracing.reached(self)?;
        if next.is_some() {
            self.set_breakpoint(next).map_err(Failure::tracing)?;
        }
        Ok(())
    }
}

fn guest_state(vcpus: &[VcpuHandle], paused_by_user: bool) -> &'static str {
    let any = |wanted| vcpus.iter().any(|vcpu| vcpu.state() == wanted);
    if any(VcpuState::Exited) || any(VcpuState::Stopped) {
        "ended"
    } else if paused_by_user {
        "paused"
    } else if any(VcpuState::Trapped) {
        "trapped"
    } else {
        "running"
    }
}

fn vcpu_state(state: VcpuState) -> &'static str {
    match state {
        VcpuState::Running => "running",
        VcpuState::Parked | VcpuState::Announcing => "paused",
        VcpuState::Trapped => "trapped",
        VcpuState::Waiting => "waiting",
        VcpuState::Exited | VcpuState::Stopped => "ended",
    }
}
