//! What KVM is asked about a vCPU of another VMM, in the name of the thread that executes it.

use std::time::Instant;

use kvm_bindings::{
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, kvm_cpuid_entry2, kvm_device_attr, kvm_msr_entry,
};

use super::error::ForeignError;
use super::parked::Parked;
use super::requests;
use super::shapes::{CPUID_ENTRIES, Cpuid, General, OneMsr, System, TscOffset};
use crate::vcpu::FullRegisters;

impl Parked {
    /// Its registers, when it left the guest.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others, where KVM has to be asked.
    pub fn registers(&mut self, deadline: Instant) -> Result<FullRegisters, ForeignError> {
        if !self.vcpu().page().is_stale() {
            return Ok(self.vcpu().page().registers());
        }
        match self.vcpu().own_descriptor() {
            // Nothing of it executes any more.
            Err(ForeignError::Closed { .. }) => return Ok(FullRegisters::default()),
            descriptor => descriptor?,
        };
        // It did not leave the guest for us: the VMM had stopped it already.
        let general = self.ask(
            "KVM_GET_REGS",
            requests::GET_REGS,
            General::default(),
            deadline,
        )?;
        let system = self.ask(
            "KVM_GET_SREGS",
            requests::GET_SREGS,
            System::default(),
            deadline,
        )?;
        Ok(FullRegisters {
            is_nested: self.vcpu().page().is_nested(),
            general: general.0,
            system: system.0,
            kernel_gs_base: None,
        })
    }

    /// A model-specific register.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn msr(&mut self, index: u32, deadline: Instant) -> Result<u64, ForeignError> {
        let asked = OneMsr {
            count: 1,
            padding: 0,
            entry: kvm_msr_entry {
                index,
                ..kvm_msr_entry::default()
            },
        };
        let told = self.ask("KVM_GET_MSRS", requests::GET_MSRS, asked, deadline)?;
        Ok(told.entry.data)
    }

    /// How far the vCPU's counter is ahead of the host's.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn tsc_offset(&mut self, deadline: Instant) -> Result<u64, ForeignError> {
        let value = std::mem::offset_of!(TscOffset, offset) as u64;
        let asked = TscOffset {
            attribute: kvm_device_attr {
                flags: 0,
                group: KVM_VCPU_TSC_CTRL,
                attr: KVM_VCPU_TSC_OFFSET.into(),
                addr: self.scratch()?.wrapping_add(value),
            },
            offset: 0,
        };
        let call = "KVM_GET_DEVICE_ATTR";
        let told = self.ask(call, requests::GET_DEVICE_ATTR, asked, deadline)?;
        Ok(told.offset)
    }

    /// What the guest sees of its processor.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn cpuid(&mut self, deadline: Instant) -> Result<Vec<kvm_cpuid_entry2>, ForeignError> {
        let asked = Box::new(Cpuid {
            count: u32::try_from(CPUID_ENTRIES).unwrap_or_default(),
            padding: 0,
            entries: [kvm_cpuid_entry2::default(); CPUID_ENTRIES],
        });
        let told = self.ask("KVM_GET_CPUID2", requests::GET_CPUID2, *asked, deadline)?;
        let count = usize::try_from(told.count).unwrap_or(usize::MAX);
        Ok(told.entries.into_iter().take(count).collect())
    }

    /// Ticks of the vCPU's counter in a millisecond.
    ///
    /// # Errors
    /// [`ForeignError::Call`] and others.
    pub fn tsc_khz(&mut self, deadline: Instant) -> Result<u32, ForeignError> {
        let (call, fd) = ("KVM_GET_TSC_KHZ", self.vcpu().own_descriptor()?);
        let khz = self.ioctl(call, fd, requests::GET_TSC_KHZ, 0, deadline)?;
        Ok(u32::try_from(khz).unwrap_or(u32::MAX))
    }
}
