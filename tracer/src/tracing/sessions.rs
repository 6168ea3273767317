//! All sessions of a guest: found by name, asked and told together.

use std::sync::Arc;

use crate::collect::LET_GO_ROUNDS;
use crate::engine::Engine;
use crate::event_formats::EventFormats;
use crate::session::SessionId;
use crate::stub::cell::SESSIONS_MAX;
use image::Image;
use terms::event_format::EventId;

use super::TracingError;
use super::session::{Live, TraceSession};
use status::SessionStatus;

/// The sessions that there are.
#[derive(Debug)]
pub(super) struct TraceSessions {
    list: Vec<TraceSession>,
}

impl TraceSessions {
    /// One session.
    pub fn new(default: TraceSession) -> Self {
        Self {
            list: vec![default],
        }
    }

    /// Whether there can be one more of this name.
    ///
    /// # Errors
    /// [`TracingError::NameTaken`], [`TracingError::TooManySessions`].
    pub fn check_room_for(&self, name: &str) -> Result<(), TracingError> {
        let name = || name.to_owned();
        if self.named(&name()).is_some() {
            return Err(TracingError::NameTaken { name: name() });
        }
        if self.list.len() as u64 >= SESSIONS_MAX {
            return Err(TracingError::TooManySessions { name: name() });
        }
        Ok(())
    }

    /// One more.
    pub fn add(&mut self, session: TraceSession) {
        self.list.push(session);
    }

    /// Takes one out.
    ///
    /// # Errors
    /// [`TracingError::NoSuchIndex`].
    pub fn remove(&mut self, index: usize) -> Result<TraceSession, TracingError> {
        if index >= self.list.len() {
            return Err(TracingError::NoSuchIndex);
        }
        Ok(self.list.swap_remove(index))
    }

    /// The place of the session of that name.
    ///
    /// # Errors
    /// [`TracingError::NoSession`] says which there are.
    pub fn find(&self, name: &str) -> Result<usize, TracingError> {
        let is_named = |session: &TraceSession| session.name == name;
        self.list.iter().position(is_named).ok_or_else(|| {
            let names = self.list.iter().map(|session| session.name.as_str());
            let there = names.collect::<Vec<_>>().join(", ");
            TracingError::NoSession {
                name: name.escape_default().to_string(),
                there: if there.is_empty() {
                    "none".to_owned()
                } else {
                    there
                },
            }
        })
    }

    /// The session of that name.
    ///
    /// # Errors
    /// [`TracingError::NoSession`].
    pub fn get(&self, name: &str) -> Result<&TraceSession, TracingError> {
        let index = self.find(name)?;
        self.list.get(index).ok_or(TracingError::NoSuchIndex)
    }

    /// The session of that name, if there is one.
    pub fn named(&self, name: &str) -> Option<&TraceSession> {
        self.iter().find(|session| session.name == name)
    }

    /// The session at this place.
    ///
    /// # Errors
    /// [`TracingError::NoSuchIndex`].
    pub fn at(&mut self, index: usize) -> Result<&mut TraceSession, TracingError> {
        self.list.get_mut(index).ok_or(TracingError::NoSuchIndex)
    }

    /// The place of one that waits for the attach point.
    pub fn next_waiting(&self) -> Option<usize> {
        let is_next = |session: &TraceSession| session.waiting && !session.started;
        self.list.iter().position(is_next)
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.list.len()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &TraceSession> + Clone {
        self.list.iter()
    }

    /// Each of them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut TraceSession> {
        self.list.iter_mut()
    }

    /// Those that trace.
    pub fn started(&self) -> impl Iterator<Item = &TraceSession> + Clone {
        self.iter().filter(|session| session.started)
    }

    /// Those that trace.
    pub fn started_mut(&mut self) -> impl Iterator<Item = &mut TraceSession> {
        self.iter_mut().filter(|session| session.started)
    }

    /// What its user calls a session of the engine.
    pub fn name_of(&self, id: SessionId) -> &str {
        let is_it =
            |session: &&TraceSession| session.live.as_ref().is_some_and(|live| live.id == id);
        self.iter()
            .find(is_it)
            .map_or("?", |session| session.name.as_str())
    }

    /// What each of them does now.
    pub fn statuses(&self, engine: &Engine) -> Vec<SessionStatus> {
        let traced = |session: &TraceSession| {
            let live = session.live.as_ref();
            live.map_or(0, |live| engine.sites().traced_by(live.id.0)) as u64
        };
        let show = |session: &TraceSession| {
            let mut status = session.status(traced(session));
            let events = session.events.iter();
            status.events = events
                .map(|event| name_of(engine.image(), *event))
                .collect();
            status
        };
        self.iter().map(show).collect()
    }

    /// Functions have come to the image.
    pub fn extend(&mut self, image: &Arc<Image>) {
        for session in &mut self.list {
            session.extend(image);
        }
    }

    /// Events go by these formats from now on.
    pub fn know_events(&self, formats: &Arc<EventFormats>) {
        for session in self.iter() {
            session.know_events(formats);
        }
    }

    /// Lets no stub record any more.
    pub fn stop_recording(&mut self) {
        for session in &mut self.list {
            session.switch(false);
        }
    }

    /// All vCPUs write to the ring of the first one from now on.
    pub fn share_rings(&mut self) {
        for session in &mut self.list {
            session.live.iter_mut().for_each(Live::share_rings);
        }
    }

    /// The guest stands, for good.
    pub fn note_end(&self) {
        let readers = self
            .iter()
            .filter_map(|session| session.live.as_ref()?.polled());
        readers.for_each(|polled| {
            let mut drain = polled.lock();
            drain.ended_ns = Some(drain.recorded_until_ns());
        });
    }

    /// The guest is about to be stopped for good: nothing is recorded from now on, and what was begun is written.
    pub fn quieten(&self) {
        let readers = || {
            self.iter()
                .filter_map(|session| session.live.as_ref()?.polled())
        };
        readers().for_each(|polled| polled.lock().switch(false));
        // A slot whose writer is lost keeps the end of them all no longer than that of one.
        let mut rounds = LET_GO_ROUNDS;
        readers().for_each(|polled| polled.complete(&mut rounds));
    }

    /// Says at the end what is missing because modules were there before they were noticed.
    pub fn say_late(&self) {
        for session in self.iter() {
            for late in session.late.iter() {
                log::warn!("session {}: {late}", session.name);
            }
            if !session.waiting_modules.is_none() {
                log::warn!("session {}: {}", session.name, session.waiting_modules);
            }
        }
    }
}

/// What an event is called.
pub(super) fn name_of(image: &Image, event: EventId) -> String {
    let format = image.event(event);
    format.map_or_else(|| "?".to_owned(), |format| format.name.to_string())
}
