//! Probes.

use serde::{Deserialize, Serialize};

use super::events::FieldStatus;
use super::pauses::paused;

/// Result of `probe.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeList {
    /// In the order in which they were added.
    pub probes: Vec<ProbeStatus>,
    /// How often vCPUs have left the guest at probes: those by breakpoints that the host serves.
    #[serde(default)]
    pub exits: u64,
}

/// One probe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// Its number, never used again.
    pub id: u32,
    /// What its event is called in the trace.
    pub name: String,
    /// The session that records it.
    pub session: String,
    /// As it was added.
    pub probe: String,
    /// The instruction before which it is hit; none while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The same as function and offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// How it is put into the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tactic: Option<String>,
    /// `on`, `disabled`, `off` while its session is not started, or when it could not be recorded, `waiting` while its module is not there, `gone` when its text is.
    pub state: String,
    /// The module that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Why it waits, though its module has come, or is off, though its session is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Hits that are in the trace; none without an output directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hits: Option<u64>,
    /// What it captures.
    pub values: Vec<FieldStatus>,
}

/// Result of `probe.add`, `probe.remove`, `probe.enable` and `probe.disable`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbesChanged {
    /// The probes that were changed, as they are now or were last.
    pub probes: Vec<ProbeStatus>,
    /// How often the guest was paused for it, for whatever: also to make the rings of a session's first probe.
    pub pauses: u64,
    /// How long the guest was paused for it, in microseconds.
    pub pause_us: f64,
}

impl ProbesChanged {
    /// How often and for how long the guest was paused, as text.
    #[must_use]
    pub fn paused(&self) -> String {
        paused(self.pauses, self.pause_us)
    }
}
