//! The function sites of a running kernel, from the list by which its own tracer goes. `__mcount_loc`, from which the
//! kernel made it, is freed when it has started.
//!
//! Facts: `kernel/trace/ftrace.c` of Linux 5.10 to 7.3: `ftrace_pages_start` leads to the first `struct ftrace_page`, each of
//! which has the next one, an array of `struct dyn_ftrace` and how many of them are in use. Those of modules are there, too.

use debuginfo::btf::Btf;
use image::TextRange;
use terms::addr::Gva;
use terms::site::SITE_LENGTH;

use super::error::BrokenList;
use crate::target::TargetMemory;

/// More pages than that, and more entries than that in one of them and in all, are none.
const PAGES_MAX: usize = 1 << 14;
const ENTRIES_MAX: u64 = 1 << 18;
/// The largest entry that is believed, and how many are read at once.
const ENTRY_MAX: u64 = 64;
const AT_ONCE: u64 = 4096;
/// Bytes of a page's description that are read at once.
const PAGE: usize = 64;

/// Where the members lie that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SitesLayout {
    /// `ftrace_page.next`.
    pub next: u64,
    /// `ftrace_page.records`.
    pub records: u64,
    /// `ftrace_page.index`, of four bytes.
    pub index: u64,
    /// The size of a `dyn_ftrace`.
    pub entry: u64,
    /// `dyn_ftrace.ip`.
    pub ip: u64,
}

impl SitesLayout {
    /// As it has been since 3.5: for a kernel that does not describe its types.
    pub const USUAL: Self = Self {
        next: 0,
        records: 8,
        index: 16,
        entry: 16,
        ip: 0,
    };

    /// As the kernel's types say.
    pub fn find(btf: &Btf<'_>) -> Option<Self> {
        let page = |name| Some(btf.field("ftrace_page", name)?.offset);
        let found = Self {
            next: page("next")?,
            records: page("records")?,
            index: page("index")?,
            entry: btf.size_of("dyn_ftrace")?,
            ip: btf.field("dyn_ftrace", "ip")?.offset,
        };
        found.is_possible().then_some(found)
    }

    fn is_possible(&self) -> bool {
        let in_page = |at: u64, length| at.saturating_add(length) <= PAGE as u64;
        let in_entry = self.ip.saturating_add(8) <= self.entry;
        in_page(self.next, 8)
            && in_page(self.records, 8)
            && in_page(self.index, 4)
            && in_entry
            && self.entry <= ENTRY_MAX
    }
}

/// What the list has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// The sites in the text that was asked for, ascending, each once.
    pub sites: Vec<Gva>,
    /// All entries.
    pub entries: usize,
}

/// Follows the list whose first page the word at `start` leads to; the sites that lie in `text`.
///
/// # Errors
/// A [`BrokenList`].
pub fn listed(
    memory: &(impl TargetMemory + ?Sized),
    layout: SitesLayout,
    start: Gva,
    text: &[TextRange],
) -> Result<Listed, BrokenList> {
    let mut listed = Listed::default();
    let mut page = memory.read_address(start)?;
    for _ in 0..PAGES_MAX {
        if page.0 == 0 {
            listed.sites.sort_unstable();
            listed.sites.dedup();
            return Ok(listed);
        }
        page = one_page(memory, layout, page, text, &mut listed)?;
    }
    Err(BrokenList::Endless(PAGES_MAX))
}

/// Takes what one page has, and returns the next one.
fn one_page(
    memory: &(impl TargetMemory + ?Sized),
    layout: SitesLayout,
    page: Gva,
    text: &[TextRange],
    listed: &mut Listed,
) -> Result<Gva, BrokenList> {
    let mut index = [0; 4];
    memory.read(page.wrapping_add(layout.index), &mut index)?;
    let count = u64::from(u32::from_le_bytes(index));
    let limit = ENTRIES_MAX.saturating_sub(listed.entries as u64);
    if count > limit {
        return Err(BrokenList::TooMany { page, count, limit });
    }
    let records = memory.read_address(page.wrapping_add(layout.records))?;
    let mut done = 0;
    while done < count {
        let now = (count - done).min(AT_ONCE);
        let at = records.wrapping_add(done * layout.entry);
        entries(memory, layout, at, now, text, listed)?;
        done += now;
    }
    Ok(memory.read_address(page.wrapping_add(layout.next))?)
}

/// Takes `count` entries at `at`.
fn entries(
    memory: &(impl TargetMemory + ?Sized),
    layout: SitesLayout,
    at: Gva,
    count: u64,
    text: &[TextRange],
    listed: &mut Listed,
) -> Result<(), BrokenList> {
    let ip = usize::try_from(layout.ip).unwrap_or_default();
    let size = usize::try_from(layout.entry).unwrap_or(1).max(1);
    let mut bytes = vec![0; size * usize::try_from(count).unwrap_or_default()];
    memory.read(at, &mut bytes)?;
    for entry in bytes.chunks_exact(size) {
        let at = entry.get(ip..).and_then(|rest| rest.first_chunk());
        let at = Gva(at.map_or(0, |at| u64::from_le_bytes(*at)));
        listed.entries += 1;
        if text.iter().any(|range| range.holds(at, SITE_LENGTH as u64)) {
            listed.sites.push(at);
        }
    }
    Ok(())
}
