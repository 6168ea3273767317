//! Model-specific registers of a vCPU, one at a time.

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

/// The time-stamp counter.
pub(super) const TSC: u32 = 0x10;
/// Where `syscall` goes.
pub(super) const LSTAR: u32 = 0xc000_0082;
/// The base of `gs` that `swapgs` brings.
pub(super) const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// What the vCPU has in the one of this number.
///
/// # Errors
/// What KVM says that does not have it.
pub(super) fn read(vcpu: &VcpuFd, index: u32) -> Result<u64, kvm_ioctls::Error> {
    let entry = kvm_msr_entry {
        index,
        ..Default::default()
    };
    let mut msrs =
        Msrs::from_entries(&[entry]).map_err(|_| kvm_ioctls::Error::new(libc::ENOMEM))?;
    match (vcpu.get_msrs(&mut msrs)?, msrs.as_slice().first()) {
        (1, Some(entry)) => Ok(entry.data),
        _ => Err(kvm_ioctls::Error::new(libc::ENXIO)),
    }
}
