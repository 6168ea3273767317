//! The method by which a client listens to a session: what is recorded comes in notifications.

use serde::{Deserialize, Serialize};

use super::sessions::OfSession;
use crate::control::method::methods;

/// What is listened to from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscribed {
    /// The session.
    pub session: String,
}

methods! {
    /// Tell this client what a session records, as it comes, by notifications
    Subscribe(OfSession) "subscribe" -> Subscribed: |of, on| {
        let (subscription, listener) = on.subscriptions().make(&of.session.0)?;
        on.tracing().0.session(&of.session.0)?.listen(listener)?;
        on.subscriptions().add(subscription);
        Subscribed { session: of.session.0 }
    };
}
