//! What KVM's calls take (linux/kvm.h), as bytes that are copied to and from the VMM.

use kvm_bindings::{
    kvm_cpuid_entry2, kvm_device_attr, kvm_msr_entry, kvm_regs, kvm_sregs,
    kvm_userspace_memory_region,
};
use vm_memory::ByteValued;

/// Entries that KVM has of a vCPU's CPUID, at most (`KVM_MAX_CPUID_ENTRIES`).
pub const CPUID_ENTRIES: usize = 256;

/// `struct kvm_regs`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default)]
pub struct General(pub kvm_regs);

/// `struct kvm_sregs`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default)]
pub struct System(pub kvm_sregs);

/// `struct kvm_userspace_memory_region`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Slot(pub kvm_userspace_memory_region);

/// `struct kvm_clear_dirty_log`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ClearLog {
    /// The slot's number.
    pub slot: u32,
    /// How many pages.
    pub pages: u32,
    /// The first of them, in the slot.
    pub first_page: u64,
    /// Where a bit of each lies.
    pub bitmap: u64,
}

/// `struct kvm_msrs` with one entry.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct OneMsr {
    /// Entries.
    pub count: u32,
    /// Nothing.
    pub padding: u32,
    /// The entry.
    pub entry: kvm_msr_entry,
}

/// What `KVM_VCPU_TSC_OFFSET` is read with: the attribute, and after it what it is read to.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TscOffset {
    /// Which attribute.
    pub attribute: kvm_device_attr,
    /// Its value.
    pub offset: u64,
}

/// `struct kvm_cpuid2` with room for all entries.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Cpuid {
    /// Entries that there is room for; then those that there are.
    pub count: u32,
    /// Nothing.
    pub padding: u32,
    /// The entries.
    pub entries: [kvm_cpuid_entry2; CPUID_ENTRIES],
}

// SAFETY: of each: integers and arrays of them, of C layout, whose padding the bindings name as fields.
unsafe impl ByteValued for General {}
// SAFETY: as above.
unsafe impl ByteValued for System {}
// SAFETY: as above.
unsafe impl ByteValued for Slot {}
// SAFETY: as above.
unsafe impl ByteValued for ClearLog {}
// SAFETY: as above.
unsafe impl ByteValued for OneMsr {}
// SAFETY: as above.
unsafe impl ByteValued for TscOffset {}
// SAFETY: as above.
unsafe impl ByteValued for Cpuid {}
