//! A guest of another VMM as a run drives it: its end is the VMM's, and letting it go leaves nothing of ours.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use trace::export::uftrace::PauseSpread;
use tracer::guest::StopError;
use tracer::tracing::{Finished, Tracing};

use crate::black_box::Scratch;
use crate::control::status::VcpuStatus;
use crate::explain::explain;
use crate::failure::Failure;
use crate::foreign::{Foreign, LOOK, let_late_go};
use crate::memory::Memory;
use crate::outcome::Outcome;
use crate::provider::Provider;

impl Provider for Foreign {
    fn bell(&self) -> RawFd {
        self.process().as_fd().as_raw_fd()
    }

    /// Its VMM has ended: nothing else rings.
    fn see_to_event(&mut self, _: &mut Tracing) -> Option<Outcome> {
        let outcome = Outcome::of_ended(self.process());
        self.forget();
        Some(outcome)
    }

    fn let_late_go(&self) -> Option<Duration> {
        let_late_go().then_some(LOOK)
    }

    fn look(&mut self) -> Option<Outcome> {
        if !self.has_lost_kernel() {
            return None;
        }
        let pid = self.process().pid();
        log::warn!(
            "the guest of process {pid} was reset, or runs another kernel now: what was traced is gone"
        );
        Some(Outcome::Replaced)
    }

    fn kernel_looks(&self) -> Option<PauseSpread> {
        Self::kernel_looks(self)
    }

    /// What is traced is another kernel then, or the same one anew.
    fn lost_window(&mut self) -> Option<Outcome> {
        Some(Outcome::Replaced)
    }

    fn pause(&self) -> Result<bool, StopError> {
        if self.is_paused_by_user().get() {
            return Ok(false);
        }
        self.hold()?;
        self.is_paused_by_user().set(true);
        Ok(true)
    }

    fn resume(&self) -> bool {
        let was = self.is_paused_by_user().replace(false);
        if was {
            self.release();
        }
        was
    }

    fn state(&self) -> &'static str {
        match self.is_paused_by_user().get() {
            true => "paused",
            false => "running",
        }
    }

    fn vcpu_states(&self) -> Vec<VcpuStatus> {
        let of = |vcpu, state| VcpuStatus { vcpu, state };
        let found = self.vcpus().found().iter();
        let found = found.map(|vcpu| match vcpu.is_closed() {
            true => of(vcpu.number(), "closed".to_owned()),
            false => of(vcpu.number(), self.state().to_owned()),
        });
        let late = self.vcpus().late().into_iter();
        let late = late.map(|vcpu| of(vcpu.number(), format!("{}, not recorded", self.state())));
        found.chain(late).collect()
    }

    fn ram_bytes(&self) -> u64 {
        self.all_memory().memory().ram().bytes()
    }

    fn mapped(&self) -> &Memory {
        self.all_memory().memory().mapped()
    }

    /// They are looked at in the pauses that [`Self::look`] makes: no vCPU leaves the guest by itself for us.
    fn nudge_for_clocks(&self) {}

    /// Its console is its VMM's.
    fn console_input(&self, _: &[u8]) {}

    fn finish(
        &mut self,
        tracing: &mut Tracing,
        last: Option<&Scratch>,
    ) -> Result<Finished, Failure> {
        self.resume();
        let mut left = match self.is_gone() {
            true => Ok(()),
            false => self.let_go(tracing),
        };
        if left.is_err() && self.process().is_ending() {
            // There is nobody left to be given anything; that it is so is told by who has attached.
            self.forget();
            left = Ok(());
        }
        let finished = tracing.finish(self, last);
        left?;
        let removed = match self.window_is_free() {
            true => self.leave().map_err(Failure::tracing),
            false => Ok(()),
        };
        let finished = finished?;
        removed.map(|()| finished)
    }
}

impl Foreign {
    /// Gives the guest its text back, and takes the window out of its page tables.
    fn let_go(&self, tracing: &mut Tracing) -> Result<(), Failure> {
        // Until it is known that nothing leads there.
        self.set_window_free(false);
        let left = tracing.leave(self, self.is_replaced()).map_err(|error| {
            let why = explain(&error);
            Failure::tracing(format!(
                "the guest runs on, but keeps what was changed in it: {why}"
            ))
        });
        let inside = left?;
        self.set_window_free(inside.is_nobody());
        if !inside.is_nobody() {
            log::warn!(
                "the guest's text is its own again, but {inside} still lead to stubs: the tracing memory stays in the guest, \
                 which nothing else leads to"
            );
        }
        Ok(())
    }
}
