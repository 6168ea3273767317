//! Methods about the events that the guest declares.

use clap::Args;
use serde::{Deserialize, Serialize};
use status::{EventList, EventsChanged};

use super::sessions::SessionName;
use crate::control::method::{Nothing, methods};

/// Which events, and who.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventChange {
    /// The session that is to record the events; of no meaning with `callbacks`
    #[arg(from_global)]
    #[serde(default, skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// The events; all are changed together
    #[arg(required = true, value_name = "EVENT")]
    pub events: Vec<String>,
    /// A function of the guest, instead of the session; may be given several times
    #[arg(long = "callback", value_name = "FUNCTION")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callbacks: Vec<String>,
}

methods! {
    /// Every event that the guest declares: its fields, who is called at it, who could be
    ListEvents(Nothing) "events.list" -> EventList: |_, tracing, _guest| tracing.events();

    /// Have the session record events, or a function of the guest called at them
    EnableEvents(EventChange) "events.enable" -> EventsChanged: |of, tracing, guest| {
        tracing.change_events(guest, &of.session.0, &of.events, &of.callbacks, true)?
    };

    /// Take that back
    DisableEvents(EventChange) "events.disable" -> EventsChanged: |of, tracing, guest| {
        tracing.change_events(guest, &of.session.0, &of.events, &of.callbacks, false)?
    };
}
