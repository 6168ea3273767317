//! Tracing as a whole.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::sessions::SessionStatus;

/// Tracing as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TracingStatus {
    /// `frozen` (an unexpected state stopped all patching), or the strongest state of a session:
    /// `tracing`, `switched-off`, `waiting`, `off`.
    pub state: String,
    /// Why patching is frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen: Option<FrozenStatus>,
    /// Functions that are patched now.
    pub patched: u64,
    /// Functions that could be traced.
    pub available: u64,
    /// Functions that cannot be traced; `functions` says why.
    pub skipped: u64,
    /// How a stub finds its vCPU's ring: `gs` or `shared`; none before the first attach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_strategy: Option<String>,
    /// Why not by `gs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_gs: Option<String>,
    /// How text is changed: `atomic`, `quiesce` or `live`.
    #[serde(default)]
    pub patch_method: String,
    /// How many sites were switched how.
    #[serde(default)]
    pub switched: SwitchedSites,
    /// How many pauses nobody has asked for: vCPUs were only asked for their page tables, one a second while somebody traces, or what came
    /// with modules was traced.
    #[serde(default)]
    pub looks: u64,
    /// How many microseconds the longest of them took.
    #[serde(default)]
    pub longest_look_us: f64,
    /// At how many places that were displaced, or put back, the guest could not be asked whether it has probes of its own there: its
    /// kernel can have some, and no types (BTF).
    #[serde(default)]
    pub kprobes_unasked: u64,
    /// The vCPUs' clocks; none before the first attach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu_clocks: Option<VcpuClocksStatus>,
    /// The guest's lock prefixes, where the image lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smp_locks: Option<LocksStatus>,
    /// Bytes of stubs in the guest.
    pub stub_bytes: u64,
    /// The clock page, while a session uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_page: Option<ClockPageStatus>,
    /// Each session.
    pub sessions: Vec<SessionStatus>,
}

/// How many sites of the guest's text were switched how, each as often as it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchedSites {
    /// While every vCPU ran, by one exchange of a word.
    pub atomic: u64,
    /// While it ran, by breakpoints.
    pub live: u64,
    /// While every vCPU was stopped.
    pub stopped: u64,
}

impl SwitchedSites {
    /// Whether there is anything to say.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.atomic + self.live + self.stopped > 0
    }
}

impl fmt::Display for SwitchedSites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = [
            (self.atomic, "while the guest ran"),
            (self.live, "by breakpoints"),
            (self.stopped, "in pauses"),
        ];
        let shown = ways.iter().filter(|(count, _)| *count > 0);
        let shown: Vec<_> = shown.map(|(count, way)| format!("{count} {way}")).collect();
        f.write_str(&shown.join(", "))
    }
}

/// The clock page and its thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockPageStatus {
    /// Nanoseconds between two beats.
    pub period_ns: u64,
    /// The host CPU of the thread, when it is kept on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// How often the page was not written in time while vCPUs ran.
    pub stalls: u64,
    /// The longest of those times in nanoseconds.
    pub longest_stall_ns: u64,
}

/// How the vCPUs' clocks relate to the host's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuClocksStatus {
    /// Nanoseconds by which the times of a trace may be off, all of them alike; 0 where the guest sees the host's
    /// clock.
    pub bound_ns: u64,
    /// How often one was found to have been set.
    pub sets: u64,
    /// Whether they differ: then a call that was moved between two vCPUs as it was recorded has a wrong time.
    pub differ: bool,
}

impl VcpuClocksStatus {
    /// Whether it is worth a line.
    #[must_use]
    pub const fn is_news(&self) -> bool {
        self.sets > 0 || self.differ
    }
}

impl fmt::Display for VcpuClocksStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let differ = if self.differ { ", they differ" } else { "" };
        let (sets, bound) = (self.sets, self.bound_ns);
        write!(f, "vCPU clocks: set {sets}×{differ}; known to {bound} ns")
    }
}

/// The guest's lock prefixes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocksStatus {
    /// `on`, or `off`: replaced by a prefix that means nothing.
    pub state: String,
    /// How many instructions the image lists.
    pub sites: u64,
}

/// Why nothing is patched any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenStatus {
    /// In one line.
    pub reason: String,
    /// The function whose site is not what it must be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Where the site lies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The bytes that must be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// The bytes that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

/// Result of `smp-locks`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchedLocks {
    /// `on` or `off`.
    pub state: String,
    /// Instructions switched by this; 0 when it was so before.
    pub switched: u64,
    /// How long the guest was paused for it, in microseconds.
    pub pause_us: f64,
}

/// Result of `digest`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// SHA-256 of the guest's text as it is in memory now.
    pub sha256: String,
}
