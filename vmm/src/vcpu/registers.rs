//! The registers of a stopped vCPU, as KVM gives them and as tracing wants them.

use kvm_bindings::{KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_UNINITIALIZED, kvm_regs, kvm_sregs};
use kvm_ioctls::{SyncReg, VcpuFd};
use tracer::target::VcpuRegisters;

/// All registers of a stopped vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FullRegisters {
    /// Whether the vCPU has ever been started.
    pub online: bool,
    /// The general registers.
    pub general: kvm_regs,
    /// The system registers.
    pub system: kvm_sregs,
    /// `IA32_KERNEL_GS_BASE`, once [`crate::quiesce::Quiesced::fetch_kernel_gs_base`] has read it.
    pub kernel_gs_base: Option<u64>,
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

/// Reads registers: it is on the path of every pause.
///
/// Each vCPU ioctl can cost microseconds (KVM loads the vCPU's state onto the CPU for it), so the
/// registers that KVM leaves in the shared page at each exit are taken where it can do that.
#[derive(Debug)]
pub(super) struct RegisterReader {
    online: bool,
    synced: bool,
}

impl RegisterReader {
    /// `synced` says that KVM has `KVM_CAP_SYNC_REGS`; then every exit leaves the registers in the
    /// page.
    pub(super) fn new(vcpu: &mut VcpuFd, synced: bool) -> Self {
        if synced {
            vcpu.set_sync_valid_reg(SyncReg::Register);
            vcpu.set_sync_valid_reg(SyncReg::SystemRegister);
        }
        Self {
            online: false,
            synced,
        }
    }

    /// The registers at the last exit, when nothing has changed them since.
    pub(super) fn at_exit(&mut self, vcpu: &VcpuFd) -> Result<FullRegisters, kvm_ioctls::Error> {
        if !self.synced {
            return self.read(vcpu);
        }
        let online = self.is_online(vcpu)?;
        let shared = vcpu.sync_regs();
        Ok(FullRegisters {
            online,
            general: shared.regs,
            system: shared.sregs,
            kernel_gs_base: None,
        })
    }

    /// The registers now.
    pub(super) fn read(&mut self, vcpu: &VcpuFd) -> Result<FullRegisters, kvm_ioctls::Error> {
        Ok(FullRegisters {
            online: self.is_online(vcpu)?,
            general: vcpu.get_regs()?,
            system: vcpu.get_sregs()?,
            kernel_gs_base: None,
        })
    }

    /// Once started, a vCPU stays so.
    fn is_online(&mut self, vcpu: &VcpuFd) -> Result<bool, kvm_ioctls::Error> {
        if !self.online {
            let state = vcpu.get_mp_state()?.mp_state;
            self.online =
                state != KVM_MP_STATE_UNINITIALIZED && state != KVM_MP_STATE_INIT_RECEIVED;
        }
        Ok(self.online)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_that_tracing_needs_is_taken_over() {
        let mut full = FullRegisters {
            online: true,
            kernel_gs_base: Some(7),
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
            kernel_gs_base: Some(7),
        };
        assert_eq!(VcpuRegisters::from(&full), expected);
    }
}
