//! Reading the counters of a profile session while the guest runs: nothing is taken out of them, and
//! each is read whole.

use std::sync::Arc;

use crate::session::SessionMemory;
use crate::stub::cell::LIMIT;
use crate::stub::profile::{HITS, OWN, TOTAL, TableLayout};
use terms::addr::Gpa;
use terms::function::FunctionId;

use super::only_vcpus::OnlyVcpus;
use crate::guest::SharedMemory;

/// The counters of one function, over all vCPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls.
    pub hits: u64,
    /// Ticks from entries to exits.
    pub total: u64,
    /// Those without the ticks of profiled calls inside.
    pub own: u64,
}

/// The counters of one session, in guest memory that stays mapped for as long as this lives.
#[derive(Debug)]
pub struct CounterTable {
    memory: Arc<dyn SharedMemory>,
    place: SessionMemory,
    layout: TableLayout,
}

impl CounterTable {
    /// The counters at `place`, which the engine has put into the window region.
    #[must_use]
    pub fn new(memory: Arc<dyn SharedMemory>, place: SessionMemory, layout: TableLayout) -> Self {
        Self {
            memory,
            place,
            layout,
        }
    }

    /// Lets stubs of these vCPUs count, or stops all.
    pub fn switch(&self, on: bool, only: &OnlyVcpus) {
        for (vcpu, cell) in (0..).zip(&self.place.cells) {
            let limit = if on && only.has(vcpu) { u64::MAX } else { 0 };
            let at = cell.wrapping_add(u64::from(LIMIT.unsigned_abs()));
            if let Err(error) = self.memory.store(at, limit) {
                log::error!("cannot switch a profile: {error}");
            }
        }
    }

    /// How many vCPUs have counters of their own; 1 where all share them.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        self.place.cells.len()
    }

    /// What is counted of a function. The guest can write anything there.
    #[must_use]
    pub fn of(&self, function: FunctionId) -> Counters {
        let lowest = self.place.cells.iter().min().copied().unwrap_or_default();
        let mut sum = Counters::default();
        for cell in &self.place.cells {
            let vcpu = cell.0.wrapping_sub(lowest.0);
            let entry = self.place.rings.wrapping_add(vcpu);
            let entry = entry.wrapping_add(self.layout.displacement(function));
            sum.hits = sum.hits.saturating_add(self.word(entry, HITS));
            sum.total = sum.total.saturating_add(self.word(entry, TOTAL));
            sum.own = sum.own.saturating_add(self.word(entry, OWN));
        }
        sum
    }

    fn word(&self, entry: Gpa, offset: i32) -> u64 {
        let at = entry.wrapping_add(u64::from(offset.unsigned_abs()));
        // The table lies in the window region, which is mapped whole: this cannot fail.
        self.memory.load(at).unwrap_or_default()
    }
}
