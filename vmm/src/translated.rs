//! Guest memory by virtual address, through page tables of the guest's own.

use std::cell::Cell;

use terms::addr::{Gpa, Gva};
use terms::region::Region;
use tracer::PageTableRoot;
use tracer::target::{MemoryError, VcpuRegisters};

use crate::all_memory::AllMemory;
use crate::kernel_text::KernelText;
use crate::scatter::{Piece, pieces, read_pieces, write_pieces};

/// Guest memory, with what is known of the translation of its addresses.
#[derive(Debug)]
pub(crate) struct Translated<R> {
    ram: R,
    /// The kernel whose addresses these are, where that is known.
    kernel: Option<KernelText>,
    root: Option<PageTableRoot>,
    /// The page that was accessed last: most accesses go to neighbours, and walking the guest's
    /// tables takes longer than the access.
    page: Cell<Option<Page>>,
}

impl<R: AllMemory> Translated<R> {
    /// Memory as the first of `vcpus` sees it that executes with the page tables of `kernel`; where that is not known, or none
    /// does, that translates addresses.
    pub(crate) fn new(ram: R, vcpus: &[VcpuRegisters], kernel: Option<KernelText>) -> Self {
        Self {
            root: root_of(&ram, vcpus, kernel),
            ram,
            kernel,
            page: Cell::new(None),
        }
    }

    /// The registers have changed.
    pub(crate) fn seen_by(&mut self, vcpus: &[VcpuRegisters]) {
        self.root = root_of(&self.ram, vcpus, self.kernel);
        self.page.set(None);
    }

    /// The same by physical address.
    pub(crate) const fn physical(&self) -> &R {
        &self.ram
    }

    /// All memory but the window.
    pub(crate) fn ram(&self) -> Vec<Region> {
        self.ram.ram()
    }

    pub(crate) fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.ram.read_physical(at, into)
    }

    pub(crate) fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.ram.write_window(at, bytes)
    }

    pub(crate) fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        // What is written may be a page table.
        self.page.set(None);
        self.ram.write(at, bytes)
    }

    pub(crate) fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        match self.in_one_page(at, into.len())? {
            Some(physical) => self.ram.read_physical(physical, into),
            None => read_pieces(&self.ram, &self.pieces(at, into.len())?, into),
        }
    }

    pub(crate) fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        if let Some(physical) = self.in_one_page(at, bytes.len())? {
            return self.ram.write(physical, bytes);
        }
        let pieces = self.pieces(at, bytes.len())?;
        write_pieces(&self.ram, &pieces, bytes)
    }

    /// As [`Self::read`], of many places at once if each is in one page.
    pub(crate) fn read_all(&self, places: &mut [(Gva, &mut [u8])]) -> Result<(), MemoryError> {
        let mut physical = Vec::with_capacity(places.len());
        for (at, into) in places.iter_mut() {
            match self.in_one_page(*at, into.len())? {
                Some(start) => physical.push((start, &mut **into)),
                None => self.read(*at, into)?,
            }
        }
        self.ram.read_all(&mut physical)
    }

    /// As [`Self::write`].
    pub(crate) fn write_all(&mut self, places: &[(Gva, &[u8])]) -> Result<(), MemoryError> {
        let mut physical = Vec::with_capacity(places.len());
        for (at, bytes) in places {
            match self.in_one_page(*at, bytes.len())? {
                Some(start) => physical.push((start, *bytes)),
                None => self.write(*at, bytes)?,
            }
        }
        self.ram.write_all(&physical)
    }

    fn pieces(&self, at: Gva, length: usize) -> Result<Vec<Piece>, MemoryError> {
        pieces(at, length, |here| self.locate(here, length))
    }

    /// The physical address of a byte and how many bytes follow it in its page.
    fn locate(&self, at: Gva, length: usize) -> Result<(Gpa, u64), MemoryError> {
        if let Some(found) = self.page.get().and_then(|page| page.locate(at)) {
            return Ok(found);
        }
        let not_mapped = || MemoryError::NotMapped {
            address: at,
            length,
        };
        let root = self.root.ok_or_else(not_mapped)?;
        let translate = |root| tracer::translate(&self.ram, root, at);
        // The vCPU may have been stopped in ring 3 with tables that leave the kernel out.
        let found = translate(root).or_else(|error| {
            let kernel = root.kernel_half().ok_or(error)?;
            translate(kernel)
        });
        let found = found.map_err(|_| not_mapped())?;
        self.page.set(Some(Page {
            start: Gva(at.0 & !(found.page_size - 1)),
            physical: Gpa(found.physical.0 & !(found.page_size - 1)),
            bytes: found.page_size,
        }));
        Ok((found.physical, found.bytes_left_in_page()))
    }

    /// The physical address of bytes that lie in one page, the usual case; `None` for others.
    fn in_one_page(&self, at: Gva, length: usize) -> Result<Option<Gpa>, MemoryError> {
        let (physical, left) = self.locate(at, length)?;
        let fits = usize::try_from(left).is_ok_and(|left| length <= left);
        Ok(fits.then_some(physical))
    }
}

/// The page tables in force on the first vCPU that has those of `kernel`; else on the first one that has any which can be read:
/// those of others can lie in memory that the guest has got since it was attached to.
fn root_of(
    ram: &impl AllMemory,
    vcpus: &[VcpuRegisters],
    kernel: Option<KernelText>,
) -> Option<PageTableRoot> {
    let online = || vcpus.iter().filter(|vcpu| vcpu.online);
    // The first one may be in a guest of the guest, or in its firmware.
    let of_kernel = kernel.and_then(|kernel| {
        let mut roots = online().filter_map(|vcpu| kernel.root_of(ram, vcpu).ok()?);
        roots.next()
    });
    if of_kernel.is_some() {
        return of_kernel;
    }
    let mut roots = online().filter_map(|vcpu| PageTableRoot::of(vcpu).ok());
    roots.find(|root| ram.read_physical(root.table, &mut [0; 8]).is_ok())
}

/// A page of the guest and where it lies in physical memory.
#[derive(Debug, Clone, Copy)]
struct Page {
    start: Gva,
    physical: Gpa,
    bytes: u64,
}

impl Page {
    fn locate(self, at: Gva) -> Option<(Gpa, u64)> {
        let offset = at.0.wrapping_sub(self.start.0);
        (offset < self.bytes).then(|| (Gpa(self.physical.0 + offset), self.bytes - offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_text::testing::{TEXT, two_vcpus};

    /// The first vCPU was once met in a guest of the guest: nothing of the kernel's text was found, and it stayed patched.
    #[test]
    fn the_kernel_is_seen_with_its_own_page_tables_whoever_has_them() {
        const ELSEWHERE: u64 = 0x60_0000;
        let word = |at: Gpa| at.0.to_le_bytes();
        for (places, seen) in [
            ([ELSEWHERE, TEXT.place.0], TEXT.place),
            ([TEXT.place.0, ELSEWHERE], TEXT.place),
            // Nobody has them.
            ([ELSEWHERE, ELSEWHERE], Gpa(ELSEWHERE)),
        ] {
            let (ram, vcpus) = two_vcpus(places);
            for at in [TEXT.place, Gpa(ELSEWHERE)] {
                ram.write(at, &word(at)).unwrap();
            }
            let mut memory = Translated::new(&ram, &vcpus, Some(TEXT));
            for _ in 0..2 {
                let mut found = [0; 8];
                memory.read(TEXT.at, &mut found).unwrap();
                assert_eq!(found, word(seen), "{places:#x?}");
                memory.seen_by(&vcpus);
            }
        }
        // Where the kernel is not known, the first one counts.
        let (ram, vcpus) = two_vcpus([ELSEWHERE, TEXT.place.0]);
        ram.write(Gpa(ELSEWHERE), &[7; 8]).unwrap();
        let mut found = [0; 8];
        let memory = Translated::new(&ram, &vcpus, None);
        memory.read(TEXT.at, &mut found).unwrap();
        assert_eq!(found, [7; 8]);
    }
}
