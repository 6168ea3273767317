//! Counters: the host's TSC, and how the guest's relates to it.

/// The host's time-stamp counter, now.
#[must_use]
pub fn host_tsc() -> u64 {
    // SAFETY: `rdtsc` is unprivileged and has no effect but its result.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The guest's time-stamp counter, read from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestClock {
    offset: u64,
    start: u64,
    khz: u32,
}

impl GuestClock {
    /// A guest whose counter is the host's plus `offset` (modulo 2^64) and advances `khz` ticks a
    /// millisecond; its time begins now.
    #[must_use]
    pub fn starting_now(offset: u64, khz: u32) -> Self {
        Self {
            offset,
            start: host_tsc().wrapping_add(offset),
            khz: khz.max(1),
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
    #[must_use]
    pub fn nanoseconds(&self, counter: u64) -> u64 {
        let ticks = u128::from(counter.saturating_sub(self.start));
        u64::try_from(ticks * 1_000_000 / u128::from(self.khz)).unwrap_or(u64::MAX)
    }

    /// Ticks in this many nanoseconds.
    #[must_use]
    pub fn ticks(&self, nanoseconds: u64) -> u64 {
        let ticks = u128::from(nanoseconds) * u128::from(self.khz) / 1_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}
