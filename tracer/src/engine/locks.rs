//! Switching the guest's lock prefixes.

use super::plan::{Plan, Step};
use super::{ApplyError, Engine};
use crate::patch::locks::{LockPrefixes, switches};
use crate::target::StoppedTarget;

/// Why the lock prefixes were left as they are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// The image lists none.
    #[error("the image lists no lock prefixes (.smp_locks) for us to switch")]
    NoList,
    /// Unlocked instructions of two vCPUs lose updates.
    #[error(
        "lock prefixes stay on: the machine has {vcpus} vCPUs, and unlocked instructions are safe on one only"
    )]
    SeveralVcpus {
        /// How many.
        vcpus: usize,
    },
    /// One could not be switched; all were taken back.
    #[error("the lock prefixes are as before: {0}")]
    Apply(#[from] ApplyError),
}

impl Engine {
    /// What stands in front of the listed instructions now, and how many there are.
    #[must_use]
    pub fn locks(&self) -> (LockPrefixes, usize) {
        (self.locks, self.image().locks.len())
    }

    /// Switches all listed lock prefixes of a machine that has `vcpus` vCPUs, started or not. Says how
    /// many were switched.
    ///
    /// # Errors
    /// A [`LockError`]; then nothing was changed.
    pub fn switch_locks(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        to: LockPrefixes,
        vcpus: usize,
    ) -> Result<usize, LockError> {
        if self.image.locks.is_empty() {
            return Err(LockError::NoList);
        }
        if to == LockPrefixes::Off && vcpus > 1 {
            return Err(LockError::SeveralVcpus { vcpus });
        }
        if self.locks == to {
            return Ok(0);
        }
        let steps = switches(&self.image, self.locks, to).map(Step::Lock);
        let plan = Plan::whole(steps.collect());
        self.apply(target, &plan)?;
        self.locks = to;
        Ok(plan.steps.len())
    }
}
