//! Requests of KVM (linux/kvm.h), as the ioctl system call takes them.

use kvm_bindings::{
    KVMIO, kvm_cpuid2, kvm_device_attr, kvm_msrs, kvm_regs, kvm_sregs, kvm_userspace_memory_region,
};
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

use super::shapes::ClearLog;

const fn kvm(direction: u32, number: u32, bytes: usize) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "structures are small")]
    let bytes = bytes as u32;
    ioctl_expr(direction, KVMIO, number, bytes)
}

pub const RUN: u64 = kvm(_IOC_NONE, 0x80, 0);
pub const GET_REGS: u64 = kvm(_IOC_READ, 0x81, size_of::<kvm_regs>());
pub const GET_SREGS: u64 = kvm(_IOC_READ, 0x83, size_of::<kvm_sregs>());
pub const GET_MSRS: u64 = kvm(_IOC_READ | _IOC_WRITE, 0x88, size_of::<kvm_msrs>());
pub const GET_CPUID2: u64 = kvm(_IOC_READ | _IOC_WRITE, 0x91, size_of::<kvm_cpuid2>());
pub const GET_TSC_KHZ: u64 = kvm(_IOC_NONE, 0xa3, 0);
pub const GET_DEVICE_ATTR: u64 = kvm(_IOC_WRITE, 0xe2, size_of::<kvm_device_attr>());
pub const SET_MEMORY: u64 = kvm(_IOC_WRITE, 0x46, size_of::<kvm_userspace_memory_region>());
pub const CLEAR_LOG: u64 = kvm(_IOC_READ | _IOC_WRITE, 0xc0, size_of::<ClearLog>());
