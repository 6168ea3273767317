//! The guest's own page tables: translation of an address, and the search for free slots in which a
//! window can be shown to the guest.
//!
//! Layout of the entries: AMD64 Architecture Programmer's Manual vol. 2, §5.3 "Long-Mode Page
//! Translation". Every entry is read from guest memory and therefore only believed as far as the
//! memory that it leads to exists; a walk reads at most five entries.

pub mod elsewhere;
#[cfg(feature = "foreign")]
pub mod runs;

use image::TextRange;
use terms::addr::{Gpa, Gva};
use terms::region::Region;

use crate::target::{MemoryError, PhysicalMemory, VcpuRegisters};

/// Size of the smallest page.
pub const PAGE_4K: u64 = 1 << 12;
/// Size of a page mapped by an entry of the page directory.
pub const PAGE_2M: u64 = 1 << 21;
/// Size of a page mapped by an entry of the table above that, and of what a page directory maps.
pub const PAGE_1G: u64 = 1 << 30;

/// Bits of a page-table entry.
pub mod bits {
    /// The entry maps something.
    pub const PRESENT: u64 = 1 << 0;
    /// The mapped memory may be written.
    pub const WRITE: u64 = 1 << 1;
    /// Ring 3 may use the mapping.
    pub const USER: u64 = 1 << 2;
    /// The entry has been used; preset so that the CPU need not write it.
    pub const ACCESSED: u64 = 1 << 5;
    /// The page has been written; preset likewise.
    pub const DIRTY: u64 = 1 << 6;
    /// The entry maps a 2 MiB or 1 GiB page and not a table.
    pub const LARGE: u64 = 1 << 7;
    /// Nothing in the mapped memory can be executed (needs `EFER.NXE`).
    pub const NO_EXECUTE: u64 = 1 << 63;
}

/// Whether two values of an entry are the same but for what the processor itself sets in it.
#[must_use]
pub const fn is_same_entry(one: u64, other: u64) -> bool {
    const SET_BY_USE: u64 = bits::ACCESSED | bits::DIRTY;
    (one ^ other) & !SET_BY_USE == 0
}

/// The user half of a pair of topmost tables lies one page above the kernel's (Linux, `asm/pgtable.h`).
const USER_HALF: u64 = 1 << 12;
/// The bits of an entry that are an address.
pub const ADDRESS_MASK: u64 = 0x000f_ffff_ffff_f000;
const CR0_PG: u64 = 1 << 31;
const CR4_LA57: u64 = 1 << 12;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;

/// Why an address could not be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// The vCPU does not run in long mode with paging.
    #[error(
        "the guest has not turned on 64-bit paging yet (cr0 {cr0:#x}, efer {efer:#x}); attach later"
    )]
    NoLongMode {
        /// Control register 0.
        cr0: u64,
        /// Extended feature enable register.
        efer: u64,
    },
    /// The address is not sign-extended from the top bit that is translated.
    #[error("{0} is not a canonical address")]
    NotCanonical(Gva),
    /// An entry on the way is not present.
    #[error("the guest's page tables map nothing at {at} (level {level} entry at {entry})")]
    NotPresent {
        /// The address looked up.
        at: Gva,
        /// 4 (or 5) for the topmost table, 1 for the last.
        level: u8,
        /// Where the entry lies.
        entry: Gpa,
    },
    /// An entry points to where the guest has no memory.
    #[error("the guest's page tables for {at} lead outside its memory: {source}")]
    Table {
        /// The address looked up.
        at: Gva,
        /// The read that failed.
        source: MemoryError,
    },
}

/// Where a walk starts and how deep the tables are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageTableRoot {
    /// The topmost table.
    pub table: Gpa,
    /// 4, or 5 with `CR4.LA57`.
    pub levels: u8,
    /// Whether bit 63 of an entry forbids execution (`EFER.NXE`); reserved otherwise.
    pub no_execute: bool,
}

impl PageTableRoot {
    /// The tables that a vCPU with these registers uses.
    ///
    /// # Errors
    /// [`TranslateError::NoLongMode`] when it does not translate addresses in long mode.
    pub fn of(registers: &VcpuRegisters) -> Result<Self, TranslateError> {
        let VcpuRegisters {
            cr0,
            cr3,
            cr4,
            efer,
            ..
        } = *registers;
        if cr0 & CR0_PG == 0 || efer & EFER_LMA == 0 {
            return Err(TranslateError::NoLongMode { cr0, efer });
        }
        Ok(Self {
            table: Gpa(cr3 & ADDRESS_MASK),
            levels: if cr4 & CR4_LA57 == 0 { 4 } else { 5 },
            no_execute: efer & EFER_NXE != 0,
        })
    }

    /// The tables that a vCPU with these registers uses when it executes the text at `text`.
    ///
    /// Linux' page-table isolation runs ring 3 with tables of its own, which map next to nothing of the
    /// kernel; bit 12 of CR3 tells the two apart. Where the other half maps `text` for ring 0 alone,
    /// that half is the kernel's.
    ///
    /// # Errors
    /// [`TranslateError::NoLongMode`].
    pub fn of_text(
        memory: &(impl PhysicalMemory + ?Sized),
        registers: &VcpuRegisters,
        text: Gva,
    ) -> Result<Self, TranslateError> {
        let own = Self::of(registers)?;
        let kernel = own.kernel_half().filter(|half| {
            let seen = translate(memory, *half, text);
            seen.is_ok_and(|seen| !seen.user)
        });
        Ok(kernel.unwrap_or(own))
    }

    /// Where the kernel's tables lie if these are the user half of a pair.
    #[must_use]
    pub fn kernel_half(self) -> Option<Self> {
        let table = Gpa(self.table.0 & !USER_HALF);
        (table != self.table).then_some(Self { table, ..self })
    }

    fn is_canonical(self, at: Gva) -> bool {
        let unused = 64 - (12 + 9 * u32::from(self.levels));
        let sign_extended = (at.0.cast_signed() << unused) >> unused;
        sign_extended.cast_unsigned() == at.0
    }
}

/// One mapping found by a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// The physical address of the byte asked for.
    pub physical: Gpa,
    /// Size of the page it lies in: 4 KiB, 2 MiB or 1 GiB.
    pub page_size: u64,
    /// Ring 3 may use it: the user bit is set on every level.
    pub user: bool,
    /// The guest may write it: the write bit is set on every level.
    pub writable: bool,
    /// The guest may execute it: no level forbids it.
    pub executable: bool,
}

impl Translation {
    /// Bytes from the translated one to the end of its page.
    #[must_use]
    pub fn bytes_left_in_page(&self) -> u64 {
        self.page_size - (self.physical.0 & (self.page_size - 1))
    }
}

/// Where the entry for one address lies in one table, and what the tables above it allow.
#[derive(Debug, Clone, Copy)]
struct Step {
    entry: Gpa,
    value: u64,
    user: bool,
    writable: bool,
    executable: bool,
}

/// Reads the entries for `at` from the topmost table down to `lowest`, stopping early at a large
/// page; returns the level at which it stopped with the entry found there.
fn descend(
    memory: &(impl PhysicalMemory + ?Sized),
    root: PageTableRoot,
    at: Gva,
    lowest: u8,
) -> Result<(u8, Step), TranslateError> {
    if !root.is_canonical(at) {
        return Err(TranslateError::NotCanonical(at));
    }
    let (mut user, mut writable, mut executable) = (true, true, true);
    let mut table = root.table;
    let mut level = root.levels;
    loop {
        let entry = Gpa(table.0 + 8 * (at.0 >> (3 + 9 * u32::from(level)) & 0x1ff));
        let value = read_entry(memory, at, entry)?;
        if value & bits::PRESENT != 0 {
            user &= value & bits::USER != 0;
            writable &= value & bits::WRITE != 0;
            executable &= !(root.no_execute && value & bits::NO_EXECUTE != 0);
        }
        let step = Step {
            entry,
            value,
            user,
            writable,
            executable,
        };
        let is_page = level == 1 || (level <= 3 && value & bits::LARGE != 0);
        if level == lowest || (value & bits::PRESENT != 0 && is_page) {
            return Ok((level, step));
        }
        if value & bits::PRESENT == 0 {
            return Err(TranslateError::NotPresent { at, level, entry });
        }
        table = Gpa(value & ADDRESS_MASK);
        level -= 1;
    }
}

fn read_entry(
    memory: &(impl PhysicalMemory + ?Sized),
    at: Gva,
    entry: Gpa,
) -> Result<u64, TranslateError> {
    let mut bytes = [0; 8];
    memory
        .read_physical(entry, &mut bytes)
        .map_err(|source| TranslateError::Table { at, source })?;
    Ok(u64::from_le_bytes(bytes))
}

/// Translates `at` as the CPU would, without regard to access rights.
///
/// # Errors
/// A [`TranslateError`] that says where the walk ended.
pub fn translate(
    memory: &(impl PhysicalMemory + ?Sized),
    root: PageTableRoot,
    at: Gva,
) -> Result<Translation, TranslateError> {
    let (level, step) = descend(memory, root, at, 1)?;
    if step.value & bits::PRESENT == 0 {
        return Err(TranslateError::NotPresent {
            at,
            level,
            entry: step.entry,
        });
    }
    let page_size = match level {
        1 => PAGE_4K,
        2 => PAGE_2M,
        _ => PAGE_1G,
    };
    let base = step.value & ADDRESS_MASK & !(page_size - 1);
    Ok(Translation {
        physical: Gpa(base | (at.0 & (page_size - 1))),
        page_size,
        user: step.user,
        writable: step.writable,
        executable: step.executable,
    })
}

/// A free entry of a page directory, or of the table above it: 2 MiB or 1 GiB of address space that the guest does
/// not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSlot {
    /// First address of those.
    pub address: Gva,
    /// The entry that would map it.
    pub entry: Gpa,
    /// What the entry holds while it is free: nothing, or what leads to no memory.
    pub holds: u64,
}

/// From here to 4 GiB a PC has its devices; above that they may be anywhere.
const DEVICES: u64 = 1 << 31;

/// The free 2 MiB slots that lie in `range`, ascending.
///
/// Only slots whose tables above are present and allow writing and executing (and ring 3, when `user` is asked
/// for) count: those entries belong to the guest and are not changed.
///
/// # Errors
/// [`TranslateError::NotCanonical`] for a range that is not; absent or unreadable tables only make
/// their slots unusable.
pub fn free_slots(
    memory: &(impl PhysicalMemory + ?Sized),
    root: PageTableRoot,
    range: TextRange,
    user: bool,
) -> Result<Vec<FreeSlot>, TranslateError> {
    slots(memory, root, range, user, |value| value == 0)
}

/// The same, and those that hold something and map nothing.
///
/// # Errors
/// As [`free_slots`].
pub fn absent_slots(
    memory: &(impl PhysicalMemory + ?Sized),
    root: PageTableRoot,
    range: TextRange,
    user: bool,
) -> Result<Vec<FreeSlot>, TranslateError> {
    slots(memory, root, range, user, |value| {
        value & bits::PRESENT == 0
    })
}

/// The same, and those that map 2 MiB where the guest, which has `ram`, has neither memory nor, as far as is known of a PC,
/// a device: a kernel that stays on tables which map everything to itself has no others.
///
/// A processor remembers no translation that leads to no memory, so such an entry can be changed as one that is zero.
///
/// # Errors
/// As [`free_slots`].
pub fn idle_slots(
    memory: &(impl PhysicalMemory + ?Sized),
    root: PageTableRoot,
    range: TextRange,
    user: bool,
    ram: &[Region],
) -> Result<Vec<FreeSlot>, TranslateError> {
    slots(memory, root, range, user, |value| {
        value == 0 || leads_nowhere(value, ram)
    })
}

fn leads_nowhere(value: u64, ram: &[Region]) -> bool {
    let is_page = value & bits::PRESENT != 0 && value & bits::LARGE != 0;
    let start = value & ADDRESS_MASK & !(PAGE_2M - 1);
    let end = start + PAGE_2M;
    let is_memory = |piece: &Region| piece.start.0 < end && start < piece.end();
    is_page && end <= DEVICES && !ram.iter().any(is_memory)
}

fn slots(
    memory: &(impl PhysicalMemory + ?Sized),
    root: PageTableRoot,
    range: TextRange,
    user: bool,
    is_free: impl Fn(u64) -> bool,
) -> Result<Vec<FreeSlot>, TranslateError> {
    let mut found = Vec::new();
    let mut next = range.start.0.checked_next_multiple_of(PAGE_2M).map(Gva);
    while let Some(address) = next.filter(|at| range.holds(*at, PAGE_2M)) {
        match descend(memory, root, address, 2) {
            Ok((2, step)) if is_free(step.value) => {
                if step.writable && step.executable && (step.user || !user) {
                    found.push(FreeSlot {
                        address,
                        entry: step.entry,
                        holds: step.value,
                    });
                }
            }
            Err(error @ TranslateError::NotCanonical(_)) => return Err(error),
            Ok(_) | Err(_) => {}
        }
        next = address.checked_add(PAGE_2M);
    }
    Ok(found)
}

/// The entry at `level` (1 for the last table) through which `at` is mapped, or would be; nothing when a larger
/// page maps it.
///
/// # Errors
/// A [`TranslateError`] that says where the walk ended.
pub fn entry_for(
    memory: &(impl PhysicalMemory + ?Sized),
    root: PageTableRoot,
    at: Gva,
    level: u8,
) -> Result<Option<Gpa>, TranslateError> {
    let (reached, step) = descend(memory, root, at, level)?;
    Ok((reached == level).then_some(step.entry))
}

/// The free entries, 1 GiB of address space each, of the table above the page directories through which `text` is
/// mapped, ascending.
///
/// They are usable in ring 3 when `user` is asked for.
///
/// # Errors
/// A [`TranslateError`] when that table cannot be found.
pub fn free_giant_slots(
    memory: &(impl PhysicalMemory + ?Sized),
    root: PageTableRoot,
    text: Gva,
    user: bool,
) -> Result<Vec<FreeSlot>, TranslateError> {
    let first = text.0 & !(512 * PAGE_1G - 1);
    let mut found = Vec::new();
    for number in 0..512 {
        let address = Gva(first + number * PAGE_1G);
        let (level, step) = descend(memory, root, address, 3)?;
        if level == 3 && step.value == 0 && (step.user || !user) {
            found.push(FreeSlot {
                address,
                entry: step.entry,
                holds: 0,
            });
        }
    }
    Ok(found)
}

/// What memory of ours is for. None can be written and executed: a kernel that looks for that (Linux, when it makes
/// its text read-only) takes it for a hole in its protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageUse {
    /// The guest executes it; only the host writes it.
    Code,
    /// The guest reads and writes it.
    Data,
}

/// The entry that maps the 2 MiB at `physical` for this use.
#[must_use]
pub fn large_page_entry(physical: Gpa, user: bool, page_use: PageUse, root: PageTableRoot) -> u64 {
    use bits::{ACCESSED, DIRTY, LARGE, NO_EXECUTE, PRESENT, USER, WRITE};
    let entry = (physical.0 & ADDRESS_MASK) | PRESENT | ACCESSED | LARGE;
    let user = if user { USER } else { 0 };
    // Dirty and not writable would be a page of a shadow stack.
    let rights = match page_use {
        PageUse::Code => 0,
        PageUse::Data if root.no_execute => WRITE | DIRTY | NO_EXECUTE,
        PageUse::Data => WRITE | DIRTY,
    };
    entry | user | rights
}

#[cfg(test)]
mod tests;
