//! The kernel of a guest of another VMM, as it is in the guest's memory.

use debuginfo::DebugInfo;
use tracer::guest::{Guest, StoppedGuest as _};
use tracer::target::StoppedTarget as _;
use tracer::tracing::Kernel;
use tracer::{FoundKernel, KernelMap};

use crate::failure::Failure;
use crate::foreign::Foreign;

/// What is found of it, which is read while it runs.
///
/// # Errors
/// [`Failure`] when there is none that can be read.
pub fn found(guest: &Foreign) -> Result<FoundKernel, Failure> {
    let map = map_of(guest)?;
    map.read(guest.memory()).map_err(Failure::bad_input)
}

/// The same, to be traced.
///
/// # Errors
/// As [`found`].
pub fn kernel(guest: &Foreign) -> Result<Kernel, Failure> {
    let found = found(guest)?;
    if let Some(why) = &found.no_sites {
        log::warn!("{why}");
    }
    let linux = found.image.linux.as_ref();
    let name = linux.map_or_else(|| "kernel".to_owned(), |linux| linux.version.clone());
    Ok(Kernel {
        image: found.image,
        debug: Some(DebugInfo::without_files()),
        name,
    })
}

/// Where the guest has its kernel. It is stopped for that.
///
/// # Errors
/// [`Failure`] when it cannot be stopped, or its page tables lead to none.
pub fn map_of(guest: &Foreign) -> Result<KernelMap, Failure> {
    let mut stopped = guest.stop().map_err(Failure::tracing)?;
    let entry = stopped.syscall_entry(0).map_err(Failure::tracing)?;
    let online = stopped.vcpus().iter().find(|vcpu| vcpu.online).copied();
    KernelMap::of(&stopped, &online.unwrap_or_default(), entry).map_err(Failure::bad_input)
}
