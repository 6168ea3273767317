//! What KVM could give a guest and this machine does not.
//!
//! * **Virtual machines of the guest's own** (VMX, SVM), unless they were asked for. While a vCPU executes a guest of
//!   the guest, KVM shows that one's registers: its GS base and its page tables are not those of the
//!   traced kernel.
//! * **Performance counters.** The machine has none: counters that a host's own profiler takes away at any time,
//!   and whose overflows become NMIs in a guest that is traced, are worth less than a clear *no*. KVM is
//!   asked to leave them out too (`KVM_CAP_PMU_CAPABILITY`), since the oldest ones of AMD have no bit in CPUID.
//! * **MONITOR and MWAIT.** KVM intercepts them and does nothing, unless a host gives its own processor away
//!   (`KVM_CAP_X86_DISABLE_EXITS`). An idle loop made of them would spin; one made of `hlt` lets
//!   the host sleep, and other vCPUs run.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

const LEAF_FEATURES: u32 = 0x1;
const LEAF_MONITOR: u32 = 0x5;
const LEAF_MORE_FEATURES: u32 = 0x7;
const LEAF_PMU: u32 = 0xa;
const LEAF_BRANCH_RECORDS: u32 = 0x1c;
const LEAF_PMU_EXTENSION: u32 = 0x23;
const LEAF_EXTENDED: u32 = 0x8000_0001;
const LEAF_SVM: u32 = 0x8000_000a;
const LEAF_IBS: u32 = 0x8000_001b;
const LEAF_AMD_PMU: u32 = 0x8000_0022;

const ECX_DTES64: u32 = 1 << 2;
const ECX_MONITOR: u32 = 1 << 3;
const ECX_DS_CPL: u32 = 1 << 4;
const ECX_VMX: u32 = 1 << 5;
const ECX_PDCM: u32 = 1 << 15;
const EDX_DEBUG_STORE: u32 = 1 << 21;

/// Leaf 7, in EDX.
const ARCH_BRANCH_RECORDS: u32 = 1 << 19;

const ECX_SVM: u32 = 1 << 2;
const ECX_IBS: u32 = 1 << 10;
const ECX_SKINIT: u32 = 1 << 12;
const ECX_PERFCTR_CORE: u32 = 1 << 23;
const ECX_PERFCTR_NORTHBRIDGE: u32 = 1 << 24;
const ECX_PERFCTR_CACHE: u32 = 1 << 28;
const ECX_MONITORX: u32 = 1 << 29;

/// Whether KVM could give guests virtual machines of their own.
pub(crate) fn has_virtualisation(supported: &CpuId) -> bool {
    let has = |entry: &kvm_cpuid_entry2| match entry.function {
        LEAF_FEATURES => entry.ecx & ECX_VMX != 0,
        LEAF_EXTENDED => entry.ecx & ECX_SVM != 0,
        _ => false,
    };
    supported.as_slice().iter().any(has)
}

/// Takes out of `entry` what guests do not get; those that are `nested` get VMX and SVM.
pub(super) fn withhold(entry: &mut kvm_cpuid_entry2, nested: bool) {
    let virtualisation = |bits: u32| if nested { 0 } else { bits };
    match entry.function {
        LEAF_FEATURES => {
            let counters = ECX_DTES64 | ECX_DS_CPL | ECX_PDCM;
            entry.ecx &= !(counters | ECX_MONITOR | virtualisation(ECX_VMX));
            entry.edx &= !EDX_DEBUG_STORE;
        }
        LEAF_MORE_FEATURES if entry.index == 0 => entry.edx &= !ARCH_BRANCH_RECORDS,
        LEAF_EXTENDED => {
            let counters = ECX_IBS | ECX_PERFCTR_CORE | ECX_PERFCTR_NORTHBRIDGE | ECX_PERFCTR_CACHE;
            let virtualisation = virtualisation(ECX_SVM | ECX_SKINIT);
            entry.ecx &= !(counters | ECX_MONITORX | virtualisation);
        }
        LEAF_SVM if nested => {}
        LEAF_MONITOR | LEAF_PMU | LEAF_BRANCH_RECORDS | LEAF_PMU_EXTENSION | LEAF_SVM
        | LEAF_IBS | LEAF_AMD_PMU => {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leaf of a processor that has everything.
    fn leaf(function: u32, nested: bool) -> [u32; 4] {
        let mut entry = kvm_cpuid_entry2 {
            function,
            eax: u32::MAX,
            ebx: u32::MAX,
            ecx: u32::MAX,
            edx: u32::MAX,
            ..Default::default()
        };
        withhold(&mut entry, nested);
        [entry.eax, entry.ebx, entry.ecx, entry.edx]
    }

    #[test]
    fn no_guest_has_virtual_machines_of_its_own_unless_it_was_asked_for() {
        let vmx = |nested| leaf(0x1, nested)[2] & 1 << 5 != 0;
        let svm = |nested| leaf(0x8000_0001, nested)[2] & 1 << 2 != 0;
        assert_eq!((vmx(false), svm(false)), (false, false));
        assert_eq!((vmx(true), svm(true)), (true, true));
        assert_eq!(leaf(0x8000_000a, false), [0; 4]);
        assert_eq!(leaf(0x8000_000a, true), [u32::MAX; 4]);
    }

    #[test]
    fn no_guest_has_counters_and_none_waits_by_mwait() {
        for nested in [false, true] {
            for empty in [0x5, 0xa, 0x1c, 0x23, 0x8000_001b, 0x8000_0022] {
                assert_eq!(leaf(empty, nested), [0; 4], "{empty:#x}");
            }
            let [_, _, ecx, edx] = leaf(0x1, nested);
            assert_eq!(ecx & (1 << 2 | 1 << 3 | 1 << 4 | 1 << 15), 0);
            assert_eq!(edx & 1 << 21, 0);
            let [_, _, ecx, _] = leaf(0x8000_0001, nested);
            assert_eq!(ecx & (1 << 10 | 1 << 23 | 1 << 24 | 1 << 28 | 1 << 29), 0);
            assert_eq!(leaf(0x7, nested)[3] & 1 << 19, 0);
        }
    }

    #[test]
    fn everything_else_stays() {
        let untouched = [u32::MAX; 4];
        for function in [0x0, 0x2, 0x4, 0x6, 0xb, 0xd, 0x4000_0001, 0x8000_0008] {
            assert_eq!(leaf(function, false), untouched, "{function:#x}");
        }
        let left = |function, register: usize| leaf(function, false)[register].count_ones();
        assert_eq!((left(0x1, 2), left(0x1, 3)), (32 - 5, 32 - 1));
        assert_eq!((left(0x8000_0001, 2), left(0x8000_0001, 3)), (32 - 7, 32));
        assert_eq!((left(0x7, 1), left(0x7, 3)), (32, 32 - 1));
    }

    #[test]
    fn what_kvm_offers_is_known() {
        let offers = |function, ecx| {
            let entry = kvm_cpuid_entry2 {
                function,
                ecx,
                ..Default::default()
            };
            has_virtualisation(&CpuId::from_entries(&[entry]).unwrap())
        };
        assert!(offers(0x1, 1 << 5) && offers(0x8000_0001, 1 << 2));
        assert!(!offers(0x1, 1 << 2) && !offers(0x8000_0001, 1 << 5));
        assert!(!offers(0x8000_000a, u32::MAX));
    }
}
