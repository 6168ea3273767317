//! The life of a session: made, started, stopped, deleted.

use super::checks::check_applies;
use super::checks::check_room;
use super::closing::Closing;
use super::early::Early;
use super::filters::Globs;
use super::options::{SessionOptions, Tracer};
use super::session::{Choosing, TraceSession};
use super::stops::Stops;
use super::timekeeping::check_clocks;
use super::untraced::Untraced;
use super::{Tracing, TracingError};
use crate::filter::{Filter, Selection};
use crate::guest::Guest;
use status::{Changed, Deleted, SessionList};

impl Tracing {
    /// Makes a session that traces nothing yet.
    ///
    /// # Errors
    /// A [`TracingError`] about the name, the ring size, the output or the number of sessions.
    pub fn create(
        &mut self,
        name: &str,
        tracer: Tracer,
        options: SessionOptions,
    ) -> Result<SessionList, TracingError> {
        let on = &mut self.attachment;
        on.sessions.check_room_for(name)?;
        check_room(tracer, options.clock, options.geometry()?, on.shared.room())?;
        let early = Early {
            shared: &on.shared,
            engine: &on.engine,
            tracer,
            options: &options,
        };
        early.check()?;
        let filter = Filter::default();
        let session = TraceSession::new(name, tracer, options, filter, &on.shared)?;
        on.sessions.add(session);
        Ok(self.list())
    }

    /// Stops a session that runs, completes its trace and forgets it. Also returns how it ended, if it has
    /// traced.
    ///
    /// # Errors
    /// A [`TracingError`]. When it is about the output, the session is gone all the same.
    pub fn delete(
        &mut self,
        guest: &impl Guest,
        name: &str,
    ) -> Result<(Deleted, Option<Closing>), TracingError> {
        let index = self.attachment.sessions.find(name)?;
        let stopped = if self.attachment.sessions.at(index)?.started {
            Some(self.stop(guest, name)?)
        } else {
            None
        };
        let mut stops = Stops::default();
        check_clocks(guest, &mut stops);
        let on = &mut self.attachment;
        let mut session = on.sessions.remove(index)?;
        let found = on.found();
        session.stood_still(&guest.pauses(), found.clock);
        session.describe(&on.shared, found);
        let (id, finished) = session.close();
        if let Some(id) = id {
            on.engine.delete_session(&mut guest.memory().clone(), id)?;
            on.keep_time(guest)?;
        }
        self.probes.forget_of(on, &session.name);
        on.phases.forget(&session.name);
        let (pauses, pause_us) = stops.after(stopped.as_ref());
        let deleted = Deleted {
            session: session.name,
            stopped,
            pauses,
            pause_us,
        };
        Ok((deleted, finished?))
    }

    /// Has a session trace what the globs select; as another tracer, if it has not traced yet.
    ///
    /// # Errors
    /// A [`TracingError`]; then nothing is traced that was not before.
    pub fn start(
        &mut self,
        guest: &impl Guest,
        name: &str,
        tracer: Option<Tracer>,
        globs: &Globs,
    ) -> Result<Changed, TracingError> {
        let on = &mut self.attachment;
        let index = on.sessions.find(name)?;
        let filter = Filter::new(&globs.filter, &globs.notrace)?;
        let before = on.sessions.at(index)?.tracer;
        if let Some(tracer) = tracer {
            on.sessions.at(index)?.set_tracer(tracer, &on.shared)?;
        }
        let begun = self.begin(guest, index, filter);
        let on = &mut self.attachment;
        let session = on.sessions.at(index)?;
        // With rings it stays what it has become.
        if begun.is_err() && session.live.is_none() {
            session.set_tracer(before, &on.shared)?;
        }
        begun
    }

    /// Has a session trace from now on what `filter` selects.
    ///
    /// # Errors
    /// A [`TracingError`]; then nothing is traced that was not before.
    pub(super) fn begin(
        &mut self,
        guest: &impl Guest,
        index: usize,
        filter: Filter,
    ) -> Result<Changed, TracingError> {
        let on = &mut self.attachment;
        on.phases.check_text()?;
        let room = on.shared.room();
        let session = on.sessions.at(index)?;
        session.check_room(room)?;
        check_applies(session.tracer, &session.options)?;
        if session.started {
            let session = session.name.clone();
            return Err(TracingError::AlreadyStarted { session });
        }
        let session = on.sessions.at(index)?;
        let selection = session.select(&filter, &on.shared)?;
        let stops = &mut Stops::default();
        let id = on.prepare(guest, index, stops)?;
        let session = on.sessions.at(index)?;
        Choosing(session).check(&on.shared)?;
        session.started = true;
        session.untraced = Untraced::default();
        let follows = session.tasks.follows;
        session.live.iter().for_each(|live| live.attend(true));
        // A profile has counters for the functions that there were when it began.
        session.follows_modules = matches!(session.tracer, Tracer::Function | Tracer::Graph);
        on.follow_forks(id, follows)?;
        // The page holds the time before the first stub looks at it.
        let kept = on.keep_time(guest);
        let events: Vec<_> = on.sessions.at(index)?.events.iter().copied().collect();
        let enabled = kept.and_then(|()| on.begin_events(guest, index, &events, stops));
        let enabled = enabled.and_then(|()| self.probes.begin(on, guest, index, stops));
        let wanted = (filter, selection);
        let changed = enabled.and_then(|()| on.change(guest, index, id, wanted, stops));
        if changed.is_err() {
            if !events.is_empty() {
                // Why it did not begin is worth more than why this does not work either.
                let _ = on.record_events(guest, index, &events, false, stops);
            }
            let _ = self.probes.end(on, guest, index, stops);
            let session = on.sessions.at(index)?;
            (session.started, session.follows_modules) = (false, false);
            on.follow_forks(id, false)?;
            on.keep_time(guest)?;
        }
        changed.map(|changed| stops.told(changed))
    }

    /// Ends what a session traces: every site that only this session traces gets its original bytes back. What the rings
    /// hold stays readable.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`], or why the guest's text could not be changed.
    pub fn stop(&mut self, guest: &impl Guest, name: &str) -> Result<Changed, TracingError> {
        let on = &mut self.attachment;
        on.phases.check_text()?;
        let index = on.sessions.find(name)?;
        let session = on.sessions.at(index)?;
        let (id, filter) = (session.started()?, session.filter.clone());
        let events: Vec<_> = session.events.iter().copied().collect();
        let followed = std::mem::take(&mut on.sessions.at(index)?.follows_modules);
        on.follow_forks(id, false)?;
        let (wanted, stops) = ((filter, Selection::default()), &mut Stops::default());
        let changed = on.change(guest, index, id, wanted, stops);
        let session = on.sessions.at(index)?;
        session.follows_modules = followed && changed.is_err();
        let follows = session.tasks.follows && changed.is_err();
        on.follow_forks(id, follows)?;
        let changed = changed?;
        if !events.is_empty() {
            on.record_events(guest, index, &events, false, stops)?;
        }
        self.probes.end(on, guest, index, stops)?;
        let session = on.sessions.at(index)?;
        session.started = false;
        session.live.iter().for_each(|live| live.attend(false));
        on.keep_time(guest)?;
        Ok(stops.told(changed))
    }
}
