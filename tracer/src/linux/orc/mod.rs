//! The kernel's own tables of how its functions keep their callers (ORC), read out of its memory.
//!
//! For each address of its text they say where the caller's stack pointer and frame pointer are, by a distance from a register. One list has the
//! addresses, ascending, each as a distance from its own place; the other what holds from there on. The kernel sorts them while it is built, or
//! boots. A module brings two lists of its own (`struct mod_arch_specific`). Facts: `struct orc_entry` and
//! `arch/x86/kernel/unwind_orc.c` of Linux 5.10 to 6.16.

mod of_modules;
mod walk;

use std::sync::Arc;

use debuginfo::btf::Btf;
use image::symbol::SymbolTable;
use terms::addr::Gva;

use of_modules::OfModule;
pub(in crate::linux) use walk::Unwinding;

use super::kernel_view::{KernelTables, KernelView};
use crate::module::Module;
use crate::stack::UnwindError;
use crate::target::{MemoryError, PhysicalMemory, TargetMemory};

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
    of_module: Option<OfModule>,
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
            of_module: OfModule::find(btf, tables),
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
        let kernel = Tables::read(&view, count, self.addresses.0, self.entries.0)?;
        Ok(Orc {
            kernel: Arc::new(kernel),
            modules: Vec::new(),
            gone: 0,
            kinds: self.kinds,
            of_module: self.of_module,
        })
    }
}

/// The tables: the kernel's, and each module's.
#[derive(Debug)]
pub struct Orc {
    kernel: Arc<Tables>,
    /// Those of modules, in the order in which they came, first those that are gone: stacks of before are walked later.
    modules: Vec<(Module, Arc<Tables>)>,
    /// How many of them are gone.
    gone: usize,
    kinds: Kinds,
    of_module: Option<OfModule>,
}

/// Two lists of as many entries.
#[derive(Debug)]
struct Tables {
    start: Gva,
    addresses: Vec<u8>,
    entries: Vec<u8>,
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
    /// What holds at an address of the kernel's text, or of a module's.
    fn at(&self, address: Gva) -> Option<Entry> {
        let has = |module: &Module| (module.text.start..module.text.end).contains(&address);
        let of_module = self.modules.iter().rfind(|(module, _)| has(module));
        let tables = of_module.map_or(&self.kernel, |(_, tables)| tables);
        tables.at(address).map(|entry| self.kinds.read(entry))
    }
}

impl Tables {
    /// Reads lists of `count` entries.
    fn read(
        view: &impl TargetMemory,
        count: u64,
        addresses: Gva,
        entries: Gva,
    ) -> Result<Self, MemoryError> {
        let read = |at: Gva, bytes: u64| {
            let mut all = vec![0; usize::try_from(bytes).unwrap_or_default()];
            view.read(at, &mut all).map(|()| all)
        };
        Ok(Self {
            start: addresses,
            addresses: read(addresses, count * ADDRESS as u64)?,
            entries: read(entries, count * ENTRY as u64)?,
        })
    }

    fn count(&self) -> u64 {
        (self.entries.len() / ENTRY) as u64
    }

    /// The entry of an address.
    fn at(&self, address: Gva) -> Option<&[u8; ENTRY]> {
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

    fn entry(&self, index: usize) -> Option<&[u8; ENTRY]> {
        let bytes = self.entries.get(index.checked_mul(ENTRY)?..)?;
        bytes.first_chunk::<ENTRY>()
    }
}

impl Kinds {
    /// What an entry says.
    fn read(self, &[a, b, c, d, e, f]: &[u8; ENTRY]) -> Entry {
        let word = u16::from_le_bytes([e, f]);
        let nibble = |shift: u32| (word >> shift & 0xf).to_le_bytes()[0];
        let stack = Rule {
            register: nibble(0),
            offset: i16::from_le_bytes([a, b]),
        };
        let frame = match (self, word >> 8 & 7) {
            (Self::Two { end }, _) if word.checked_shr(end).unwrap_or(0) & 1 != 0 => {
                Frame::Outermost
            }
            (Self::Two { .. }, _) if stack.register == walk::UNDEFINED => Frame::Unknown,
            (Self::Two { .. }, kind) => match kind & 3 {
                0 => Frame::Call,
                1 => Frame::Registers,
                2 => Frame::Interrupt,
                _ => Frame::Unknown,
            },
            (Self::Three, 1) => Frame::Outermost,
            (Self::Three, 2) => Frame::Call,
            (Self::Three, 3) => Frame::Registers,
            (Self::Three, 4) => Frame::Interrupt,
            (Self::Three, _) => Frame::Unknown,
        };
        let base = Rule {
            register: nibble(4),
            offset: i16::from_le_bytes([c, d]),
        };
        Entry { frame, stack, base }
    }
}

#[cfg(test)]
pub(in crate::linux) mod tests;
