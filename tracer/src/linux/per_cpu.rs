//! Data of which each processor has its own (`DEFINE_PER_CPU`).

use image::symbol::SymbolTable;
use terms::addr::Gva;

use crate::personality::PROCESSORS_MAX;
use crate::target::{MemoryError, TargetMemory};

/// The list of the offsets at which the data of each processor lies, which are their GS bases: it has an entry for every
/// processor that there can ever be, made once, before any code that can be traced runs with these bases.
pub(super) const OFFSETS: &str = "__per_cpu_offset";
/// How many entries that list has at most.
pub(super) const COUNT: &str = "nr_cpu_ids";
/// Where the kernel's image begins, and everything after it: nothing that is allocated lies here.
const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// Whether an entry of [`OFFSETS`] has been filled in: one that nobody has filled in yet is an address of the kernel's own
/// image.
pub(super) const fn is_offset(entry: Gva) -> bool {
    entry.0 < IMAGE && entry.0 >> 63 == 1
}

/// Where a kernel says where the data of its processors lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerCpu {
    /// `__per_cpu_offset`.
    pub offsets: Gva,
    /// `nr_cpu_ids`.
    pub count: Gva,
}

impl PerCpu {
    /// What the symbols say.
    pub(crate) fn find(symbols: &SymbolTable) -> Option<Self> {
        Some(Self {
            offsets: symbols.address_of(OFFSETS)?,
            count: symbols.address_of(COUNT)?,
        })
    }

    /// Where each processor has what the kernel's symbols say to be at `variable`.
    ///
    /// # Errors
    /// [`MemoryError`] when the list cannot be read.
    pub(crate) fn each(
        self,
        view: &impl TargetMemory,
        variable: Gva,
    ) -> Result<Vec<Gva>, MemoryError> {
        let bases = self.bases(view)?.into_iter();
        Ok(bases.map(|base| base.wrapping_add(variable.0)).collect())
    }

    /// The GS bases of all processors that there can ever be.
    ///
    /// # Errors
    /// [`MemoryError`] when the list cannot be read.
    pub(crate) fn bases(self, view: &impl TargetMemory) -> Result<Vec<Gva>, MemoryError> {
        let mut bases = self.list(view)?;
        bases.retain(|entry| is_offset(*entry));
        Ok(bases)
    }

    /// The GS bases of the processors whose bits are set in the `cpumask_t` at `mask`.
    ///
    /// # Errors
    /// [`MemoryError`] when the list or the mask cannot be read.
    pub(crate) fn bases_in(
        self,
        view: &impl TargetMemory,
        mask: Gva,
    ) -> Result<Vec<Gva>, MemoryError> {
        let bases = self.list(view)?;
        let mut bits = vec![0; bases.len().div_ceil(64) * 8];
        view.read(mask, &mut bits)?;
        let of_byte = |byte: u8| (0..8).map(move |bit| byte >> bit & 1 == 1);
        let set = bits.into_iter().flat_map(of_byte);
        let marked = bases.into_iter().zip(set).filter(|(_, is_set)| *is_set);
        Ok(marked.map(|(base, _)| base).collect())
    }

    /// The whole list, with entries that nobody has filled in.
    fn list(self, view: &impl TargetMemory) -> Result<Vec<Gva>, MemoryError> {
        let mut count = [0; 4];
        view.read(self.count, &mut count)?;
        let count = u32::from_le_bytes(count).min(PROCESSORS_MAX) as usize;
        let entries = view.read_words(self.offsets, count)?;
        Ok(entries.into_iter().map(Gva).collect())
    }
}
