//! What `status` returns: the machine, and beside it [`tracer::tracing::status`].

use serde::{Deserialize, Serialize};
use tracer::tracing::status::TracingStatus;

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
