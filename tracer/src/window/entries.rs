//! The window's entries in the guest's page tables: written, looked at, put back, taken out.
//!
//! A page that was a page table when the window was opened need not be one now: after kexec, or when a kernel has
//! built its tables anew, it is anybody's, and a zero in it is no entry that was cleared. So before an entry is
//! written, a walk from the tables that each vCPU uses *now* has to lead to it. What turns out to be wrong
//! afterwards is taken back. An entry that is as it was written needs less: a vCPU may have a copy of it in a table of its own,
//! as in a call of its firmware, if that shows it the same memory. An entry that led to no memory leads there again when the window has gone.

use terms::addr::{Gpa, Gva};

use super::WindowError;
use crate::paging::{FreeSlot, PageTableRoot, entry_for, is_same_entry, translate};
use crate::target::{PhysicalMemory, TextMemory, VcpuRegisters};

/// One entry of the guest's page tables that belongs to the window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    pub slot: FreeSlot,
    /// 2 in a page directory, 3 in the table above it.
    pub level: u8,
    pub physical: Gpa,
    pub value: u64,
}

impl Page {
    fn is_in(&self, entry: u64) -> bool {
        is_same_entry(entry, self.value)
    }

    /// Whether the guest has put back what it had there, or has cleared the entry.
    fn is_out(&self, entry: u64) -> bool {
        entry == 0 || is_same_entry(entry, self.slot.holds)
    }
}

/// The page tables with which running vCPUs execute the text, each once, with a vCPU that uses them; none where it
/// does not translate addresses as 64-bit code does.
#[derive(Debug)]
pub(super) struct Roots(Vec<(usize, Option<PageTableRoot>)>);

impl Roots {
    /// Those of all running vCPUs.
    pub fn new(
        memory: &(impl PhysicalMemory + ?Sized),
        vcpus: &[VcpuRegisters],
        text: Gva,
    ) -> Self {
        let mut roots: Vec<(usize, Option<PageTableRoot>)> = Vec::new();
        let running = vcpus.iter().enumerate().filter(|(_, vcpu)| vcpu.online);
        for (vcpu, registers) in running {
            let root = PageTableRoot::of_text(memory, registers, text).ok();
            if !roots.iter().any(|(_, known)| *known == root) {
                roots.push((vcpu, root));
            }
        }
        Self(roots)
    }

    /// Without those in which the text is not: who uses them executes none of it now.
    pub fn with_text(mut self, memory: &(impl PhysicalMemory + ?Sized), text: Gva) -> Self {
        let has_text = |root: PageTableRoot| translate(memory, root, text).is_ok();
        self.0.retain(|(_, root)| root.is_some_and(has_text));
        self
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a walk from each of them leads to the page's entry.
    fn lead_to(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        page: &Page,
    ) -> Result<(), WindowError> {
        self.all(page.slot.address, |root| leads(memory, root, page))
    }

    /// Whether with each of them the window's own memory is at the page's address.
    fn show(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        page: &Page,
    ) -> Result<(), WindowError> {
        self.all(page.slot.address, |root| shows(memory, root, page))
    }

    /// Whether each of them leads to the page's entry, which holds what was written to it, or to a copy of it.
    fn have(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        page: &Page,
    ) -> Result<(), WindowError> {
        let has = |root| leads(memory, root, page) || shows(memory, root, page);
        self.all(page.slot.address, has)
    }

    fn all(
        &self,
        at: Gva,
        mut holds: impl FnMut(PageTableRoot) -> bool,
    ) -> Result<(), WindowError> {
        let mut roots = self.0.iter();
        match roots.find(|(_, root)| !root.is_some_and(&mut holds)) {
            None => Ok(()),
            Some((vcpu, _)) => Err(WindowError::NotShared { vcpu: *vcpu, at }),
        }
    }
}

fn leads(memory: &(impl PhysicalMemory + ?Sized), root: PageTableRoot, page: &Page) -> bool {
    let entry = entry_for(memory, root, page.slot.address, page.level);
    entry.is_ok_and(|entry| entry == Some(page.slot.entry))
}

fn shows(memory: &(impl PhysicalMemory + ?Sized), root: PageTableRoot, page: &Page) -> bool {
    let seen = translate(memory, root, page.slot.address);
    seen.is_ok_and(|seen| seen.physical == page.physical)
}

/// Writes the entries of `pages`, which are free, if all of `roots` lead to them, and checks that all then
/// see the window there; else everything is taken back.
pub(super) fn show(
    memory: &mut (impl TextMemory + ?Sized),
    roots: &Roots,
    pages: &[Page],
) -> Result<(), WindowError> {
    if roots.is_empty() && !pages.is_empty() {
        return Err(WindowError::NoVcpu);
    }
    for page in pages {
        roots.lead_to(memory, page)?;
    }
    let mut written = Ok(());
    for page in pages {
        written = written.and_then(|()| write_entry(memory, page, page.value));
    }
    // Two addresses that share a table would both see the later page: that is found here.
    let mut seen = pages.iter();
    let seen = written.and_then(|()| seen.try_for_each(|page| roots.show(memory, page)));
    if seen.is_err() {
        take_back(memory, pages);
    }
    seen
}

/// Checks that all of `roots` have the entries of `pages`, and puts back those that were cleared, if all lead to them.
pub(super) fn verify<'p>(
    memory: &mut (impl TextMemory + ?Sized),
    roots: &Roots,
    pages: impl Iterator<Item = &'p Page>,
) -> Result<(), WindowError> {
    let mut cleared = Vec::new();
    for page in pages {
        match read_entry(memory, page)? {
            found if page.is_in(found) => roots.have(memory, page)?,
            found if page.is_out(found) => cleared.push(*page),
            found => {
                roots.lead_to(memory, page)?;
                return Err(WindowError::Taken {
                    at: page.slot.address,
                    entry: page.slot.entry,
                    found,
                });
            }
        }
    }
    show(memory, roots, &cleared)
}

/// Whether each entry holds what was written to it.
pub(super) fn are_in<'p>(
    memory: &(impl PhysicalMemory + ?Sized),
    mut pages: impl Iterator<Item = &'p Page>,
) -> bool {
    pages.all(|page| read_entry(memory, page).is_ok_and(|found| page.is_in(found)))
}

/// Gives the entries that still hold what was written to them what they held before. One that cannot be written stays:
/// it shows the guest memory that nothing leads to.
pub(super) fn take_back(memory: &mut (impl TextMemory + ?Sized), pages: &[Page]) {
    for page in pages {
        if read_entry(memory, page).is_ok_and(|found| page.is_in(found)) {
            let _ = write_entry(memory, page, page.slot.holds);
        }
    }
}

fn read_entry(memory: &(impl PhysicalMemory + ?Sized), page: &Page) -> Result<u64, WindowError> {
    let entry = page.slot.entry;
    let mut bytes = [0; 8];
    memory
        .read_physical(entry, &mut bytes)
        .map_err(|source| WindowError::Entry { entry, source })?;
    Ok(u64::from_le_bytes(bytes))
}

fn write_entry(
    memory: &mut (impl TextMemory + ?Sized),
    page: &Page,
    value: u64,
) -> Result<(), WindowError> {
    let entry = page.slot.entry;
    memory
        .write_physical(entry, &value.to_le_bytes())
        .map_err(|source| WindowError::Entry { entry, source })
}
