//! What every operation on a guest works with: the engine, the sessions, how text is changed, and the time.

use std::sync::Arc;

use crate::clock::RunClock;
use crate::engine::plan::Plan;
use crate::engine::{Applied, ApplyError, Engine, Foothold};
use crate::filter::{Filter, Selection};
use crate::guest::{Guest, StoppedGuest};
use crate::session::SessionId;
use crate::stack::StackReader;
use crate::stub::cell::CpuStrategy;
use crate::target::PhysicalMemory;
use crate::text::sites::as_linked::starts;

use super::TracingError;
use super::carry_out::Patching;
use super::checks::check_speed;
use super::phases::Phases;
use super::place::{TextSample, check_place, is_where_loaded};
use super::remarks::Remarks;
use super::session::{Found, Shared};
use super::sessions::TraceSessions;
use super::stops::Stops;
use super::timekeeping::Timekeeping;
use status::Changed;

/// When a session's rings were made.
enum Made {
    Before(SessionId),
    /// With the clock that their records have.
    Now(SessionId, RunClock),
}

/// Tracing's hold on one guest.
#[derive(Debug)]
pub(super) struct Attachment {
    pub engine: Engine,
    pub shared: Shared,
    pub sessions: TraceSessions,
    pub patching: Patching,
    pub time: Timekeeping,
    /// About what the guest announces, and about its modules.
    pub remarks: Remarks,
    pub phases: Phases,
}

impl Attachment {
    /// What traces say of the guest.
    pub fn found(&self) -> Found {
        Found {
            clock: self.time.clock,
            strategy: self
                .engine
                .foothold()
                .map(Foothold::strategy)
                .map(|(strategy, _)| strategy.name()),
        }
    }

    /// Whether stubs find the counters of their own vCPU.
    pub fn knows_vcpus(&self) -> bool {
        let strategy = self
            .engine
            .foothold()
            .map(Foothold::strategy)
            .map(|(strategy, _)| strategy);
        !matches!(strategy, None | Some(CpuStrategy::Shared))
    }

    /// Carries out `plan`, and says what that did.
    ///
    /// # Errors
    /// As of [`Patching::carry_out`].
    pub fn carry_out(
        &mut self,
        guest: &impl Guest,
        plan: Plan,
        stops: &mut Stops,
    ) -> Result<Applied, TracingError> {
        self.phases.check_text()?;
        self.patching
            .carry_out(&mut self.engine, guest, plan, stops)
    }

    /// Opens the window, if it is not open.
    ///
    /// # Errors
    /// [`TracingError::Stop`], or why there is no window.
    pub fn open_window(
        &mut self,
        guest: &impl Guest,
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        stops.during(guest, |stopped| self.attach(guest, stopped))?
    }

    fn attach<G: Guest>(
        &mut self,
        guest: &G,
        stopped: &mut G::Stopped<'_>,
    ) -> Result<(), TracingError> {
        if self.engine.wants_kernel_gs_base() {
            stopped.fetch_kernel_gs_base()?;
        }
        let image = &self.shared.image;
        if self.engine.foothold().is_none() && starts(&*stopped, image) {
            self.phases.check_start(image)?;
        }
        self.engine.attach(stopped, guest.window())?;
        let is_in_place = is_where_loaded(guest, &*stopped, &self.engine);
        self.patching.found_in_place(is_in_place);
        Ok(())
    }

    /// Opens the window and makes a session's rings, if that has not been done.
    ///
    /// # Errors
    /// A [`TracingError`] about the guest, its clocks, the window or the rings.
    pub fn prepare(
        &mut self,
        guest: &impl Guest,
        index: usize,
        stops: &mut Stops,
    ) -> Result<SessionId, TracingError> {
        // Tried before the pause: it takes longer than the rest.
        let is_measured = self.time.is_measured(guest);
        let image = Arc::clone(&self.shared.image);
        let is_new = self.engine.foothold().is_none();
        let text = is_new.then(|| TextSample::of(&image));
        let made = stops.during(guest, |stopped| {
            if let Some(text) = text {
                check_place(stopped, &image)?;
                text.check(stopped)?;
            }
            self.attach(guest, stopped)?;
            match &self.sessions.at(index)?.live {
                Some(live) => Ok(Made::Before(live.id)),
                None => self.make(guest, stopped, index, is_measured),
            }
        })?;
        let (id, clock) = match made? {
            Made::Before(id) => return Ok(id),
            Made::Now(id, clock) => (id, clock),
        };
        let session = self.sessions.at(index)?;
        let (engine, beats, shared) = (&self.engine, self.time.beats(), &self.shared);
        if let Err(error) = session.open(id, engine, guest, clock, beats, shared) {
            // Nobody has it: what it holds of the window is for the next one.
            self.engine
                .delete_session(&mut guest.memory().clone(), id)?;
            return Err(error);
        }
        let found = self.found();
        self.sessions.at(index)?.let_in(&self.shared, found)?;
        Ok(id)
    }

    /// Makes a session's rings.
    fn make<G: Guest>(
        &mut self,
        guest: &G,
        stopped: &mut G::Stopped<'_>,
        index: usize,
        is_measured: bool,
    ) -> Result<Made, TracingError> {
        let clock = self.time.begin(guest, stopped, is_measured)?;
        let session = self.sessions.at(index)?;
        check_speed(&session.name, session.options.clock, guest.clocks())?;
        let (page, _) = self
            .engine
            .foothold()
            .map(Foothold::clock_page)
            .unwrap_or_default();
        let config = self.sessions.at(index)?.config(page, clock);
        let id = self.engine.create_session(stopped, config)?;
        let tasks = self.sessions.at(index)?.tasks.clone();
        if let Err(error) = self.ask(stopped, id, &tasks) {
            self.engine
                .delete_session(&mut guest.memory().clone(), id)?;
            return Err(error);
        }
        Ok(Made::Now(id, clock))
    }

    /// Has a session that is started trace what `filter` selects.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn change(
        &mut self,
        guest: &impl Guest,
        index: usize,
        id: SessionId,
        (filter, selection): (Filter, Selection),
        stops: &mut Stops,
    ) -> Result<Changed, TracingError> {
        self.capture_calls(guest, index, id, &selection, stops)?;
        let follows = self.sessions.iter().any(|session| session.follows_modules);
        self.engine.points_mut().want_announcements(follows);
        let plan = self
            .engine
            .plan(&mut guest.memory().clone(), id, &selection)?;
        let applied = self.carry_out(guest, plan, stops)?;
        let changed = self.show_changed(id, &applied, &selection);
        self.engine.sessions_mut().set_selection(id, selection)?;
        let found = self.found();
        let session = self.sessions.at(index)?;
        session.set_filter(filter, &self.shared, found);
        Ok(changed)
    }

    /// A session that something in the guest leads to is started, whatever has become of the change that began or ended it: so
    /// that it can be stopped. Patching that is frozen has ended it.
    ///
    /// # Errors
    /// Why nothing leads away from it now, where patching is frozen.
    pub fn take_up(&mut self, index: usize) -> Result<(), TracingError> {
        let (sites, points) = (self.engine.sites(), self.engine.points());
        let is_led_to = |id: SessionId| {
            sites.traced_by(id.0) + points.recorded_by(self.engine.image(), sites, id) > 0
        };
        let session = self.sessions.at(index)?;
        let live = session.live.as_ref();
        if !session.started && live.is_some_and(|live| is_led_to(live.id)) {
            sites.check_frozen().map_err(ApplyError::from)?;
            session.started = true;
        }
        Ok(())
    }

    /// Gives a session its event rings, if it has none, with room for payloads of at least `payload_bytes`, and has
    /// them read.
    ///
    /// # Errors
    /// [`TracingError::Stop`], or why there is no room for them.
    pub fn open_events(
        &mut self,
        guest: &impl Guest,
        index: usize,
        id: SessionId,
        payload_bytes: u64,
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let engine = &mut self.engine;
        if !engine.sessions().has_event_rings(id) {
            stops.during(guest, |stopped| {
                engine.make_event_rings(stopped, id, payload_bytes)
            })??;
        }
        let session = self.sessions.at(index)?;
        session.open_events(&self.engine, id, guest)
    }

    /// Has the clock page kept as the sessions need it.
    ///
    /// # Errors
    /// Why nobody can keep it.
    pub fn keep_time(&mut self, guest: &impl Guest) -> Result<(), TracingError> {
        let page = self
            .engine
            .foothold()
            .map(Foothold::clock_page)
            .map(|(_, at)| at);
        self.time.keep_page(guest, page, &self.sessions)
    }

    /// Has values of stacks made from now on, if that is not so already.
    ///
    /// # Errors
    /// [`TracingError::Unwind`].
    pub fn name_stacks(&mut self, memory: &dyn PhysicalMemory) -> Result<(), TracingError> {
        if self.engine.points().formats().stacks().is_none() {
            let unwind = self.engine.transient().unwind(memory)?;
            let image = Arc::clone(&self.shared.image);
            let points = self.engine.points_mut();
            points.read_stacks_by(StackReader { unwind, image });
        }
        Ok(())
    }

    /// Sees which functions have come and gone.
    pub fn take_over_image(&mut self, memory: &dyn PhysicalMemory) {
        self.shared.image = Arc::clone(self.engine.image());
        self.sessions.extend(&self.shared.image);
        if let Some(stacks) = self.engine.points().formats().stacks().cloned() {
            let image = Arc::clone(&self.shared.image);
            let transient = self.engine.transient();
            let unwind = transient.unwind_modules(&*stacks.unwind, memory);
            let points = self.engine.points_mut();
            points.read_stacks_by(StackReader { unwind, image });
            self.sessions.know_events(self.engine.points().formats());
        }
    }
}
