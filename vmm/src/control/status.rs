//! What `status` returns: the machine, and beside it [`tracer::tracing::status`].

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tracer::tracing::status::TracingStatus;

use crate::pause_times::PauseTimes;

/// Result of `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The guest as a whole.
    pub guest: GuestStatus,
    /// Each vCPU.
    pub vcpus: Vec<VcpuStatus>,
    /// Tracing.
    pub tracing: TracingStatus,
    /// Every pause so far.
    pub pauses: Pauses,
}

/// The guest as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestStatus {
    /// `running`, `paused`, `trapped` (at the attach breakpoint) or `ended`.
    pub state: String,
    /// The kernel's file.
    pub kernel: String,
    /// RAM in MiB.
    pub memory_mib: u64,
    /// Milliseconds since the vCPUs were started.
    pub uptime_ms: u64,
}

/// One vCPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuStatus {
    /// Its number.
    pub vcpu: u16,
    /// `running`, `paused`, `trapped` or `ended`.
    pub state: String,
}

/// How long pauses took, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pauses {
    /// From the request until every vCPU was parked.
    pub parked: Spread,
    /// From the request until the last vCPU continued. Pauses asked for by `pause` are not in it.
    pub released: Spread,
}

/// A distribution in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many.
    pub count: u64,
    /// Half of them took at most this long.
    pub p50_us: f64,
    /// All but one in a hundred took at most this long.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl From<&PauseTimes> for Pauses {
    fn from(times: &PauseTimes) -> Self {
        Self {
            parked: spread(&times.parked),
            released: spread(&times.released),
        }
    }
}

/// Nanoseconds as microseconds with the precision that the histogram has.
fn spread(times: &Histogram<u64>) -> Spread {
    #[expect(
        clippy::cast_precision_loss,
        reason = "pauses have far fewer than 53 bits of ns"
    )]
    let microseconds = |ns: u64| ns as f64 / 1000.0;
    Spread {
        count: times.len(),
        p50_us: microseconds(times.value_at_quantile(0.5)),
        p99_us: microseconds(times.value_at_quantile(0.99)),
        max_us: microseconds(times.max()),
    }
}
