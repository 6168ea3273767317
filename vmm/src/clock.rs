//! Counters: the host's TSC, and how the guest's relates to it.

/// The host's time-stamp counter, now.
#[must_use]
pub fn host_tsc() -> u64 {
    // SAFETY: `rdtsc` is unprivileged and has no effect but its result.
    unsafe { std::arch::x86_64::_rdtsc() }
}
