//! What a session records begins, one kind of it after the other: all of it, or nothing.

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
        let (guest, index) = (self.guest, self.index);
        let follows = self.on.sessions.at(index)?.tasks.follows;
        self.on.follow_forks(self.id, follows)?;
        // The page holds the time before the first stub looks at it.
        self.on.keep_time(guest)?;
        self.on.record_own_events(guest, index, true, self.stops)?;
        self.probes.begin(self.on, guest, index, self.stops)?;
        let chosen = (filter, selection);
        self.on.change(guest, index, self.id, chosen, self.stops)
    }

    /// What has begun before something else did not ends again, the last first. What does not is said, and stays until somebody stops
    /// the session.
    pub fn take_back(&mut self) {
        let (guest, index) = (self.guest, self.index);
        let Ok(session) = self.on.sessions.at(index) else {
            return;
        };
        let name = session.name.clone();
        let probes = self.probes.end(self.on, guest, index, self.stops);
        let events = self.on.record_own_events(guest, index, false, self.stops);
        let forks = self.on.follow_forks(self.id, false);
        let ended = self.on.sessions.at(index).map(has_ended);
        let time = self.on.keep_time(guest);
        // Why it did not begin is worth more, and is what is answered.
        for stays in [probes, events, forks, ended, time] {
            if let Err(error) = stays {
                log::error!("session {name}: what had begun could not be taken back: {error}");
            }
        }
    }
}

/// Nothing leads to the stubs of a session any more, or nobody cares.
pub(super) fn has_ended(session: &mut TraceSession) {
    (session.started, session.follows_modules) = (false, false);
    session.live.iter().for_each(|live| live.attend(false));
}
