//! The host's counter, and whether its guests see it.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tracer::clock::HostClock;

use crate::trial::features::tsc_offset_is_virtualised;

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

/// The host's time-stamp counter, now.
#[must_use]
pub fn host_tsc() -> u64 {
    // SAFETY: `rdtsc` is unprivileged and has no effect but its result.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Whether ring 3 of a guest on this host sees the offset that KVM reports: where ring 3 runs without hardware
/// virtualisation it sees the host's counter. Takes some milliseconds.
#[must_use]
pub fn offset_is_applied() -> bool {
    tsc_offset_is_virtualised().unwrap_or_else(|error| {
        log::warn!("whether the guest's counter has an offset could not be tried: {error}");
        true
    })
}
