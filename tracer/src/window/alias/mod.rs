//! The alias: all of the guest's RAM, shown once more, for reading only.
//!
//! Code that walks page tables and reads what they map must not use the guest's own mappings, which come and go. So
//! entries of the table above the page directories (1 GiB each) that are free, in the table that maps the text,
//! are pointed at all RAM: read-only, not executable, usable in ring 3 if the text is. That table is one for all but a vCPU in a call of its
//! firmware: while there is such a one no alias is made. As
//! [`Window`]'s own pages they are looked at again before every change.
//!
//! Where the processor has pages of 1 GiB an entry is one. Where not, it leads to a page directory of ours, which lies in
//! the window's region.

use image::TextRange;
use terms::addr::{Gpa, Gva};
use terms::region::Region;

use super::{Page, Window, WindowError, lasting_root, run_of};
use crate::paging::{FreeSlot, PAGE_1G, PAGE_2M, PAGE_4K, PageTableRoot, bits, free_giant_slots};
use crate::target::StoppedTarget;
use crate::window::shown::{GuestMemory, Root, Shown};

/// Pieces that RAM can be in: the code that looks for the piece of an address takes them one by one.
const PIECES_MAX: usize = 16;

/// The entries of the alias.
#[derive(Debug)]
pub struct Alias {
    pages: Vec<Page>,
    memory: GuestMemory,
}

impl Alias {
    pub(super) fn pages(&self) -> &[Page] {
        &self.pages
    }
}

impl Window {
    /// Makes the alias, if it is not there.
    ///
    /// # Errors
    /// A [`WindowError`]; then nothing is shown.
    pub fn make_alias(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<&GuestMemory, WindowError> {
        let alias = match self.alias.take() {
            Some(alias) => alias,
            None => self.new_alias(target)?,
        };
        Ok(&self.alias.insert(alias).memory)
    }

    fn new_alias(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<Alias, WindowError> {
        let ram: Vec<Region> = target.ram().into_iter().filter_map(whole_pages).collect();
        let text = self.text();
        let root = lasting_root(target, text, self.places.tables)?;
        let mut free = free_giant_slots(target, root, text, self.user)?;
        free.retain(|slot| {
            self.places
                .giants
                .iter()
                .any(|range| lies_in(*range, *slot))
        });
        let first = ram.iter().map(|piece| piece.start.0).min().unwrap_or(0) / PAGE_1G;
        let end = ram.iter().map(|piece| piece.end()).max().unwrap_or(0);
        let wanted = end.div_ceil(PAGE_1G).saturating_sub(first);
        let no_place = WindowError::NoAlias {
            gigabytes: wanted,
            pieces: ram.len(),
            text,
            free: free.len(),
        };
        let slots =
            run_of(&free, wanted, PAGE_1G).filter(|_| (1..=PIECES_MAX).contains(&ram.len()));
        let Some(slots) = slots else {
            return Err(no_place);
        };
        let mut pages = Vec::new();
        for (slot, number) in slots.iter().zip(first..) {
            let page = if target.has_gigabyte_pages() {
                Some(self.giant_page(*slot, number, root))
            } else {
                self.directory(target, *slot, number, &ram, root)?
            };
            pages.extend(page);
        }
        self.show(target, &pages)?;
        let base = slots.first().map_or(Gva(0), |slot| slot.address);
        let shown = ram.iter().map(|piece| Shown {
            start: piece.start,
            bytes: piece.bytes,
            at: base.wrapping_add(piece.start.0.wrapping_sub(first * PAGE_1G)),
        });
        let memory = GuestMemory {
            root: match self.user {
                true => Root::Table(root.table),
                false => Root::Cr3,
            },
            levels: root.levels,
            ram: shown.collect(),
        };
        Ok(Alias { pages, memory })
    }

    /// What entries of the alias say beside an address.
    fn rights(&self, root: PageTableRoot) -> u64 {
        let user = if self.user { bits::USER } else { 0 };
        let no_execute = match root.no_execute {
            true => bits::NO_EXECUTE,
            false => 0,
        };
        bits::PRESENT | bits::ACCESSED | user | no_execute
    }

    /// Gigabyte `number` as one page.
    fn giant_page(&self, slot: FreeSlot, number: u64, root: PageTableRoot) -> Page {
        let physical = Gpa(number * PAGE_1G);
        let value = physical.0 | self.rights(root) | bits::LARGE;
        Page {
            slot,
            level: 3,
            physical,
            value,
        }
    }

    /// Gigabyte `number` as a new page directory, with an entry for each 2 MiB with RAM; none when there is none.
    fn directory(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        slot: FreeSlot,
        number: u64,
        ram: &[Region],
        root: PageTableRoot,
    ) -> Result<Option<Page>, WindowError> {
        let start = number * PAGE_1G;
        let is_ram = |at: u64| {
            ram.iter()
                .any(|piece| piece.start.0 < at + PAGE_2M && at < piece.end())
        };
        let places = (start..start + PAGE_1G).step_by(1 << 21);
        let Some(first) = places.clone().find(|at| is_ram(*at)) else {
            return Ok(None);
        };
        let rights = self.rights(root);
        let entries = places.map(|at| match is_ram(at) {
            true => at | rights | bits::LARGE,
            false => 0,
        });
        let bytes: Vec<u8> = entries.flat_map(u64::to_le_bytes).collect();
        let entry = self.take_table(target)?;
        target
            .write_physical(entry, &bytes)
            .map_err(|source| WindowError::Entry { entry, source })?;
        let address = slot.address.wrapping_add(first - start);
        Ok(Some(Page {
            slot: FreeSlot { address, ..slot },
            level: 3,
            physical: Gpa(first),
            value: entry.0 | rights,
        }))
    }

    /// A page of the region for a table of our own. They come from the end, a whole 2 MiB of them at a time.
    fn take_table(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<Gpa, WindowError> {
        let end = self.region.start.0 + self.region.bytes;
        if self.tables == 0 {
            let left = self.left();
            if left < PAGE_2M {
                let bytes = PAGE_2M;
                return Err(WindowError::RegionFull { bytes, left });
            }
            target.provide(Region {
                start: Gpa(end - self.reserved - PAGE_2M),
                bytes: PAGE_2M,
            })?;
            self.reserved += PAGE_2M;
            self.tables = PAGE_2M;
        }
        self.tables -= PAGE_4K;
        Ok(Gpa(end - self.reserved + self.tables))
    }
}

fn lies_in(range: TextRange, slot: FreeSlot) -> bool {
    range.holds(slot.address, PAGE_1G - 1)
}

/// The pages of 4 KiB that lie in a piece of RAM whole.
fn whole_pages(piece: Region) -> Option<Region> {
    let start = piece.start.0.checked_next_multiple_of(PAGE_4K)?;
    let end = piece.end() / PAGE_4K * PAGE_4K;
    let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0)?;
    Some(Region {
        start: Gpa(start),
        bytes,
    })
}

#[cfg(test)]
mod tests;
