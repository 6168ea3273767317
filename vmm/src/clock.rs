//! Counters: the host's TSC, and how the guest's relates to it.

use crate::doctor::probe::tsc_offset_is_virtualised;
use crate::machine::PATIENCE;
use crate::quiesce::Quiesced;
use crate::vcpu::{AskVcpuError, Reply, Request};

/// The host's time-stamp counter, now.
#[must_use]
pub fn host_tsc() -> u64 {
    // SAFETY: `rdtsc` is unprivileged and has no effect but its result.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Differences above this are negative ones.
const BEFORE_THE_START: u64 = u64::MAX / 2;

/// The guest's time-stamp counter, read from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestClock {
    offset: u64,
    start: u64,
    khz: u32,
    /// Nanoseconds in a tick, times 2 to the power of [`SCALE_SHIFT`], rounded up: multiplying
    /// takes a fraction of the time of dividing, and is done for every record.
    scale: u64,
}

/// Less than a nanosecond in a day is lost by it.
const SCALE_SHIFT: u32 = 48;
/// A slower counter would not fit the scale.
const KHZ_MIN: u32 = 16;

impl GuestClock {
    /// The counter of a machine that is quiesced, as its ring 3 sees it. Time begins at `zero` of the
    /// host's counter.
    ///
    /// KVM reports an offset between the two counters. Where ring 3 runs without hardware
    /// virtualisation that offset is not applied: [`offset_is_applied`] tries it with a tiny machine.
    ///
    /// # Errors
    /// [`AskVcpuError`] when KVM does not give the counter.
    pub fn of(
        quiesced: &mut Quiesced<'_>,
        is_offset_applied: bool,
        khz: u32,
        zero: u64,
    ) -> Result<Self, AskVcpuError> {
        let offset = if is_offset_applied {
            kvm_offset(quiesced)?
        } else {
            0
        };
        Ok(Self::with_offset(offset, zero, khz))
    }

    /// A counter that is `offset` ahead of the host's.
    #[must_use]
    pub fn with_offset(offset: u64, zero: u64, khz: u32) -> Self {
        let khz = khz.max(KHZ_MIN);
        let scale = (1_000_000u128 << SCALE_SHIFT).div_ceil(khz.into());
        Self {
            offset,
            start: zero.wrapping_add(offset),
            khz,
            scale: u64::try_from(scale).unwrap_or(u64::MAX),
        }
    }

    /// The guest's counter, now.
    #[must_use]
    pub fn now(&self) -> u64 {
        host_tsc().wrapping_add(self.offset)
    }

    /// Ticks a millisecond.
    #[must_use]
    pub const fn khz(&self) -> u32 {
        self.khz
    }

    /// Nanoseconds from the guest's start to a value of its counter; 0 for one before that.
    ///
    /// The counter begins at 0 when KVM makes the vCPU, which is later than the start: so the start
    /// itself can be *below* 0, that is, wrapped.
    #[must_use]
    pub fn nanoseconds(&self, counter: u64) -> u64 {
        let ticks = counter.wrapping_sub(self.start);
        let ticks = if ticks > BEFORE_THE_START { 0 } else { ticks };
        self.duration_ns(ticks)
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

/// Whether ring 3 of a guest on this host sees the offset that KVM reports. Takes some milliseconds.
#[must_use]
pub fn offset_is_applied() -> bool {
    tsc_offset_is_virtualised().unwrap_or_else(|error| {
        log::warn!("whether the guest's counter has an offset could not be tried: {error}");
        true
    })
}

/// What KVM says is the guest's counter less the host's, read in the middle of two host readings.
fn kvm_offset(quiesced: &mut Quiesced<'_>) -> Result<u64, AskVcpuError> {
    match quiesced.ask(0, Request::ReadTsc, PATIENCE)? {
        Reply::Tsc {
            before,
            guest,
            after,
        } => {
            let middle = before.wrapping_add(after.wrapping_sub(before) / 2);
            Ok(guest.wrapping_sub(middle))
        }
        Reply::Done | Reply::SyscallEntry(_) => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(start: u64) -> GuestClock {
        GuestClock::with_offset(0, start, 2_000_000)
    }

    #[test]
    fn a_day_is_right_to_the_nanosecond() {
        const DAY: u64 = 86_400_000;
        for khz in [KHZ_MIN, 999_983, 2_595_124, 5_800_000] {
            let clock = GuestClock::with_offset(0, 0, khz);
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
        assert_eq!(clock(1000).nanoseconds(1000), 0);
        assert_eq!(clock(1000).nanoseconds(3000), 1000);
        assert_eq!(clock(1000).nanoseconds(999), 0);
    }

    #[test]
    fn a_start_before_the_counter_began_is_no_start_at_the_end_of_time() {
        let start = 0u64.wrapping_sub(4000);
        assert_eq!(clock(start).nanoseconds(0), 2000);
        assert_eq!(clock(start).nanoseconds(6000), 5000);
    }
}
