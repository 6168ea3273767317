//! How long the pauses of a guest took, and when the first of them were.

use std::time::Duration;

use hdrhistogram::Histogram;
use trace::export::uftrace::PauseSpread;
use tracer::guest::{Paused, Pauses};

/// Differences shorter than this are not kept.
const SHORTEST_NS: u64 = 64;
/// Significant digits that are kept of each time.
const DIGITS: u8 = 2;
/// Pauses that are kept one by one.
const KEPT_MAX: usize = 4096;
/// Longest pause that the histograms tell apart from longer ones.
const LONGEST_NS: u64 = 60_000_000_000;

/// How long pauses took, in nanoseconds.
#[derive(Debug)]
pub struct PauseTimes {
    /// From the moment in which the first vCPU was asked to leave the guest until all were parked.
    pub parked: Histogram<u64>,
    /// From that moment until the last vCPU continued.
    pub released: Histogram<u64>,
    /// The first of them.
    pub each: Vec<Paused>,
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
            each: Vec::new(),
        }
    }
}

impl PauseTimes {
    /// All vCPUs of a pause are parked, so long after the first was asked.
    pub fn parked(&mut self, after: Duration) {
        self.parked.saturating_record(nanoseconds(after));
    }

    /// The last vCPU has continued.
    pub fn released(&mut self, paused: Paused) {
        self.released.saturating_record(nanoseconds(paused.length));
        if self.each.len() < KEPT_MAX {
            self.each.push(paused);
        }
    }
}

impl From<&PauseTimes> for Pauses {
    fn from(times: &PauseTimes) -> Self {
        Self {
            parked: spread(&times.parked),
            released: spread(&times.released),
            each: times.each.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pauses_are_counted_and_the_first_are_kept() {
        let mut times = PauseTimes::default();
        let length = Duration::from_micros(64);
        for counter in 0..=KEPT_MAX as u64 {
            times.released(Paused { counter, length });
        }
        let pauses = Pauses::from(&times);
        assert_eq!(pauses.released.count, KEPT_MAX as u64 + 1);
        let counters: Vec<u64> = pauses.each.iter().map(|paused| paused.counter).collect();
        assert_eq!(counters, (0..KEPT_MAX as u64).collect::<Vec<_>>());
    }
}
