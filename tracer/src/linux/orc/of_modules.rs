//! The tables that modules bring, read when they come.

use std::sync::Arc;

use debuginfo::btf::{Btf, Field};
use terms::addr::Gva;

use super::{ENTRIES_MAX, Orc, Tables};
use crate::linux::kernel_view::{KernelTables, KernelView};
use crate::linux::module::word;
use crate::module::Module;
use crate::target::{PhysicalMemory, TargetMemory};

/// Where `struct module` says what tables a module has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OfModule {
    tables: KernelTables,
    count: Field,
    addresses: Field,
    entries: Field,
}

impl OfModule {
    /// What the kernel's types say.
    pub(super) fn find(btf: &Btf<'_>, tables: KernelTables) -> Option<Self> {
        let member = |name| btf.field("module", name);
        Some(Self {
            tables,
            count: member("arch.num_orcs")?,
            addresses: member("arch.orc_unwind_ip")?,
            entries: member("arch.orc_unwind")?,
        })
    }

    /// Those of a module, no more than `left` entries. None when there are none that can be read: a walk ends there.
    fn read(&self, view: &impl TargetMemory, module: &Module, left: u64) -> Option<Tables> {
        let said = |field| word(view, module.at, field).ok();
        let count = said(self.count).filter(|count| *count <= left)?;
        let (addresses, entries) = (said(self.addresses)?, said(self.entries)?);
        Tables::read(view, count, Gva(addresses), Gva(entries)).ok()
    }
}

impl Orc {
    /// The same, and through `modules`, too. Of those that are gone as many are kept as there is room for, those that came
    /// last.
    pub(super) fn and(&self, memory: &dyn PhysicalMemory, modules: &[Module]) -> Self {
        let mut known = self.modules.clone();
        if let Some(of_module) = &self.of_module {
            let view = KernelView::new(memory, of_module.tables);
            // What is not read now is when modules have come or gone again.
            let mut left = ENTRIES_MAX;
            for module in modules {
                if known.iter().any(|(one, _)| one == module) {
                    continue;
                }
                if let Some(tables) = of_module.read(&view, module, left) {
                    left -= tables.count();
                    known.push((module.clone(), Arc::new(tables)));
                }
            }
        }
        let mut left = ENTRIES_MAX;
        let fits = |(_, tables): &&(Module, Arc<Tables>)| {
            let rest = left.checked_sub(tables.count());
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        let kept = known.iter().rev().take_while(fits).count();
        let dropped = known.len() - kept;
        Self {
            kernel: Arc::clone(&self.kernel),
            modules: known.split_off(dropped),
            kinds: self.kinds,
            of_module: self.of_module,
        }
    }
}
