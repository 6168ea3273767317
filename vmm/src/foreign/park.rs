//! All vCPUs of a guest out of it, consistent.
//!
//! Most threads are stopped as their vCPU leaves the guest, with nothing half done, and hold no lock of their VMM there. One
//! that stands elsewhere may hold a lock, or wait for one that another one holds, and what its vCPU did may be half
//! done. So **all of those are driven together** to their next entry into the guest, which they leave at once; one after
//! the other they would wait for each other. Where nothing is half done and nobody has to be driven (the VMM has
//! stopped its guest) they stay where they are.

use std::sync::Arc;
use std::time::Instant;

use super::error::ForeignError;
use super::held::Rest;
use super::vcpu::{ForeignVcpu, Parked, Stage};

/// Parks all vCPUs.
///
/// # Errors
/// [`ForeignError::Late`] names one that was not out in time, [`ForeignError::Ended`] one whose thread has ended; then all
/// of them continue.
pub(super) fn park(
    vcpus: &[Arc<ForeignVcpu>],
    deadline: Instant,
) -> Result<Vec<Parked>, ForeignError> {
    let parked: Result<Vec<_>, _> = vcpus.iter().map(ForeignVcpu::interrupt).collect();
    let mut parked = parked?;
    step_until(&mut parked, deadline, |stage| stage != Stage::Asked)?;
    let is_outside = |vcpu: &&mut Parked| vcpu.stage() == Stage::Outside;
    let may_stay = parked
        .iter_mut()
        .filter(is_outside)
        .all(|vcpu| vcpu.is_consistent() && vcpu.is_blocked());
    for vcpu in parked.iter_mut().filter(is_outside) {
        match may_stay {
            true => vcpu.stay(),
            false => vcpu.drive()?,
        }
    }
    step_until(&mut parked, deadline, |stage| stage == Stage::Parked)?;
    Ok(parked)
}

/// Returns when each of them is as far as `is_there` says.
fn step_until(
    vcpus: &mut [Parked],
    deadline: Instant,
    is_there: impl Fn(Stage) -> bool,
) -> Result<(), ForeignError> {
    let mut rest = Rest::until(deadline);
    loop {
        let mut missing = None;
        for vcpu in vcpus.iter_mut().filter(|vcpu| !is_there(vcpu.stage())) {
            vcpu.step()?;
            if !is_there(vcpu.stage()) {
                missing = Some(vcpu.thread());
            }
        }
        let Some(thread) = missing else { return Ok(()) };
        if !rest.a_moment() {
            let what = "its vCPU was to leave the guest";
            return Err(ForeignError::Late { thread, what });
        }
    }
}
