//! What a vCPU's time-stamp counter is ahead of the host's: KVM keeps it, and lets it be set to the tick. Writing
//! `IA32_TSC` would not do: KVM takes values that are close to each other for an attempt to set vCPUs alike.
// UNSAFETY: two requests that kvm-ioctls has for other architectures only.

use kvm_bindings::{KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVMIO, kvm_device_attr};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::{ioctl_with_mut_ref, ioctl_with_ref};
use vmm_sys_util::ioctl_iow_nr;

ioctl_iow_nr!(KVM_SET_DEVICE_ATTR, KVMIO, 0xe1, kvm_device_attr);
ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);

fn attribute(offset: *mut u64) -> kvm_device_attr {
    kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: KVM_VCPU_TSC_OFFSET.into(),
        addr: offset as u64,
        ..Default::default()
    }
}

/// What the vCPU's counter is ahead of the host's.
///
/// # Errors
/// What KVM says that has no such thing.
pub(crate) fn offset(vcpu: &VcpuFd) -> Result<u64, kvm_ioctls::Error> {
    let mut offset = 0;
    let mut attribute = attribute(&raw mut offset);
    // SAFETY: KVM writes one word, to `offset`, which lives until the call is over.
    let failed = unsafe { ioctl_with_mut_ref(vcpu, KVM_GET_DEVICE_ATTR(), &mut attribute) };
    match failed {
        0 => Ok(offset),
        _ => Err(kvm_ioctls::Error::last()),
    }
}

/// Sets the counter back by so many ticks. It is what it is: the guest may have set it.
///
/// # Errors
/// As [`offset`].
pub(crate) fn set_back(vcpu: &VcpuFd, ticks: u64) -> Result<(), kvm_ioctls::Error> {
    set_offset(vcpu, offset(vcpu)?.wrapping_sub(ticks))
}

/// Sets that.
///
/// # Errors
/// As [`offset`].
pub(crate) fn set_offset(vcpu: &VcpuFd, mut offset: u64) -> Result<(), kvm_ioctls::Error> {
    let attribute = attribute(&raw mut offset);
    // SAFETY: KVM reads one word, from `offset`, which lives until the call is over.
    let failed = unsafe { ioctl_with_ref(vcpu, KVM_SET_DEVICE_ATTR(), &attribute) };
    match failed {
        0 => Ok(()),
        _ => Err(kvm_ioctls::Error::last()),
    }
}
