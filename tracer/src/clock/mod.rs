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

    #[test]
    fn time_counts_from_the_start() {
        let clock = RunClock::new(1000, 2_000_000);
        assert_eq!(clock.nanoseconds(1000), 0);
        assert_eq!(clock.nanoseconds(3000), 1000);
        assert_eq!(clock.nanoseconds(999), 0);
    }
}
