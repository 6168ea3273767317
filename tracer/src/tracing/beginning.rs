//! What a session records begins, one kind of it after the other: all of it, or nothing.

use terms::event_format::EventId;

use super::TracingError;
use super::attachment::Attachment;
use super::probes::SetProbes;
use super::session::TraceSession;
use super::stops::Stops;
use crate::filter::{Filter, Selection};
use crate::guest::Guest;
use crate::session::SessionId;
use status::Changed;

/// A session that begins.
pub(super) struct Beginning<'a, G> {
    pub on: &'a mut Attachment,
    pub probes: &'a mut SetProbes,
    pub guest: &'a G,
    pub index: usize,
    pub id: SessionId,
    pub stops: &'a mut Stops,
}

impl<G: Guest> Beginning<'_, G> {
    /// Begins with what `filter` selects, after all else.
    ///
    /// # Errors
    /// A [`TracingError`]; what has begun before is to be taken back.
    pub fn each(&mut self, filter: Filter, selection: Selection) -> Result<Changed, TracingError> {
        let Self {
            on,
            probes,
            guest,
            index,
            id,
            stops,
        } = self;
        let session = on.sessions.at(*index)?;
        let (follows, events) = (session.tasks.follows, events_of(session));
        on.follow_forks(*id, follows)?;
        // The page holds the time before the first stub looks at it.
        on.keep_time(*guest)?;
        on.begin_events(*guest, *index, &events, stops)?;
        probes.begin(on, *guest, *index, stops)?;
        on.change(*guest, *index, *id, (filter, selection), stops)
    }

    /// What has begun before something else did not ends again, the last first. What does not is said, and stays until somebody stops
    /// the session.
    pub fn take_back(&mut self) {
        let Self {
            on,
            probes,
            guest,
            index,
            id,
            stops,
        } = self;
        let Ok(session) = on.sessions.at(*index) else {
            return;
        };
        let (name, events) = (session.name.clone(), events_of(session));
        let probes = probes.end(on, *guest, *index, stops);
        let events = on.end_events(*guest, *index, &events, stops);
        let forks = on.follow_forks(*id, false);
        let ended = on.sessions.at(*index).map(has_ended);
        let time = on.keep_time(*guest);
        // Why it did not begin is worth more, and is what is answered.
        for stays in [probes, events, forks, ended, time] {
            if let Err(error) = stays {
                log::error!("session {name}: what had begun could not be taken back: {error}");
            }
        }
    }
}

/// The events that a session records while it is started.
pub(super) fn events_of(session: &TraceSession) -> Vec<EventId> {
    session.events.iter().copied().collect()
}

/// Nothing leads to the stubs of a session any more, or nobody cares.
pub(super) fn has_ended(session: &mut TraceSession) {
    (session.started, session.follows_modules) = (false, false);
    session.live.iter().for_each(|live| live.attend(false));
}
