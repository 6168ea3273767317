//! How a run can end.

use std::time::Duration;

use crate::failure::Failure;
use crate::foreign::process::Process;

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// The guest wrote this status to its exit port.
    GuestExit(u8),
    /// The guest reset itself.
    Reset,
    /// The guest has switched the machine off.
    PowerOff,
    /// The guest could not continue.
    Crashed(String),
    /// The guest's kernel said that it cannot continue, on this vCPU.
    Panicked(u16),
    /// The time limit passed.
    TimedOut {
        /// What was given.
        limit: Duration,
        /// What the vCPUs executed then, as text.
        places: Option<String>,
    },
    /// Its VMM, which was another process than this, has ended.
    Vanished(i32),
    /// The same, killed by a signal.
    Killed {
        /// The process.
        pid: i32,
        /// The signal.
        signal: i32,
    },
    /// The kernel that was traced does not run any more: its guest, which another VMM runs, was reset, or runs another one.
    Replaced,
    /// The time to trace is over.
    Elapsed,
    /// A signal told us to stop.
    Interrupted,
    /// A control client told us to stop.
    Shutdown,
    /// The run could not continue.
    Failed(Failure),
}

impl Outcome {
    /// The VMM has ended that the guest is of, which is this process.
    #[must_use]
    pub fn of_ended(vmm: &Process) -> Self {
        let pid = vmm.pid();
        match vmm.killed_by() {
            Some(signal) => Self::Killed { pid, signal },
            None => Self::Vanished(pid),
        }
    }

    /// The same, unless the guest has ended by itself as if all were well, and this was asked for and not done. Who ends a
    /// run has asked for that.
    #[must_use]
    pub fn unless(self, not_done: Option<Failure>) -> Self {
        match (self, not_done) {
            (Self::GuestExit(0) | Self::Reset | Self::PowerOff, Some(failure)) => {
                Self::Failed(failure)
            }
            (outcome, _) => outcome,
        }
    }

    /// Whether the guest died, so that its last calls may tell why.
    #[must_use]
    pub const fn is_death(&self) -> bool {
        matches!(
            self,
            Self::Crashed(_) | Self::Panicked(_) | Self::TimedOut { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit_status::ExitStatus;

    #[test]
    fn a_guest_that_ends_well_is_no_success_where_nothing_was_traced() {
        let not_done = || Some(Failure::new(ExitStatus::TracingFailed, "not reached"));
        for well in [Outcome::GuestExit(0), Outcome::Reset, Outcome::PowerOff] {
            let failed = well.unless(not_done());
            assert!(
                matches!(&failed, Outcome::Failed(failure) if failure.status.code() == 105),
                "{failed:?}"
            );
        }
        assert!(matches!(
            Outcome::GuestExit(0).unless(None),
            Outcome::GuestExit(0)
        ));
        assert!(matches!(
            Outcome::GuestExit(3).unless(not_done()),
            Outcome::GuestExit(3)
        ));
        assert!(matches!(
            Outcome::Shutdown.unless(not_done()),
            Outcome::Shutdown
        ));
    }
}
