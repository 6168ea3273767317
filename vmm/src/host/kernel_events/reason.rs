//! What the numbers mean that processors give for exits.

use trace::host::ExitReason;

/// `isa` of the event, from `arch/x86/kvm/trace.h` of Linux: whose numbers they are.
const VMX: u64 = 1;
const SVM: u64 = 2;
/// Bits of a reason of VMX that is not a kind of exit (Intel SDM, volume 3, 26.9.1).
const VMX_REASON: u64 = 0xffff;

/// Why a vCPU came back, by its processor's number, and what that says beside it.
pub(super) const fn reason(isa: u64, number: u64, info: u64) -> ExitReason {
    match isa {
        VMX => of_vmx(number & VMX_REASON, info),
        SVM => of_svm(number, info),
        _ => ExitReason::Other,
    }
}

/// Intel SDM, volume 3, appendix C.
const fn of_vmx(number: u64, info: u64) -> ExitReason {
    /// Of the qualification of an access to a port (table 28-5).
    const IN: u64 = 1 << 3;
    match number {
        0 => ExitReason::Exception,
        1 => ExitReason::Interrupt,
        2 => ExitReason::Shutdown,
        7 | 8 => ExitReason::Interruptible,
        10 => ExitReason::Cpuid,
        12 => ExitReason::Halt,
        18 => ExitReason::Hypercall,
        28 => ExitReason::ControlRegister,
        29 => ExitReason::Debug,
        30 if info & IN != 0 => ExitReason::PortRead,
        30 => ExitReason::PortWrite,
        31 | 32 => ExitReason::Msr,
        40 => ExitReason::Pause,
        48 | 49 => ExitReason::PageFault,
        52 => ExitReason::Timer,
        44 | 45 | 56 => ExitReason::Apic,
        _ => ExitReason::Other,
    }
}

/// AMD64 manual, volume 2, appendix C.
const fn of_svm(number: u64, info: u64) -> ExitReason {
    /// Of what is said of an access to a port (15.10.2).
    const IN: u64 = 1;
    match number {
        0x00..=0x1f => ExitReason::ControlRegister,
        0x20..=0x3f | 0x41 | 0x43 => ExitReason::Debug,
        0x40..=0x5f => ExitReason::Exception,
        0x60..=0x62 => ExitReason::Interrupt,
        0x64 => ExitReason::Interruptible,
        0x72 => ExitReason::Cpuid,
        0x77 => ExitReason::Pause,
        0x78 | 0xa6 => ExitReason::Halt,
        0x7b if info & IN != 0 => ExitReason::PortRead,
        0x7b => ExitReason::PortWrite,
        0x7c => ExitReason::Msr,
        0x7f => ExitReason::Shutdown,
        0x81 => ExitReason::Hypercall,
        0x400 => ExitReason::PageFault,
        0x401 | 0x402 => ExitReason::Apic,
        _ => ExitReason::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_has_one_name_on_both_kinds_of_processors() {
        for (vmx, svm, info, expected) in [
            (30, 0x7b, 0b1001, ExitReason::PortRead),
            (30, 0x7b, 0, ExitReason::PortWrite),
            (12, 0x78, 0, ExitReason::Halt),
            (48, 0x400, 0, ExitReason::PageFault),
            (1, 0x60, 0, ExitReason::Interrupt),
            (32, 0x7c, 0, ExitReason::Msr),
            (999, 0x999, 0, ExitReason::Other),
        ] {
            // A failed entry is marked in the upper half.
            assert_eq!(reason(VMX, vmx | 1 << 31, info), expected, "{vmx}");
            assert_eq!(reason(SVM, svm, info), expected, "{svm:#x}");
            assert_eq!(reason(0, svm, info), ExitReason::Other);
        }
    }
}
