//! Who holds a mutex of a Linux kernel, read out of its memory.
//!
//! Facts: `kernel/locking/mutex.c` of Linux 5.10 to 7.3: the word `owner` has the address of the task that holds the mutex, with
//! bits of its own for those that wait. It is 0 only while nobody has it, and nobody is about to be given it.

use debuginfo::btf::Btf;
use image::symbol::SymbolTable;
use terms::addr::Gva;

use crate::linux::kernel_view::{KernelTables, KernelView};
use crate::target::{MemoryError, PhysicalMemory, TargetMemory};

/// Held by whoever changes text, from before he looks at it until it is written and read back: the kernel's own tracer for all
/// of its sites together, static keys and calls, kprobes (`kernel/extable.c`; `__text_poke` asserts it). What `__text_poke` has
/// written it compares, and a difference is a `BUG`.
pub(super) const OF_TEXT: &str = "text_mutex";
/// Where a mutex says who holds it: without and with `PREEMPT_RT`, and with its patches to kernels before 5.15.
const OWNERS: [&str; 3] = ["owner", "rtmutex.owner", "lock.owner"];

/// A mutex of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelMutex {
    tables: KernelTables,
    owner: Gva,
}

/// The kernel's types do not say who holds a mutex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoOwner;

impl KernelMutex {
    /// The one of this name, if the kernel has it.
    pub(super) fn find(
        name: &str,
        btf: &Btf<'_>,
        symbols: &SymbolTable,
        tables: KernelTables,
    ) -> Result<Option<Self>, NoOwner> {
        let Some(mutex) = symbols.address_of(name) else {
            return Ok(None);
        };
        let owner = OWNERS.iter().find_map(|path| btf.field("mutex", path));
        let owner = mutex.wrapping_add(owner.ok_or(NoOwner)?.offset);
        Ok(Some(Self { tables, owner }))
    }

    /// The one whose word `owner` lies there.
    #[cfg(test)]
    pub(crate) const fn at(owner: Gva, tables: KernelTables) -> Self {
        Self { tables, owner }
    }

    /// Whether somebody has it. While the guest is stopped the answer holds until it continues.
    ///
    /// # Errors
    /// [`MemoryError`] where nothing is mapped.
    pub fn is_held(&self, memory: &(impl PhysicalMemory + ?Sized)) -> Result<bool, MemoryError> {
        Ok(KernelView::new(memory, self.tables).read_word(self.owner)? != 0)
    }
}
