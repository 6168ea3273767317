//! The exit status of `vmm`: the guest's own, or one of these.
//!
//! | status | meaning |
//! |---|---|
//! | 0..=98 | the status that the guest wrote to its exit port (`run`); 0 is success everywhere |
//! | 99 | the guest's status was 99 or more |
//! | 100 | usage or bad input: options, files, addresses |
//! | 101 | no KVM, or KVM lacks something that is needed |
//! | 102 | the guest crashed: triple fault, or KVM could not continue with it; or (`attach`) its VMM was killed by a signal |
//! | 103 | `--timeout` passed |
//! | 104 | interrupted by SIGINT, SIGTERM or SIGHUP; everything was finished cleanly |
//! | 105 | tracing failed |
//! | 106 | output could not be written |
//! | 107 | the guest's kernel panicked |
//! | 108 | a bug in `vmm`: what stderr says belongs into a report |
//! | 109 | a thread of `vmm` made a system call that is not on its list: what stderr says belongs into a report |
//!
//! A guest that switches the machine off or resets it ends `run` with 0.
//!
//! `vmm doctor` ends with 0 when the host can do everything that is needed, else with 1; `vmm diff` with 1 when a condition
//! of its `--fail-if` holds.

use std::process::ExitCode;

/// Largest guest status that is passed on as it is.
const GUEST_MAX: u8 = 98;

/// How `vmm` ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// All went well.
    Success,
    /// What the guest wrote to its exit port.
    Guest(u8),
    /// A check said no (`vmm doctor`, `vmm diff`).
    CheckFailed,
    /// Usage or bad input.
    BadInput,
    /// No KVM, or not enough of it.
    NoKvm,
    /// The guest crashed, or its VMM was killed.
    GuestCrashed,
    /// `--timeout` passed.
    TimedOut,
    /// SIGINT, SIGTERM or SIGHUP.
    Interrupted,
    /// Tracing failed.
    TracingFailed,
    /// Output could not be written.
    OutputFailed,
    /// The guest's kernel panicked.
    GuestPanicked,
    /// We panicked ourselves.
    Bug,
    /// A thread of ours asked the system for what it may not have.
    Confined,
}

impl ExitStatus {
    /// The number for the shell.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Guest(status) => status.min(GUEST_MAX + 1),
            Self::CheckFailed => 1,
            Self::BadInput => 100,
            Self::NoKvm => 101,
            Self::GuestCrashed => 102,
            Self::TimedOut => 103,
            Self::Interrupted => 104,
            Self::TracingFailed => 105,
            Self::OutputFailed => 106,
            Self::GuestPanicked => 107,
            Self::Bug => 108,
            Self::Confined => 109,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}

#[cfg(test)]
mod tests {
    use super::ExitStatus;

    #[test]
    fn guest_statuses_never_look_like_ours() {
        assert_eq!(ExitStatus::Guest(0).code(), 0);
        assert_eq!(ExitStatus::Guest(98).code(), 98);
        assert_eq!(ExitStatus::Guest(99).code(), 99);
        assert_eq!(ExitStatus::Guest(102).code(), 99);
    }
}
