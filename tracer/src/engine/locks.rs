//! Switching the guest's lock prefixes.

use image::Image;

use super::ApplyError;
use super::plan::{Plan, PlanStep, What};
use crate::points::locks::{LockPrefixes, switches};
use crate::text::sites::Sites;

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

/// Plans that all listed lock prefixes of a machine that has `vcpus` vCPUs, started or not, are what `to` says. Empty when
/// they are so.
pub(super) fn plan(
    image: &Image,
    sites: &mut Sites,
    to: LockPrefixes,
    vcpus: usize,
) -> Result<Plan, LockError> {
    if image.locks.is_empty() {
        return Err(LockError::NoList);
    }
    if to == LockPrefixes::Off && vcpus > 1 {
        return Err(LockError::SeveralVcpus { vcpus });
    }
    let steps = switches(image, sites, to).map(|edit| PlanStep::one(What::Lock, edit));
    Ok(Plan::whole(steps.collect()))
}
