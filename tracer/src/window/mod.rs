//! The window: memory that the guest does not know of, made visible through spare entries of its own
//! page tables.
//!
//! The memory is a [`Region`] of guest physical addresses that is in no memory map. The window shows
//! parts of it ([`Extent`]s of whole 2 MiB pages) near the guest's text, so that a site reaches its
//! stub and a stub its ring by a 32-bit distance. Only entries that are zero are used, where there are none those that
//! lead to no memory of the guest, and only where nothing of the guest's can come ([`Places`]); each is looked at again
//! before every change: a guest that clears or takes one is noticed. Code is shown executable and not writable, everything else writable and not executable.

use alias::Alias;
use entries::{Page, Roots};
pub use error::WindowError;
pub use places::{Others, Places};
use title::{MirrorMemory, Title};

use image::TextRange;
use terms::addr::{Gpa, Gva};
use terms::region::Region;

use crate::paging::{
    FreeSlot, PAGE_2M, PageTableRoot, PageUse, TranslateError, absent_slots, free_slots,
    idle_slots, large_page_entry, translate,
};
use crate::target::{PhysicalMemory, StoppedTarget, TextMemory, VcpuRegisters, WindowMemory};

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

/// A window into a [`Region`].
#[derive(Debug)]
pub struct Window {
    region: Region,
    used: u64,
    places: Places,
    title: Title,
    user: bool,
    pages: Vec<Page>,
    alias: Option<Alias>,
    /// Bytes at the end of the region that the guest is not shown: the title, and page tables of our own.
    reserved: u64,
    /// Bytes of them that are free.
    tables: u64,
}

/// How far a 32-bit distance reaches, less room for what lies beside the place that it leads to.
const REACH: u64 = (1 << 31) - PAGE_2M;

impl Window {
    /// A window near the text of `places`, with the page tables that the first running vCPU uses. What it shows is
    /// usable in ring 3 if the text is.
    ///
    /// # Errors
    /// A [`WindowError`].
    pub fn open(
        target: &mut (impl StoppedTarget + ?Sized),
        region: Region,
        places: impl Into<Places>,
    ) -> Result<Self, WindowError> {
        let places = places.into();
        let text = places.text.start;
        let root = running_root(target, text)?;
        let user = translate(target, root, text)?.user;
        let left = region.bytes;
        let end = left.checked_sub(PAGE_2M).ok_or(WindowError::RegionFull {
            bytes: PAGE_2M,
            left,
        })?;
        target.provide(Region {
            start: region.start.wrapping_add(end),
            bytes: PAGE_2M,
        })?;
        Ok(Self {
            region,
            used: 0,
            places,
            title: Title::begin(target, region, text)?,
            user,
            pages: Vec::new(),
            alias: None,
            reserved: PAGE_2M,
            tables: PAGE_2M - title::BYTES,
        })
    }

    /// Whether ring 3 can use the window.
    #[must_use]
    pub const fn is_user(&self) -> bool {
        self.user
    }

    /// Whether entries of it held something when they were taken that the guest will clear.
    #[must_use]
    pub fn is_to_be_cleared(&self) -> bool {
        self.places.others == Others::Absent && self.pages.iter().any(|page| page.slot.holds != 0)
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
        page_use: PageUse,
    ) -> Result<Extent, WindowError> {
        let next = self.next(bytes)?;
        target.provide(next)?;
        self.map_next(target, next, page_use)
    }

    /// Shows a page of the region as [`Self::map`] does, without memory: who reads there leaves the guest.
    ///
    /// # Errors
    /// A [`WindowError`]; then nothing new is shown.
    pub fn map_without_memory(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<Extent, WindowError> {
        let next = self.next(PAGE_2M)?;
        self.map_next(target, next, PageUse::Data)
    }

    /// What comes next in the region: `bytes`, rounded up to whole pages.
    fn next(&self, bytes: u64) -> Result<Region, WindowError> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_2M);
        let left = self.left();
        if bytes > left {
            return Err(WindowError::RegionFull { bytes, left });
        }
        let start = Gpa(self.region.start.0 + self.used);
        Ok(Region { start, bytes })
    }

    fn map_next(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        next: Region,
        page_use: PageUse,
    ) -> Result<Extent, WindowError> {
        let Region {
            start: physical,
            bytes,
        } = next;
        // Not the tables of the time when the window was opened: the guest may have freed those.
        let root = running_root(target, self.text())?;
        let slots = self.find(target, root, bytes / PAGE_2M)?;
        let mut pages = Vec::new();
        for (slot, number) in slots.iter().zip(0..) {
            let page = Gpa(physical.0 + number * PAGE_2M);
            pages.push(Page {
                slot: *slot,
                level: 2,
                physical: page,
                value: large_page_entry(page, self.user, page_use, root),
            });
        }
        self.show(target, &pages)?;
        self.used += bytes;
        self.pages.append(&mut pages);
        Ok(Extent {
            at: slots.first().map_or(self.text(), |slot| slot.address),
            physical,
            bytes,
        })
    }

    /// Shows `pages`, all of them or none.
    fn show(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        pages: &[Page],
    ) -> Result<(), WindowError> {
        let put = pages.iter();
        let put = put.map(|page| (page.slot.entry, page.value, page.slot.holds));
        self.title.note(target, &put.collect::<Vec<_>>())?;
        let roots = Roots::new(target, target.vcpus(), self.text());
        entries::show(target, &roots, pages)
    }

    /// Takes every page of the window out of the guest's tables again, those that the guest has
    /// taken aside. Only where nobody is inside and nothing leads in: as in the pause in which it was opened, or when the guest is let go.
    pub fn close(self, target: &mut (impl StoppedTarget + ?Sized)) {
        for page in self.all_pages() {
            entries::take_back(target, std::slice::from_ref(page));
        }
    }

    /// Says where stubs will lie, and the journal.
    ///
    /// # Errors
    /// [`WindowError::Title`].
    pub fn entitle(
        &self,
        memory: &mut (impl WindowMemory + ?Sized),
        (stubs, bytes): (Gva, u64),
        journal: Gpa,
    ) -> Result<(), WindowError> {
        self.title.stubs(memory, stubs, bytes)?;
        Ok(self.title.journal(memory, journal)?)
    }

    /// Says where the mirror is.
    ///
    /// # Errors
    /// [`WindowError::Title`].
    pub fn entitle_mirror(
        &self,
        memory: &mut (impl WindowMemory + ?Sized),
        mirror: MirrorMemory,
    ) -> Result<(), WindowError> {
        Ok(self.title.mirror(memory, mirror)?)
    }

    /// The beginning of the text: what is mapped as that is, is the kernel's.
    const fn text(&self) -> Gva {
        self.places.text.start
    }

    fn all_pages(&self) -> impl Iterator<Item = &Page> {
        let alias = self.alias.iter().flat_map(Alias::pages);
        self.pages.iter().chain(alias)
    }

    /// A run of free slots in the first of the places that has one; within reach of the text and of the pages shown so
    /// far, because stubs must reach their rings.
    fn find(
        &self,
        target: &(impl StoppedTarget + ?Sized),
        root: PageTableRoot,
        pages: u64,
    ) -> Result<Vec<FreeSlot>, WindowError> {
        let zero = self.find_among(pages, |range| free_slots(target, root, range, self.user))?;
        let found = match zero {
            Ok(zero) => Ok(zero),
            Err(none) => match self.places.others {
                Others::None => Err(none),
                Others::Absent => {
                    self.find_among(pages, |range| absent_slots(target, root, range, self.user))?
                }
                Others::Idle => {
                    let ram = target.ram();
                    self.find_among(pages, |range| {
                        idle_slots(target, root, range, self.user, &ram)
                    })?
                }
            },
        };
        found.map_err(|free| WindowError::NoSlots {
            pages,
            text: self.text(),
            free,
        })
    }

    /// The same among the slots that `slots` finds; else how many there are.
    fn find_among(
        &self,
        pages: u64,
        slots: impl Fn(TextRange) -> Result<Vec<FreeSlot>, TranslateError>,
    ) -> Result<Result<Vec<FreeSlot>, usize>, WindowError> {
        let within = self.reach();
        let mut free = 0;
        let ranges = self.places.pages.iter();
        for range in ranges.filter_map(|range| range.common(within)) {
            let mut slots = slots(range)?;
            // An entry of ours that the guest has cleared is not free.
            slots.retain(|slot| !self.pages.iter().any(|page| page.slot.entry == slot.entry));
            free += slots.len();
            if let Some(run) = run_of(&slots, pages, PAGE_2M) {
                return Ok(Ok(run.to_vec()));
            }
        }
        Ok(Err(free))
    }

    /// What is near enough to all of the text and of the pages shown so far.
    fn reach(&self) -> TextRange {
        let TextRange { start, end } = self.places.text;
        let shown = || self.pages.iter().map(|page| page.slot.address);
        let lowest = shown().fold(start, Gva::min);
        let highest = shown()
            .map(|at| Gva(at.0.saturating_add(PAGE_2M)))
            .fold(end, Gva::max);
        TextRange {
            start: Gva(highest.0.saturating_sub(REACH)),
            end: Gva(lowest.0.saturating_add(REACH)),
        }
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

    /// Checks that the guest still has every page of the window where it was put, and that every vCPU sees it there; puts back those that it has cleared.
    ///
    /// # Errors
    /// [`WindowError::Taken`] or [`WindowError::NotShared`]; then nothing was put back.
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
        target: &mut (impl TextMemory + ?Sized),
        vcpus: &[VcpuRegisters],
    ) -> Result<(), WindowError> {
        let roots = Roots::new(target, vcpus, self.text());
        entries::verify(target, &roots, self.all_pages())
    }

    /// The same for those vCPUs only whose tables have the text: others, as one that is being started, execute none of
    /// it, and see the window when they see the text again. For a look between changes.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub fn verify_with_text(
        &self,
        target: &mut (impl TextMemory + ?Sized),
        vcpus: &[VcpuRegisters],
    ) -> Result<(), WindowError> {
        let roots = Roots::new(target, vcpus, self.text()).with_text(target, self.text());
        if roots.is_empty() {
            return Ok(());
        }
        entries::verify(target, &roots, self.all_pages())
    }

    /// Whether all entries hold what was written to them, as far as this can be told while the guest runs.
    #[must_use]
    pub fn is_untouched(&self, memory: &(impl PhysicalMemory + ?Sized)) -> bool {
        entries::are_in(memory, self.all_pages())
    }
}

/// The tables from which all others of the guest's are made, where it says so at `tables`; else those with which its first running
/// vCPU executes the text. That one may have others for a moment, as in a call of its firmware, and what is put into those only is
/// nowhere else.
fn lasting_root(
    target: &(impl StoppedTarget + ?Sized),
    text: Gva,
    tables: Option<Gva>,
) -> Result<PageTableRoot, WindowError> {
    let running = running_root(target, text)?;
    let named = tables.and_then(|tables| {
        let table = translate(target, running, tables).ok()?.physical;
        let named = PageTableRoot { table, ..running };
        // A kernel that is still on its first tables has nothing there.
        let places = [running, named].map(|root| translate(target, root, text).ok());
        (places[1].is_some() && places[0] == places[1]).then_some(named)
    });
    Ok(named.unwrap_or(running))
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

/// The first `wanted` slots of `size` bytes that follow each other without a gap.
fn run_of(slots: &[FreeSlot], wanted: u64, size: u64) -> Option<&[FreeSlot]> {
    let count = usize::try_from(wanted).ok().filter(|count| *count > 0)?;
    slots.windows(count).find(|run| {
        let ends = run.first().zip(run.last());
        ends.is_some_and(|(first, last)| last.address.0 - first.address.0 == (wanted - 1) * size)
    })
}

pub mod alias;
mod entries;
mod error;
#[cfg(feature = "foreign")]
pub mod left;
pub mod places;
pub mod shown;
#[cfg(test)]
mod tests;
pub mod title;
