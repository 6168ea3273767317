//! Sessions.

use serde::{Deserialize, Serialize};
use trace::doubt::TimeNote;
use trace::export::uftrace::{AnomalyNote, LateModules, WaitingModules};

use super::functions::Changed;
use super::pauses::paused;
use super::rings::{RingStatus, WaitStatus};

/// One session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its name.
    pub name: String,
    /// `function`, `graph` or `profile`.
    pub tracer: String,
    /// `off`, `tracing`, `switched-off` (stubs in place, not recording) or `waiting` (for the attach
    /// point).
    pub state: String,
    /// Functions that it traces now.
    pub traced: u64,
    /// Globs in force.
    pub filter: Vec<String>,
    /// Globs in force against it.
    pub notrace: Vec<String>,
    /// The vCPUs that are recorded, where not all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_vcpus: Option<OnlyStatus>,
    /// The tasks that are recorded, or are not, where not all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<TaskStatus>,
    /// `overwrite`, `discard` or `lossless`.
    pub mode: String,
    /// Where times come from: `tsc`, `page` or `none`.
    pub clock: String,
    /// The period of the clock page, where times come from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_period_ns: Option<u64>,
    /// Bytes of each ring; 0 for a profile session, which has none.
    pub ring_bytes: u64,
    /// The directory that the trace is written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Why not everything is in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// For how long what was read has been waiting for it, if that is a second or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_stalled_ms: Option<u64>,
    /// What did not fit in the graph so far, as far as it is written to an output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anomalies: Vec<AnomalyNote>,
    /// Modules whose functions were patched when they could already have been called.
    #[serde(default, skip_serializing_if = "LateModules::is_empty")]
    pub late_modules: LateModules,
    /// Modules of the guest that have not been read yet, so that none of their functions is traced.
    #[serde(default, skip_serializing_if = "WaitingModules::is_none")]
    pub waiting_modules: WaitingModules,
    /// Records that were read and whose times may be wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<TimeNote>,
    /// How vCPUs waited for its reader; none where they do not, and before the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitStatus>,
    /// Each ring; none before the first start.
    pub rings: Vec<RingStatus>,
    /// Events that it records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Each event ring; none before its first event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub event_rings: Vec<RingStatus>,
}

/// What alone is recorded, and who sees to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlyStatus {
    /// The numbers of vCPUs.
    pub vcpus: Vec<u16>,
    /// `stub`: in the guest, before anything is written.
    pub by: String,
}

/// Whose calls are recorded, and who sees to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Only these, where any are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// All but these, where any are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not: Vec<String>,
    /// Whether the tasks that they make are meant, too.
    pub follow_forks: bool,
    /// `stub`: in the guest, before anything is written. None while all are recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Result of `session.create` and `session.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionList {
    /// By name.
    pub sessions: Vec<SessionStatus>,
}

/// Result of `session.delete`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Deleted {
    /// Its name.
    pub session: String,
    /// What stopping it did, if it still traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Changed>,
    /// How often the guest was paused for it, for whatever: also to stop it, and to look at its counters once more.
    #[serde(default)]
    pub pauses: u64,
    /// How long the guest was paused for it, in microseconds: the longest of the pauses. Where text is changed live, the most that
    /// one vCPU lost, if that is more.
    #[serde(default)]
    pub pause_us: f64,
}

impl Deleted {
    /// How often and for how long the guest was paused, as text.
    #[must_use]
    pub fn paused(&self) -> String {
        paused(self.pauses, self.pause_us)
    }
}

/// Result of the methods that change whose calls a session records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TasksChanged {
    /// `false` when it was so before.
    pub changed: bool,
    /// How often the guest was paused for it: 0 for a session that has not started, or that is as it was asked for.
    #[serde(default)]
    pub pauses: u64,
    /// How long the guest was paused for it, in microseconds: the longest of the pauses. Where text is changed live, the most that
    /// one vCPU lost, if that is more.
    #[serde(default)]
    pub pause_us: f64,
}

impl TasksChanged {
    /// How often and for how long the guest was paused, as text.
    #[must_use]
    pub fn paused(&self) -> String {
        paused(self.pauses, self.pause_us)
    }
}

/// Result of `thaw`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thawed {
    /// `false` when nothing was frozen.
    pub changed: bool,
    /// At so many functions what stood there before us stands again, since somebody else has put it there: they are not traced any
    /// more, until somebody begins that anew.
    pub given_back: u64,
}

/// Result of the methods that only switch something: whether it was switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switched {
    /// `false` when it was so before.
    pub changed: bool,
}
