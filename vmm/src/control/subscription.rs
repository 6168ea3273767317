//! What clients listen to: sessions as they are recorded, told by notifications.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trace::live::{Listener, LiveEvent, Tail, tail};

use super::protocol::notification;
use crate::bell::Bell;

/// Events in one notification.
const EVENTS_MAX: usize = 256;

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
}

impl Subscriptions {
    /// None yet.
    #[must_use]
    pub const fn new(bell: Bell) -> Self {
        Self {
            bell,
            fresh: VecDeque::new(),
        }
    }

    /// One of this session, and the listener that it hears by.
    #[must_use]
    pub fn make(&self, session: &str) -> (Subscription, Listener) {
        let bell = self.bell.clone();
        let (tail, listener) = tail(move || bell.ring());
        let subscription = Subscription {
            session: session.to_owned(),
            tail,
            has_ended: false,
        };
        (subscription, listener)
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
