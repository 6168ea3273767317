//! The page that KVM shares with the thread of a vCPU (`struct kvm_run`, Documentation/virt/kvm/api.rst, 5), mapped here as
//! well: how its registers are read, and how it is told to leave the guest, without a call in its name.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use kvm_bindings::{
    KVM_EXIT_INTR, KVM_EXIT_IRQ_WINDOW_OPEN, KVM_EXIT_UNKNOWN, KVM_RUN_X86_GUEST_MODE,
    KVM_RUN_X86_SMM, KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS, kvm_regs, kvm_run, kvm_sregs,
};
use vm_memory::{Bytes, VolatileSlice};

use super::shapes::{General, System};
use crate::vcpu::FullRegisters;

/// What no instruction pointer is: not a canonical address.
const STALE: u64 = 0x8000_dead_beef_0000;
/// What KVM is to leave in the page at each exit.
const WANTED: u64 = (KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS) as u64;

/// Where things are in the page.
mod at {
    use super::{kvm_regs, kvm_run, kvm_sregs, offset_of};

    pub const IMMEDIATE_EXIT: usize = offset_of!(kvm_run, immediate_exit);
    pub const EXIT_REASON: usize = offset_of!(kvm_run, exit_reason);
    pub const FLAGS: usize = offset_of!(kvm_run, flags);
    pub const VALID: usize = offset_of!(kvm_run, kvm_valid_regs);
    pub const REGISTERS: usize = offset_of!(kvm_run, s);
    pub const SYSTEM: usize = REGISTERS + size_of::<kvm_regs>();
    pub const RIP: usize = REGISTERS + offset_of!(kvm_regs, rip);
    pub const END: usize = SYSTEM + size_of::<kvm_sregs>();
}

/// The page of one vCPU.
#[derive(Debug)]
pub struct RunPage {
    page: *mut u8,
    bytes: usize,
    vcpu: OwnedFd,
}

/// What was in the page before it was prepared for a pause.
#[derive(Debug, Clone, Copy)]
pub struct Prepared {
    valid: u64,
    rip: u64,
}

impl RunPage {
    /// The page of the vCPU with this descriptor.
    ///
    /// # Errors
    /// What mmap said.
    pub fn map(vcpu: OwnedFd) -> io::Result<Self> {
        let bytes = at::END.next_multiple_of(4096);
        // SAFETY: a new mapping at a place of the kernel's choice; it harms no other.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                vcpu.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            page: page.cast(),
            bytes,
            vcpu,
        })
    }

    /// The vCPU's descriptor, as we have it.
    pub fn descriptor(&self) -> RawFd {
        self.vcpu.as_raw_fd()
    }

    fn slice(&self) -> VolatileSlice<'_> {
        // SAFETY: the mapping is of that size and lives as long as `self`; it is accessed by volatile operations only.
        unsafe { VolatileSlice::new(self.page, self.bytes) }
    }

    fn read<T: vm_memory::ByteValued>(&self, at: usize) -> T {
        let read = self.slice().read_obj(at);
        read.unwrap_or_else(|_| unreachable!("all of it is in the page"))
    }

    fn write<T: vm_memory::ByteValued>(&self, at: usize, value: T) {
        let written = self.slice().write_obj(value, at);
        written.unwrap_or_else(|_| unreachable!("all of it is in the page"));
    }

    /// A pause begins: has KVM leave the registers here when the vCPU next leaves the guest.
    pub fn prepare(&self) -> Prepared {
        let before = Prepared {
            valid: self.read(at::VALID),
            rip: self.read(at::RIP),
        };
        self.write(at::RIP, STALE);
        self.write(at::VALID, before.valid | WANTED);
        before
    }

    /// The pause is over: what the VMM does not know of is taken out of its page.
    pub fn restore(&self, before: Prepared) {
        self.write(at::VALID, before.valid);
        if self.is_stale() {
            self.write(at::RIP, before.rip);
        }
    }

    /// Whether KVM has left no registers here since [`Self::prepare`].
    pub fn is_stale(&self) -> bool {
        self.read::<u64>(at::RIP) == STALE
    }

    /// The registers that KVM has left here.
    pub fn registers(&self) -> FullRegisters {
        FullRegisters {
            is_nested: self.is_nested(),
            general: self.read::<General>(at::REGISTERS).0,
            system: self.read::<System>(at::SYSTEM).0,
            kernel_gs_base: None,
        }
    }

    /// Whether the vCPU was in a guest of the guest when it left the guest last, or in its firmware's system management mode. Of
    /// the former KVM says nothing before 6.11.
    pub fn is_nested(&self) -> bool {
        u32::from(self.read::<u16>(at::FLAGS)) & (KVM_RUN_X86_GUEST_MODE | KVM_RUN_X86_SMM) != 0
    }

    /// Whether the vCPU left the guest last with nothing that is to be done for it before it continues.
    pub fn is_consistent(&self) -> bool {
        let reason: u32 = self.read(at::EXIT_REASON);
        [KVM_EXIT_INTR, KVM_EXIT_IRQ_WINDOW_OPEN, KVM_EXIT_UNKNOWN].contains(&reason)
    }

    /// Has the vCPU leave the guest as soon as what is half done is complete. Returns what the VMM had said of that.
    pub fn exit_immediately(&self, at_once: u8) -> u8 {
        let before = self.read(at::IMMEDIATE_EXIT);
        self.write(at::IMMEDIATE_EXIT, at_once);
        before
    }
}

impl Drop for RunPage {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`, and nobody has a slice of it any more.
        unsafe { libc::munmap(self.page.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn what_kvm_says_of_where_a_vcpu_was_is_told() {
        let file = memfd_create("run", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, at::END.next_multiple_of(4096) as u64).unwrap();
        let page = RunPage::map(file).unwrap();
        for (flags, is_nested) in [(0u16, false), (1, true), (2, false), (4, true)] {
            page.write(at::FLAGS, flags);
            assert_eq!(page.is_nested(), is_nested, "{flags}");
            assert_eq!(page.registers().is_nested, is_nested, "{flags}");
        }
    }
}
