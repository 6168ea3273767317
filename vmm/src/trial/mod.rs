//! What this host's KVM does, found by trying: a few bytes of guest code in a tiny VM, the privilege level they run at,
//! and how that ended.

pub mod features;
mod run;
pub mod switching;
mod vm;

use std::time::Duration;

/// Longer than any trial takes, emulated or not.
const PATIENCE: Duration = Duration::from_secs(5);
/// The privilege level that code runs at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ring {
    Kernel,
    User,
}

/// What KVM is asked to watch for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    Nothing,
    /// `int3` leaves the guest.
    SoftwareBreakpoint,
    /// Executing the instruction that starts this far into the code leaves the guest.
    HardwareBreakpoint(u64),
    /// Every instruction leaves the guest.
    SingleStep,
}

/// One thing to try.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub(super) code: &'static [u8],
    pub(super) ring: Ring,
    /// What rcx holds at the start.
    pub(super) count: u64,
    pub(super) watch: Watch,
    /// What `MSR_TSC_AUX` is set to, if it is.
    pub(super) tsc_aux: Option<u64>,
    /// What the vCPU's TSC is set to, if it is.
    pub(super) tsc: Option<u64>,
    /// What the vCPU's TSC is set back by, whatever it is, if it is.
    pub(super) set_back: Option<u64>,
    /// Ask KVM to leave before it enters.
    pub(super) immediate_exit: bool,
}

impl Trial {
    /// `code` at privilege level `ring`, and nothing special.
    pub(super) fn of(code: &'static [u8], ring: Ring) -> Self {
        let watch = Watch::Nothing;
        Self {
            code,
            ring,
            count: 0,
            watch,
            tsc_aux: None,
            tsc: None,
            set_back: None,
            immediate_exit: false,
        }
    }

    /// `code` in ring 0 while KVM watches.
    pub(super) fn watched(code: &'static [u8], watch: Watch) -> Self {
        Self {
            watch,
            ..Self::of(code, Ring::Kernel)
        }
    }
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// The code reported this value.
    Reported(u64),
    /// What was watched for happened, this far into the code.
    Watched(u64),
    /// The code wrote to this port.
    PortWritten(u16),
    /// `KVM_RUN` was left by a signal or by `immediate_exit`.
    Interrupted,
    /// Something else; what KVM called it.
    Other(String),
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Reported(value) => write!(f, "it reported {value:#x}"),
            Self::Watched(offset) => write!(f, "stopped by KVM at offset {offset:#x}"),
            Self::PortWritten(port) => write!(f, "it wrote to port {port:#x}"),
            Self::Interrupted => write!(f, "KVM_RUN was interrupted"),
            Self::Other(what) => write!(f, "{what}"),
        }
    }
}

/// What came of a trial.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) ending: Ending,
    /// The frequency of the vCPU's TSC.
    pub(super) tsc_khz: u32,
    /// The vCPU's TSC as KVM reports it, before and after.
    pub(super) tsc: (u64, u64),
    /// Afterwards it was less than before it was set back.
    pub(super) is_set_back: bool,
}

/// Why a trial could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// KVM refused one step.
    #[error("KVM refused {step}: {source}")]
    Kvm {
        /// Which step.
        step: &'static str,
        /// What KVM said.
        #[source]
        source: kvm_ioctls::Error,
    },
    /// The memory or the thread of a tiny VM could not be had.
    #[error("no memory or no thread for a tiny VM: {0}")]
    System(String),
    /// The code did not get to its end.
    #[error("the code of a tiny VM ended early: {0}")]
    Ended(String),
    /// The vCPU did not come back.
    #[error("the vCPU of a tiny VM did not leave the guest within {PATIENCE:?}")]
    Hung,
}

impl TrialError {
    /// Names the step that KVM refused.
    pub(super) fn refused(step: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |source| Self::Kvm { step, source }
    }

    /// For what is not KVM's fault.
    pub(super) fn system(error: impl std::fmt::Display) -> Self {
        Self::System(error.to_string())
    }
}
