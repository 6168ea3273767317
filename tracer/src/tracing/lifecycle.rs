//! The life of a session: made, started, stopped, deleted.

use super::attachment::Attachment;
use super::beginning::{Beginning, has_ended};
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
    /// A [`TracingError`]. When it is about the output or the clock page, the session is gone all the same; when something in the
    /// guest still leads to it, it is there as before.
    pub fn delete(
        &mut self,
        guest: &impl Guest,
        name: &str,
    ) -> Result<(Deleted, Option<Closing>), TracingError> {
        let index = self.attachment.sessions.find(name)?;
        self.attachment.take_up(index)?;
        let stopped = match self.attachment.sessions.at(index)?.started {
            true => Some(self.stop(guest, name)?),
            false => None,
        };
        let mut stops = Stops::default();
        check_clocks(guest, &mut stops);
        let on = &mut self.attachment;
        let mut session = on.sessions.remove(index)?;
        let found = on.found();
        session.stood_still(&guest.pauses(), found.clock);
        session.describe(&on.shared, found);
        let (id, finished) = session.close();
        let mut kept = Ok(());
        if let Some(id) = id {
            on.engine.delete_session(&mut guest.memory().clone(), id)?;
            kept = on.keep_time(guest);
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
        let finished = finished?;
        kept?;
        Ok((deleted, finished))
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
        if begun.is_err()
            && session.live.is_none()
            && let Err(error) = session.set_tracer(before, &on.shared)
        {
            // Why it did not begin is worth more.
            log::error!("session {name}: {error}");
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
        session.live.iter().for_each(|live| live.attend(true));
        // A profile has counters for the functions that there were when it began.
        session.follows_modules = matches!(session.tracer, Tracer::Function | Tracer::Graph);
        let mut beginning = Beginning {
            on,
            probes: &mut self.probes,
            guest,
            index,
            id,
            stops,
        };
        let begun = beginning.each(filter, selection);
        if begun.is_err() {
            beginning.take_back();
        }
        begun.map(|changed| stops.told(changed))
    }

    /// Ends what a session traces: every site that only this session traces gets its original bytes back. What the rings
    /// hold stays readable. When it fails it can be tried again; what has ended by then stays so.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`], or why the guest's text could not be changed.
    pub fn stop(&mut self, guest: &impl Guest, name: &str) -> Result<Changed, TracingError> {
        let on = &mut self.attachment;
        on.phases.check_text()?;
        let index = on.sessions.find(name)?;
        on.take_up(index)?;
        let stops = &mut Stops::default();
        let changed = on.end_functions(guest, index, stops)?;
        on.record_own_events(guest, index, false, stops)?;
        self.probes.end(on, guest, index, stops)?;
        has_ended(on.sessions.at(index)?);
        on.keep_time(guest)?;
        Ok(stops.told(changed))
    }
}

impl Attachment {
    /// A session that is started traces no functions any more, whatever comes.
    fn end_functions(
        &mut self,
        guest: &impl Guest,
        index: usize,
        stops: &mut Stops,
    ) -> Result<Changed, TracingError> {
        let session = self.sessions.at(index)?;
        let (id, filter) = (session.started()?, session.filter.clone());
        let followed = std::mem::take(&mut session.follows_modules);
        self.follow_forks(id, false)?;
        let wanted = (filter, Selection::default());
        let changed = self.change(guest, index, id, wanted, stops);
        if changed.is_err() {
            let session = self.sessions.at(index)?;
            session.follows_modules = followed;
            let follows = session.tasks.follows;
            self.follow_forks(id, follows)?;
        }
        changed
    }
}
