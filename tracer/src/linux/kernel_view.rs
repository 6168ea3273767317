//! The kernel's memory as the kernel's own page tables map it, without a vCPU.

use image::symbol::SymbolTable;
use terms::addr::{Gpa, Gva};

use crate::paging::{PageTableRoot, translate};
use crate::target::{MemoryError, PhysicalMemory, TargetMemory};

/// What 64-bit system calls enter, in every version from 4.20 on: every address space of the kernel's maps it.
pub(super) const ENTRY: &str = "entry_SYSCALL_64";

/// Where a kernel has its own page tables, which map all that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelTables {
    /// The topmost one.
    pub top: Gpa,
    /// The word that says whether there are five levels.
    pub five_levels: Option<Gpa>,
}

impl KernelTables {
    /// Those of a Linux. `physical` tells where an address of the image is loaded.
    pub(crate) fn find(
        symbols: &SymbolTable,
        physical: impl Fn(Gva) -> Option<Gpa>,
    ) -> Option<Self> {
        let five = symbols.address_of("__pgtable_l5_enabled");
        Some(Self {
            top: physical(symbols.address_of("init_top_pgt")?)?,
            five_levels: five.and_then(physical),
        })
    }
}

/// Reads guest memory at kernel addresses. While the guest runs, what is read may be half of the old
/// and half of the new.
#[derive(Debug)]
pub struct KernelView<'a, M: PhysicalMemory + ?Sized> {
    memory: &'a M,
    root: PageTableRoot,
}

impl<'a, M: PhysicalMemory + ?Sized> KernelView<'a, M> {
    /// The memory of the kernel with these tables.
    #[must_use]
    pub fn new(memory: &'a M, tables: KernelTables) -> Self {
        let is_five = |at: Gpa| {
            let mut word = [0; 4];
            memory.read_physical(at, &mut word).is_ok() && word != [0; 4]
        };
        let levels = if tables.five_levels.is_some_and(is_five) {
            5
        } else {
            4
        };
        let root = PageTableRoot {
            table: tables.top,
            levels,
            no_execute: true,
        };
        Self { memory, root }
    }

    /// The memory as these tables map it.
    #[cfg(feature = "foreign")]
    #[must_use]
    pub const fn with_root(memory: &'a M, root: PageTableRoot) -> Self {
        Self { memory, root }
    }
}

impl<M: PhysicalMemory + ?Sized> KernelView<'_, M> {
    /// The tables that map it.
    pub const fn root(&self) -> PageTableRoot {
        self.root
    }

    /// Where this byte lies, and how many follow it in its page; none where nothing is mapped.
    pub fn physical(&self, at: Gva) -> Option<(Gpa, u64)> {
        let found = translate(self.memory, self.root, at).ok()?;
        Some((found.physical, found.bytes_left_in_page()))
    }
}

impl<M: PhysicalMemory + ?Sized> TargetMemory for KernelView<'_, M> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        let (mut at, mut rest) = (at, into);
        while !rest.is_empty() {
            let not_mapped = MemoryError::NotMapped {
                address: at,
                length: rest.len(),
            };
            let found = translate(self.memory, self.root, at).map_err(|_| not_mapped)?;
            let left = usize::try_from(found.bytes_left_in_page()).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at_mut(left.min(rest.len()));
            self.memory.read_physical(found.physical, now)?;
            at = at.wrapping_add(now.len() as u64);
            rest = later;
        }
        Ok(())
    }
}
