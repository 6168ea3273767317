//! How a run can end.

use std::time::Duration;

use crate::failure::Failure;

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
    /// Whether the guest died, so that its last calls may tell why.
    #[must_use]
    pub const fn is_death(&self) -> bool {
        matches!(
            self,
            Self::Crashed(_) | Self::Panicked(_) | Self::TimedOut { .. }
        )
    }
}
