//! Counters: how those of vCPUs relate to the host's, and the time of a run.

mod held;
#[cfg(not(feature = "internals"))]
pub(crate) mod layout;
#[cfg(feature = "internals")]
pub mod layout;
pub mod page;
mod relation;
mod vcpus;

use std::time::Duration;

pub use held::{HeldTime, Hold};
pub use relation::{Relation, Sample};
pub use vcpus::VcpuClocks;
pub(crate) use vcpus::{Jumps, Reading};

/// How the host's time is told: whoever uses this crate knows.
#[derive(Debug, Clone, Copy)]
pub struct HostClock {
    /// Reads its time-stamp counter.
    pub counter: fn() -> u64,
    /// Time since some moment; it never goes back.
    pub now: fn() -> Duration,
    /// Lets so much time pass.
    pub rest: fn(Duration),
}

/// The time of a run: nanoseconds since the guest's start, from ticks of the host's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunClock {
    zero: u64,
    khz: u32,
    /// Nanoseconds in a tick, times 2 to the power of [`SCALE_SHIFT`], rounded up: multiplying
    /// takes a fraction of the time of dividing, and is done for every record.
    scale: u64,
}

/// Less than a nanosecond in a day is lost by it.
const SCALE_SHIFT: u32 = 48;
/// A slower counter would not fit the scale.
const KHZ_MIN: u32 = 16;

impl RunClock {
    /// Time begins at `zero` of the host's counter.
    #[must_use]
    pub fn new(zero: u64, khz: u32) -> Self {
        let khz = khz.max(KHZ_MIN);
        let scale = (1_000_000u128 << SCALE_SHIFT).div_ceil(khz.into());
        Self {
            zero,
            khz,
            scale: u64::try_from(scale).unwrap_or(u64::MAX),
        }
    }

    /// Ticks a millisecond.
    #[must_use]
    pub const fn khz(&self) -> u32 {
        self.khz
    }

    /// Nanoseconds from the guest's start to a time of the host's counter. Before the start is nothing: what is
    /// recorded has a time after it, or is counted as doubtful (`ring::timeline`).
    #[must_use]
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        self.duration_ns(ticks.saturating_sub(self.zero))
    }

    /// The same of many times, none of them before the one before.
    pub fn all_nanoseconds(&self, ticks: &[u64], nanoseconds: &mut [u64]) {
        let first = ticks.first().copied().unwrap_or_default();
        let last = ticks.last().copied().unwrap_or_default();
        let whole = u128::from(first.saturating_sub(self.zero)) * u128::from(self.scale);
        let rest = (whole & ((1 << SCALE_SHIFT) - 1)) as u64;
        let farthest = last
            .checked_sub(first)
            .and_then(|far| far.checked_mul(self.scale));
        let is_near = farthest.is_some_and(|far| far.checked_add(rest).is_some());
        match u64::try_from(whole >> SCALE_SHIFT) {
            // Nearly always: products of 64 bits, which are what takes the time.
            Ok(whole) if is_near && first >= self.zero && whole < u64::MAX >> 1 => {
                for (nanoseconds, ticks) in nanoseconds.iter_mut().zip(ticks) {
                    let since = ticks.wrapping_sub(first).wrapping_mul(self.scale);
                    *nanoseconds = whole + (since.wrapping_add(rest) >> SCALE_SHIFT);
                }
            }
            _ => {
                for (nanoseconds, ticks) in nanoseconds.iter_mut().zip(ticks) {
                    *nanoseconds = self.nanoseconds(*ticks);
                }
            }
        }
    }

    /// Nanoseconds in this many ticks.
    #[must_use]
    pub fn duration_ns(&self, ticks: u64) -> u64 {
        let nanoseconds = (u128::from(ticks) * u128::from(self.scale)) >> SCALE_SHIFT;
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }

    /// Ticks in this many nanoseconds.
    #[must_use]
    pub fn ticks(&self, nanoseconds: u64) -> u64 {
        let ticks = u128::from(nanoseconds) * u128::from(self.khz) / 1_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_day_is_right_to_the_nanosecond() {
        const DAY: u64 = 86_400_000;
        for khz in [KHZ_MIN, 999_983, 2_595_124, 5_800_000] {
            let clock = RunClock::new(0, khz);
            for milliseconds in [0, 1, 59_999, DAY / 3, DAY] {
                let off = clock
                    .nanoseconds(milliseconds * u64::from(khz))
                    .abs_diff(milliseconds * 1_000_000);
                assert!(off <= 1, "{khz} kHz: {off} ns off after {milliseconds} ms");
            }
        }
    }

    proptest! {
        #[test]
        fn many_times_are_what_each_of_them_is(
            khz in prop_oneof![Just(KHZ_MIN), 100_000..6_000_000u32],
            zero in prop_oneof![0..1u64 << 50, any::<u64>()],
            first in prop_oneof![0..1u64 << 60, any::<u64>()],
            steps in proptest::collection::vec(prop_oneof![0..100u64, 0..1u64 << 40], 0..20),
        ) {
            let clock = RunClock::new(zero, khz);
            let after = |time: &mut u64, step| {
                *time = time.saturating_add(step);
                Some(*time)
            };
            let ticks: Vec<u64> = steps.into_iter().scan(first, after).collect();
            let mut all = vec![0; ticks.len()];
            clock.all_nanoseconds(&ticks, &mut all);
            let each: Vec<u64> = ticks.iter().map(|ticks| clock.nanoseconds(*ticks)).collect();
            prop_assert_eq!(all, each);
        }
    }

    #[test]
    fn time_counts_from_the_start() {
        let clock = RunClock::new(1000, 2_000_000);
        assert_eq!(clock.nanoseconds(1000), 0);
        assert_eq!(clock.nanoseconds(3000), 1000);
        assert_eq!(clock.nanoseconds(999), 0);
    }
}
