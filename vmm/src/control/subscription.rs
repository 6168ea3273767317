//! What clients listen to: sessions as they are recorded, told by notifications.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trace::live::{Listener, LiveEvent, Tail, tail};

use super::protocol::{RpcError, notification};
use crate::bell::Bell;

/// Events in one notification.
const EVENTS_MAX: usize = 256;
/// Subscriptions of all clients: each keeps what its client has not read yet.
const SUBSCRIPTIONS_MAX: usize = 256;

/// The notification that brings events.
pub const EVENTS: &str = "events";
/// The last one of a subscription.
pub const ENDED: &str = "ended";

/// Some events of a session, in the order of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SomeEvents {
    /// The session.
    pub session: String,
    /// The next ones.
    pub events: Vec<LiveEvent>,
}

/// Nothing more comes of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailEnded {
    /// The session.
    pub session: String,
    /// Events after the last that was told, which this client did not take in time.
    pub unread: u64,
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// What a session has recorded.
    Events(SomeEvents),
    /// That there is no more.
    Ended(TailEnded),
    /// What later versions tell.
    Other,
}

impl Told {
    /// What this notification says.
    ///
    /// # Errors
    /// When its parameters are others.
    pub fn read(method: &str, params: Value) -> serde_json::Result<Self> {
        match method {
            EVENTS => serde_json::from_value(params).map(Self::Events),
            ENDED => serde_json::from_value(params).map(Self::Ended),
            _ => Ok(Self::Other),
        }
    }
}

/// What one client listens to.
#[derive(Debug)]
pub struct Subscription {
    session: String,
    tail: Tail,
    has_ended: bool,
    /// One of those that are counted.
    _counted: Arc<()>,
}

/// There is no room for one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "clients listen {SUBSCRIPTIONS_MAX} times already, which is as often as they can: close a connection that is not listened to any more"
)]
pub struct NoRoom;

impl From<NoRoom> for RpcError {
    fn from(error: NoRoom) -> Self {
        Self::failed(error)
    }
}

impl Subscription {
    /// The next notification, as a line.
    pub fn line(&mut self) -> Option<String> {
        let events = self.tail.take(EVENTS_MAX);
        let session = self.session.clone();
        if !events.is_empty() {
            return Some(notification(EVENTS, &SomeEvents { session, events }));
        }
        let unread = self.tail.end().filter(|_| !self.has_ended)?;
        self.has_ended = true;
        Some(notification(ENDED, &TailEnded { session, unread }))
    }

    /// Whether there is something to tell.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.tail.has_any() || !self.has_ended && self.tail.end().is_some()
    }

    /// Whether all was told.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }
}

/// Subscriptions on their way from the request for them to the client that made it.
#[derive(Debug)]
pub struct Subscriptions {
    bell: Bell,
    fresh: VecDeque<Subscription>,
    /// Each that is alive has a share in this.
    alive: Arc<()>,
}

impl Subscriptions {
    /// None yet.
    #[must_use]
    pub fn new(bell: Bell) -> Self {
        Self {
            bell,
            fresh: VecDeque::new(),
            alive: Arc::default(),
        }
    }

    /// One of this session, and the listener that it hears by.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn make(&self, session: &str) -> Result<(Subscription, Listener), NoRoom> {
        if Arc::strong_count(&self.alive) > SUBSCRIPTIONS_MAX {
            return Err(NoRoom);
        }
        let bell = self.bell.clone();
        let (tail, listener) = tail(move || bell.ring());
        let subscription = Subscription {
            session: session.to_owned(),
            tail,
            has_ended: false,
            _counted: Arc::clone(&self.alive),
        };
        Ok((subscription, listener))
    }

    /// For the client that is being answered.
    pub fn add(&mut self, subscription: Subscription) {
        self.fresh.push_back(subscription);
    }

    /// What the request that was answered last has brought.
    pub fn take(&mut self) -> Option<Subscription> {
        self.fresh.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_can_listen_than_there_is_room_for() {
        let subscriptions = Subscriptions::new(Bell::new().unwrap());
        let make = || subscriptions.make("one");
        let mut all: Vec<_> = (0..SUBSCRIPTIONS_MAX).map(|_| make().unwrap()).collect();
        assert_eq!(make().err(), Some(NoRoom));
        // It has room again when one goes.
        all.pop();
        all.push(make().unwrap());
        assert_eq!(make().err(), Some(NoRoom));
    }
}
