//! What KVM is asked to stop a vCPU for, and which of its debug exits are answers to that.
//!
//! While a breakpoint of ours is armed, KVM hands over *every* debug exception of the vCPU: those of the guest's own,
//! too (`int1`, its single steps). They are told apart by the address, and go back to the guest as what they
//! were. A breakpoint register of the guest's own does nothing meanwhile: KVM puts ours in its place.

use kvm_bindings::{
    KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_INJECT_DB, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP,
    kvm_guest_debug, kvm_guest_debug_arch,
};
use kvm_ioctls::VcpuFd;
use terms::addr::Gva;

/// DR7: breakpoint 0 enabled (local and global), on execution, one byte.
const DR7_EXECUTE_0: u64 = 0x3;
/// DR6: what the exception was for. The bits between are always set.
const DR6_CAUSES: u64 = 0xe00f;

/// What a vCPU stops for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    Nothing,
    At(Gva),
    EachInstruction,
}

/// What a vCPU stops for, as KVM knows it.
#[derive(Debug)]
pub(super) struct Debugging {
    armed: Armed,
}

impl Debugging {
    pub(super) const fn new() -> Self {
        Self {
            armed: Armed::Nothing,
        }
    }

    /// Arms breakpoint 0 or disarms it. A vCPU that is at the breakpoint continues past it only
    /// once it is disarmed.
    pub(super) fn set_breakpoint(
        &mut self,
        vcpu: &VcpuFd,
        at: Option<Gva>,
    ) -> Result<(), kvm_ioctls::Error> {
        self.armed = at.map_or(Armed::Nothing, Armed::At);
        vcpu.set_guest_debug(&self.request())
    }

    /// Stops after each instruction.
    pub(super) fn single_step(&mut self, vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
        self.armed = Armed::EachInstruction;
        vcpu.set_guest_debug(&self.request())
    }

    /// Where the breakpoint is, while it is armed.
    pub(super) const fn breakpoint(&self) -> Option<Gva> {
        match self.armed {
            Armed::At(at) => Some(at),
            Armed::Nothing | Armed::EachInstruction => None,
        }
    }

    /// Whether a debug exit at `pc` is what was asked for.
    pub(super) fn is_ours(&self, pc: Gva) -> bool {
        match self.armed {
            Armed::Nothing => false,
            Armed::At(at) => at == pc,
            Armed::EachInstruction => true,
        }
    }

    /// Gives the guest a debug exception that was meant for it, with its cause.
    pub(super) fn give_back(&self, vcpu: &VcpuFd, dr6: u64) -> Result<(), kvm_ioctls::Error> {
        let mut registers = vcpu.get_debug_regs()?;
        registers.dr6 |= dr6 & DR6_CAUSES;
        vcpu.set_debug_regs(&registers)?;
        let mut request = self.request();
        request.control |= KVM_GUESTDBG_INJECT_DB;
        vcpu.set_guest_debug(&request)
    }

    fn request(&self) -> kvm_guest_debug {
        let mut debug = kvm_guest_debug::default();
        match self.armed {
            Armed::Nothing => {}
            Armed::At(at) => {
                debug.control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
                debug.arch = kvm_guest_debug_arch {
                    debugreg: [at.0, 0, 0, 0, 0, 0, 0, DR7_EXECUTE_0],
                };
            }
            Armed::EachInstruction => {
                debug.control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP;
            }
        }
        debug
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_armed_address_is_our_breakpoint() {
        let at = Gva(0xffff_ffff_8100_0000);
        let of = |armed| Debugging { armed };
        assert!(of(Armed::At(at)).is_ours(at));
        assert!(!of(Armed::At(at)).is_ours(Gva(at.0 + 1)));
        assert!(!of(Armed::Nothing).is_ours(at));
        assert!(!of(Armed::Nothing).is_ours(Gva(0)));
        assert!(of(Armed::EachInstruction).is_ours(at));
        assert_eq!(of(Armed::At(at)).breakpoint(), Some(at));
        assert_eq!(of(Armed::EachInstruction).breakpoint(), None);
    }
}
