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

/// Times, in nanoseconds. Of all but the longest two digits are kept.
#[derive(Debug)]
pub struct Times {
    all: Histogram<u64>,
    longest_ns: u64,
}

impl Default for Times {
    fn default() -> Self {
        let all = Histogram::new_with_bounds(SHORTEST_NS, LONGEST_NS, DIGITS)
            .or_else(|_| Histogram::new(DIGITS))
            .unwrap_or_else(|_| unreachable!("two digits are a valid precision"));
        Self { all, longest_ns: 0 }
    }
}

impl Times {
    /// One more.
    pub fn add(&mut self, time: Duration) {
        let ns = nanoseconds(time);
        self.all.saturating_record(ns);
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// How they are spread. None is longer than the longest: a histogram rounds up.
    #[must_use]
    pub fn spread(&self) -> PauseSpread {
        let at = |quantile| self.all.value_at_quantile(quantile).min(self.longest_ns);
        PauseSpread {
            count: self.all.len(),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            max_ns: self.longest_ns,
        }
    }
}

/// How long pauses took.
#[derive(Debug, Default)]
pub struct PauseTimes {
    /// From the moment in which the first vCPU was asked to leave the guest until all were parked.
    pub parked: Times,
    /// From that moment until the last vCPU continued.
    pub released: Times,
    /// The first of them.
    pub each: Vec<Paused>,
}

impl PauseTimes {
    /// All vCPUs of a pause are parked, so long after the first was asked.
    pub fn parked(&mut self, after: Duration) {
        self.parked.add(after);
    }

    /// The last vCPU has continued.
    pub fn released(&mut self, paused: Paused) {
        self.released.add(paused.length);
        if self.each.len() < KEPT_MAX {
            self.each.push(paused);
        }
    }
}

impl From<&PauseTimes> for Pauses {
    fn from(times: &PauseTimes) -> Self {
        Self {
            parked: times.parked.spread(),
            released: times.released.spread(),
            each: times.each.clone(),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It once was the upper end of the bucket that it fell into.
    #[test]
    fn the_longest_pause_is_the_longest_that_there_was() {
        let mut times = PauseTimes::default();
        assert_eq!(Pauses::from(&times).released.max_ns, 0);
        for (counter, length) in [(1, 8_012_345), (2, 90_001)] {
            let length = Duration::from_nanos(length);
            times.parked(length / 2);
            times.released(Paused { counter, length });
        }
        let pauses = Pauses::from(&times);
        assert_eq!(pauses.released.max_ns, 8_012_345);
        assert_eq!(pauses.released.p99_ns, 8_012_345);
        assert_eq!(pauses.parked.max_ns, 8_012_345 / 2);
        let longest = pauses
            .each
            .iter()
            .map(|paused| nanoseconds(paused.length))
            .max();
        assert_eq!(longest, Some(pauses.released.max_ns));
    }

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
