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
    pub(super) tables: KernelTables,
    pub(super) count: Field,
    pub(super) addresses: Field,
    pub(super) entries: Field,
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
    /// The same, and through `modules`, too, which are those that are there now. Of those that are gone as many are kept as
    /// there is room for, those that went last.
    pub(in crate::linux) fn and(&self, memory: &dyn PhysicalMemory, modules: &[Module]) -> Self {
        let (before, there) = self.modules.split_at(self.gone.min(self.modules.len()));
        let is_there = |(one, _): &&(Module, Arc<Tables>)| modules.contains(one);
        let (stay, go): (Vec<_>, Vec<_>) = there.iter().partition(is_there);
        let mut now: Vec<(Module, Arc<Tables>)> = stay.into_iter().cloned().collect();
        let mut left = ENTRIES_MAX;
        if let Some(of_module) = &self.of_module {
            let view = KernelView::new(memory, of_module.tables);
            left = left.saturating_sub(now.iter().map(cost).sum());
            // What there is no room for is read when modules have come or gone again.
            for module in modules {
                if now.iter().any(|(one, _)| one == module) {
                    continue;
                }
                let Some(rest) = left.checked_sub(COST_MIN) else {
                    break;
                };
                if let Some(tables) = of_module.read(&view, module, rest) {
                    now.push((module.clone(), Arc::new(tables)));
                    left = left.saturating_sub(now.last().map_or(0, cost));
                }
            }
        }
        let gone: Vec<_> = before.iter().chain(go).collect();
        let fits = |one: &&&(Module, Arc<Tables>)| {
            let rest = left.checked_sub(cost(one));
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        let kept = gone.iter().rev().take_while(fits).count();
        let gone = gone.into_iter().rev().take(kept).rev();
        let mut all: Vec<_> = gone.cloned().collect();
        all.append(&mut now);
        Self {
            kernel: Arc::clone(&self.kernel),
            modules: all,
            gone: kept,
            kinds: self.kinds,
            of_module: self.of_module,
        }
    }
}

/// What a module counts at least, in entries: a guest can have modules without any come and go.
const COST_MIN: u64 = 1 << 12;

fn cost((_, tables): &(Module, Arc<Tables>)) -> u64 {
    tables.count().max(COST_MIN)
}
