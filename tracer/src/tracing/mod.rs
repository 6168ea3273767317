//! Tracing of a running guest: sessions, what they trace, and their lives.
//!
//! All operations run on one thread, in this order: [`Tracing::new`] before the guest is
//! built, [`Tracing::before_start`] with the kernel loaded, [`Tracing::reached`] when the
//! attach point is reached, the control methods at any time, [`Tracing::finish`] at the end. Each
//! pauses the guest as briefly as it can; who polls ([`Pollers`]) reads the rings meanwhile.

mod announced;
mod attach;
mod attachment;
mod beginning;
mod call_values;
mod carry_out;
mod checks;
pub mod closing;
mod dumping;
mod dynamic;
mod early;
pub mod error;
mod events;
pub mod filters;
mod leave;
mod lifecycle;
pub mod lossless;
mod module_probes;
mod modules;
mod one_session;
pub mod options;
mod patience;
mod phases;
mod place;
mod probe_room;
mod probe_text;
pub mod probes;
mod remarks;
#[cfg(feature = "foreign")]
mod restore;
pub mod session;
mod sessions;
mod show;
mod slices;
mod stops;
pub mod tasks;
mod timekeeping;
mod untraced;
mod way_out;
mod window;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::digest::text_digest;
use crate::engine::{Applied, ApplyError, Engine, Foothold};

use crate::filter::{Filter, Sources};
use crate::guest_kind::leave_returns;
use crate::points::any;
use crate::points::locks::LockPrefixes;
use image::Image;
use terms::addr::{Gpa, Gva};

use crate::clock::HostClock;
use crate::collect::Pollers;
use crate::guest::Guest;
use crate::target::StoppedTarget;
use attach::{attach_point, check_attach_point};
use attachment::Attachment;
use carry_out::Patching;
use checks::check_room;
use closing::Closing;
use debuginfo::DebugInfo;
pub use dumping::{Begin, WantedDump};
use early::Early;
pub use error::TracingError;
use modules::Modules;
pub use one_session::OneSession;
use options::DEFAULT_SESSION;
pub use options::TracingOptions;
use phases::Phases;
use probes::SetProbes;
use remarks::Remarks;
#[cfg(feature = "foreign")]
pub use restore::restore;
use session::{LastCalls, Scratch, Shared, TraceSession};
use sessions::TraceSessions;
use status::Dumped;
use status::{Digest, SessionList, SwitchedLocks, Thawed, microseconds};
use stops::Stops;
use timekeeping::Timekeeping;
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
    attachment: Attachment,
    probes: SetProbes,
    modules: Modules,
    window_watch: WindowWatch,
    attach_at: Option<String>,
    /// Whether lock prefixes are effective, where the user has said so.
    smp_locks: Option<LockPrefixes>,
}

/// The engine that these options ask for.
fn engine_for(options: &TracingOptions, image: &Arc<Image>) -> Engine {
    let engine = Engine::new(Arc::clone(image)).with_dispatch(options.dispatch);
    let engine = match options.probe_port {
        Some(port) => engine.serving_traps(port),
        None => engine,
    };
    match options.doorbell_port {
        Some(port) => engine.announcing_by(port),
        None => engine,
    }
}

/// What can be checked before the guest has started, of a session that is to begin with it.
fn check_early(
    options: &TracingOptions,
    shared: &Shared,
    engine: &Engine,
    filter: &Filter,
) -> Result<(), TracingError> {
    let image = &shared.image;
    image.check_traceable()?;
    let selection = filter.select(image, &shared.sources)?;
    let early = Early {
        shared,
        engine,
        tracer: options.tracer,
        options: &options.session,
    };
    early.check()?;
    early.check_types(&selection)?;
    if !options.is_running {
        check_attach_point(image, options.attach_at.as_deref())?;
    }
    check_room(
        options.tracer,
        options.session.clock,
        options.session.geometry()?,
        shared.room(),
    )
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
        leave_returns(&mut image);
        let image = Arc::new(image);
        let debug = kernel.debug.map(Arc::new);
        let shared = Shared {
            image: Arc::clone(&image),
            sources: Sources::new(debug.clone()),
            debug,
            kernel: kernel.name,
            vcpus: options.vcpus,
            rings_room: options.rings_room,
            budget: options.budget.clone(),
            vcpus_can_wait: options.vcpus_can_wait,
            can_hide_waits: options.can_hide_waits,
            command_line: host.command_line,
            host: host.clock,
            pollers: host.pollers,
        };
        let filter = Filter::new(&options.filter, &options.notrace)?;
        let engine = engine_for(&options, &image);
        if options.enabled {
            check_early(&options, &shared, &engine, &filter)?;
        }
        let TracingOptions {
            tracer, session, ..
        } = options;
        let mut default = TraceSession::new(DEFAULT_SESSION, tracer, session, filter, &shared)?;
        default.waiting = options.enabled;
        let patching = Patching::new(options.patch_method, options.max_pause, host.clock);
        Ok(Self {
            attachment: Attachment {
                engine,
                shared,
                sessions: TraceSessions::new(default),
                patching,
                time: Timekeeping::new((host.clock.counter)()),
                remarks: Remarks::new(host.clock),
                phases: Phases::default(),
            },
            probes: SetProbes::default(),
            modules: Modules::default(),
            window_watch: WindowWatch::default(),
            attach_at: options.attach_at,
            smp_locks: options.smp_locks,
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
        let on = &mut self.attachment;
        let rewritten = on.engine.normalise(target).map_err(|error| match error {
            ApplyError::Transaction(why) => TracingError::Normalise(why),
            other => other.into(),
        })?;
        log::debug!("{rewritten} patch sites were made one nop");
        let vcpus = usize::from(on.shared.vcpus);
        let image = &on.shared.image;
        // A kernel that makes its sites nops itself does this itself, too.
        let is_free = vcpus == 1 && !image.locks.is_empty() && !image.normalises_itself();
        let own = is_free.then_some(LockPrefixes::Off);
        if let Some(to) = self.smp_locks.or(own) {
            let switched = on.engine.switch_locks(target, to, vcpus)?;
            log::debug!("{switched} lock prefixes were switched {}", to.name());
        }
        let zero = (on.shared.host.counter)();
        on.time.set_zero(zero);
        if !on.sessions.iter().any(|session| session.waiting) {
            return Ok(None);
        }
        attach_point(&on.shared.image, self.attach_at.as_deref()).map(Some)
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.attachment.shared.image
    }

    /// Where the journal of changed text is, once tracing has begun: `journal` of the feature `foreign` reads it.
    #[must_use]
    pub fn journal(&self) -> Option<Gpa> {
        self.attachment.engine.foothold().map(Foothold::journal_at)
    }

    /// Where the rings of a session are, for who plays a guest ([`crate::mock::MockGuest::call`]).
    ///
    /// # Errors
    /// [`TracingError::NoSession`], [`TracingError::NotStarted`].
    #[cfg(any(test, feature = "mock"))]
    pub fn rings_of(&self, name: &str) -> Result<crate::session::SessionMemory, TracingError> {
        let id = self.attachment.sessions.get(name)?.started()?;
        Ok(self.attachment.engine.sessions().get(id)?.memory.clone())
    }

    /// Lets no stub record any more, of any session.
    pub fn stop_recording(&mut self) {
        self.attachment.sessions.stop_recording();
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
        // Of a guest that is dead nobody comes any more.
        if scratch.is_none() && !guest.is_held() {
            self.attachment.sessions.quieten();
        }
        // A stub that is running still is not waited for: the guest has no more to say.
        let pauses = guest.pauses();
        let mut stopped = guest.stop();
        if let Err(error) = &stopped {
            log::warn!("the trace may lack its last records: {error}");
        }
        // Not when a disk has taken what was recorded until now.
        self.attachment.sessions.note_end();
        if let Ok(stopped) = &mut stopped {
            guest.check_clocks(stopped);
        }
        // Not until a disk has taken the trace.
        let _stays = (!guest.goes_on()).then_some(stopped);
        let on = &mut self.attachment;
        on.time.leave_page();
        on.sessions.say_late();
        let (found, knows_vcpus) = (on.found(), on.knows_vcpus());
        let mut all = Finished::default();
        let mut finished = Ok(());
        for session in on.sessions.iter_mut() {
            // Before the rings are closed: one without an output has nothing else.
            if let Some(scratch) = scratch {
                all.last_calls
                    .extend(session.last_calls(scratch, &on.shared, found));
            }
            let counted = session.unasked(&on.shared.image, found.clock, knows_vcpus);
            session.stood_still(&pauses, found.clock);
            session.describe(&on.shared, found);
            let closed = session.close().1;
            finished = finished.and(closed.map(|closing| all.closings.extend(closing.or(counted))));
        }
        finished.map(|()| all)
    }

    /// Every session.
    #[must_use]
    pub fn list(&self) -> SessionList {
        let on = &self.attachment;
        let mut sessions = on.sessions.statuses(&on.engine);
        sessions.sort_by(|one, other| one.name.cmp(&other.name));
        SessionList { sessions }
    }

    /// One session, by name.
    ///
    /// # Errors
    /// [`TracingError::NoSession`].
    pub fn session(&mut self, name: &str) -> Result<OneSession<'_>, TracingError> {
        let index = self.attachment.sessions.find(name)?;
        let on = &mut self.attachment;
        Ok(OneSession { on, index })
    }

    /// Patching continues after somebody has looked at what froze it.
    ///
    /// # Errors
    /// [`TracingError::Stop`], or why what stands there of a change that has failed cannot be taken back; then it is frozen as before.
    pub fn thaw(&mut self, guest: &impl Guest) -> Result<Thawed, TracingError> {
        let engine = &mut self.attachment.engine;
        if engine.sites().frozen().is_none() {
            return Ok(Thawed::default());
        }
        let given_back = Stops::default().during(guest, |stopped| {
            engine.look(&*stopped);
            let given_back = engine.commit().thaw(stopped);
            guest.set_detours(engine.detours());
            given_back
        })??;
        Ok(Thawed {
            changed: true,
            given_back,
        })
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
        let vcpus = usize::from(guest.vcpus());
        let (on, mut stops) = (&mut self.attachment, Stops::default());
        let engine = &mut on.engine;
        let switched = stops.during(guest, |stopped| engine.switch_locks(stopped, to, vcpus))?;
        let switched = switched? as u64;
        on.patching.wrote_stopped(&Applied {
            written: switched,
            ..Applied::default()
        });
        Ok(SwitchedLocks {
            state: to.name().to_owned(),
            switched,
            pause_us: microseconds(stops.longest),
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
        wanted: &WantedDump<'_>,
    ) -> Result<Dumped, TracingError> {
        let found = self.attachment.found();
        let index = self.attachment.sessions.find(name)?;
        let told = self.attachment.sessions.at(index)?;
        told.stood_still(&guest.pauses(), found.clock);
        let on = &self.attachment;
        let session = on.sessions.get(name)?;
        let rest = on.shared.host.rest;
        let is_stub = |at| {
            let foothold = on.engine.foothold();
            foothold.is_some_and(|one| one.stubs().arena().contains(at))
        };
        let leave = || way_out::leave_stubs(guest, is_stub, rest);
        session.dump(wanted, &on.shared, found, leave)
    }

    /// Digest of the guest's text as it is now.
    ///
    /// # Errors
    /// [`TracingError::Digest`] or [`TracingError::Stop`].
    pub fn digest(&self, guest: &impl Guest) -> Result<Digest, TracingError> {
        let stopped = guest.stop()?;
        let sha256 =
            text_digest(&stopped, &self.attachment.shared.image).map_err(TracingError::Digest)?;
        Ok(Digest { sha256 })
    }
}
