//! What a trace has come to, in numbers.

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
    /// Records that are in it: of a call its entry and, in a graph, its end; events.
    pub records: u64,
    /// Records that are known to be missing.
    pub lost: u64,
    /// What did not fit, or may be wrong.
    pub anomalies: u64,
    /// How often a vCPU waited for the reader.
    pub waits: u64,
    /// All waits together, in nanoseconds.
    pub waited_ns: u64,
}

impl UftraceWriter {
    /// What the trace has come to, once it is closed.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let side = &self.side;
        let sum = |of: fn(&super::VcpuTotals) -> u64| {
            side.totals.iter().map(of).fold(0, u64::saturating_add)
        };
        let sums = self.sums();
        let lost = sum(|totals| totals.lost);
        let events = side.events.events.values().copied();
        let events = events.fold(0, u64::saturating_add);
        let anomalies = side.anomalies.iter().map(|note| note.count);
        let anomalies = anomalies.chain(side.doubts.iter().map(|note| note.count));
        let anomalies = anomalies.chain([side.clock_stalls.len() as u64]);
        Tally {
            calls: sum(|totals| totals.entries).saturating_sub(side.dropped),
            functions: self.called().count(),
            events,
            records: sums
                .entries
                .saturating_add(sums.exits)
                .saturating_add(events),
            lost: lost
                .saturating_add(sums.dropped_records)
                .saturating_add(side.events.lost),
            anomalies: anomalies.fold(0, u64::saturating_add),
            waits: side.waits.count,
            waited_ns: side.waits.total_ns,
        }
    }
}
