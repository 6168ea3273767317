//! The window: memory that the guest does not know of, made visible through spare entries of its own
//! page tables.
//!
//! The memory is a [`Region`] of guest physical addresses that is in no memory map. The window shows
//! parts of it ([`Extent`]s of whole 2 MiB pages) near the guest's text, so that a site reaches its
//! stub and a stub its ring by a 32-bit distance. Only entries that are zero are used, and each is
//! looked at again before every attach: a guest that clears or takes one is noticed.

use alias::Alias;

use crate::addr::{Gpa, Gva};
use crate::image::TextRange;
use crate::paging::{
    FreeSlot, PAGE_2M, PageTableRoot, TranslateError, free_slots, large_page_entry, translate,
};
use crate::target::{MemoryError, PhysicalMemory, StoppedTarget, VcpuRegisters};

/// A stretch of guest physical memory, for the window or of the guest's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Where it starts; a window's at a multiple of 2 MiB.
    pub start: Gpa,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Region {
    /// The first physical address behind it.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start.0.saturating_add(self.bytes)
    }
}

/// Why memory could not be shown to the guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// No vCPU runs yet.
    #[error("no vCPU has been started: there are no page tables to open a window in")]
    NoVcpu,
    /// The page tables could not be walked.
    #[error(transparent)]
    Translate(#[from] TranslateError),
    /// The guest's tables could not be changed.
    #[error("the guest's page table entry at {entry} cannot be written: {source}")]
    Entry {
        /// The entry.
        entry: Gpa,
        /// Why not.
        source: MemoryError,
    },
    /// There is no run of free entries near the text.
    #[error(
        "the guest's page tables have no {pages} free 2 MiB slots in a row within reach of its text at {text} ({free} are free)"
    )]
    NoSlots {
        /// Pages asked for.
        pages: u64,
        /// Start of the text.
        text: Gva,
        /// Free slots found.
        free: usize,
    },
    /// There is no place for the alias.
    #[error(
        "memory cannot be captured: the {pieces} pieces of the guest's RAM need {gigabytes} free entries of 1 GiB in a row in the page tables of its text at {text} ({free} are free); registers can be captured"
    )]
    NoAlias {
        /// Entries that are needed.
        gigabytes: u64,
        /// Pieces of RAM; few are possible.
        pieces: usize,
        /// Start of the text.
        text: Gva,
        /// Free entries found.
        free: usize,
    },
    /// The region is used up.
    #[error(
        "{bytes} bytes of tracing memory were asked for, {left} are left: use smaller rings or fewer sessions"
    )]
    RegionFull {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes left.
        left: u64,
    },
    /// The guest uses an entry that held a page of the window.
    #[error("the guest has taken the window at {at} (its entry at {entry} now holds {found:#x})")]
    Taken {
        /// The page's address.
        at: Gva,
        /// The entry.
        entry: Gpa,
        /// What it holds.
        found: u64,
    },
    /// A vCPU does not see the window.
    #[error("vCPU {vcpu} has page tables of its own and does not see the window at {at}")]
    NotShared {
        /// Its number.
        vcpu: usize,
        /// The page's address.
        at: Gva,
    },
}

/// A run of pages that the window shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where the guest sees it.
    pub at: Gva,
    /// Where it lies.
    pub physical: Gpa,
    /// Its size in bytes, a multiple of 2 MiB.
    pub bytes: u64,
}

/// One entry of the guest's page tables that belongs to the window.
#[derive(Debug, Clone, Copy)]
struct Page {
    slot: FreeSlot,
    physical: Gpa,
    value: u64,
}

/// A window into a [`Region`].
#[derive(Debug)]
pub struct Window {
    region: Region,
    used: u64,
    text: TextRange,
    user: bool,
    pages: Vec<Page>,
    alias: Option<Alias>,
    /// Bytes at the end of the region that are page tables of our own.
    reserved: u64,
    /// Bytes of them that are free.
    tables: u64,
}

/// How far a 32-bit distance reaches, less room for the text's own extent.
const REACH: u64 = 1 << 31;

impl Window {
    /// A window near `text`, with the page tables that the first running vCPU uses. What it shows is
    /// usable in ring 3 if the text is.
    ///
    /// # Errors
    /// A [`WindowError`].
    pub fn open(
        target: &(impl StoppedTarget + ?Sized),
        region: Region,
        text: TextRange,
    ) -> Result<Self, WindowError> {
        let root = running_root(target, text.start)?;
        let user = translate(target, root, text.start)?.user;
        Ok(Self {
            region,
            used: 0,
            text,
            user,
            pages: Vec::new(),
            alias: None,
            reserved: 0,
            tables: 0,
        })
    }

    /// Whether ring 3 can use the window.
    #[must_use]
    pub const fn is_user(&self) -> bool {
        self.user
    }

    /// The size of its region in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.region.bytes
    }

    /// Bytes of the region that are not shown yet.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.region.bytes - self.used - self.reserved
    }

    /// Shows the next `bytes` of the region, rounded up to whole pages, one after the other.
    ///
    /// # Errors
    /// A [`WindowError`]; then nothing new is shown.
    pub fn map(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        bytes: u64,
        executable: bool,
    ) -> Result<Extent, WindowError> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_2M);
        let left = self.left();
        if bytes > left {
            return Err(WindowError::RegionFull { bytes, left });
        }
        // Not the tables of the time when the window was opened: the guest may have freed those.
        let root = running_root(target, self.text.start)?;
        let slots = self.find(target, root, bytes / PAGE_2M)?;
        let physical = Gpa(self.region.start.0 + self.used);
        let mut pages = Vec::new();
        for (slot, number) in slots.iter().zip(0..) {
            let page = Gpa(physical.0 + number * PAGE_2M);
            let value = large_page_entry(page, self.user, executable, root);
            pages.push(Page {
                slot: *slot,
                physical: page,
                value,
            });
        }
        if let Err(error) = show(target, &pages, self.text.start) {
            take_back(target, &pages);
            return Err(error);
        }
        self.used += bytes;
        self.pages.append(&mut pages);
        Ok(Extent {
            at: slots.first().map_or(self.text.start, |slot| slot.address),
            physical,
            bytes,
        })
    }

    /// Takes every page of the window out of the guest's tables again, those that the guest has
    /// taken aside. Only for a window that no guest instruction has been led to.
    pub fn close(self, target: &mut (impl StoppedTarget + ?Sized)) {
        self.close_alias(target);
        take_back(target, &self.pages);
    }

    /// A run of free slots behind the text, or else before it; within reach of the pages shown so far
    /// too, because stubs must reach their rings.
    fn find(
        &self,
        target: &(impl StoppedTarget + ?Sized),
        root: PageTableRoot,
        pages: u64,
    ) -> Result<Vec<FreeSlot>, WindowError> {
        let TextRange { start, end } = self.text;
        let shown = || self.pages.iter().map(|page| page.slot.address);
        let lowest = shown().fold(start, Gva::min);
        let highest = shown()
            .map(|at| Gva(at.0.saturating_add(PAGE_2M)))
            .fold(end, Gva::max);
        let behind = (end, Gva(lowest.0.saturating_add(REACH - PAGE_2M)));
        let before = (Gva(highest.0.saturating_sub(REACH - PAGE_2M)), start);
        let mut free = 0;
        for (from, to) in [behind, before] {
            let slots = free_slots(target, root, from, to, self.user)?;
            free += slots.len();
            if let Some(run) = run_of(&slots, pages) {
                return Ok(run.to_vec());
            }
        }
        Err(WindowError::NoSlots {
            pages,
            text: start,
            free,
        })
    }

    /// Whether `text` may be executed where the window may be used, as the first of `vcpus` that runs sees it: in
    /// ring 3 both, or neither. What is not mapped cannot be changed, which says so itself.
    #[must_use]
    pub fn suits(
        &self,
        target: &(impl PhysicalMemory + ?Sized),
        vcpus: &[VcpuRegisters],
        text: Gva,
    ) -> bool {
        let running = vcpus.iter().find(|registers| registers.online);
        let seen = running.and_then(|registers| {
            let root = PageTableRoot::of_text(target, registers, text).ok()?;
            translate(target, root, text).ok()
        });
        seen.is_none_or(|seen| seen.user == self.user)
    }

    /// Checks that the guest still has every page of the window where it was put; puts back those
    /// that it has cleared.
    ///
    /// # Errors
    /// [`WindowError::Taken`] or [`WindowError::NotShared`].
    pub fn verify(&self, target: &mut (impl StoppedTarget + ?Sized)) -> Result<(), WindowError> {
        let vcpus = target.vcpus().to_vec();
        self.verify_seen_by(target, &vcpus)
    }

    /// The same, where these are the registers of the vCPUs.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub fn verify_seen_by(
        &self,
        target: &mut (impl PhysicalMemory + ?Sized),
        vcpus: &[VcpuRegisters],
    ) -> Result<(), WindowError> {
        for page in &self.pages {
            put_back(target, page)?;
            check_seen(target, vcpus, page, self.text.start)?;
        }
        self.verify_alias(target, vcpus)
    }
}

/// Writes an entry of the window again that the guest has cleared.
fn put_back(target: &mut (impl PhysicalMemory + ?Sized), page: &Page) -> Result<(), WindowError> {
    let entry = page.slot.entry;
    let mut bytes = [0; 8];
    target
        .read_physical(entry, &mut bytes)
        .map_err(|source| WindowError::Entry { entry, source })?;
    match u64::from_le_bytes(bytes) {
        found if found == page.value => Ok(()),
        0 => write_entry(target, entry, page.value),
        found => Err(WindowError::Taken {
            at: page.slot.address,
            entry,
            found,
        }),
    }
}

/// The page tables with which the first running vCPU executes the text at `text`.
fn running_root(
    target: &(impl StoppedTarget + ?Sized),
    text: Gva,
) -> Result<PageTableRoot, WindowError> {
    let registers = target.vcpus().iter().find(|vcpu| vcpu.online);
    let registers = registers.ok_or(WindowError::NoVcpu)?;
    Ok(PageTableRoot::of_text(target, registers, text)?)
}

/// Writes the entries of `pages` and checks that each vCPU then sees them.
fn show(
    target: &mut (impl StoppedTarget + ?Sized),
    pages: &[Page],
    text: Gva,
) -> Result<(), WindowError> {
    for page in pages {
        write_entry(target, page.slot.entry, page.value)?;
    }
    let vcpus = target.vcpus();
    pages
        .iter()
        .try_for_each(|page| check_seen(target, vcpus, page, text))
}

/// Clears the entries that still hold what was written to them. One that cannot be cleared stays: it
/// shows the guest memory that nothing leads to.
fn take_back(target: &mut (impl StoppedTarget + ?Sized), pages: &[Page]) {
    for page in pages {
        let mut bytes = [0; 8];
        let entry = page.slot.entry;
        if target.read_physical(entry, &mut bytes).is_ok()
            && u64::from_le_bytes(bytes) == page.value
        {
            let _ = write_entry(target, entry, 0);
        }
    }
}

/// Whether every running vCPU sees the window's own memory at the page's address when it executes the
/// text. Two addresses that share a table would both see the later page: that is found here too.
fn check_seen(
    target: &(impl PhysicalMemory + ?Sized),
    vcpus: &[VcpuRegisters],
    page: &Page,
    text: Gva,
) -> Result<(), WindowError> {
    let at = page.slot.address;
    for (vcpu, registers) in vcpus.iter().enumerate() {
        if !registers.online {
            continue;
        }
        let root = PageTableRoot::of_text(target, registers, text);
        let seen = root.and_then(|root| translate(target, root, at));
        if !seen.is_ok_and(|seen| seen.physical == page.physical) {
            return Err(WindowError::NotShared { vcpu, at });
        }
    }
    Ok(())
}

/// The first `pages` slots that follow each other without a gap.
fn run_of(slots: &[FreeSlot], pages: u64) -> Option<&[FreeSlot]> {
    let pages = usize::try_from(pages).ok()?;
    slots.windows(pages).find(|run| {
        let ends = run.first().zip(run.last());
        ends.is_some_and(|(first, last)| {
            last.address.0 - first.address.0 == (pages as u64 - 1) * PAGE_2M
        })
    })
}

fn write_entry(
    target: &mut (impl PhysicalMemory + ?Sized),
    entry: Gpa,
    value: u64,
) -> Result<(), WindowError> {
    target
        .write_physical(entry, &value.to_le_bytes())
        .map_err(|source| WindowError::Entry { entry, source })
}

pub mod alias;
#[cfg(test)]
mod tests;
