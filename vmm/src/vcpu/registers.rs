//! The registers of a stopped vCPU, as KVM gives them and as tracing wants them.

use kvm_bindings::nested::KvmNestedStateBuffer;
use kvm_bindings::{KVM_STATE_NESTED_GUEST_MODE, kvm_regs, kvm_sregs};
use kvm_ioctls::{SyncReg, VcpuFd};
use tracer::target::VcpuRegisters;

/// CR0: protected mode.
const CR0_PE: u64 = 1;
/// CR0: paging.
const CR0_PG: u64 = 1 << 31;
/// Where a vCPU that was reset begins.
const RESET_RIP: u64 = 0xfff0;
/// EFER: 64-bit mode is active.
const EFER_LMA: u64 = 1 << 10;

/// All registers of a stopped vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FullRegisters {
    /// Whether these are the registers of a guest of the guest, which the vCPU executes now, or of its firmware (system
    /// management mode).
    pub is_nested: bool,
    /// The general registers.
    pub general: kvm_regs,
    /// The system registers.
    pub system: kvm_sregs,
    /// `IA32_KERNEL_GS_BASE`, once [`crate::quiesce::Quiesced::fetch_kernel_gs_base`] has read it.
    pub kernel_gs_base: Option<u64>,
}

impl FullRegisters {
    /// Whether the vCPU executes 64-bit code. One that waits to be started does not, nor one that the guest
    /// has just sent back to where vCPUs start: it leaves no register as it was. A vCPU that the guest has
    /// switched off is halted, with all its registers.
    #[must_use]
    pub const fn is_online(&self) -> bool {
        self.system.cr0 & CR0_PG != 0 && self.system.efer & EFER_LMA != 0
    }

    /// Where the vCPU is, for messages of its end. KVM resets one of AMD that shuts down before it says so: then no register
    /// tells where that was.
    pub(super) fn place(&self) -> String {
        let (general, system) = (&self.general, &self.system);
        let is_real_mode = system.cr0 & (CR0_PE | CR0_PG) == 0;
        if is_real_mode && general.rip == RESET_RIP && system.cr3 == 0 {
            return "; KVM has reset the vCPU, so where it was is not known".to_owned();
        }
        format!(
            " at rip {:#x}, rsp {:#x}, cr2 {:#x}, cr3 {:#x}",
            general.rip, general.rsp, system.cr2, system.cr3
        )
    }
}

impl From<&FullRegisters> for VcpuRegisters {
    fn from(full: &FullRegisters) -> Self {
        Self {
            online: full.is_online(),
            rip: full.general.rip,
            rsp: full.general.rsp,
            rbp: full.general.rbp,
            rdi: full.general.rdi,
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
    synced: bool,
    nested: bool,
}

impl RegisterReader {
    /// `synced` says that KVM has `KVM_CAP_SYNC_REGS`; then every exit leaves the registers in the
    /// page. `nested`: the vCPU can execute guests of the guest.
    pub(super) fn new(vcpu: &mut VcpuFd, synced: bool, nested: bool) -> Self {
        if synced {
            vcpu.set_sync_valid_reg(SyncReg::Register);
            vcpu.set_sync_valid_reg(SyncReg::SystemRegister);
        }
        Self { synced, nested }
    }

    /// The registers at the last exit, when nothing has changed them since.
    pub(super) fn at_exit(&self, vcpu: &VcpuFd) -> Result<FullRegisters, kvm_ioctls::Error> {
        if !self.synced {
            return self.read(vcpu);
        }
        let is_nested = self.is_nested(vcpu)?;
        let shared = vcpu.sync_regs();
        Ok(FullRegisters {
            is_nested,
            general: shared.regs,
            system: shared.sregs,
            kernel_gs_base: None,
        })
    }

    /// The registers now.
    pub(super) fn read(&self, vcpu: &VcpuFd) -> Result<FullRegisters, kvm_ioctls::Error> {
        Ok(FullRegisters {
            is_nested: self.is_nested(vcpu)?,
            general: vcpu.get_regs()?,
            system: vcpu.get_sregs()?,
            kernel_gs_base: None,
        })
    }

    /// Whether the vCPU executes a guest of the guest.
    pub(super) fn is_nested(&self, vcpu: &VcpuFd) -> Result<bool, kvm_ioctls::Error> {
        if !self.nested {
            return Ok(false);
        }
        let mut state = KvmNestedStateBuffer::empty();
        vcpu.nested_state(&mut state)?;
        Ok(u32::from(state.flags) & KVM_STATE_NESTED_GUEST_MODE != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_that_tracing_needs_is_taken_over() {
        let mut full = FullRegisters {
            kernel_gs_base: Some(7),
            ..Default::default()
        };
        full.general.rip = 1;
        full.general.rsp = 2;
        full.general.rbp = 11;
        full.general.rdi = 10;
        full.system.ss.dpl = 3;
        full.system.cr3 = 4;
        full.system.efer = 5;
        full.system.gs.base = 6;
        (full.system.cr0, full.system.cr4) = (8, 9);
        let expected = VcpuRegisters {
            online: false,
            rip: 1,
            rsp: 2,
            rbp: 11,
            rdi: 10,
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

    #[test]
    fn a_vcpu_is_online_while_it_executes_64_bit_code_and_not_for_ever() {
        let mut full = FullRegisters::default();
        full.system.cr0 = 0x6000_0010;
        assert!(!full.is_online(), "as a reset leaves it");
        (full.system.cr0, full.system.efer) = (0x8005_0033, 0xd01);
        assert!(full.is_online());
        full.system.efer = 0x901;
        assert!(!full.is_online(), "paging of 32-bit code");
        (full.system.cr0, full.system.efer) = (0x6000_0010, 0);
        assert!(!full.is_online(), "it was sent to where vCPUs start again");
    }

    #[test]
    fn the_registers_of_a_reset_are_no_place() {
        let mut registers = FullRegisters::default();
        registers.general.rip = RESET_RIP;
        registers.system.cr0 = 0x6000_0010;
        assert_eq!(
            registers.place(),
            "; KVM has reset the vCPU, so where it was is not known"
        );
        let mut paged = registers;
        paged.system.cr0 |= CR0_PE | CR0_PG;
        let mut real = registers;
        real.general.rip = 0x7c00;
        let mut mapped = registers;
        mapped.system.cr3 = 0x1000;
        for (of, place) in [
            (paged, " at rip 0xfff0, rsp 0x0, cr2 0x0, cr3 0x0"),
            (real, " at rip 0x7c00, rsp 0x0, cr2 0x0, cr3 0x0"),
            (mapped, " at rip 0xfff0, rsp 0x0, cr2 0x0, cr3 0x1000"),
        ] {
            assert_eq!(of.place(), place);
        }
    }
}
