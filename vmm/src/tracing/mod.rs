//! Tracing of a running machine: the engine of the `tracer` crate, given a guest to work on.
//!
//! All operations run on the main thread; each pauses the guest as briefly as it can. The
//! [`drain`] thread reads the rings meanwhile.

pub mod drain;
pub mod output;
pub mod results;
pub mod rings;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tracer::addr::Gva;
use tracer::digest::text_digest;
use tracer::engine::{ApplyError, AttachError, Engine};
use tracer::event::FunctionId;
use tracer::export::uftrace::{ExportError, Metadata};
use tracer::filter::{Filter, FilterError, Pattern, Selection, Side};
use tracer::image::Image;
use tracer::patch::functions::FunctionState;
use tracer::patch::poke::TransactionError;
use tracer::ring::geometry::{Geometry, RingSizeError};
use tracer::ring::reader::Mode;
use tracer::session::{SessionConfig, SessionId};
use tracer::stub::recorder::Clock;
use tracer::target::MemoryError;
use tracer::window::Region;

use crate::clock::GuestClock;
use crate::machine::{BreakpointError, Machine, PATIENCE};
use crate::not_started::NotYetStarted;
use crate::quiesce::{QuiesceError, Quiesced};
use drain::{Drain, DrainThread};
use output::Output;
use results::{Changed, Dumped, FunctionLine, FunctionStateName, SkippedFunction, TracingStatus};
use rings::SharedRings;

/// The function at which the bundled guest is ready to be traced: all its vCPUs run, no workload does.
pub const DEFAULT_ATTACH: &str = "workloads_ready";

/// Why a tracing operation failed. The guest goes on in each case.
#[derive(Debug, thiserror::Error)]
pub enum TracingError {
    /// The guest could not be paused.
    #[error(transparent)]
    Quiesce(#[from] QuiesceError),
    /// The filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The window or the session.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The change.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Normalising the sites.
    #[error("the image's patch sites cannot be prepared: {0}")]
    Normalise(#[from] TransactionError),
    /// The image has nothing to trace.
    #[error(transparent)]
    Image(#[from] tracer::image::ImageError),
    /// Tracing is on already.
    #[error(
        "tracing has been started already: use `filter` to change what is traced, or `stop` first"
    )]
    AlreadyStarted,
    /// Tracing is off.
    #[error("tracing has not been started: use `start` first")]
    NotStarted,
    /// The ring size.
    #[error(transparent)]
    RingSize(#[from] RingSizeError),
    /// The trace directory.
    #[error(transparent)]
    Output(#[from] ExportError),
    /// The drain thread.
    #[error("the system gives no thread to read the rings: {0}")]
    Thread(std::io::Error),
    /// The text cannot be read.
    #[error("the guest's text cannot be read: {0}")]
    Digest(MemoryError),
    /// The attach breakpoint.
    #[error(transparent)]
    Breakpoint(#[from] BreakpointError),
    /// No such symbol to attach at.
    #[error("--attach-at {symbol}: the kernel has no such symbol{near}")]
    NoAttachSymbol {
        /// The name given.
        symbol: String,
        /// What is like it, as text.
        near: String,
    },
    /// The kernel is none that we know.
    #[error(
        "this kernel has no function `{DEFAULT_ATTACH}`: say with --attach-at SYMBOL when it can be traced, or use `vmm ctl start` when it runs"
    )]
    NoDefaultAttach,
}

/// How to trace.
#[derive(Debug, Clone)]
pub struct TracingOptions {
    /// Bytes of each ring.
    pub ring_bytes: u64,
    /// What to do when one is full.
    pub mode: Mode,
    /// Where times come from.
    pub clock: Clock,
    /// Where to write the trace to, if anywhere.
    pub output: Option<PathBuf>,
    /// Whether an existing trace there may be replaced.
    pub force: bool,
    /// The image's file name, for the trace.
    pub image_name: String,
    /// The number of vCPUs, for the trace.
    pub vcpus: u16,
}

/// A change of the filter of a running session; `None` leaves a side as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterChange {
    /// These globs too.
    Add,
    /// These globs no more.
    Remove,
    /// These globs and no others.
    Set,
    /// No globs: everything that can be traced.
    Clear,
}

/// The globs of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Globs {
    /// What to trace.
    pub filter: Vec<String>,
    /// What not to trace.
    pub notrace: Vec<String>,
}

/// The rings and the reader of the session.
#[derive(Debug)]
struct Running {
    id: SessionId,
    drain: DrainThread,
    /// Whether its stubs are at the sites: between `start` and `stop`.
    started: bool,
}

/// Tracing of one machine.
#[derive(Debug)]
pub struct Tracing {
    image: Arc<Image>,
    engine: Engine,
    options: TracingOptions,
    geometry: Geometry,
    clock: GuestClock,
    running: Option<Running>,
    switched_on: bool,
    /// The output that the first session will write to, opened before the guest runs so that a
    /// directory that cannot be written is an early error.
    output: Option<Output>,
}

impl Tracing {
    /// Tracing for a machine that was loaded from `image` and has not been started.
    ///
    /// # Errors
    /// [`TracingError::RingSize`], or [`TracingError::Output`] when the trace directory cannot be
    /// made.
    pub fn new(
        image: Arc<Image>,
        options: TracingOptions,
        clock: GuestClock,
    ) -> Result<Self, TracingError> {
        let geometry = Geometry::with_bytes(options.ring_bytes)?;
        let output = match &options.output {
            None => None,
            Some(directory) => {
                let metadata = metadata(&options, &clock);
                Some(Output::create(directory, options.force, &image, metadata)?)
            }
        };
        let engine = Engine::new(Arc::clone(&image));
        Ok(Self {
            image,
            engine,
            options,
            geometry,
            clock,
            running: None,
            switched_on: true,
            output,
        })
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Makes every patch site one nop, before the guest runs. Returns how many were rewritten.
    ///
    /// # Errors
    /// [`TracingError::Normalise`] when the loaded text is not that of the image.
    pub fn normalise(&self, target: &mut NotYetStarted<'_>) -> Result<usize, TracingError> {
        Ok(self.engine.normalise(target)?)
    }

    /// Where to attach: at `symbol`, or where this kind of kernel is ready.
    ///
    /// # Errors
    /// [`TracingError::NoAttachSymbol`] or [`TracingError::NoDefaultAttach`].
    pub fn attach_point(&self, symbol: Option<&str>) -> Result<Gva, TracingError> {
        let name = symbol.unwrap_or(DEFAULT_ATTACH);
        match (self.image.symbols.address_of(name), symbol) {
            (Some(address), _) => Ok(address),
            (None, None) => Err(TracingError::NoDefaultAttach),
            (None, Some(symbol)) => {
                let near = self.image.symbols.near_misses(symbol, 3).join(", ");
                let near = if near.is_empty() {
                    near
                } else {
                    format!("; near: {near}")
                };
                Err(TracingError::NoAttachSymbol {
                    symbol: symbol.to_owned(),
                    near,
                })
            }
        }
    }

    /// Starts to trace what `filter` selects.
    ///
    /// # Errors
    /// A [`TracingError`]; then nothing is traced.
    pub fn start(&mut self, machine: &Machine, filter: Filter) -> Result<Changed, TracingError> {
        if self.is_started() {
            return Err(TracingError::AlreadyStarted);
        }
        self.image.check_traceable()?;
        let selection = filter.select(&self.image)?;
        let id = self.prepare(machine)?;
        let changed = self.change(machine, id, filter, selection)?;
        if let Some(running) = &mut self.running {
            running.started = true;
        }
        Ok(changed)
    }

    /// Opens the window and makes the session, if that has not been done.
    fn prepare(&mut self, machine: &Machine) -> Result<SessionId, TracingError> {
        let window = machine.memory().window();
        let region = Region {
            start: window.start,
            bytes: window.bytes,
        };
        let mut quiesced = machine.quiesce(PATIENCE)?;
        self.engine.attach(&mut quiesced, region)?;
        if let Some(running) = &self.running {
            return Ok(running.id);
        }
        let config = SessionConfig {
            name: "default".to_owned(),
            geometry: self.geometry,
            mode: self.options.mode,
            clock: self.options.clock,
        };
        let id = self.engine.create_session(&mut quiesced, config)?;
        drop(quiesced);
        let place = self.engine.session(id)?.memory.clone();
        let rings = SharedRings::new(machine.memory().clone(), place);
        let functions = u32::try_from(self.image.functions.len()).unwrap_or(u32::MAX);
        let (geometry, mode) = (self.geometry, self.options.mode);
        let output = self.output.take();
        let mut drain = Drain::new(rings, geometry, mode, functions, self.clock, output);
        drain.switch(self.switched_on);
        let drain = DrainThread::start(drain).map_err(TracingError::Thread)?;
        self.running = Some(Running {
            id,
            drain,
            started: false,
        });
        Ok(id)
    }

    /// Brings the guest's text to what `selection` says.
    fn change(
        &mut self,
        machine: &Machine,
        id: SessionId,
        filter: Filter,
        selection: Selection,
    ) -> Result<Changed, TracingError> {
        let plan = self
            .engine
            .plan(&mut machine.memory().clone(), id, &selection)?;
        let requested = Instant::now();
        let mut quiesced = machine.quiesce(PATIENCE)?;
        let applied = self.engine.apply(&mut quiesced, &plan);
        drop(quiesced);
        let pause_ns = u64::try_from(requested.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let applied = applied?;
        let skipped = applied
            .skipped
            .iter()
            .map(|(function, why)| self.skipped(*function, why));
        let denied = selection
            .denied
            .iter()
            .map(|(function, why)| self.skipped(*function, why));
        let changed = Changed {
            traced: self.engine.patched(),
            patched: applied.patched,
            restored: applied.restored,
            skipped: skipped.collect(),
            denied: denied.collect(),
            pause_ns,
        };
        self.engine.set_selection(id, filter, selection)?;
        Ok(changed)
    }

    fn skipped(&self, function: FunctionId, why: &impl ToString) -> SkippedFunction {
        let name = self
            .image
            .function(function)
            .map_or("?", |function| &*function.name);
        SkippedFunction {
            name: name.to_owned(),
            reason: why.to_string(),
        }
    }

    /// Whether functions are being traced.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.started)
    }

    /// Stops tracing: every site gets its original bytes back. What the rings hold stays readable.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`], or why the guest's text could not be changed.
    pub fn stop(&mut self, machine: &Machine) -> Result<Changed, TracingError> {
        let id = self.started()?;
        let filter = self.engine.session(id)?.filter.clone();
        let changed = self.change(machine, id, filter, Selection::default())?;
        if let Some(running) = &mut self.running {
            running.started = false;
        }
        Ok(changed)
    }

    fn started(&self) -> Result<SessionId, TracingError> {
        match &self.running {
            Some(running) if running.started => Ok(running.id),
            _ => Err(TracingError::NotStarted),
        }
    }

    /// Changes what is traced; only sites whose state changes are written.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter(
        &mut self,
        machine: &Machine,
        change: FilterChange,
        globs: &Globs,
    ) -> Result<Changed, TracingError> {
        let id = self.started()?;
        let mut filter = self.engine.session(id)?.filter.clone();
        for (side, globs) in [
            (Side::Include, &globs.filter),
            (Side::Notrace, &globs.notrace),
        ] {
            match change {
                FilterChange::Add => globs.iter().try_for_each(|glob| filter.add(side, glob))?,
                FilterChange::Remove => {
                    globs
                        .iter()
                        .try_for_each(|glob| filter.remove(side, glob))?;
                }
                FilterChange::Set => filter.set(side, globs)?,
                FilterChange::Clear => filter.clear(side),
            }
        }
        let selection = filter.select(&self.image)?;
        self.change(machine, id, filter, selection)
    }

    /// Lets stubs record or not; no text is touched.
    pub fn switch(&mut self, on: bool) {
        self.switched_on = on;
        if let Some(running) = &self.running {
            running.drain.lock().switch(on);
        }
    }

    /// Writes what the rings hold now into a new trace directory.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`] when there never was a session, or [`TracingError::Output`].
    pub fn dump(&self, directory: &Path, force: bool) -> Result<Dumped, TracingError> {
        let running = self.running.as_ref().ok_or(TracingError::NotStarted)?;
        let metadata = metadata(&self.options, &self.clock);
        let output = Output::create(directory, force, &self.image, metadata)?;
        Ok(running.drain.lock().dump(output)?)
    }

    /// All functions whose names match `glob`, with their states; all without one.
    ///
    /// # Errors
    /// [`TracingError::Filter`] for what is not a glob.
    pub fn functions(&self, glob: Option<&str>) -> Result<Vec<FunctionLine>, TracingError> {
        let matching = match glob {
            None => None,
            Some(glob) => Some(Pattern::new(glob)?),
        };
        let mut lines = Vec::new();
        for (number, function) in (0..).zip(&self.image.functions) {
            let id = FunctionId(number);
            if matching
                .as_ref()
                .is_some_and(|glob| !glob.matches(function))
            {
                continue;
            }
            let (state, reason) = self.state(id);
            lines.push(FunctionLine {
                address: function.address.to_string(),
                name: function.display.to_string(),
                state,
                reason,
            });
        }
        Ok(lines)
    }

    fn state(&self, id: FunctionId) -> (FunctionStateName, Option<String>) {
        if let Some(untraceable) = self.image.untraceable(id) {
            return (
                FunctionStateName::Skipped,
                Some(untraceable.reason.to_string()),
            );
        }
        match self.engine.state(id) {
            FunctionState::Nop => (FunctionStateName::Available, None),
            FunctionState::Patched { .. } => (FunctionStateName::Patched, None),
            FunctionState::Skipped(why) => (FunctionStateName::Skipped, Some(why.to_string())),
        }
    }

    /// The digest of the guest's text as it is now.
    ///
    /// # Errors
    /// [`TracingError::Digest`] or [`TracingError::Quiesce`].
    pub fn digest(&self, machine: &Machine) -> Result<String, TracingError> {
        let quiesced: Quiesced<'_> = machine.quiesce(PATIENCE)?;
        text_digest(&quiesced, &self.image).map_err(TracingError::Digest)
    }

    /// The state of tracing.
    #[must_use]
    pub fn status(&self) -> TracingStatus {
        let mut status = TracingStatus {
            tracer: self.is_started().then(|| "function".to_owned()),
            tracing_on: self.switched_on,
            traced: self.engine.patched(),
            mode: mode_name(self.options.mode).to_owned(),
            clock: clock_name(self.options.clock).to_owned(),
            ring_bytes: self.geometry.bytes(),
            stub_bytes: self.engine.stub_bytes(),
            frozen: self.engine.frozen().map(ToString::to_string),
            output: self
                .options
                .output
                .as_ref()
                .map(|path| path.display().to_string()),
            ..TracingStatus::default()
        };
        if let Some((strategy, no_gs)) = self.engine.strategy() {
            status.cpu_strategy = Some(strategy.name().to_owned());
            status.no_gs = no_gs.map(|reason| reason.to_string());
        }
        if let Some(running) = &self.running {
            let drain = running.drain.lock();
            status.rings = drain.status();
            status.clock_gaps = drain.clock_gaps();
            status.output_error = drain
                .output()
                .and_then(Output::error)
                .map(ToString::to_string);
            if let Ok(session) = self.engine.session(running.id) {
                let globs = |side| session.filter.globs(side).map(str::to_owned).collect();
                status.filter = globs(Side::Include);
                status.notrace = globs(Side::Notrace);
            }
        }
        status
    }

    /// Ends tracing when the guest has ended: reads what is left and completes the trace.
    ///
    /// # Errors
    /// [`TracingError::Output`] when not all could be written.
    pub fn finish(&mut self) -> Result<(), TracingError> {
        if let Some(mut running) = self.running.take() {
            running.drain.stop();
            return Ok(running.drain.lock().finish()?);
        }
        match self.output.take() {
            None => Ok(()),
            Some(output) => Ok(output.finish().map(drop)?),
        }
    }
}

/// The name of a mode, as options have it.
#[must_use]
pub const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Overwrite => "overwrite",
        Mode::Discard => "discard",
    }
}

/// The name of a clock, as options have it.
#[must_use]
pub const fn clock_name(clock: Clock) -> &'static str {
    match clock {
        Clock::Tsc => "tsc",
        Clock::None => "none",
    }
}

fn metadata(options: &TracingOptions, clock: &GuestClock) -> Metadata {
    Metadata {
        command_line: std::env::args().collect::<Vec<_>>().join(" "),
        image: options.image_name.clone(),
        vcpus: options.vcpus,
        mode: mode_name(options.mode).to_owned(),
        clock: clock_name(options.clock).to_owned(),
        tsc_khz: clock.khz().into(),
        ..Metadata::default()
    }
}
