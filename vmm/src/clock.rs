//! The host's counter, how fast it runs, and whether its guests see it.

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tracer::clock::HostClock;

use crate::trial::features::{tsc_can_be_set_back, tsc_khz, tsc_offset_is_virtualised};

/// Milliseconds until a vCPU's counter is looked at again: what is recorded meanwhile is in doubt when it was set.
const CHECKED_AFTER_MS: u64 = 1000;

/// The same in ticks of a counter that makes so many in a millisecond.
#[must_use]
pub fn until_checked(khz: u32) -> u64 {
    CHECKED_AFTER_MS.saturating_mul(khz.into())
}

/// How this host tells the time.
pub const HOST: HostClock = HostClock {
    counter: host_tsc,
    now,
    rest: std::thread::sleep,
};

/// Since this was asked first.
fn now() -> Duration {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    BEGINNING.get_or_init(Instant::now).elapsed()
}

/// The host's time-stamp counter, now: after all that was read before, and before all that is read or written after. Without the
/// fences a processor reads it out of turn (Intel SDM 2B and AMD APM 3, RDTSC): a look at a ring would be dated before what it saw.
#[must_use]
pub fn host_tsc() -> u64 {
    fence();
    // SAFETY: `rdtsc` is unprivileged and has no effect but its result.
    let now = unsafe { _rdtsc() };
    fence();
    now
}

/// What comes after it does not begin before what comes before it is over.
fn fence() {
    // SAFETY: `lfence` is unprivileged, of SSE2, which every x86-64 has, and has no effect but the order.
    unsafe { _mm_lfence() };
}

/// Whether ring 3 of a guest on this host sees the offset that KVM reports: where ring 3 runs without hardware
/// virtualisation it sees the host's counter. Takes some milliseconds, the first time.
#[must_use]
pub fn offset_is_applied() -> bool {
    static TRIED: OnceLock<bool> = OnceLock::new();
    *TRIED.get_or_init(|| {
        tsc_offset_is_virtualised().unwrap_or_else(|error| {
            log::warn!("whether the guest's counter has an offset could not be tried: {error}");
            true
        })
    })
}

/// How fast the host's counter runs, and how much of that KVM lets a guest's differ before it makes up for it.
#[derive(Debug, Clone, Copy)]
pub struct HostSpeed {
    /// Ticks in a millisecond.
    pub khz: u32,
    tolerance_ppm: u32,
}

impl HostSpeed {
    /// One that makes so many ticks in a millisecond, where KVM lets a guest's differ by so much.
    #[cfg(test)]
    pub const fn of(khz: u32, tolerance_ppm: u32) -> Self {
        Self { khz, tolerance_ppm }
    }

    /// Whether a counter whose guest is told that it makes so many ticks in a millisecond runs as the host's does, with an offset. KVM
    /// compares with whole numbers, too (`kvm_set_tsc_khz`).
    #[must_use]
    pub fn is_of(&self, khz: u32) -> bool {
        const MILLION: u64 = 1_000_000;
        let (host, tolerance) = (u64::from(self.khz), u64::from(self.tolerance_ppm));
        let least = host * MILLION.saturating_sub(tolerance) / MILLION;
        let most = host * (MILLION + tolerance) / MILLION;
        (least..=most).contains(&khz.into())
    }
}

/// That of this host; none where it cannot be found out. Takes some milliseconds, the first time.
#[must_use]
pub fn host_speed() -> Option<HostSpeed> {
    /// What KVM has where nobody has said otherwise.
    const USUAL_PPM: u32 = 250;
    static TRIED: OnceLock<Option<HostSpeed>> = OnceLock::new();
    *TRIED.get_or_init(|| {
        let khz = tsc_khz().inspect_err(|error| {
            log::warn!("how fast the host's counter runs could not be tried: {error}");
        });
        let said = std::fs::read_to_string("/sys/module/kvm/parameters/tsc_tolerance_ppm");
        let said = said.ok().and_then(|said| said.trim().parse().ok());
        Some(HostSpeed {
            khz: khz.ok()?,
            tolerance_ppm: said.unwrap_or(USUAL_PPM),
        })
    })
}

/// Whether the guest sees its counter set back where KVM is asked for that. Takes some milliseconds, the first time.
#[must_use]
pub fn can_be_set_back() -> bool {
    static TRIED: OnceLock<bool> = OnceLock::new();
    *TRIED.get_or_init(|| {
        tsc_can_be_set_back().unwrap_or_else(|error| {
            log::debug!("a guest's counter cannot be set back: {error}");
            false
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_within_what_kvm_lets_differ_runs_as_the_hosts() {
        let host = HostSpeed {
            khz: 2_600_000,
            tolerance_ppm: 250,
        };
        for (khz, is) in [
            (2_600_000, true),
            (2_600_650, true),
            (2_600_651, false),
            (2_599_350, true),
            (2_599_349, false),
            (0, false),
            (u32::MAX, false),
        ] {
            assert_eq!(host.is_of(khz), is, "{khz}");
        }
        let exact = HostSpeed {
            tolerance_ppm: 0,
            ..host
        };
        assert!(exact.is_of(2_600_000) && !exact.is_of(2_600_001));
    }
}
