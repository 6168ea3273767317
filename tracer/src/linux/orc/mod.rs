//! The kernel's own tables of how its functions keep their callers (ORC), read out of its memory.
//!
//! For each address of its text they say where the caller's stack pointer and frame pointer are, by a distance from a register. One list has the
//! addresses, ascending, each as a distance from its own place; the other what holds from there on. The kernel sorts them while it is built, or
//! boots. Facts: `struct orc_entry` and `arch/x86/kernel/unwind_orc.c` of Linux 5.10 to 6.16.

mod walk;

use debuginfo::btf::Btf;
use image::symbol::SymbolTable;
use terms::addr::Gva;

use super::kernel_view::{KernelTables, KernelView};
use crate::stack::UnwindError;
use crate::target::{PhysicalMemory, TargetMemory};

/// Bytes of an entry.
const ENTRY: usize = 6;
/// Bytes of an address.
const ADDRESS: usize = 4;
/// The most entries that are read: Debian's kernels have half a million.
const ENTRIES_MAX: u64 = 1 << 22;

/// Where a kernel has its tables, and how an entry is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrcLayout {
    tables: KernelTables,
    /// The addresses.
    addresses: (Gva, Gva),
    /// What holds from each on.
    entries: (Gva, Gva),
    kinds: Kinds,
}

/// How an entry says of what kind a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    /// Until 6.3: two bits, and one that says that there is no caller.
    Two {
        /// Where that is in the last word.
        end: u32,
    },
    /// Since 6.4: three bits.
    Three,
}

impl OrcLayout {
    /// What the kernel's types and symbols say.
    pub fn find(btf: &Btf<'_>, symbols: &SymbolTable, tables: KernelTables) -> Option<Self> {
        let symbol = |name| symbols.address_of(name);
        let (kind, width) = btf.bits("orc_entry", "type")?;
        let last_word = |bit: u64| u32::try_from(bit.checked_sub(32)?).ok();
        if btf.size_of("orc_entry") != Some(ENTRY as u64) || last_word(kind)? != 8 {
            return None;
        }
        let kinds = match width {
            3 => Kinds::Three,
            2 => Kinds::Two {
                end: last_word(btf.bits("orc_entry", "end")?.0)?,
            },
            _ => return None,
        };
        Some(Self {
            tables,
            addresses: (
                symbol("__start_orc_unwind_ip")?,
                symbol("__stop_orc_unwind_ip")?,
            ),
            entries: (symbol("__start_orc_unwind")?, symbol("__stop_orc_unwind")?),
            kinds,
        })
    }

    /// Reads them.
    ///
    /// # Errors
    /// An [`UnwindError`].
    pub fn read(&self, memory: &dyn PhysicalMemory) -> Result<Orc, UnwindError> {
        let view = KernelView::new(memory, self.tables);
        let length = |(start, stop): (Gva, Gva)| stop.0.saturating_sub(start.0);
        let (addresses, entries) = (length(self.addresses), length(self.entries));
        let count = addresses / ADDRESS as u64;
        if count == 0
            || count > ENTRIES_MAX
            || addresses != count * ADDRESS as u64
            || entries != count * ENTRY as u64
        {
            return Err(UnwindError::Lengths { addresses, entries });
        }
        let read = |at: Gva, bytes: u64| {
            let mut all = vec![0; usize::try_from(bytes).unwrap_or_default()];
            view.read(at, &mut all).map(|()| all)
        };
        Ok(Orc {
            start: self.addresses.0,
            addresses: read(self.addresses.0, addresses)?,
            entries: read(self.entries.0, entries)?,
            kinds: self.kinds,
        })
    }
}

/// The tables.
#[derive(Debug)]
pub struct Orc {
    start: Gva,
    addresses: Vec<u8>,
    entries: Vec<u8>,
    kinds: Kinds,
}

/// What a register of the caller is found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    register: u8,
    offset: i16,
}

/// Of what kind a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// Nothing is said.
    Unknown,
    /// There is no caller.
    Outermost,
    /// A call: its return address lies below the caller's stack pointer.
    Call,
    /// All registers of what was interrupted lie there.
    Registers,
    /// Those that the processor saves.
    Interrupt,
}

/// What holds at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    frame: Frame,
    stack: Rule,
    base: Rule,
}

impl Orc {
    /// What holds at an address of the kernel's text.
    fn at(&self, address: Gva) -> Option<Entry> {
        let (mut low, mut high) = (0, self.addresses.len() / ADDRESS);
        while low < high {
            let middle = low.midpoint(high);
            match self.address(middle)? <= address {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        self.entry(low.checked_sub(1)?)
    }

    /// The address of entry `index`.
    fn address(&self, index: usize) -> Option<Gva> {
        let offset = index.checked_mul(ADDRESS)?;
        let bytes = self.addresses.get(offset..)?.first_chunk()?;
        let distance = i64::from(i32::from_le_bytes(*bytes));
        let own = self.start.0.wrapping_add(offset as u64);
        Some(Gva(own.wrapping_add_signed(distance)))
    }

    fn entry(&self, index: usize) -> Option<Entry> {
        let bytes = self.entries.get(index.checked_mul(ENTRY)?..)?;
        let &[a, b, c, d, e, f] = bytes.first_chunk::<ENTRY>()?;
        let word = u16::from_le_bytes([e, f]);
        let nibble = |shift: u32| (word >> shift & 0xf).to_le_bytes()[0];
        let stack = Rule {
            register: nibble(0),
            offset: i16::from_le_bytes([a, b]),
        };
        let frame = match (self.kinds, word >> 8 & 7) {
            (Kinds::Two { end }, _) if word.checked_shr(end).unwrap_or(0) & 1 != 0 => {
                Frame::Outermost
            }
            (Kinds::Two { .. }, _) if stack.register == walk::UNDEFINED => Frame::Unknown,
            (Kinds::Two { .. }, kind) => match kind & 3 {
                0 => Frame::Call,
                1 => Frame::Registers,
                2 => Frame::Interrupt,
                _ => Frame::Unknown,
            },
            (Kinds::Three, 1) => Frame::Outermost,
            (Kinds::Three, 2) => Frame::Call,
            (Kinds::Three, 3) => Frame::Registers,
            (Kinds::Three, 4) => Frame::Interrupt,
            (Kinds::Three, _) => Frame::Unknown,
        };
        let base = Rule {
            register: nibble(4),
            offset: i16::from_le_bytes([c, d]),
        };
        Some(Entry { frame, stack, base })
    }
}

#[cfg(test)]
mod tests;
