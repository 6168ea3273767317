//! How long the pauses of a guest took.

use std::time::Duration;

use hdrhistogram::Histogram;
use trace::export::uftrace::PauseSpread;
use tracer::guest::Pauses;

/// Differences shorter than this are not kept.
const SHORTEST_NS: u64 = 64;
/// Significant digits that are kept of each time.
const DIGITS: u8 = 2;
/// Longest pause that the histograms tell apart from longer ones.
const LONGEST_NS: u64 = 60_000_000_000;

/// How long pauses took, in nanoseconds.
#[derive(Debug)]
pub struct PauseTimes {
    /// From the moment in which the first vCPU was asked to leave the guest until all were parked.
    pub parked: Histogram<u64>,
    /// From that moment until the last vCPU continued.
    pub released: Histogram<u64>,
}

impl Default for PauseTimes {
    fn default() -> Self {
        let histogram = || {
            Histogram::new_with_bounds(SHORTEST_NS, LONGEST_NS, DIGITS)
                .or_else(|_| Histogram::new(DIGITS))
                .unwrap_or_else(|_| unreachable!("two digits are a valid precision"))
        };
        Self {
            parked: histogram(),
            released: histogram(),
        }
    }
}

impl PauseTimes {
    /// All vCPUs of a pause are parked, so long after the first was asked.
    pub fn parked(&mut self, after: Duration) {
        self.parked.saturating_record(nanoseconds(after));
    }

    /// The last vCPU has continued, so long after the first was asked.
    pub fn released(&mut self, after: Duration) {
        self.released.saturating_record(nanoseconds(after));
    }
}

impl From<&PauseTimes> for Pauses {
    fn from(times: &PauseTimes) -> Self {
        Self {
            parked: spread(&times.parked),
            released: spread(&times.released),
        }
    }
}

fn spread(times: &Histogram<u64>) -> PauseSpread {
    PauseSpread {
        count: times.len(),
        p50_ns: times.value_at_quantile(0.5),
        p99_ns: times.value_at_quantile(0.99),
        max_ns: times.max(),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
