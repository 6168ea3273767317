//! The guest's address space as it was when we came: a copy of the top page table. The tables of a process may be gone as
//! soon as it runs again; what they have of the kernel is shared by all, and stays.

use terms::addr::{Gpa, Gva};
use tracer::PageTableRoot;
use tracer::target::{MemoryError, PhysicalMemory, VcpuRegisters};

use crate::vcpu::FullRegisters;

/// A page table.
const BYTES: usize = 4096;

/// A copy of a top page table, and where it was.
#[derive(Debug)]
pub(super) struct TopTable {
    root: Option<PageTableRoot>,
    at: Gpa,
    entries: Vec<u8>,
}

impl TopTable {
    /// Of the first of `vcpus` that translates addresses, and is not seen in a guest of the guest.
    pub fn of(memory: &impl PhysicalMemory, vcpus: &[FullRegisters]) -> Self {
        const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
        let online = vcpus.iter().find(|vcpu| is_its_own(vcpu));
        let at = Gpa(online.map_or(0, |vcpu| vcpu.system.cr3) & ADDRESS);
        let mut entries = vec![0; BYTES];
        let read = memory.read_physical(at, &mut entries);
        Self {
            root: root_of(vcpus).filter(|_| read.is_ok()),
            at,
            entries,
        }
    }

    /// Where an address of the kernel lies, and how many bytes follow it in the same page.
    pub fn locate(&self, memory: &impl PhysicalMemory, at: Gva) -> Option<(Gpa, u64)> {
        let over = Over {
            table: self,
            memory,
        };
        let root = self.root?;
        let found = tracer::translate(&over, root, at).or_else(|error| {
            // It was copied while ring 3 ran, with tables that leave the kernel out.
            let kernel = root.kernel_half().ok_or(error)?;
            tracer::translate(memory, kernel, at)
        });
        let found = found.ok()?;
        Some((found.physical, found.bytes_left_in_page()))
    }
}

/// Memory, with the copy in the table's place.
struct Over<'a, M> {
    table: &'a TopTable,
    memory: &'a M,
}

impl<M: PhysicalMemory> PhysicalMemory for Over<'_, M> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        let copied = at.0.checked_sub(self.table.at.0).and_then(|offset| {
            let offset = usize::try_from(offset).ok()?;
            self.table
                .entries
                .get(offset..offset.checked_add(into.len())?)
        });
        match copied {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
            None => self.memory.read_physical(at, into),
        }
    }
}

/// Whether these are registers of the guest itself, with page tables.
const fn is_its_own(vcpu: &FullRegisters) -> bool {
    vcpu.is_online() && !vcpu.is_nested
}

/// The page tables of the first vCPU that has any.
fn root_of(vcpus: &[FullRegisters]) -> Option<PageTableRoot> {
    let online = vcpus.iter().filter(|vcpu| is_its_own(vcpu));
    let mut roots = online.filter_map(|vcpu| PageTableRoot::of(&VcpuRegisters::from(vcpu)).ok());
    roots.next()
}
