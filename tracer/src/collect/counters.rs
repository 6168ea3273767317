//! Reading the counters of a profile session while the guest runs: nothing is taken out of them, and
//! each is read whole.

use std::sync::Arc;

use crate::session::SessionMemory;
use crate::stub::cell::LIMIT;
use crate::stub::profile::{CLAMPED, HITS, OWN, TOTAL, TableLayout};
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
    /// Times of either kind that were below zero and count as zero.
    pub clamped: u64,
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
            let vcpu = vcpu.wrapping_add(self.layout.lowest());
            let entry = self.place.rings.wrapping_add(vcpu);
            let entry = entry.wrapping_add(self.layout.displacement(function));
            sum.hits = sum.hits.saturating_add(self.word(entry, HITS));
            sum.total = sum.total.saturating_add(self.word(entry, TOTAL));
            sum.own = sum.own.saturating_add(self.word(entry, OWN));
            sum.clamped = sum.clamped.saturating_add(self.word(entry, CLAMPED));
        }
        sum
    }

    fn word(&self, entry: Gpa, offset: i32) -> u64 {
        let at = entry.wrapping_add(u64::from(offset.unsigned_abs()));
        // The table lies in the window region, which is mapped whole: this cannot fail.
        self.memory.load(at).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use terms::addr::Gva;

    use super::*;
    use crate::guest::Guest;
    use crate::mock::{MockGuest, MockTarget};
    use crate::record::Format;
    use crate::ring::geometry::Geometry;
    use crate::stub::cell::{CellPlace, CpuStrategy, TracedCode};
    use crate::target::WindowMemory;

    /// Stubs count from where the first cell is, be it that of a processor that has not come.
    #[test]
    fn counts_are_read_where_stubs_write_them() {
        const FUNCTIONS: u32 = 10;
        let base = |number: u64| Gva(0xffff_8880_0000_0000 + number * 4096);
        for bases in [[1, 2, 0, 5], [1, 0, 2, 3], [0, 1, 2, 3]] {
            let strategy = CpuStrategy::Gs {
                bases: bases.map(base).to_vec(),
                vcpus: 2,
                code: TracedCode::Supervisor,
            };
            let guest = MockGuest::new(MockTarget::new(1, 1 << 20));
            let window = guest.window().start;
            let layout = TableLayout::new(FUNCTIONS, &strategy).unwrap();
            let cells = strategy.cells(Gva(0), 0);
            let CellPlace::FromGs(distance) = cells.place else {
                panic!("{:?}", cells.place);
            };
            let table = window.wrapping_add(strategy.span());
            let place = SessionMemory {
                cells: cells
                    .offsets
                    .iter()
                    .map(|at| window.wrapping_add(*at))
                    .collect(),
                rings: table,
                format: Format::default(),
                details: None,
                directory: None,
                room: layout.bytes(),
                geometry: Geometry::with_bytes(4096).unwrap(),
                first: Vec::new(),
                halts_left: None,
                awaited: None,
            };
            for (number, hits) in (0..).zip([3u64, 40, 500, 6000]) {
                let cell = base(bases[number]).0.wrapping_add_signed(distance);
                let entry = cell + layout.displacement(FunctionId(7));
                for (offset, count) in [(HITS, hits), (CLAMPED, 2 * hits)] {
                    let at = table.wrapping_add(entry + u64::from(offset.unsigned_abs()));
                    guest
                        .target()
                        .write_window(at, &count.to_le_bytes())
                        .unwrap();
                }
            }
            let memory: Arc<dyn SharedMemory> = Arc::new(guest.memory().clone());
            let counters = CounterTable::new(memory, place, layout);
            let Counters { hits, clamped, .. } = counters.of(FunctionId(7));
            assert_eq!((hits, clamped), (43, 86), "{bases:?}");
        }
    }
}
