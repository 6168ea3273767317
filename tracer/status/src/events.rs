//! Events.

use serde::{Deserialize, Serialize};

use super::pauses::paused;

/// Result of `events.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventList {
    /// In the order in which the image declares them.
    pub events: Vec<EventStatus>,
}

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventStatus {
    /// Its name.
    pub name: String,
    /// `tracepoint` or `marker`.
    pub kind: String,
    /// Its fields, in order.
    pub fields: Vec<FieldStatus>,
    /// Places that pass it.
    pub sites: u64,
    /// What stands there: `nop`, `direct` (to the one callback) or `iterator` (several).
    pub state: String,
    /// Who is called, in order: `session NAME`, or a function of the guest.
    pub callbacks: Vec<String>,
    /// Functions of the guest that could be called.
    pub candidates: Vec<String>,
}

/// A field of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldStatus {
    /// What it is called.
    pub name: String,
    /// Its type, such as `u32`.
    pub r#type: String,
}

/// Result of `events.enable` and `events.disable`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EventsChanged {
    /// The events of which something was changed.
    pub events: Vec<String>,
    /// Whether they are on now.
    pub on: bool,
    /// How often the guest was paused for it, for whatever: also to make the rings of a session's first event. 0 when
    /// nothing had to be changed or made; what is changed live takes none.
    #[serde(default)]
    pub pauses: u64,
    /// How long the guest was paused for it, in microseconds; where text is changed live, the most that one
    /// vCPU lost. 0 when nothing had to be changed.
    pub pause_us: f64,
}

impl EventsChanged {
    /// How often and for how long the guest was paused, as text.
    #[must_use]
    pub fn paused(&self) -> String {
        paused(self.pauses, self.pause_us)
    }
}
