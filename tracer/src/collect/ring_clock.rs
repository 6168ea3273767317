//! What the times in the records of a session's rings are taken from, and what they are in its trace.

use std::sync::Arc;

use crate::clock::page::Beats;
use crate::clock::{HostClock, Reading, RunClock, VcpuClocks};

/// What the times in the records of some rings are taken from.
#[derive(Debug, Clone)]
pub enum RingClock {
    /// Nothing; the host's clock is for what the reader itself does.
    None(HostClock),
    /// The host's counter, through the clock page.
    Page(HostClock, Arc<Beats>),
    /// The counter of the vCPU with the ring's number.
    Vcpus(Arc<VcpuClocks>),
    /// That of any vCPU.
    AnyVcpu(Arc<VcpuClocks>),
}

impl RingClock {
    /// The same where `rings` rings are there for all vCPUs.
    #[must_use]
    pub fn in_rings(&self, rings: u16) -> Self {
        match self {
            Self::Vcpus(clocks) if usize::from(rings) < clocks.count() => {
                Self::AnyVcpu(Arc::clone(clocks))
            }
            other => other.clone(),
        }
    }

    /// The clock of a ring, now.
    #[must_use]
    pub(crate) fn read(&self, ring: u16) -> Reading {
        match self {
            Self::None(host) | Self::Page(host, _) => Reading::exact((host.counter)()),
            Self::Vcpus(clocks) => clocks.of(ring),
            Self::AnyVcpu(clocks) => clocks.of_any(),
        }
    }

    /// The host's clock.
    #[must_use]
    pub fn host(&self) -> HostClock {
        match self {
            Self::None(host) | Self::Page(host, _) => *host,
            Self::Vcpus(clocks) | Self::AnyVcpu(clocks) => clocks.host(),
        }
    }

    /// What the times of the trace are counted by, now.
    #[must_use]
    pub fn counter(&self) -> u64 {
        match self {
            Self::None(host) | Self::Page(host, _) => (host.counter)(),
            Self::Vcpus(clocks) | Self::AnyVcpu(clocks) => clocks.time().counter(),
        }
    }

    /// What is reserved from now on has no time before this.
    #[must_use]
    pub(super) fn least(&self) -> u64 {
        let now = self.counter();
        match self {
            // A page that stands still has the time of its last beat.
            Self::Page(_, beats) => beats.last().min(now),
            Self::None(_) | Self::Vcpus(_) | Self::AnyVcpu(_) => now,
        }
    }

    /// What is known of the clock page, if that is it.
    #[must_use]
    pub(super) fn beats(&self) -> Option<Arc<Beats>> {
        match self {
            Self::Page(_, beats) => Some(Arc::clone(beats)),
            Self::None(_) | Self::Vcpus(_) | Self::AnyVcpu(_) => None,
        }
    }

    /// Whether there are times.
    #[must_use]
    pub const fn is_timed(&self) -> bool {
        !matches!(self, Self::None(_))
    }
}

/// The time of a session's trace.
#[derive(Debug, Clone)]
pub struct TraceTime {
    /// What is counted in its rings, in nanoseconds.
    pub run: RunClock,
    /// What counts there.
    pub rings: RingClock,
}

impl TraceTime {
    /// Now, in nanoseconds of the trace.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.run.nanoseconds(self.rings.counter())
    }

    /// The least that what is reserved from now on can have.
    #[must_use]
    pub(super) fn least_ns(&self) -> u64 {
        self.run.nanoseconds(self.rings.least())
    }
}
