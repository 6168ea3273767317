//! The CPUID that a vCPU shows: what KVM supports, less what this machine withholds, with this vCPU's APIC
//! id and topology.
//!
//! The topology is the plainest: one package, one thread per core, one core per vCPU.

mod withheld;

pub(crate) use withheld::has_virtualisation;

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

const LEAF_FEATURES: u32 = 0x1;
const LEAF_CACHES: u32 = 0x4;
const LEAF_TOPOLOGY: u32 = 0xb;
const LEAF_TOPOLOGY_2: u32 = 0x1f;
const LEAF_EXTENDED: u32 = 0x8000_0001;
const LEAF_AMD_SIZES: u32 = 0x8000_0008;
const LEAF_AMD_CACHES: u32 = 0x8000_001d;
const LEAF_AMD_TOPOLOGY: u32 = 0x8000_001e;

const EDX_PAGE_1G: u32 = 1 << 26;
const EDX_HTT: u32 = 1 << 28;
const ECX_HYPERVISOR: u32 = 1 << 31;
const ECX_TSC_DEADLINE: u32 = 1 << 24;

const LEVEL_THREAD: u32 = 1;
const LEVEL_CORE: u32 = 2;
/// The levels of a topology leaf: threads, cores, and the end.
const TOPOLOGY_LEVELS: u32 = 3;

/// Whether a vCPU that shows this has pages of 1 GiB.
pub(crate) fn has_gigabyte_pages(cpuid: &CpuId) -> bool {
    let mut entries = cpuid.as_slice().iter();
    entries.any(|entry| entry.function == LEAF_EXTENDED && entry.edx & EDX_PAGE_1G != 0)
}

/// What is the same for all vCPUs of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuModel {
    /// How many there are.
    pub(crate) vcpus: u32,
    /// Whether their timers take deadlines.
    pub(crate) tsc_deadline: bool,
    /// Whether they can run virtual machines themselves.
    pub(crate) nested: bool,
}

/// Makes `supported` the CPUID of vCPU `number` of this model.
pub(super) fn fit(supported: &mut CpuId, number: u32, model: CpuModel) {
    let vcpus = model.vcpus;
    for leaf in [LEAF_TOPOLOGY, LEAF_TOPOLOGY_2] {
        add_levels(supported, leaf);
    }
    for entry in supported.as_mut_slice() {
        withheld::withhold(entry, model.nested);
        match entry.function {
            LEAF_FEATURES => features(entry, number, vcpus, model.tsc_deadline),
            LEAF_CACHES | LEAF_AMD_CACHES => caches(entry, vcpus),
            LEAF_TOPOLOGY | LEAF_TOPOLOGY_2 => topology(entry, number, vcpus),
            LEAF_AMD_SIZES => {
                // Bits 7:0: cores less one. Bits 15:12: bits of the APIC id that number them.
                let keep = entry.ecx & !0xf0ff;
                entry.ecx = keep | (vcpus - 1) & 0xff | core_bits(vcpus) << 12;
            }
            LEAF_AMD_TOPOLOGY => {
                entry.eax = number;
                entry.ebx = number & 0xff;
                entry.ecx = 0;
            }
            _ => {}
        }
    }
}

fn features(entry: &mut kvm_cpuid_entry2, number: u32, vcpus: u32, tsc_deadline: bool) {
    entry.ebx = entry.ebx & 0xffff | (vcpus & 0xff) << 16 | number << 24;
    entry.ecx |= ECX_HYPERVISOR;
    entry.ecx = if tsc_deadline {
        entry.ecx | ECX_TSC_DEADLINE
    } else {
        entry.ecx & !ECX_TSC_DEADLINE
    };
    entry.edx = if vcpus > 1 {
        entry.edx | EDX_HTT
    } else {
        entry.edx & !EDX_HTT
    };
}

/// Bits 25:14: threads that share the cache, less one; bits 31:26 (Intel): cores less one.
fn caches(entry: &mut kvm_cpuid_entry2, vcpus: u32) {
    let level = entry.eax >> 5 & 7;
    if entry.eax & 0x1f == 0 {
        return;
    }
    let sharing = if level >= 3 { vcpus - 1 } else { 0 };
    entry.eax &= 0x3fff;
    entry.eax |= (sharing & 0xfff) << 14;
    if entry.function == LEAF_CACHES {
        entry.eax |= ((vcpus - 1) & 0x3f) << 26;
    }
}

/// Adds the levels that KVM has left out of a topology leaf that is there. Some return the first one alone; a guest that
/// is told of no cores takes each vCPU for a package.
fn add_levels(supported: &mut CpuId, leaf: u32) {
    let present = supported.as_slice().iter();
    let present = present.filter(|entry| entry.function == leaf);
    let present: Vec<u32> = present.map(|entry| entry.index).collect();
    if present.is_empty() {
        return;
    }
    let missing = (0..TOPOLOGY_LEVELS).filter(|index| !present.contains(index));
    for index in missing {
        let entry = kvm_cpuid_entry2 {
            function: leaf,
            index,
            ..Default::default()
        };
        if supported.push(entry).is_err() {
            log::warn!(
                "KVM has no room for level {index} of CPUID leaf {leaf:#x}: the guest may take each vCPU for a package"
            );
            return;
        }
    }
}

fn topology(entry: &mut kvm_cpuid_entry2, number: u32, vcpus: u32) {
    // Without it KVM would give one level for all.
    entry.flags |= KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
    entry.edx = number;
    let (shift, count, level) = match entry.index {
        0 => (0, 1, LEVEL_THREAD),
        1 => (core_bits(vcpus), vcpus, LEVEL_CORE),
        _ => (0, 0, 0),
    };
    entry.eax = shift;
    entry.ebx = count;
    entry.ecx = entry.index | level << 8;
}

/// How many bits number `vcpus` cores.
fn core_bits(vcpus: u32) -> u32 {
    vcpus.next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use kvm_bindings::KVM_MAX_CPUID_ENTRIES;

    use super::*;

    fn fitted(function: u32, index: u32, number: u32, vcpus: u32) -> kvm_cpuid_entry2 {
        let entry = kvm_cpuid_entry2 {
            function,
            index,
            ..Default::default()
        };
        let mut cpuid = CpuId::from_entries(&[entry]).unwrap();
        let model = CpuModel {
            vcpus,
            tsc_deadline: true,
            nested: false,
        };
        fit(&mut cpuid, number, model);
        cpuid.as_slice()[0]
    }

    #[test]
    fn each_vcpu_sees_its_own_apic_id_everywhere() {
        for number in 0..3 {
            assert_eq!(fitted(LEAF_FEATURES, 0, number, 3).ebx >> 24, number);
            assert_eq!(fitted(LEAF_TOPOLOGY, 0, number, 3).edx, number);
            assert_eq!(fitted(LEAF_TOPOLOGY, 1, number, 3).edx, number);
            assert_eq!(fitted(LEAF_AMD_TOPOLOGY, 0, number, 3).eax, number);
        }
    }

    /// The levels of a topology leaf as vCPU 2 of 3 sees them, where KVM gives these entries.
    fn levels(given: &[(u32, u32)], leaf: u32) -> Vec<[u32; 6]> {
        let given = given.iter().map(|&(function, index)| kvm_cpuid_entry2 {
            function,
            index,
            ..Default::default()
        });
        let mut cpuid = CpuId::from_entries(&given.collect::<Vec<_>>()).unwrap();
        let model = CpuModel {
            vcpus: 3,
            tsc_deadline: true,
            nested: false,
        };
        fit(&mut cpuid, 2, model);
        let entries = cpuid.as_slice().iter();
        let entries = entries.filter(|entry| entry.function == leaf);
        let shown = entries.map(|it| [it.index, it.flags, it.eax, it.ebx, it.ecx, it.edx]);
        shown.collect()
    }

    #[test]
    fn levels_that_kvm_leaves_out_are_there() {
        let whole = vec![
            [0, 1, 0, 1, 0x100, 2],
            [1, 1, 2, 3, 0x201, 2],
            [2, 1, 0, 0, 2, 2],
        ];
        let first = [(LEAF_TOPOLOGY, 0)];
        assert_eq!(levels(&first, LEAF_TOPOLOGY), whole);
        assert!(levels(&first, LEAF_TOPOLOGY_2).is_empty());
        for leaf in [LEAF_TOPOLOGY, LEAF_TOPOLOGY_2] {
            assert_eq!(levels(&[(leaf, 0), (leaf, 1)], leaf), whole);
            assert_eq!(levels(&[(leaf, 0), (leaf, 1), (leaf, 2)], leaf), whole);
        }
    }

    #[test]
    fn a_full_table_is_left_as_long_as_it_is() {
        let mut given = vec![(LEAF_CACHES, 0); KVM_MAX_CPUID_ENTRIES - 2];
        given.push((LEAF_TOPOLOGY, 0));
        assert_eq!(levels(&given, LEAF_TOPOLOGY).len(), 2);
    }

    #[test]
    fn what_is_withheld_is_withheld_from_every_vcpu() {
        let everything = kvm_cpuid_entry2 {
            function: LEAF_EXTENDED,
            ecx: u32::MAX,
            ..Default::default()
        };
        for (nested, svm) in [(false, 0), (true, 1 << 2)] {
            let mut cpuid = CpuId::from_entries(&[everything]).unwrap();
            let model = CpuModel {
                vcpus: 2,
                tsc_deadline: true,
                nested,
            };
            fit(&mut cpuid, 1, model);
            assert_eq!(cpuid.as_slice()[0].ecx & 1 << 2, svm);
        }
    }

    #[test]
    fn the_core_level_has_room_for_all() {
        let entry = fitted(LEAF_TOPOLOGY, 1, 0, 5);
        assert_eq!((entry.eax, entry.ebx, entry.ecx), (3, 5, 0x201));
        assert_eq!(fitted(LEAF_AMD_SIZES, 0, 0, 5).ecx, 0x3004);
        assert_eq!(fitted(LEAF_FEATURES, 0, 0, 1).edx & EDX_HTT, 0);
    }
}
