//! Switching the guest's lock prefixes.

use super::{Engine, Frozen};
use crate::patch::locks::{LockPrefixes, pokes};
use crate::patch::poke::{self, TransactionError};
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
    /// A poke failed; all were taken back.
    #[error("the lock prefixes are as before: {0}")]
    Transaction(#[from] TransactionError),
    /// Patching is frozen.
    #[error("patching is frozen: {0}")]
    Frozen(Frozen),
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
        if let Some(frozen) = &self.frozen {
            return Err(LockError::Frozen(frozen.clone()));
        }
        if self.image.locks.is_empty() {
            return Err(LockError::NoList);
        }
        if to == LockPrefixes::Off && vcpus > 1 {
            return Err(LockError::SeveralVcpus { vcpus });
        }
        if self.locks == to {
            return Ok(0);
        }
        let pokes = pokes(&self.image, self.locks, to);
        if let Err(error) = poke::apply(target, &self.image, &pokes) {
            if let Some(stuck) = error.stuck.first() {
                self.frozen = Some(Frozen(stuck.clone().into()));
            }
            return Err(error.into());
        }
        self.locks = to;
        Ok(pokes.len())
    }
}
