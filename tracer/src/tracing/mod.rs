//! Tracing of a running guest: sessions, what they trace, and their lives.
//!
//! All operations run on one thread, in this order: [`Tracing::new`] before the guest is
//! built, [`Tracing::before_start`] with the kernel loaded, [`Tracing::at_breakpoint`] when the
//! attach point is reached, the control methods at any time, [`Tracing::finish`] at the end. Each
//! pauses the guest as briefly as it can; who polls ([`Pollers`]) reads the rings meanwhile.

mod announced;
mod attach;
mod call_values;
mod carry_out;
mod checks;
pub mod closing;
mod dynamic;
mod early;
pub mod error;
mod events;
pub mod filters;
mod fleeting;
pub mod options;
mod place;
mod probe_text;
pub mod probes;
mod remarks;
pub mod session;
mod show;
mod slices;
pub mod status;
mod timekeeping;
mod way_out;
mod window;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use crate::digest::text_digest;
use crate::engine::Engine;
use crate::filter::{Filter, Selection};
use crate::patch::any;
use crate::patch::locks::LockPrefixes;
use crate::session::SessionId;
use crate::stub::cell::{CpuStrategy, SESSIONS_MAX};
use image::Image;
use terms::addr::Gva;
use trace::doubt::TimeDoubts;

use crate::clock::page::{Beats, ClockPage};
use crate::clock::{HostClock, RunClock, VcpuClocks};
use crate::collect::Pollers;
use crate::collect::status::Dumped;
use crate::guest::{Guest, StoppedGuest};
use crate::target::StoppedTarget;
pub use attach::DEFAULT_ATTACH;
use attach::attach_point;
use carry_out::Carried;
use checks::check_room;
use closing::Closing;
use debuginfo::DebugInfo;
use early::{Early, check_applies};
pub use error::TracingError;
use filters::Globs;
use fleeting::ModuleLooks;
pub use options::TracingOptions;
use options::{DEFAULT_SESSION, PatchMethod, SessionOptions, Tracer};
use place::check_place;
use probes::SetProbe;
use remarks::{Remarks, functions_traced};
use session::{Found, LastCalls, Scratch, Shared, TraceSession};
use slices::Slices;
use status::{
    Changed, Deleted, Digest, Profile, SessionList, Switched, SwitchedLocks, microseconds,
};
pub use window::WINDOW_PERIOD;
use window::WindowWatch;

/// How tracing has ended.
#[derive(Debug, Default)]
pub struct Finished {
    /// Where the last calls of a guest that died are, of each session that recorded.
    pub last_calls: Vec<LastCalls>,
    /// What has become of each session that traced.
    pub closings: Vec<Closing>,
}

/// The kernel that is traced.
#[derive(Debug)]
pub struct Kernel {
    /// Its image.
    pub image: Image,
    /// What its files say of variables.
    pub debug: Option<DebugInfo>,
    /// What a trace calls it.
    pub name: String,
}

/// Who works for tracing on this host.
#[derive(Debug)]
pub struct Host {
    /// Its clock.
    pub clock: HostClock,
    /// Who has rings read.
    pub pollers: Box<dyn Pollers>,
    /// The command that began tracing, for traces.
    pub command_line: String,
}

/// Tracing of one guest.
#[derive(Debug)]
pub struct Tracing {
    engine: Engine,
    shared: Shared,
    sessions: Vec<TraceSession>,
    attach_at: Option<String>,
    /// Whether lock prefixes are effective, where the user has said so.
    smp_locks: Option<LockPrefixes>,
    patch_method: PatchMethod,
    slices: Slices,
    /// The host's counter when the guest was about to start: the zero of all times.
    zero: u64,
    /// Known from the first attach on.
    clock: Option<RunClock>,
    /// The vCPUs' counters, from the first attach on.
    vcpu_clocks: Option<Arc<VcpuClocks>>,
    /// Of sessions that were deleted.
    doubts: TimeDoubts,
    /// While a session that is timed by it has rings.
    clock_page: Option<Box<dyn ClockPage>>,
    beats: Arc<Beats>,
    /// In the order in which they were added.
    probes: Vec<SetProbe>,
    /// About what the guest announces, and about its modules.
    remarks: Remarks,
    window_watch: WindowWatch,
    /// When the guest was asked for its modules.
    looks: ModuleLooks,
}

impl Tracing {
    /// Checks the options against the image, before anything is built, and makes the default
    /// session.
    ///
    /// # Errors
    /// A [`TracingError`] about the image, the filter, the ring size or the output directory.
    pub fn new(options: TracingOptions, kernel: Kernel, host: Host) -> Result<Self, TracingError> {
        let mut image = kernel.image;
        if options.any {
            let count = any::admit(&mut image);
            log::info!("{count} functions without a patch site are traceable");
        }
        let image = Arc::new(image);
        let shared = Shared {
            image: Arc::clone(&image),
            debug: kernel.debug,
            kernel: kernel.name,
            vcpus: options.vcpus,
            rings_room: options.rings_room,
            command_line: host.command_line,
            host: host.clock,
            pollers: host.pollers,
        };
        let filter = Filter::new(&options.filter, &options.notrace)?;
        let engine = Engine::new(Arc::clone(&image)).with_dispatch(options.dispatch);
        let engine = match options.probe_port {
            Some(port) => engine.serving_traps(port),
            None => engine,
        };
        let engine = match options.doorbell_port {
            Some(port) => engine.announcing_by(port),
            None => engine,
        };
        if options.enabled {
            image.check_traceable()?;
            let selection = filter.select(&image)?;
            let early = Early {
                shared: &shared,
                engine: &engine,
                tracer: options.tracer,
                options: &options.session,
            };
            early.check()?;
            early.check_types(&selection)?;
            attach_point(&image, options.attach_at.as_deref())?;
            check_room(
                options.tracer,
                options.session.clock,
                options.session.geometry()?,
                shared.room(),
            )?;
        }
        let TracingOptions {
            tracer, session, ..
        } = options;
        let mut default = TraceSession::new(DEFAULT_SESSION, tracer, session, filter, &shared)?;
        default.waiting = options.enabled;
        Ok(Self {
            engine,
            shared,
            sessions: vec![default],
            attach_at: options.attach_at,
            smp_locks: options.smp_locks,
            patch_method: options.patch_method,
            slices: Slices::new(options.max_pause),
            zero: (host.clock.counter)(),
            clock: None,
            vcpu_clocks: None,
            doubts: TimeDoubts::default(),
            clock_page: None,
            beats: Arc::default(),
            probes: Vec::new(),
            remarks: Remarks::new(host.clock),
            window_watch: WindowWatch::default(),
            looks: ModuleLooks::default(),
        })
    }

    /// The kernel is loaded and no vCPU has run: makes every patch site one nop. Returns the
    /// address of the attach point when tracing is to begin there.
    ///
    /// # Errors
    /// [`TracingError::Normalise`] when the loaded text is not that of the image.
    pub fn before_start(
        &mut self,
        target: &mut impl StoppedTarget,
    ) -> Result<Option<Gva>, TracingError> {
        let rewritten = self.engine.normalise(target)?;
        log::debug!("{rewritten} patch sites were made one nop");
        let vcpus = usize::from(self.shared.vcpus);
        let image = &self.shared.image;
        // A kernel that makes its sites nops itself does this itself, too.
        let is_free = vcpus == 1 && !image.locks.is_empty() && !image.normalises_itself();
        let own = is_free.then_some(LockPrefixes::Off);
        if let Some(to) = self.smp_locks.or(own) {
            let switched = self.engine.switch_locks(target, to, vcpus)?;
            log::debug!("{switched} lock prefixes were switched {}", to.name());
        }
        self.zero = (self.shared.host.counter)();
        if !self.sessions.iter().any(|session| session.waiting) {
            return Ok(None);
        }
        attach_point(&self.shared.image, self.attach_at.as_deref()).map(Some)
    }

    /// A vCPU is trapped at the attach point: starts to trace. Afterwards the breakpoint is removed,
    /// whatever this returns, and the guest goes on.
    ///
    /// # Errors
    /// A [`TracingError`] ends the run.
    pub fn at_breakpoint(&mut self, guest: &impl Guest) -> Result<(), TracingError> {
        let waiting = |session: &TraceSession| session.waiting && !session.started;
        while let Some(index) = self.sessions.iter().position(waiting) {
            let session = self.at(index)?;
            session.waiting = false;
            let filter = session.filter.clone();
            let changed = self.begin(guest, index, filter)?;
            let probes = self.at(index)?.name.clone();
            let probes = self
                .probes
                .iter()
                .filter(|set| set.session == probes)
                .count();
            if changed.traced > 0 || probes == 0 {
                log::info!("{}", functions_traced(changed.traced));
            }
            match probes {
                0 => {}
                1 => log::info!("1 probe is set"),
                several => log::info!("{several} probes are set"),
            }
            for line in changed.remarks() {
                log::info!("{line}");
            }
        }
        Ok(())
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.shared.image
    }

    /// Lets no stub record any more, of any session.
    pub fn stop_recording(&mut self) {
        for session in &mut self.sessions {
            session.switch(false);
        }
    }

    /// The guest has ended or is to end. Reads what the rings still hold and completes the traces. Returns what has
    /// become of each session, and of a guest that is dead where its last calls are: `scratch` names directories for
    /// those that are not in an output.
    ///
    /// # Errors
    /// [`TracingError::Output`] when not all of it could be written.
    pub fn finish(
        &mut self,
        guest: &impl Guest,
        scratch: Option<&Scratch>,
    ) -> Result<Finished, TracingError> {
        // A stub that is running now will not be waited for: the guest has no more to say.
        let mut stopped = guest.stop();
        if let Err(error) = &stopped {
            log::warn!("the trace may lack its last records: {error}");
        }
        if let Ok(stopped) = &mut stopped {
            guest.check_clocks(stopped);
        }
        self.clock_page = None;
        self.say_late();
        let found = self.found();
        let knows_vcpus = self.knows_vcpus();
        let mut all = Finished::default();
        let mut finished = Ok(());
        for session in &mut self.sessions {
            // Before the rings are closed: one without an output has nothing else.
            if let Some(scratch) = scratch {
                all.last_calls
                    .extend(session.last_calls(scratch, &self.shared, found));
            }
            let counted = session.unasked(&self.shared.image, self.clock, knows_vcpus);
            let closed = session.close().1;
            finished = finished.and(closed.map(|closing| all.closings.extend(closing.or(counted))));
        }
        finished.map(|()| all)
    }

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
        if self.find(name).is_ok() {
            return Err(TracingError::NameTaken {
                name: name.to_owned(),
            });
        }
        if self.sessions.len() as u64 >= SESSIONS_MAX {
            return Err(TracingError::TooManySessions {
                name: name.to_owned(),
            });
        }
        check_room(
            tracer,
            options.clock,
            options.geometry()?,
            self.shared.room(),
        )?;
        let early = Early {
            shared: &self.shared,
            engine: &self.engine,
            tracer,
            options: &options,
        };
        early.check()?;
        let filter = Filter::default();
        let session = TraceSession::new(name, tracer, options, filter, &self.shared)?;
        self.sessions.push(session);
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
        let index = self.find(name)?;
        let stopped = if self.at(index)?.started {
            Some(self.stop(guest, name)?)
        } else {
            None
        };
        self.check_clocks(guest);
        let mut session = self.sessions.swap_remove(index);
        let (id, finished) = session.close();
        self.doubts.add_all(&session.doubts());
        if let Some(id) = id {
            self.engine
                .delete_session(&mut guest.memory().clone(), id)?;
            self.keep_time(guest)?;
        }
        self.forget_probes_of(&session.name);
        let deleted = Deleted {
            session: session.name,
            stopped,
        };
        Ok((deleted, finished?))
    }

    /// Records of all sessions that were read and whose times may be wrong, and how often the clock of a vCPU
    /// was set: for the end of a run.
    #[must_use]
    pub fn time_doubts(&self) -> TimeDoubts {
        let mut doubts = self.doubts;
        for session in &self.sessions {
            doubts.add_all(&session.doubts());
        }
        doubts
    }

    /// Every session.
    #[must_use]
    pub fn list(&self) -> SessionList {
        let mut sessions = self.session_statuses();
        sessions.sort_by(|one, other| one.name.cmp(&other.name));
        SessionList { sessions }
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
        let index = self.find(name)?;
        let filter = Filter::new(&globs.filter, &globs.notrace)?;
        let session = self.sessions.get_mut(index);
        let session = session.ok_or(TracingError::NoSuchIndex)?;
        if let Some(tracer) = tracer {
            session.set_tracer(tracer, &self.shared)?;
        }
        self.begin(guest, index, filter)
    }

    fn begin(
        &mut self,
        guest: &impl Guest,
        index: usize,
        filter: Filter,
    ) -> Result<Changed, TracingError> {
        let room = self.shared.room();
        let session = self.at(index)?;
        session.check_room(room)?;
        check_applies(session.tracer, &session.options)?;
        if session.started {
            let session = session.name.clone();
            return Err(TracingError::AlreadyStarted { session });
        }
        let image = Arc::clone(&self.shared.image);
        let selection = self.at(index)?.select(&filter, &image)?;
        let id = self.prepare(guest, index)?;
        let session = self.at(index)?;
        session.started = true;
        // A profile has counters for the functions that there were when it began.
        session.follows_modules = matches!(session.tracer, Tracer::Function | Tracer::Graph);
        // The page holds the time before the first stub looks at it.
        let kept = self.keep_time(guest);
        let events: Vec<_> = self.at(index)?.events.iter().copied().collect();
        let enabled = kept.and_then(|()| self.begin_events(guest, index, &events));
        let enabled = enabled.and_then(|()| self.begin_probes(guest, index));
        let changed = enabled.and_then(|()| self.change(guest, index, id, filter, selection));
        if changed.is_err() {
            if !events.is_empty() {
                // Why it did not begin is worth more than why this does not work either.
                let _ = self.record_events(guest, index, &events, false);
            }
            let _ = self.end_probes(guest, index);
            let session = self.at(index)?;
            (session.started, session.follows_modules) = (false, false);
            self.keep_time(guest)?;
        }
        changed
    }

    /// Opens the window and makes the session's rings, if that has not been done.
    fn prepare(&mut self, guest: &impl Guest, index: usize) -> Result<SessionId, TracingError> {
        let region = guest.window();
        // Tried before the pause: it takes longer than the rest.
        let is_measured = self.clock.is_none() && guest.has_own_clocks();
        let mut stopped = guest.stop()?;
        if !self.engine.is_attached() {
            check_place(&mut stopped, &self.shared.image)?;
        }
        if self.engine.wants_kernel_gs_base() {
            stopped.fetch_kernel_gs_base()?;
        }
        self.engine.attach(&mut stopped, region)?;
        if let Some(live) = &self.at(index)?.live {
            return Ok(live.id);
        }
        let clock = match self.clock {
            Some(clock) => clock,
            None => {
                if is_measured {
                    guest.measure_clocks(&mut stopped)?;
                }
                RunClock::new(self.zero, guest.khz())
            }
        };
        self.clock = Some(clock);
        self.vcpu_clocks = Some(Arc::clone(guest.clocks()));
        let (page, _) = self.engine.clock_page().unwrap_or_default();
        let config = self.at(index)?.config(page);
        let id = self.engine.create_session(&mut stopped, config)?;
        drop(stopped);
        let Self {
            engine,
            sessions,
            beats,
            shared,
            ..
        } = self;
        let session = sessions.get_mut(index).ok_or(TracingError::NoSuchIndex)?;
        if let Err(error) = session.open(id, engine, guest, clock, beats, shared) {
            // Nobody has it: what it holds of the window is for the next one.
            engine.delete_session(&mut guest.memory().clone(), id)?;
            return Err(error);
        }
        Ok(id)
    }

    /// Brings the guest's text to what `selection` says.
    fn change(
        &mut self,
        guest: &impl Guest,
        index: usize,
        id: SessionId,
        filter: Filter,
        selection: Selection,
    ) -> Result<Changed, TracingError> {
        self.capture_calls(guest, index, id, &selection)?;
        let follows = self.sessions.iter().any(|session| session.follows_modules);
        self.engine.want_announcements(follows);
        let plan = self
            .engine
            .plan(&mut guest.memory().clone(), id, &selection)?;
        let mut carried = Carried::default();
        self.carry_out(guest, plan, &mut carried)?;
        let changed = self.show_changed(id, &carried, &selection);
        self.engine.set_selection(id, filter.clone(), selection)?;
        let found = self.found();
        let session = self.sessions.get_mut(index);
        let session = session.ok_or(TracingError::NoSuchIndex)?;
        session.set_filter(filter, &self.shared, found);
        Ok(changed)
    }

    /// Lets text be written while the guest runs, where that was chosen.
    fn live<'g, G: Guest>(&self, guest: &'g G) -> Result<Option<G::Live<'g>>, TracingError> {
        // Linux frees text: only a guest that is stopped cannot do so before the write.
        let is_lasting = self.shared.image.linux.is_none();
        match self.patch_method {
            PatchMethod::Live if is_lasting => Ok(guest.live()?),
            _ => Ok(None),
        }
    }

    /// The session of that name.
    fn find(&self, name: &str) -> Result<usize, TracingError> {
        let is_named = |session: &TraceSession| session.name == name;
        self.sessions.iter().position(is_named).ok_or_else(|| {
            let names = self.sessions.iter().map(|session| session.name.as_str());
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

    fn at(&mut self, index: usize) -> Result<&mut TraceSession, TracingError> {
        let session = self.sessions.get_mut(index);
        session.ok_or(TracingError::NoSuchIndex)
    }

    /// Ends what a session traces: every site that only this session traces gets its original bytes back. What the rings
    /// hold stays readable.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`], or why the guest's text could not be changed.
    pub fn stop(&mut self, guest: &impl Guest, name: &str) -> Result<Changed, TracingError> {
        let index = self.find(name)?;
        let session = self.at(index)?;
        let (id, filter) = (session.started()?, session.filter.clone());
        let events: Vec<_> = session.events.iter().copied().collect();
        let followed = std::mem::take(&mut self.at(index)?.follows_modules);
        let changed = self.change(guest, index, id, filter, Selection::default());
        self.at(index)?.follows_modules = followed && changed.is_err();
        let changed = changed?;
        if !events.is_empty() {
            self.record_events(guest, index, &events, false)?;
        }
        self.end_probes(guest, index)?;
        self.at(index)?.started = false;
        self.keep_time(guest)?;
        Ok(changed)
    }

    /// Lets stubs record or not; no text is touched.
    ///
    /// # Errors
    /// [`TracingError::NoSession`].
    pub fn switch(&mut self, name: &str, on: bool) -> Result<Switched, TracingError> {
        let index = self.find(name)?;
        Ok(self.at(index)?.switch(on))
    }

    /// Patching continues after somebody has looked at what froze it.
    pub fn thaw(&mut self) -> Switched {
        let changed = self.engine.frozen().is_some();
        self.engine.thaw();
        Switched { changed }
    }

    /// Makes the guest's listed lock prefixes effective, or not.
    ///
    /// # Errors
    /// [`TracingError::Locks`] or [`TracingError::Stop`]; then everything is as before.
    pub fn switch_locks(
        &mut self,
        guest: &impl Guest,
        to: LockPrefixes,
    ) -> Result<SwitchedLocks, TracingError> {
        let mut stopped = guest.stop()?;
        let vcpus = usize::from(guest.vcpus());
        let switched = self.engine.switch_locks(&mut stopped, to, vcpus);
        drop(stopped);
        let pause_us = microseconds(guest.last_pause());
        Ok(SwitchedLocks {
            state: to.name().to_owned(),
            switched: switched? as u64,
            pause_us,
        })
    }

    /// Writes what the rings hold now into a new trace directory.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`] when it never was, or [`TracingError::Output`].
    pub fn dump(
        &mut self,
        guest: &impl Guest,
        name: &str,
        directory: &Path,
        is_live: bool,
    ) -> Result<Dumped, TracingError> {
        let index = self.find(name)?;
        let session = self.sessions.get(index).ok_or(TracingError::NoSuchIndex)?;
        let rest = self.shared.host.rest;
        let leave = || way_out::leave_stubs(guest, |at| self.engine.is_stub(at), rest);
        session.dump(directory, is_live, &self.shared, self.found(), leave)
    }

    fn found(&self) -> Found {
        Found {
            clock: self.clock,
            strategy: self.engine.strategy().map(|(strategy, _)| strategy.name()),
        }
    }

    /// What a profile session has counted so far.
    ///
    /// # Errors
    /// [`TracingError::NoProfile`] for another session.
    pub fn profile(&self, name: &str) -> Result<Profile, TracingError> {
        let index = self.find(name)?;
        let session = self.sessions.get(index).ok_or(TracingError::NoSuchIndex)?;
        session.profile(&self.shared.image, self.clock, self.knows_vcpus())
    }

    /// Whether stubs find the counters of their own vCPU.
    fn knows_vcpus(&self) -> bool {
        let strategy = self.engine.strategy().map(|(strategy, _)| strategy);
        matches!(strategy, Some(CpuStrategy::Gs { .. }))
    }

    /// Digest of the guest's text as it is now.
    ///
    /// # Errors
    /// [`TracingError::Digest`] or [`TracingError::Stop`].
    pub fn digest(&self, guest: &impl Guest) -> Result<Digest, TracingError> {
        let stopped = guest.stop()?;
        let sha256 = text_digest(&stopped, &self.shared.image).map_err(TracingError::Digest)?;
        Ok(Digest { sha256 })
    }
}
