//! One session as its users see it: made by name at any time, in the guest from its first start on.

mod halting;
mod only;
mod output;
mod points;
mod told;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::engine::{Engine, Foothold};
use crate::filter::{Filter, Selection, Sources};
use crate::points::events::find_event;
use crate::ring::geometry::Geometry;
use crate::ring::reader::Mode;
use crate::session::{SessionConfig, SessionId, TracerKind};
use crate::stub::recorder::Clock;
use debuginfo::DebugInfo;
use image::Image;
use terms::addr::Gva;
use terms::event_format::EventId;
use trace::doubt::TimeDoubts;
use trace::export::budget::Budget;
use trace::export::uftrace::{Fired, LateModules, Pause, PauseSpread, WaitingModules};
use trace::graph::threads::Threads;
use trace::live::Listener;

use super::checks::{
    Room, check_applies, check_name, check_numbers, check_occasions, check_room, check_roots,
    check_values, wanted_tasks,
};
use super::closing::Closing;
use super::error::TracingError;
use super::lossless::{check_hidden, check_lossless};
use super::options::{ClockSource, SessionOptions, Tracer, WaitTime};
use super::untraced::Untraced;
use crate::clock::page::{Beat, Beats};
use crate::clock::{HostClock, RunClock};
use crate::collect::counters::CounterTable;
use crate::collect::drain::Drain;
use crate::collect::only_vcpus::OnlyVcpus;
use crate::collect::output::Output;
use crate::collect::ring_clock::{RingClock, TraceTime};
use crate::collect::rings::SharedRings;
use crate::collect::{Polled, Pollers};
use crate::guest::{Guest, SharedMemory};
use crate::tasks::WantedTasks;
pub use halting::HaltAt;
pub(super) use halting::Halting;
pub(super) use only::Choosing;
use status::Switched;

/// What sessions share.
#[derive(Debug)]
pub(super) struct Shared {
    pub image: Arc<Image>,
    /// What its files say of variables.
    pub debug: Option<Arc<DebugInfo>>,
    /// Which files functions come from.
    pub sources: Sources,
    /// The kernel's file, as given.
    pub kernel: String,
    pub vcpus: u16,
    /// Bytes of the window that rings may take.
    pub rings_room: u64,
    /// What traces may take of the disk.
    pub budget: Budget,
    /// Whether a vCPU that has left the guest can be made to wait.
    pub vcpus_can_wait: bool,
    /// Whether the guest need not see that.
    pub can_hide_waits: fn() -> bool,
    /// The command that began tracing.
    pub command_line: String,
    /// The host's clock.
    pub host: HostClock,
    /// Who has rings read.
    pub pollers: Box<dyn Pollers>,
}

impl Shared {
    /// What rings have to share.
    pub(super) const fn room(&self) -> Room {
        Room {
            vcpus: self.vcpus,
            bytes: self.rings_room,
        }
    }
}

/// Names a new directory for the last calls of a session.
pub(crate) type Scratch = dyn Fn(&str) -> PathBuf;

/// Where the last calls of a session of a guest that has died are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastCalls {
    /// The session.
    pub session: String,
    /// A trace directory.
    pub directory: PathBuf,
    /// Whether it was made for this only.
    pub is_scratch: bool,
    /// Where a directory can be made for this only, if that is needed.
    pub room: PathBuf,
}

/// What is known of the guest from the first attach on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    pub clock: Option<RunClock>,
    /// How stubs find their ring.
    pub strategy: Option<&'static str>,
}

/// A session's rings and their reader.
#[derive(Debug)]
pub(super) struct Live {
    pub id: SessionId,
    reader: Reader,
    /// All vCPUs write to the first ring.
    is_shared: bool,
}

impl Live {
    fn new(id: SessionId, reader: Reader) -> Self {
        Self {
            id,
            reader,
            is_shared: false,
        }
    }

    /// All vCPUs write to the ring of the first one from now on.
    pub fn share_rings(&mut self) {
        self.is_shared = true;
        if let Reader::Rings(drain) = &self.reader {
            drain.share_rings();
        }
    }

    /// How many rings are written to, or rows of counters.
    fn rings(&self) -> usize {
        match &self.reader {
            _ if self.is_shared => 1,
            Reader::Rings(drain) => usize::from(drain.lock().rings().count()),
            Reader::Counters(counters) => counters.vcpus(),
        }
    }

    /// vCPUs that find a ring full are waited for, or, when nothing leads to it any more, those that are there.
    pub fn attend(&self, is_attended: bool) {
        match (&self.reader, is_attended) {
            (Reader::Rings(drain), true) => drain.attend(),
            (Reader::Rings(drain), false) => drain.dismiss(),
            (Reader::Counters(_), _) => {}
        }
    }

    /// The reader of its rings.
    pub fn polled(&self) -> Option<&Polled> {
        match &self.reader {
            Reader::Rings(polled) => Some(polled),
            Reader::Counters(_) => None,
        }
    }
}

/// How the host gets at what a session records.
#[derive(Debug)]
enum Reader {
    Rings(Polled),
    Counters(CounterTable),
}

/// A session.
#[derive(Debug)]
pub(super) struct TraceSession {
    pub name: String,
    pub tracer: Tracer,
    pub options: SessionOptions,
    geometry: Geometry,
    /// What it traces, or traced last, or is to trace.
    pub filter: Filter,
    /// From its first start on.
    pub live: Option<Live>,
    /// Whether its stubs are at the sites: between `start` and `stop`.
    pub started: bool,
    /// Whether it waits for the attach point.
    pub waiting: bool,
    /// What it records of the guest's own events while it is started.
    pub events: BTreeSet<EventId>,
    /// Modules whose functions came to be traced late.
    pub late: LateModules,
    /// Those that have come since it was started and are still to be traced.
    pub untraced: Untraced,
    /// Whether functions of modules that come are to be traced.
    pub follows_modules: bool,
    /// Modules of the guest that have their turn in a later look.
    pub waiting_modules: WaitingModules,
    /// Of the guest, when nothing more is recorded: its trace says for how long it stood still until then.
    pauses: PauseSpread,
    /// The first of them, in the time of the trace.
    paused: Vec<Pause>,
    /// Triggers that have fired.
    fired: Vec<Fired>,
    switched_on: bool,
    /// Of which vCPUs it is.
    only: OnlyVcpus,
    /// Which tasks it records.
    pub tasks: WantedTasks,
    /// Whether anybody was shown what it has recorded.
    has_told: Cell<bool>,
    /// What was not recorded while the rings were copied.
    missed: Cell<u64>,
    /// Of its rings when they were closed.
    doubts: TimeDoubts,
    /// The output of the rings to come. It is opened when the session is made, so that a directory
    /// that cannot be written is an early error.
    output: Option<Output>,
    /// Who listens to what comes out of the rings to come.
    listeners: Vec<Listener>,
    /// What ends recording at once, from the rings to come on.
    halts: Vec<HaltAt>,
}

impl TraceSession {
    /// Checks the options and opens the output.
    ///
    /// # Errors
    /// [`TracingError`] about the name, the ring size or the output directory.
    pub fn new(
        name: &str,
        tracer: Tracer,
        options: SessionOptions,
        filter: Filter,
        shared: &Shared,
    ) -> Result<Self, TracingError> {
        check_name(name)?;
        check_numbers(&options)?;
        let geometry = options.geometry()?;
        let only = only::vcpus(&options.only_vcpus, shared)?;
        let tasks = wanted_tasks(&options)?;
        let calls = options.graph.rules()?;
        if tracer == Tracer::Graph {
            check_roots(&calls, &shared.image)?;
        }
        check_values(tracer, &options)?;
        check_lossless(tracer, &options, shared.vcpus_can_wait)?;
        check_hidden(&options, shared.can_hide_waits)?;
        if let Some(bytes) = options.stack_bytes {
            Threads::new(bytes)?;
        }
        let image = &shared.image;
        let events = options.event.iter().map(|name| find_event(image, name));
        let events = events.collect::<Result<BTreeSet<_>, _>>()?;
        check_occasions(tracer, &options, image)?;
        let mut session = Self {
            name: name.to_owned(),
            tracer,
            options,
            geometry,
            filter,
            live: None,
            started: false,
            waiting: false,
            events,
            late: LateModules::default(),
            untraced: Untraced::default(),
            follows_modules: false,
            waiting_modules: WaitingModules::default(),
            pauses: PauseSpread::default(),
            paused: Vec::new(),
            fired: Vec::new(),
            switched_on: true,
            only,
            tasks,
            has_told: Cell::new(false),
            missed: Cell::new(0),
            doubts: TimeDoubts::default(),
            output: None,
            listeners: Vec::new(),
            halts: Vec::new(),
        };
        session.open_output(session.options.force, shared)?;
        Ok(session)
    }

    /// The functions that it traces with this filter.
    ///
    /// # Errors
    /// [`TracingError`] about the image or the filter.
    pub fn select(&self, filter: &Filter, shared: &Shared) -> Result<Selection, TracingError> {
        if self.tracer == Tracer::Nop {
            return Ok(Selection::default());
        }
        shared.image.check_traceable()?;
        Ok(filter.select(&shared.image, &shared.sources)?)
    }

    /// What the engine needs to know of it.
    /// `page` is where the clock page is, `run` the time of the run.
    pub fn config(&self, page: Gva, run: RunClock) -> SessionConfig {
        SessionConfig {
            name: self.name.clone(),
            tracer: self.tracer.into(),
            return_hook: self.options.return_hook,
            geometry: self.geometry,
            clock: match self.options.clock {
                ClockSource::Tsc => Clock::Tsc,
                ClockSource::Page => Clock::Page(page),
                ClockSource::None => Clock::None,
            },
            halts: halting::wanted(&self.halts, run),
            waits: self.options.mode == Mode::Lossless,
            callers: self.options.callers,
        }
    }

    /// Begins to read the rings that the engine has made for it.
    ///
    /// # Errors
    /// [`TracingError::Thread`].
    pub fn open(
        &mut self,
        id: SessionId,
        engine: &Engine,
        guest: &impl Guest,
        clock: RunClock,
        beats: &Arc<Beats>,
        shared: &Shared,
    ) -> Result<(), TracingError> {
        let session = engine.sessions().get(id)?;
        let place = session.memory.clone();
        only::check(&self.name, &self.only, place.cells.len(), shared)?;
        let memory: Arc<dyn SharedMemory> = Arc::new(guest.memory().clone());
        if let Some(profile) = &session.profile {
            let counters = CounterTable::new(memory, place, profile.layout);
            counters.switch(self.switched_on, &self.only);
            let reader = Reader::Counters(counters);
            self.live = Some(Live::new(id, reader));
            return Ok(());
        }
        memory.populate(place.rings, place.room);
        let rings = u16::try_from(place.cells.len()).unwrap_or(u16::MAX);
        let functions = u32::try_from(engine.image().functions.len()).unwrap_or(u32::MAX);
        let mut drain = Drain::new(
            SharedRings::new(memory, place),
            self.geometry,
            self.options.mode,
            functions,
            TraceTime {
                run: clock,
                rings: self.ring_clock(guest, shared.host, beats),
            },
            self.output.is_some(),
        );
        if let Some(events) = guest.host_events() {
            drain.tell_of_host(events);
        }
        if let Some(encoding) = self.output.as_ref().and_then(Output::encodes) {
            drain.encode(&encoding);
        }
        let turnstile = engine.foothold().and_then(Foothold::turnstile);
        if self.options.mode == Mode::Lossless
            && let Some((waits, turnstile)) = guest.waits().zip(turnstile)
        {
            let hides = self.options.wait_time == WaitTime::Hidden;
            let room = waits.open(turnstile.physical, id.0, rings, hides);
            drain.wait_in(room, self.options.on_full);
        }
        drain.record_only(self.only.clone());
        drain.switch(self.switched_on);
        let polled = Polled::start(drain, self.output.take(), &*shared.pollers);
        let polled = polled.map_err(TracingError::Thread)?;
        let reader = Reader::Rings(polled);
        self.live = Some(Live::new(id, reader));
        Ok(())
    }

    /// The cells of its rings have moved.
    ///
    /// # Errors
    /// A [`TracingError`] when they cannot be written.
    pub fn move_cells(&self, engine: &Engine) -> Result<(), TracingError> {
        let Some(Live { id, reader, .. }) = &self.live else {
            return Ok(());
        };
        let Reader::Rings(polled) = reader else {
            return Ok(());
        };
        let session = engine.sessions().get(*id)?;
        let events = session.events.as_ref();
        let events = events.map_or(&[][..], |events| &events.memory.cells);
        let mut drain = polled.lock();
        let moved = drain.move_cells(&session.memory.cells, events);
        moved.map_err(|source| TracingError::Cells {
            session: self.name.clone(),
            source,
        })
    }

    /// What times its records.
    fn ring_clock(&self, guest: &impl Guest, host: HostClock, beats: &Arc<Beats>) -> RingClock {
        match self.options.clock {
            ClockSource::Tsc => RingClock::Vcpus(Arc::clone(guest.clocks())),
            ClockSource::Page => RingClock::Page(host, Arc::clone(beats)),
            ClockSource::None => RingClock::None(host),
        }
    }

    /// How the clock page is to be kept for it.
    pub fn beat(&self) -> Option<Beat> {
        (self.options.clock == ClockSource::Page).then_some(Beat {
            period_ns: self.options.clock_period,
            cpu: self.options.clock_cpu,
        })
    }

    /// Reads what the rings still hold and completes the trace. Returns its number in the engine
    /// when it had one, and how it ended when it has traced.
    ///
    /// # Errors
    /// [`TracingError::Output`] when not all of it could be written.
    pub fn close(&mut self) -> (Option<SessionId>, Result<Option<Closing>, TracingError>) {
        match self.live.take() {
            Some(live) => {
                let finished = match live.reader {
                    Reader::Rings(mut drain) => {
                        let finished = drain.finish().map_err(TracingError::from);
                        let drain = drain.lock();
                        self.doubts = drain.doubts();
                        finished.map(|written| self.closing(written, &drain))
                    }
                    Reader::Counters(_) => Ok(None),
                };
                (Some(live.id), finished)
            }
            None => {
                let output = self.output.take();
                let finished = output.map_or(Ok(None), |output| output.finish(&self.doubts, 0));
                (None, finished.map(|_| None).map_err(TracingError::from))
            }
        }
    }

    /// Its number, if it traces now.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`].
    pub fn started(&self) -> Result<SessionId, TracingError> {
        match &self.live {
            Some(live) if self.started => Ok(live.id),
            _ => Err(self.not_started()),
        }
    }

    /// Its number, if it traces now and writes records.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`] or [`TracingError::NoRecords`].
    pub fn recording(&self) -> Result<SessionId, TracingError> {
        if self.tracer == Tracer::Profile {
            return Err(self.no_records());
        }
        self.started()
    }

    fn no_records(&self) -> TracingError {
        TracingError::NoRecords {
            session: self.name.clone(),
        }
    }

    fn not_started(&self) -> TracingError {
        TracingError::NotStarted {
            session: self.name.clone(),
        }
    }

    /// Functions have come: `image` has those of before, and more.
    pub fn extend(&mut self, image: &Arc<Image>) {
        if let Some(output) = &mut self.output {
            output.extend(image);
        }
        if let Some(Reader::Rings(drain)) = self.live.as_ref().map(|live| &live.reader) {
            drain.lock().extend(image);
        }
    }

    /// Takes another tracer kind, which a session can until its rings are made.
    ///
    /// # Errors
    /// [`TracingError::OtherTracer`], or why the trace directory could not be made for it.
    pub fn set_tracer(&mut self, tracer: Tracer, shared: &Shared) -> Result<(), TracingError> {
        if self.live.is_some() && self.tracer != tracer {
            let kind = |tracer| TracerKind::from(tracer).name();
            return Err(TracingError::OtherTracer {
                session: self.name.clone(),
                is: kind(self.tracer),
                asked: kind(tracer),
            });
        }
        let before = self.tracer;
        if before == tracer {
            return Ok(());
        }
        check_applies(tracer, &self.options)?;
        check_values(tracer, &self.options)?;
        check_lossless(tracer, &self.options, shared.vcpus_can_wait)?;
        // The directory that was made for the other kind is still empty.
        let mut becomes = |tracer| {
            self.tracer = tracer;
            self.output = None;
            self.open_output(true, shared)
        };
        let became = becomes(tracer);
        if became.is_err() {
            becomes(before)?;
        }
        became
    }

    /// Whether its rings will fit in the window region.
    ///
    /// # Errors
    /// [`TracingError::RingsTooLarge`].
    pub(super) fn check_room(&self, room: Room) -> Result<(), TracingError> {
        check_room(self.tracer, self.options.clock, self.geometry, room)
    }

    /// Lets stubs record or not; no text is touched.
    pub fn switch(&mut self, on: bool) -> Switched {
        let changed = self.switched_on != on;
        self.switched_on = on;
        match self.live.as_ref().map(|live| &live.reader) {
            Some(Reader::Rings(drain)) => drain.lock().switch(on),
            Some(Reader::Counters(counters)) => counters.switch(on, &self.only),
            None => {}
        }
        Switched { changed }
    }
}
