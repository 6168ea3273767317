//! What `status` returns: the machine, and beside it [`status`].

use serde::{Deserialize, Serialize};
use status::TracingStatus;
use trace::export::uftrace::PauseSpread;

/// Result of `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The guest as a whole.
    pub guest: GuestStatus,
    /// What it takes of the host's memory.
    #[serde(default)]
    pub memory: MemoryStatus,
    /// Each vCPU.
    pub vcpus: Vec<VcpuStatus>,
    /// Tracing.
    pub tracing: TracingStatus,
    /// Every pause so far.
    pub pauses: Pauses,
    /// What is done when something happens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<TriggerStatus>,
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

/// Memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// The guest's RAM.
    pub ram_bytes: u64,
    /// What is reserved for stubs and rings, above the RAM.
    pub window_bytes: u64,
    /// What of that has memory of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_backed_bytes: Option<u64>,
    /// Memory of the host that the process has, whatever for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
}

/// One vCPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuStatus {
    /// Its number.
    pub vcpu: u16,
    /// `running`, `paused`, `waiting` (for the reader of a ring), `trapped` or `ended`.
    pub state: String,
}

/// How a trigger is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerStatus {
    /// The trigger, as it was given.
    pub trigger: String,
    /// The session that it waits in.
    pub session: String,
    /// `at once` where the guest itself ends recording, or `when read`: when the host has read the record.
    pub acts: String,
    /// Why not at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How often it has fired.
    pub fired: u64,
    /// How often what is to be done then could not be.
    pub failed: u64,
}

/// How long pauses took, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pauses {
    /// From the request until every vCPU was parked.
    pub parked: Spread,
    /// From the request until the last vCPU continued. Pauses asked for by `pause` are not in it.
    pub released: Spread,
    /// So many of them only asked whether the kernel that is traced still runs; of a guest of another VMM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_looks: Option<Spread>,
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

impl From<tracer::guest::Pauses> for Pauses {
    fn from(pauses: tracer::guest::Pauses) -> Self {
        Self {
            parked: pauses.parked.into(),
            released: pauses.released.into(),
            kernel_looks: None,
        }
    }
}

/// Nanoseconds as microseconds.
impl From<PauseSpread> for Spread {
    fn from(spread: PauseSpread) -> Self {
        #[expect(
            clippy::cast_precision_loss,
            reason = "pauses have far fewer than 53 bits of ns"
        )]
        let microseconds = |ns: u64| ns as f64 / 1000.0;
        Self {
            count: spread.count,
            p50_us: microseconds(spread.p50_ns),
            p99_us: microseconds(spread.p99_ns),
            max_us: microseconds(spread.max_ns),
        }
    }
}
