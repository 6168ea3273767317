//! The registers of a stopped vCPU, as KVM gives them and as tracing wants them.

use kvm_bindings::{
    KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_UNINITIALIZED, Msrs, kvm_msr_entry, kvm_regs,
    kvm_sregs,
};
use kvm_ioctls::VcpuFd;
use tracer::target::VcpuRegisters;

/// `IA32_KERNEL_GS_BASE`.
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;

/// All registers of a stopped vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FullRegisters {
    /// Whether the vCPU has ever been started.
    pub online: bool,
    /// The general registers.
    pub general: kvm_regs,
    /// The system registers.
    pub system: kvm_sregs,
    /// `IA32_KERNEL_GS_BASE`.
    pub kernel_gs_base: u64,
}

impl From<&FullRegisters> for VcpuRegisters {
    fn from(full: &FullRegisters) -> Self {
        Self {
            online: full.online,
            rip: full.general.rip,
            rsp: full.general.rsp,
            // The stack segment's DPL is the CPL, by architecture.
            cpl: full.system.ss.dpl & 3,
            cr0: full.system.cr0,
            cr3: full.system.cr3,
            cr4: full.system.cr4,
            efer: full.system.efer,
            gs_base: full.system.gs.base,
            kernel_gs_base: full.kernel_gs_base,
        }
    }
}

/// Reads registers without allocating each time: it is on the path of every pause.
#[derive(Debug)]
pub(super) struct RegisterReader {
    msrs: Msrs,
    online: bool,
}

impl RegisterReader {
    pub(super) fn new() -> Result<Self, kvm_ioctls::Error> {
        let entry = kvm_msr_entry {
            index: MSR_KERNEL_GS_BASE,
            ..Default::default()
        };
        let msrs =
            Msrs::from_entries(&[entry]).map_err(|_| kvm_ioctls::Error::new(libc::ENOMEM))?;
        Ok(Self {
            msrs,
            online: false,
        })
    }

    pub(super) fn read(&mut self, vcpu: &VcpuFd) -> Result<FullRegisters, kvm_ioctls::Error> {
        if !self.online {
            let state = vcpu.get_mp_state()?.mp_state;
            self.online =
                state != KVM_MP_STATE_UNINITIALIZED && state != KVM_MP_STATE_INIT_RECEIVED;
        }
        vcpu.get_msrs(&mut self.msrs)?;
        Ok(FullRegisters {
            online: self.online,
            general: vcpu.get_regs()?,
            system: vcpu.get_sregs()?,
            kernel_gs_base: self.msrs.as_slice().first().map_or(0, |entry| entry.data),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_that_tracing_needs_is_taken_over() {
        let mut full = FullRegisters {
            online: true,
            kernel_gs_base: 7,
            ..Default::default()
        };
        full.general.rip = 1;
        full.general.rsp = 2;
        full.system.ss.dpl = 3;
        full.system.cr3 = 4;
        full.system.efer = 5;
        full.system.gs.base = 6;
        (full.system.cr0, full.system.cr4) = (8, 9);
        let expected = VcpuRegisters {
            online: true,
            rip: 1,
            rsp: 2,
            cpl: 3,
            cr0: 8,
            cr3: 4,
            cr4: 9,
            efer: 5,
            gs_base: 6,
            kernel_gs_base: 7,
        };
        assert_eq!(VcpuRegisters::from(&full), expected);
    }
}
