//! Tracing of a running machine: the decisions of the `tracer` crate carried out on a guest.
//!
//! All operations run on the main thread, in this order: [`Tracing::new`] before the machine is
//! built, [`Tracing::before_start`] with the kernel loaded, [`Tracing::at_breakpoint`] when the
//! attach point is reached, the control methods at any time, [`Tracing::finish`] at the end. Each
//! pauses the guest as briefly as it can; the [`drain`] thread reads the rings meanwhile.

mod announced;
mod attach;
pub mod black_box;
mod call_values;
mod checks;
pub mod clock_page;
pub mod closing;
pub mod drain;
mod dynamic;
mod early;
pub mod error;
mod event_drain;
mod events;
mod filters;
mod fleeting;
pub mod looks;
pub mod options;
pub mod output;
mod place;
mod probe_text;
mod probes;
pub mod profile;
mod remarks;
pub mod rings;
mod session;
mod show;
mod slices;
mod source;
mod thread_names;
mod timekeeping;
mod way_out;
mod window;

use std::sync::Arc;

use image::Image;
use terms::addr::Gva;
use terms::region::Region;
use tracer::digest::text_digest;
use tracer::engine::Engine;
use tracer::filter::{Filter, Selection};
use tracer::patch::any;
use tracer::patch::functions::Plan;
use tracer::patch::locks::LockPrefixes;
use tracer::ring::doubt::TimeDoubts;
use tracer::session::SessionId;
use tracer::stub::cell::{CpuStrategy, SESSIONS_MAX};

use crate::clock::{RunClock, VcpuClocks};
use crate::control::protocol::{CreateSession, Dump, SessionName, Start, SwitchLocks};
use crate::control::status::{
    Changed, Deleted, Digest, Dumped, Profile, SessionList, Switched, SwitchedLocks, microseconds,
};
use crate::layout::{DOORBELL_PORT, PROBE_PORT};
use crate::live::{BreakpointService, Live};
use crate::loader::KernelFile;
use crate::machine::{Machine, PATIENCE};
pub use attach::DEFAULT_ATTACH;
use attach::attach_point;
use black_box::BlackBox;
use checks::check_room;
use clock_page::{Beats, ClockPage};
use closing::Closing;
use early::{Early, check_applies};
pub use error::TracingError;
use fleeting::ModuleLooks;
pub use options::TracingOptions;
use options::{DEFAULT_SESSION, LockChoice, PatchMethod, Tracer};
use place::check_place;
use probes::SetProbe;
use remarks::{Remarks, functions_traced};
use session::{Found, Shared, TraceSession};
use slices::{Sliced, Slices};
pub use window::WINDOW_PERIOD;
use window::WindowWatch;

/// How tracing has ended.
#[derive(Debug, Default)]
pub struct Finished {
    /// Where the last calls of a guest that died are, of each session that recorded.
    pub black_boxes: Vec<BlackBox>,
    /// What has become of each session that traced.
    pub closings: Vec<Closing>,
}

/// Tracing of one machine.
#[derive(Debug)]
pub struct Tracing {
    engine: Engine,
    shared: Shared,
    sessions: Vec<TraceSession>,
    attach_at: Option<String>,
    /// Whether lock prefixes are effective, where the user has said so.
    smp_locks: Option<LockChoice>,
    patch_method: PatchMethod,
    slices: Slices,
    /// Who serves breakpoints, where text is changed live.
    breakpoints: Option<BreakpointService>,
    /// The host's counter when the guest was about to start: the zero of all times.
    zero: u64,
    /// Known from the first attach on.
    clock: Option<RunClock>,
    /// The vCPUs' counters, from the first attach on.
    vcpu_clocks: Option<Arc<VcpuClocks>>,
    /// Of sessions that were deleted.
    doubts: TimeDoubts,
    /// While a session that is timed by it has rings.
    clock_page: Option<ClockPage>,
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
    pub fn new(options: TracingOptions, kernel: &KernelFile) -> Result<Self, TracingError> {
        let mut image = kernel.image()?;
        if options.any {
            let count = any::admit(&mut image);
            log::info!("{count} functions without a patch site are traceable");
        }
        let image = Arc::new(image);
        let shared = Shared {
            image: Arc::clone(&image),
            debug: kernel.debug(),
            kernel: kernel.path().display().to_string(),
            vcpus: u16::try_from(options.vcpus).unwrap_or(u16::MAX),
        };
        let filter = Filter::new(&options.filter, &options.notrace)?;
        let engine = Engine::new(Arc::clone(&image))
            .with_dispatch(options.dispatch.into())
            .serving_traps(PROBE_PORT)
            .announcing_by(DOORBELL_PORT);
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
                shared.vcpus,
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
            breakpoints: None,
            zero: crate::clock::host_tsc(),
            clock: None,
            vcpu_clocks: None,
            doubts: TimeDoubts::default(),
            clock_page: None,
            beats: Arc::default(),
            probes: Vec::new(),
            remarks: Remarks::default(),
            window_watch: WindowWatch::default(),
            looks: ModuleLooks::default(),
        })
    }

    /// The kernel is loaded and no vCPU has run: makes every patch site one nop. Returns the
    /// address of the attach point when tracing is to begin there.
    ///
    /// # Errors
    /// [`TracingError::Normalise`] when the loaded text is not that of the image.
    pub fn before_start(&mut self, machine: &mut Machine) -> Result<Option<Gva>, TracingError> {
        let mut target = machine.before_start().ok_or(TracingError::Started)?;
        let rewritten = self.engine.normalise(&mut target)?;
        log::debug!("{rewritten} patch sites were made one nop");
        let vcpus = usize::from(self.shared.vcpus);
        let image = &self.shared.image;
        // A kernel that makes its sites nops itself does this itself, too.
        let is_free = vcpus == 1 && !image.locks.is_empty() && !image.normalises_itself();
        let own = is_free.then_some(LockPrefixes::Off);
        if let Some(to) = self.smp_locks.map(LockPrefixes::from).or(own) {
            let switched = self.engine.switch_locks(&mut target, to, vcpus)?;
            log::debug!("{switched} lock prefixes were switched {}", to.name());
        }
        if self.patch_method == PatchMethod::Live {
            let service = BreakpointService::find(&self.shared.image, machine.layout())?;
            self.breakpoints = Some(service);
        }
        self.zero = crate::clock::host_tsc();
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
    pub fn at_breakpoint(&mut self, machine: &Machine) -> Result<(), TracingError> {
        let waiting = |session: &TraceSession| session.waiting && !session.started;
        while let Some(index) = self.sessions.iter().position(waiting) {
            let session = self.at(index)?;
            session.waiting = false;
            let filter = session.filter.clone();
            let changed = self.begin(machine, index, filter)?;
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
    /// become of each session, and of a guest that is dead where its last calls are.
    ///
    /// # Errors
    /// [`TracingError::Output`] when not all of it could be written.
    pub fn finish(&mut self, machine: &Machine, is_dead: bool) -> Result<Finished, TracingError> {
        // A stub that is running now will not be waited for: the guest has no more to say.
        let mut quiesced = machine.quiesce(PATIENCE);
        if let Err(error) = &quiesced {
            log::warn!("the trace may lack its last records: {error}");
        }
        if let Ok(quiesced) = &mut quiesced {
            timekeeping::check(machine, quiesced);
        }
        self.clock_page = None;
        self.say_late();
        let found = self.found();
        let knows_vcpus = self.knows_vcpus();
        let mut all = Finished::default();
        let mut finished = Ok(());
        for session in &mut self.sessions {
            // Before the rings are closed: one without an output has nothing else.
            if is_dead {
                all.black_boxes
                    .extend(session.black_box(&self.shared, found));
            }
            let counted = session.unasked(&self.shared.image, self.clock, knows_vcpus);
            let closed = session.close().1;
            finished = finished.and(closed.map(|closing| all.closings.extend(closing.or(counted))));
        }
        finished.map(|()| all)
    }

    /// `session.create`: a session that traces nothing yet.
    ///
    /// # Errors
    /// A [`TracingError`] about the name, the ring size, the output or the number of sessions.
    pub fn create(&mut self, create: &CreateSession) -> Result<SessionList, TracingError> {
        let name = &create.name;
        if self.find(name).is_ok() {
            return Err(TracingError::NameTaken { name: name.clone() });
        }
        if self.sessions.len() as u64 >= SESSIONS_MAX {
            return Err(TracingError::TooManySessions { name: name.clone() });
        }
        let options = create.options.clone();
        check_room(
            create.tracer,
            options.clock,
            options.geometry()?,
            self.shared.vcpus,
        )?;
        let early = Early {
            shared: &self.shared,
            engine: &self.engine,
            tracer: create.tracer,
            options: &options,
        };
        early.check()?;
        let filter = Filter::default();
        let session = TraceSession::new(name, create.tracer, options, filter, &self.shared)?;
        self.sessions.push(session);
        Ok(self.list())
    }

    /// `session.delete`: stops a session that runs, completes its trace and forgets it.
    ///
    /// # Errors
    /// A [`TracingError`]. When it is about the output, the session is gone all the same.
    pub fn delete(
        &mut self,
        machine: &Machine,
        name: &SessionName,
    ) -> Result<Deleted, TracingError> {
        let index = self.find(&name.0)?;
        let stopped = if self.at(index)?.started {
            Some(self.stop(machine, name)?)
        } else {
            None
        };
        self.check_clocks(machine);
        let mut session = self.sessions.swap_remove(index);
        let (id, finished) = session.close();
        self.doubts.add_all(&session.doubts());
        if let Some(id) = id {
            self.engine
                .delete_session(&mut machine.memory().clone(), id)?;
            self.keep_time(machine)?;
        }
        self.forget_probes_of(&session.name);
        if let Some(closing) = finished? {
            log::info!("{closing}");
        }
        Ok(Deleted {
            session: session.name,
            stopped,
        })
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

    /// `session.list`.
    #[must_use]
    pub fn list(&self) -> SessionList {
        let mut sessions = self.session_statuses();
        sessions.sort_by(|one, other| one.name.cmp(&other.name));
        SessionList { sessions }
    }

    /// `start`: traces what the globs select.
    ///
    /// # Errors
    /// A [`TracingError`]; then nothing is traced that was not before.
    pub fn start(&mut self, machine: &Machine, start: &Start) -> Result<Changed, TracingError> {
        let index = self.find(&start.session.0)?;
        let filter = Filter::new(&start.filter, &start.notrace)?;
        let session = self.sessions.get_mut(index);
        let session = session.ok_or(TracingError::NoSuchIndex)?;
        if let Some(tracer) = start.tracer {
            session.set_tracer(tracer, &self.shared)?;
        }
        self.begin(machine, index, filter)
    }

    fn begin(
        &mut self,
        machine: &Machine,
        index: usize,
        filter: Filter,
    ) -> Result<Changed, TracingError> {
        let vcpus = self.shared.vcpus;
        let session = self.at(index)?;
        session.check_room(vcpus)?;
        check_applies(session.tracer, &session.options)?;
        if session.started {
            let session = session.name.clone();
            return Err(TracingError::AlreadyStarted { session });
        }
        let image = Arc::clone(&self.shared.image);
        let selection = self.at(index)?.select(&filter, &image)?;
        let id = self.prepare(machine, index)?;
        let session = self.at(index)?;
        session.started = true;
        // A profile has counters for the functions that there were when it began.
        session.follows_modules = matches!(session.tracer, Tracer::Function | Tracer::Graph);
        // The page holds the time before the first stub looks at it.
        let kept = self.keep_time(machine);
        let events: Vec<_> = self.at(index)?.events.iter().copied().collect();
        let enabled = kept.and_then(|()| self.begin_events(machine, index, &events));
        let enabled = enabled.and_then(|()| self.begin_probes(machine, index));
        let changed = enabled.and_then(|()| self.change(machine, index, id, filter, selection));
        if changed.is_err() {
            if !events.is_empty() {
                // Why it did not begin is worth more than why this does not work either.
                let _ = self.record_events(machine, index, &events, false);
            }
            let _ = self.end_probes(machine, index);
            let session = self.at(index)?;
            (session.started, session.follows_modules) = (false, false);
            self.keep_time(machine)?;
        }
        changed
    }

    /// Opens the window and makes the session's rings, if that has not been done.
    fn prepare(&mut self, machine: &Machine, index: usize) -> Result<SessionId, TracingError> {
        let window = machine.memory().window();
        let region = Region {
            start: window.start,
            bytes: window.bytes,
        };
        // Tried before the pause: it takes longer than the rest.
        let is_measured = self.clock.is_none() && timekeeping::is_to_be_measured();
        let mut quiesced = machine.quiesce(PATIENCE)?;
        if !self.engine.is_attached() {
            check_place(&mut quiesced, &self.shared.image)?;
        }
        if self.engine.wants_kernel_gs_base() {
            quiesced.fetch_kernel_gs_base(PATIENCE)?;
        }
        self.engine.attach(&mut quiesced, region)?;
        if let Some(live) = &self.at(index)?.live {
            return Ok(live.id);
        }
        let clock = match self.clock {
            Some(clock) => clock,
            None => {
                if is_measured {
                    timekeeping::measure(machine, &mut quiesced)?;
                }
                RunClock::new(self.zero, machine.tsc_khz())
            }
        };
        self.clock = Some(clock);
        self.vcpu_clocks = Some(Arc::clone(machine.clocks()));
        let (page, _) = self.engine.clock_page().unwrap_or_default();
        let config = self.at(index)?.config(page);
        let id = self.engine.create_session(&mut quiesced, config)?;
        drop(quiesced);
        let Self {
            engine,
            sessions,
            beats,
            ..
        } = self;
        let session = sessions.get_mut(index).ok_or(TracingError::NoSuchIndex)?;
        if let Err(error) = session.open(id, engine, machine, clock, beats) {
            // Nobody has it: what it holds of the window is for the next one.
            engine.delete_session(&mut machine.memory().clone(), id)?;
            return Err(error);
        }
        Ok(id)
    }

    /// Brings the guest's text to what `selection` says.
    fn change(
        &mut self,
        machine: &Machine,
        index: usize,
        id: SessionId,
        filter: Filter,
        selection: Selection,
    ) -> Result<Changed, TracingError> {
        self.capture_calls(machine, index, id, &selection)?;
        let follows = self.sessions.iter().any(|session| session.follows_modules);
        self.engine.want_announcements(follows);
        let plan = self
            .engine
            .plan(&mut machine.memory().clone(), id, &selection)?;
        let before = self.engine.session(id)?.selection.clone();
        let sliced = self.apply(machine, id, plan, &before)?;
        let changed = self.show_changed(id, &sliced, &selection);
        self.engine.set_selection(id, filter.clone(), selection)?;
        let found = self.found();
        let session = self.sessions.get_mut(index);
        let session = session.ok_or(TracingError::NoSuchIndex)?;
        session.set_filter(filter, &self.shared, found);
        Ok(changed)
    }

    /// Carries a plan out by the method that was chosen.
    fn apply(
        &mut self,
        machine: &Machine,
        id: SessionId,
        plan: Plan,
        before: &Selection,
    ) -> Result<Sliced, TracingError> {
        if let Some(mut live) = self.live(machine)? {
            let applied = self.engine.apply_live(&mut live, &plan)?;
            return Ok(Sliced {
                applied,
                pauses: 0,
                longest: live.lost(),
            });
        }
        self.apply_slices(machine, id, plan, before)
    }

    /// Lets text be written while the guest runs, where that was chosen.
    fn live<'m>(&self, machine: &'m Machine) -> Result<Option<Live<'m>>, TracingError> {
        // Linux frees text: only a guest that is stopped cannot do so before the write.
        let is_lasting = self.shared.image.linux.is_none();
        let service = self.breakpoints.filter(|_| is_lasting);
        let live = service.map(|service| machine.live(service, PATIENCE));
        Ok(live.transpose()?)
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
                    "none, make one with `ctl session create`".to_owned()
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

    /// `stop`: every site that only this session traces gets its original bytes back. What the rings
    /// hold stays readable.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`], or why the guest's text could not be changed.
    pub fn stop(&mut self, machine: &Machine, name: &SessionName) -> Result<Changed, TracingError> {
        let index = self.find(&name.0)?;
        let session = self.at(index)?;
        let (id, filter) = (session.started()?, session.filter.clone());
        let events: Vec<_> = session.events.iter().copied().collect();
        let followed = std::mem::take(&mut self.at(index)?.follows_modules);
        let changed = self.change(machine, index, id, filter, Selection::default());
        self.at(index)?.follows_modules = followed && changed.is_err();
        let changed = changed?;
        if !events.is_empty() {
            self.record_events(machine, index, &events, false)?;
        }
        self.end_probes(machine, index)?;
        self.at(index)?.started = false;
        self.keep_time(machine)?;
        Ok(changed)
    }

    /// `tracing-on` and `tracing-off`: lets stubs record or not; no text is touched.
    ///
    /// # Errors
    /// [`TracingError::NoSession`].
    pub fn switch(&mut self, name: &SessionName, on: bool) -> Result<Switched, TracingError> {
        let index = self.find(&name.0)?;
        Ok(self.at(index)?.switch(on))
    }

    /// `thaw`: patching goes on after somebody has looked at what froze it.
    pub fn thaw(&mut self) -> Switched {
        let changed = self.engine.frozen().is_some();
        self.engine.thaw();
        Switched { changed }
    }

    /// `smp-locks`: makes the guest's listed lock prefixes effective, or not.
    ///
    /// # Errors
    /// [`TracingError::Locks`] or [`TracingError::Quiesce`]; then everything is as before.
    pub fn switch_locks(
        &mut self,
        machine: &Machine,
        switch: SwitchLocks,
    ) -> Result<SwitchedLocks, TracingError> {
        let to = switch.state.into();
        let mut quiesced = machine.quiesce(PATIENCE)?;
        let vcpus = usize::from(machine.vcpus());
        let switched = self.engine.switch_locks(&mut quiesced, to, vcpus);
        drop(quiesced);
        let pause_us = microseconds(machine.last_pause());
        Ok(SwitchedLocks {
            state: to.name().to_owned(),
            switched: switched? as u64,
            pause_us,
        })
    }

    /// `dump`: writes what the rings hold now into a new trace directory.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`] when it never was, or [`TracingError::Output`].
    pub fn dump(&mut self, machine: &Machine, dump: &Dump) -> Result<Dumped, TracingError> {
        let index = self.find(&dump.session.0)?;
        let session = self.sessions.get(index).ok_or(TracingError::NoSuchIndex)?;
        let leave = || way_out::leave_stubs(machine, |at| self.engine.is_stub(at));
        let (directory, is_live) = (dump.dir.as_ref(), dump.live);
        session.dump(directory, is_live, &self.shared, self.found(), leave)
    }

    fn found(&self) -> Found {
        Found {
            clock: self.clock,
            strategy: self.engine.strategy().map(|(strategy, _)| strategy.name()),
        }
    }

    /// `profile`: what a profile session has counted so far.
    ///
    /// # Errors
    /// [`TracingError::NoProfile`] for another session.
    pub fn profile(&self, name: &SessionName) -> Result<Profile, TracingError> {
        let index = self.find(&name.0)?;
        let session = self.sessions.get(index).ok_or(TracingError::NoSuchIndex)?;
        session.profile(&self.shared.image, self.clock, self.knows_vcpus())
    }

    /// Whether stubs find the counters of their own vCPU.
    fn knows_vcpus(&self) -> bool {
        let strategy = self.engine.strategy().map(|(strategy, _)| strategy);
        matches!(strategy, Some(CpuStrategy::Gs { .. }))
    }

    /// `digest`: of the guest's text as it is now.
    ///
    /// # Errors
    /// [`TracingError::Digest`] or [`TracingError::Quiesce`].
    pub fn digest(&self, machine: &Machine) -> Result<Digest, TracingError> {
        let quiesced = machine.quiesce(PATIENCE)?;
        let sha256 = text_digest(&quiesced, &self.shared.image).map_err(TracingError::Digest)?;
        Ok(Digest { sha256 })
    }
}
