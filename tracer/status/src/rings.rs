//! What readers of rings tell.

use super::wait_time::WaitTime;
use serde::{Deserialize, Serialize};

/// One ring.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingStatus {
    /// Its number: the vCPU's, unless the ring is shared.
    pub ring: u16,
    /// Records that stubs have reserved room for.
    pub written: u64,
    /// Records that were read, to be written to the output.
    pub read: u64,
    /// All that is known to be missing: the sum of the four counts below.
    pub lost: u64,
    /// Calls that were not recorded because the ring was full (discard mode).
    pub discarded: u64,
    /// Records written over before they were read.
    pub overwritten: u64,
    /// Slots that were reserved by a writer that did not come in time.
    pub abandoned: u64,
    /// Records that name no function: the guest wrote into its ring.
    pub invalid: u64,
    /// Records that are neither read nor known to be lost: the reader has not come to them, their writer is
    /// away, or one of an earlier lap came late and wrote over them. Of a ring that nobody reads: what it holds.
    #[serde(default)]
    pub unread: u64,
    /// How often the guest had changed the ring's own words.
    pub corrupt: u64,
}

impl RingStatus {
    /// The same with [`Self::lost`] and [`Self::unread`] as the other counts have them.
    #[must_use]
    pub fn summed(self) -> Self {
        let gone = self.overwritten.saturating_add(self.abandoned);
        let gone = gone.saturating_add(self.invalid);
        Self {
            lost: self.discarded.saturating_add(gone),
            unread: self.written.saturating_sub(self.read.saturating_add(gone)),
            ..self
        }
    }
}

/// How vCPUs have waited for the reader of a session that loses nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitStatus {
    /// How often one has.
    pub count: u64,
    /// All waits together, whichever vCPU it was.
    pub total_ns: u64,
    /// The longest.
    pub longest_ns: u64,
    /// vCPUs that wait now.
    pub waiting: u64,
    /// Why nobody is waited for any more: full rings discard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<String>,
    /// Whether the guest sees them.
    #[serde(default)]
    pub wait_time: WaitTime,
    /// What it has not seen of them; of those of other sessions, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_ns: Option<u64>,
    /// How often a vCPU's counter could not be set back by some of that, which the guest has seen after all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_set_back: Option<u64>,
}

/// Result of `dump`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dumped {
    /// The directory.
    pub dir: String,
    /// Records written to it.
    pub records: u64,
    /// Records that were lost before.
    pub lost: u64,
    /// Calls and events that were not recorded while the rings were copied.
    #[serde(default)]
    pub missed: u64,
    /// vCPUs that were met in a stub whenever they were looked at: `missed` can lack one of each.
    #[serde(default)]
    pub in_stubs: u64,
}
