//! The methods `events.*`: what they take.

use serde::{Deserialize, Serialize};

use super::protocol::SessionName;

/// `events.enable` and `events.disable`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventChange {
    /// The session that is to record the events; of no meaning with `callbacks`.
    #[serde(default, skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// The events.
    pub events: Vec<String>,
    /// Functions of the guest that are to be called at them, instead of a session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callbacks: Vec<String>,
}
