//! Where the text of the kernel that is traced lies: that tells with whose page tables a vCPU executes. One that is met in a
//! guest of its own, or in its firmware, has others, and nothing of the kernel may be looked up in those.

use terms::addr::{Gpa, Gva};
use tracer::target::{PhysicalMemory, VcpuRegisters};
use tracer::{PageTableRoot, TranslateError, translate};

/// An address of the kernel's text, and where that lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelText {
    pub(crate) at: Gva,
    pub(crate) place: Gpa,
}

impl KernelText {
    /// The page tables of this vCPU with which it executes that text; none where they lead elsewhere.
    ///
    /// # Errors
    /// A [`TranslateError`]: they lead nowhere, or there are none.
    pub(crate) fn root_of(
        self,
        memory: &impl PhysicalMemory,
        vcpu: &VcpuRegisters,
    ) -> Result<Option<PageTableRoot>, TranslateError> {
        let root = PageTableRoot::of_text(memory, vcpu, self.at)?;
        let seen = translate(memory, root, self.at)?;
        Ok((seen.physical == self.place).then_some(root))
    }

    /// Whether this vCPU seems to execute a guest of the guest: it may, and has page tables in which the text is not.
    pub(crate) fn may_be_left(self, memory: &impl PhysicalMemory, vcpu: &VcpuRegisters) -> bool {
        let has_text = || matches!(self.root_of(memory, vcpu), Ok(Some(_)));
        vcpu.online && may_run_a_guest(vcpu) && !has_text()
    }
}

/// Whether these can be the registers of a guest of the guest: hardware wants this bit in them. KVM says itself whose they are on
/// newer kernels only (`KVM_RUN_X86_GUEST_MODE`, since 6.11).
pub(crate) const fn may_run_a_guest(vcpu: &VcpuRegisters) -> bool {
    /// CR4.VMXE, which is fixed to 1 in VMX operation, within a guest, too (Intel SDM vol. 3, 24.8).
    const VMXE: u64 = 1 << 13;
    /// EFER.SVME, without which VMRUN refuses a guest's registers (AMD APM vol. 2, 15.5.1).
    const SVME: u64 = 1 << 12;
    vcpu.cr4 & VMXE != 0 || vcpu.efer & SVME != 0
}

#[cfg(test)]
pub(crate) mod testing {
    //! A guest with two sets of page tables.

    use super::*;
    use crate::layout;
    use crate::memory::Ram;

    const TABLES: [u64; 2] = [0x1000, 0x2000];
    const LARGE_PAGE: u64 = 0x83;

    /// Where the kernel's text lies.
    pub(crate) const TEXT: KernelText = KernelText {
        at: Gva(0x20_0000),
        place: Gpa(0x40_0000),
    };

    /// Memory with page tables in which the text lies at these places, and a vCPU with each.
    pub(crate) fn two_vcpus(places: [u64; 2]) -> (Ram, [VcpuRegisters; 2]) {
        let ram = Ram::create(layout::MEMORY_MIN_MIB, 0x1000).unwrap();
        for (table, place) in TABLES.into_iter().zip(places) {
            map(&ram, table, place);
        }
        let vcpu = |cr3| VcpuRegisters {
            online: true,
            cr0: 1 << 31 | 1,
            cr3,
            cr4: 1 << 5,
            efer: 1 << 10 | 1 << 8,
            ..VcpuRegisters::default()
        };
        (ram, TABLES.map(vcpu))
    }

    /// Has the first vCPU's page tables lead there.
    pub(crate) fn move_text(ram: &Ram, place: u64) {
        map(ram, TABLES[0], place);
    }

    /// One table that is its own next one, down to a page of 2 MiB.
    fn map(ram: &Ram, table: u64, place: u64) {
        let entries = [(0, table | 3), (8, place | LARGE_PAGE)];
        for (at, entry) in entries {
            ram.write(Gpa(table + at), &u64::to_le_bytes(entry))
                .unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{TEXT, two_vcpus};
    use super::*;

    #[test]
    fn who_may_run_a_guest_and_has_not_the_text_seems_to_be_in_it() {
        let (ram, [with, without]) = two_vcpus([TEXT.place.0, 0x60_0000]);
        let may = |vcpu: VcpuRegisters| {
            [(1 << 13, 0), (0, 1 << 12)].map(|(cr4, efer)| VcpuRegisters {
                cr4: vcpu.cr4 | cr4,
                efer: vcpu.efer | efer,
                ..vcpu
            })
        };
        let seems = |vcpu: &VcpuRegisters| TEXT.may_be_left(ram.memory(), vcpu);
        assert!(may(without).iter().all(seems));
        let unread = VcpuRegisters {
            cr3: 1 << 40,
            ..with
        };
        assert!(may(unread).iter().all(seems));
        assert!(!may(with).iter().any(seems), "it is with its kernel");
        assert!(![without, unread].iter().any(seems), "it cannot");
        let offline = may(without).map(|vcpu| VcpuRegisters {
            online: false,
            ..vcpu
        });
        assert!(!offline.iter().any(seems));
    }
}
