//! What a trace has come to, in numbers.

use terms::function::FunctionId;

use super::UftraceWriter;

/// The sums of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that are in it.
    pub calls: u64,
    /// Functions that were called.
    pub functions: u64,
    /// Events of the guest's own.
    pub events: u64,
    /// Records that are known to be missing.
    pub lost: u64,
    /// What did not fit, or may be wrong.
    pub anomalies: u64,
    /// How often a vCPU waited for the reader.
    pub waits: u64,
    /// All waits together, in nanoseconds.
    pub waited_ns: u64,
}

/// Which functions a trace has calls of: a bit for each.
#[derive(Debug, Default)]
pub(super) struct Called(Vec<u64>);

impl Called {
    /// Whether this is the first call of the function. Of all others nothing is stored: that would be what the next waits for.
    #[inline]
    pub fn note(&mut self, function: FunctionId) -> bool {
        let (index, bit) = (function.index() / 64, 1 << (function.index() % 64));
        if self.0.get(index).is_some_and(|bits| bits & bit != 0) {
            return false;
        }
        self.add(index, bit);
        true
    }

    #[cold]
    fn add(&mut self, index: usize, bit: u64) {
        if index >= self.0.len() {
            self.0.resize(index + 1, 0);
        }
        if let Some(bits) = self.0.get_mut(index) {
            *bits |= bit;
        }
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }
}

impl UftraceWriter {
    /// What the trace has come to, once it is closed.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let side = &self.side;
        let sum = |of: fn(&super::VcpuTotals) -> u64| {
            side.totals.iter().map(of).fold(0, u64::saturating_add)
        };
        let lost = sum(|totals| totals.lost.saturating_add(totals.dropped));
        let anomalies = side.anomalies.iter().map(|note| note.count);
        let anomalies = anomalies.chain(side.doubts.iter().map(|note| note.count));
        Tally {
            calls: sum(|totals| totals.entries).saturating_sub(side.dropped),
            functions: self.called.count(),
            events: side
                .events
                .events
                .values()
                .copied()
                .fold(0, u64::saturating_add),
            lost: lost
                .saturating_add(side.dropped)
                .saturating_add(side.events.lost),
            anomalies: anomalies.fold(0, u64::saturating_add),
            waits: side.waits.count,
            waited_ns: side.waits.total_ns,
        }
    }
}
