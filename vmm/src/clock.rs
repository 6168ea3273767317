//! The host's counter, and whether its guests see it.

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tracer::clock::HostClock;

use crate::trial::features::{tsc_can_be_set_back, tsc_offset_is_virtualised};

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
