//! Tracing of a running machine: the decisions of the `tracer` crate carried out on a guest.
//!
//! All operations run on the main thread, in this order: [`Tracing::new`] before the machine is
//! built, [`Tracing::before_start`] with the kernel loaded, [`Tracing::at_breakpoint`] when the
//! attach point is reached, the control methods at any time, [`Tracing::finish`] at the end. Each
//! pauses the guest as briefly as it can; the [`drain`] thread reads the rings meanwhile.

pub mod drain;
pub mod error;
pub mod output;
pub mod rings;
mod show;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracer::addr::Gva;
use tracer::digest::text_digest;
use tracer::engine::Engine;
use tracer::export::uftrace::Metadata;
use tracer::filter::{Filter, FilterError, Pattern, Selection, Side};
use tracer::graph::pipeline::{Pipeline, WAITING_MAX};
use tracer::graph::selection::Rules;
use tracer::image::Image;
use tracer::ring::geometry::Geometry;
use tracer::ring::reader::Mode;
use tracer::session::{SessionConfig, SessionId, TracerKind};
use tracer::stub::graph::ReturnHook;
use tracer::stub::recorder::Clock;
use tracer::window::Region;

use crate::clock::{GuestClock, offset_is_applied};
use crate::control::protocol::{FilterChange, Start};
use crate::control::status::{Changed, Digest, Dumped, Switched};
use crate::loader::KernelFile;
use crate::machine::{Machine, PATIENCE};
use drain::{Drain, DrainThread};
pub use error::TracingError;
use output::Output;
use rings::SharedRings;

/// The function at which the bundled guest can be traced: all its vCPUs run, no workload does yet.
pub const DEFAULT_ATTACH: &str = "workloads_ready";
/// Stacks of the bundled guest's threads, and of Linux.
const BUNDLED_STACK: u64 = 64 << 10;
const LINUX_STACK: u64 = 16 << 10;

/// What the command line says about tracing.
#[derive(Debug, Clone)]
pub struct TracingOptions {
    /// Trace from the attach point on (`--trace`).
    pub enabled: bool,
    /// What to record.
    pub tracer: TracerKind,
    /// How hooked functions are left (graph).
    pub return_hook: ReturnHook,
    /// Globs of functions to trace; none means all.
    pub filter: Vec<String>,
    /// Globs of functions not to trace.
    pub notrace: Vec<String>,
    /// Attach when this function is reached.
    pub attach_at: Option<String>,
    /// What to do when a ring is full.
    pub mode: Mode,
    /// Where times come from.
    pub clock: Clock,
    /// Size of one ring in KiB.
    pub ring_kib: u64,
    /// Size of a stack of the guest in KiB (graph); none for what is usual in its kind of kernel.
    pub stack_kib: Option<u64>,
    /// Which calls are written (graph).
    pub calls: Rules,
    /// Where the trace goes.
    pub output: Option<PathBuf>,
    /// An older trace there may be replaced.
    pub force: bool,
    /// How many vCPUs the machine has.
    pub vcpus: u64,
}

/// The session's rings and their reader.
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
    filter: Filter,
    geometry: Geometry,
    /// The host's counter when the guest was about to start: the zero of all times.
    zero: u64,
    clock: Option<GuestClock>,
    running: Option<Running>,
    switched_on: bool,
    waiting: bool,
    /// The output of the session to come. It is opened before the guest runs, so that a directory
    /// that cannot be written is an early error.
    output: Option<Output>,
    kernel: PathBuf,
}

impl Tracing {
    /// Checks the options against the image, before anything is built.
    ///
    /// # Errors
    /// A [`TracingError`] about the image, the filter, the ring size or the output directory.
    pub fn new(options: TracingOptions, kernel: &KernelFile) -> Result<Self, TracingError> {
        let image = Arc::new(Image::parse(kernel.bytes())?);
        let geometry = Geometry::with_bytes(options.ring_kib.saturating_mul(1024))?;
        let filter = Filter::new(&options.filter, &options.notrace)?;
        if options.enabled {
            if options.tracer == TracerKind::Graph {
                check_roots(&options.calls, &image)?;
            }
            image.check_traceable()?;
            filter.select(&image)?;
            attach_point(&image, options.attach_at.as_deref())?;
        }
        let engine = Engine::new(Arc::clone(&image));
        let mut tracing = Self {
            image,
            engine,
            filter,
            geometry,
            zero: crate::clock::host_tsc(),
            clock: None,
            running: None,
            switched_on: true,
            waiting: options.enabled,
            output: None,
            kernel: kernel.path().to_owned(),
            options,
        };
        if let Some(directory) = tracing.options.output.clone() {
            let metadata = tracing.metadata(0);
            let force = tracing.options.force;
            tracing.output =
                Some(tracing.create_output(&directory, force, metadata, WAITING_MAX)?);
        }
        Ok(tracing)
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
        self.zero = crate::clock::host_tsc();
        if !self.options.enabled {
            return Ok(None);
        }
        attach_point(&self.image, self.options.attach_at.as_deref()).map(Some)
    }

    /// A vCPU is trapped at the attach point: starts to trace. Afterwards the breakpoint is removed,
    /// whatever this returns, and the guest goes on.
    ///
    /// # Errors
    /// A [`TracingError`] ends the run.
    pub fn at_breakpoint(&mut self, machine: &Machine) -> Result<(), TracingError> {
        self.waiting = false;
        let filter = self.filter.clone();
        let changed = self.begin(machine, filter)?;
        log::info!("{} functions are traced", changed.traced);
        for line in changed.skipped_by_reason() {
            log::info!("{line}");
        }
        Ok(())
    }

    /// The guest has ended or is to end. Reads what the rings still hold and completes the trace.
    ///
    /// # Errors
    /// [`TracingError::Output`] when not all of it could be written.
    pub fn finish(&mut self, machine: &Machine) -> Result<(), TracingError> {
        // A stub that is running now will not be waited for: the guest has no more to say.
        let quiesced = machine.quiesce(PATIENCE);
        if let Err(error) = &quiesced {
            log::warn!("the trace may lack its last records: {error}");
        }
        if let Some(mut running) = self.running.take() {
            running.drain.stop();
            return Ok(running.drain.lock().finish()?);
        }
        Ok(self
            .output
            .take()
            .map_or(Ok(()), |output| output.finish().map(drop))?)
    }

    /// `start`: traces what the globs select.
    ///
    /// # Errors
    /// A [`TracingError`]; then nothing is traced.
    pub fn start(&mut self, machine: &Machine, start: &Start) -> Result<Changed, TracingError> {
        let filter = Filter::new(&start.filter, &start.notrace)?;
        self.begin(machine, filter)
    }

    fn begin(&mut self, machine: &Machine, filter: Filter) -> Result<Changed, TracingError> {
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
        // Tried before the pause: it takes longer than the rest.
        let is_offset_applied = self.running.is_none() && offset_is_applied();
        let mut quiesced = machine.quiesce(PATIENCE)?;
        self.engine.attach(&mut quiesced, region)?;
        if let Some(running) = &self.running {
            return Ok(running.id);
        }
        let khz = machine.tsc_khz();
        let clock = GuestClock::of(&mut quiesced, is_offset_applied, khz, self.zero)?;
        let config = SessionConfig {
            name: "default".to_owned(),
            tracer: self.options.tracer,
            return_hook: self.options.return_hook,
            geometry: self.geometry,
            mode: self.options.mode,
            clock: self.options.clock,
        };
        let id = self.engine.create_session(&mut quiesced, config)?;
        drop(quiesced);
        self.clock = Some(clock);
        let drain = self.open_drain(machine, id, clock)?;
        self.running = Some(Running {
            id,
            drain,
            started: false,
        });
        Ok(id)
    }

    fn open_drain(
        &mut self,
        machine: &Machine,
        id: SessionId,
        clock: GuestClock,
    ) -> Result<DrainThread, TracingError> {
        let place = self.engine.session(id)?.memory.clone();
        let memory = machine.memory().clone();
        memory.populate(
            place.rings,
            place.geometry.bytes() * place.cells.len() as u64,
        );
        let functions = u32::try_from(self.image.functions.len()).unwrap_or(u32::MAX);
        let rings = SharedRings::new(memory, place);
        let output = self.output.take();
        let mut drain = Drain::new(
            rings,
            self.geometry,
            self.options.mode,
            functions,
            clock,
            output,
        );
        drain.switch(self.switched_on);
        DrainThread::start(drain).map_err(TracingError::Thread)
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
        let mut quiesced = machine.quiesce(PATIENCE)?;
        let applied = self.engine.apply(&mut quiesced, &plan);
        drop(quiesced);
        let pause_us = machine.last_pause().as_secs_f64() * 1e6;
        let changed = self.show_changed(&applied?, &selection, pause_us);
        self.engine.set_selection(id, filter, selection)?;
        Ok(changed)
    }

    fn is_started(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.started)
    }

    fn started(&self) -> Result<SessionId, TracingError> {
        match &self.running {
            Some(running) if running.started => Ok(running.id),
            _ => Err(TracingError::NotStarted),
        }
    }

    /// `stop`: every site gets its original bytes back. What the rings hold stays readable.
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

    /// `filter.add`: traces these too, or excludes these too.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter_add(
        &mut self,
        machine: &Machine,
        change: &FilterChange,
    ) -> Result<Changed, TracingError> {
        self.refilter(machine, |filter| {
            each_glob(change, |side, glob| filter.add(side, glob))
        })
    }

    /// `filter.remove`: takes globs out of the filter.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter_remove(
        &mut self,
        machine: &Machine,
        change: &FilterChange,
    ) -> Result<Changed, TracingError> {
        self.refilter(machine, |filter| {
            each_glob(change, |side, glob| filter.remove(side, glob))
        })
    }

    /// `filter.set`: exactly these globs; with none it is `filter.clear`.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter_set(
        &mut self,
        machine: &Machine,
        change: &FilterChange,
    ) -> Result<Changed, TracingError> {
        self.refilter(machine, |filter| {
            *filter = Filter::new(&change.filter, &change.notrace)?;
            Ok(())
        })
    }

    fn refilter(
        &mut self,
        machine: &Machine,
        edit: impl FnOnce(&mut Filter) -> Result<(), FilterError>,
    ) -> Result<Changed, TracingError> {
        let id = self.started()?;
        let mut filter = self.engine.session(id)?.filter.clone();
        edit(&mut filter)?;
        let selection = filter.select(&self.image)?;
        self.change(machine, id, filter, selection)
    }

    /// `tracing-on` and `tracing-off`: lets stubs record or not; no text is touched.
    pub fn switch(&mut self, on: bool) -> Switched {
        let changed = self.switched_on != on;
        self.switched_on = on;
        if let Some(running) = &self.running {
            running.drain.lock().switch(on);
        }
        Switched { changed }
    }

    /// `dump`: writes what the rings hold now into a new trace directory.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`] when there never was a session, or [`TracingError::Output`].
    pub fn dump(&self, directory: &Path) -> Result<Dumped, TracingError> {
        let running = self.running.as_ref().ok_or(TracingError::NotStarted)?;
        let metadata = self.metadata(self.clock.map_or(0, |clock| clock.khz()));
        // Each ring comes as a whole.
        let output = self.create_output(directory, false, metadata, usize::MAX)?;
        Ok(running.drain.lock().dump(output)?)
    }

    /// `digest`: of the guest's text as it is now.
    ///
    /// # Errors
    /// [`TracingError::Digest`] or [`TracingError::Quiesce`].
    pub fn digest(&self, machine: &Machine) -> Result<Digest, TracingError> {
        let quiesced = machine.quiesce(PATIENCE)?;
        let sha256 = text_digest(&quiesced, &self.image).map_err(TracingError::Digest)?;
        Ok(Digest { sha256 })
    }

    /// A trace directory for what the options ask for; `waiting` as [`Pipeline::new`] takes it.
    fn create_output(
        &self,
        directory: &Path,
        force: bool,
        metadata: Metadata,
        waiting: usize,
    ) -> Result<Output, TracingError> {
        let rings = usize::from(metadata.vcpus);
        let stack_bytes = metadata.stack_bytes;
        let pipeline = metadata
            .is_graph()
            .then(|| Pipeline::new(rings, stack_bytes, waiting))
            .transpose()?;
        Ok(Output::create(
            directory,
            force,
            &self.image,
            metadata,
            pipeline,
        )?)
    }

    /// Bytes of a stack of the guest, by which its threads are told apart.
    fn stack_bytes(&self) -> u64 {
        let is_bundled = self.image.symbols.address_of(DEFAULT_ATTACH).is_some();
        let usual = if is_bundled {
            BUNDLED_STACK
        } else {
            LINUX_STACK
        };
        self.options
            .stack_kib
            .map_or(usual, |kib| kib.saturating_mul(1024))
    }

    fn metadata(&self, tsc_khz: u32) -> Metadata {
        let strategy = self
            .engine
            .strategy()
            .map_or("unknown", |(strategy, _)| strategy.name());
        Metadata {
            command_line: std::env::args().collect::<Vec<_>>().join(" "),
            image: self.kernel.display().to_string(),
            vcpus: u16::try_from(self.options.vcpus).unwrap_or(u16::MAX),
            mode: show::mode_name(self.options.mode).to_owned(),
            clock: show::clock_name(self.options.clock).to_owned(),
            tsc_khz: tsc_khz.into(),
            tracer: self.options.tracer.name().to_owned(),
            stack_bytes: self.stack_bytes(),
            ring_strategy: strategy.to_owned(),
            filter: self
                .filter
                .globs(Side::Include)
                .map(str::to_owned)
                .collect(),
            notrace: self
                .filter
                .globs(Side::Notrace)
                .map(str::to_owned)
                .collect(),
        }
    }
}

fn each_glob(
    change: &FilterChange,
    mut edit: impl FnMut(Side, &str) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    change
        .filter
        .iter()
        .try_for_each(|glob| edit(Side::Include, glob))?;
    change
        .notrace
        .iter()
        .try_for_each(|glob| edit(Side::Notrace, glob))
}

/// Each root must be a function of the image.
fn check_roots(rules: &Rules, image: &Image) -> Result<(), TracingError> {
    let is_there = |root: &Pattern| image.functions.iter().any(|f| root.matches(f));
    match rules.roots.iter().find(|root| !is_there(root)) {
        Some(root) => Err(TracingError::NoRoot(root.text().to_owned())),
        None => Ok(()),
    }
}

/// Where to attach: at `symbol`, or where this kind of kernel is ready.
fn attach_point(image: &Image, symbol: Option<&str>) -> Result<Gva, TracingError> {
    let found = image.symbols.address_of(symbol.unwrap_or(DEFAULT_ATTACH));
    match (found, symbol) {
        (Some(address), _) => Ok(address),
        (None, None) => Err(TracingError::NoDefaultAttach),
        (None, Some(symbol)) => {
            let near = image.symbols.near_misses(symbol, 3).join(", ");
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
