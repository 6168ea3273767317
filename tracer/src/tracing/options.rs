//! What tracing and its sessions are made of.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::collect::wait_drain::OnFull;
use crate::points::events::Dispatch;
use crate::points::locks::LockPrefixes;
use crate::ring::geometry::{Geometry, RingSizeError};
use crate::ring::reader::Mode;
use crate::session::{CallMoments, TracerKind};
use crate::stub::spec::ReturnHook;
pub use status::WaitTime;
use terms::choice::choices;
use trace::export::budget::Budget;
use trace::glob::GlobError;
use trace::graph::rules::{Rules, Threshold};
use trace::live::Occasion;

/// The session that begins with tracing, and that is meant where none is named.
pub const DEFAULT_SESSION: &str = "default";

choices! {
    /// What to trace.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Tracer {
        /// Entries of functions.
        #[default]
        Function = "function",
        /// Entries and exits of functions: the call graph with durations.
        Graph = "graph",
        /// Nothing but the events that are enabled.
        Nop = "nop",
        /// How often functions are called and how long they take, counted in the guest: no records.
        Profile = "profile",
    }
}

impl From<Tracer> for TracerKind {
    fn from(tracer: Tracer) -> Self {
        match tracer {
            Tracer::Function | Tracer::Nop => Self::Function,
            Tracer::Graph => Self::Graph,
            Tracer::Profile => Self::Profile,
        }
    }
}

choices! {
    /// Where times come from.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum ClockSource {
        /// The guest's time-stamp counter, read in each record.
        #[default]
        Tsc = "tsc",
        /// A page that a thread of the host keeps: the resolution is its period, at a fifth to two thirds of the price, as the host is.
        Page = "page",
        /// Nowhere: records show order and counts only, at a tenth of the price.
        None = "none",
    }
}

choices! {
    /// How the guest's text is changed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum PatchMethod {
        /// While every vCPU is stopped.
        #[default]
        Quiesce = "quiesce",
        /// While the guest runs: breakpoint, rest, first byte. The guest must serve the breakpoints.
        Live = "live",
        /// While the guest runs, by one exchange of a word, what lies in one; the rest while every vCPU is stopped.
        ///
        /// The processor must promise that an instruction that is changed so is executed as it was or as it is.
        Atomic = "atomic",
    }
}

choices! {
    /// How a trace is kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum StoreKind {
        /// Calls and events, in uftrace's format.
        #[default]
        Uftrace = "uftrace",
        /// Records as the rings have them: quicker and smaller; who reads it puts calls together.
        Compact = "compact",
    }
}

/// The clock page's period in nanoseconds when nothing is said.
pub(crate) const PERIOD_NS: u64 = 100;
/// The periods that are possible: a beat takes some 10 ns, and a millisecond is what sleeping gives.
pub const PERIODS_NS: RangeInclusive<u64> = 10..=1_000_000;

/// Probes of all sessions, those of modules that are still to come too: who asks for more and more of them is to fill no
/// memory.
pub(super) const PROBES_MAX: usize = 4096;

/// What there can be room for in a record of an event, in bytes.
pub const RECORD_BYTES: RangeInclusive<u64> = 64..=65536;

/// Size of a ring in bytes when nothing is said.
pub(crate) const RING_BYTES: u64 = 4 << 20;

/// Which calls of a graph are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphOptions {
    /// Calls that are nested deeper are left out.
    pub max_depth: Option<NonZeroU32>,
    /// Only these functions and what they call; globs. None means all.
    pub functions: Vec<String>,
    /// Not these functions, nor what they call; globs.
    pub notrace: Vec<String>,
    /// Calls that took less are left out.
    pub threshold: Option<Threshold>,
}

impl GraphOptions {
    /// What they ask for.
    ///
    /// # Errors
    /// A glob that is none.
    pub fn rules(&self) -> Result<Rules, GlobError> {
        Rules::new(
            self.max_depth,
            &self.functions,
            &self.notrace,
            self.threshold,
        )
    }
}

/// How a session records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOptions {
    /// How the graph tracer leaves a function.
    pub return_hook: ReturnHook,
    /// What gives way when a ring is full.
    pub mode: Mode,
    /// What happens when vCPUs wait for a reader that can make no room any more (lossless).
    pub on_full: OnFull,
    /// Whether the guest sees by its clock that its vCPUs wait (lossless).
    pub wait_time: WaitTime,
    /// Where the times of records come from.
    pub clock: ClockSource,
    /// How often the clock page is written, in nanoseconds.
    pub clock_period: u64,
    /// The host CPU of the thread that writes the clock page.
    pub clock_cpu: Option<usize>,
    /// Size of the ring of each vCPU.
    pub ring_bytes: u64,
    /// Size of a stack of the guest: how the graph tracer tells threads apart. None for what the kernel uses, as far
    /// as it is known.
    pub stack_bytes: Option<u64>,
    /// Only these vCPUs are recorded; all if none is named.
    pub only_vcpus: Vec<u16>,
    /// Only what these tasks do is recorded, in the words of [`TaskTerm`](crate::tasks::TaskTerm); what all do if none is named.
    pub only_tasks: Vec<String>,
    /// What these tasks do is not recorded.
    pub not_tasks: Vec<String>,
    /// Whether tasks that these make from then on are meant, too.
    pub follow_forks: bool,
    /// Which calls of a graph are shown.
    pub graph: GraphOptions,
    /// Events of the guest to be recorded, by name.
    pub event: Vec<String>,
    /// Probes: `SPEC FETCH… [if CONDITION]`.
    pub probe: Vec<String>,
    /// How these probes are put into the text, 1 to 5; each in the best way there is if nothing is said.
    pub probe_tactic: Option<u8>,
    /// Room for what an event or a probe says, in bytes of its record; what they need if nothing is said.
    pub record_bytes: Option<u64>,
    /// Whether it is recorded where each call was made (function): a record takes two places then.
    pub callers: bool,
    /// Whether arguments of calls are recorded.
    pub args: bool,
    /// Whether what calls return is recorded.
    pub retval: bool,
    /// The directory of the trace.
    pub output: Option<PathBuf>,
    /// How it is kept there.
    pub store: StoreKind,
    /// Whether an older trace there is replaced.
    pub force: bool,
    /// What is to be listened for, as far as that is known when the session is made: what can never be is refused before an older
    /// trace is replaced.
    pub occasions: Vec<Occasion>,
}

impl SessionOptions {
    /// When values of calls are captured.
    #[must_use]
    pub const fn captures(&self) -> CallMoments {
        CallMoments {
            entry: self.args,
            exit: self.retval,
        }
    }

    /// The size of each ring.
    ///
    /// # Errors
    /// [`RingSizeError`] when there is no ring of that size.
    pub fn geometry(&self) -> Result<Geometry, RingSizeError> {
        Geometry::with_bytes(self.ring_bytes)
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            return_hook: ReturnHook::default(),
            mode: Mode::Overwrite,
            on_full: OnFull::default(),
            wait_time: WaitTime::default(),
            clock: ClockSource::default(),
            clock_period: PERIOD_NS,
            clock_cpu: None,
            ring_bytes: RING_BYTES,
            stack_bytes: None,
            only_vcpus: Vec::new(),
            only_tasks: Vec::new(),
            not_tasks: Vec::new(),
            follow_forks: false,
            graph: GraphOptions::default(),
            event: Vec::new(),
            probe: Vec::new(),
            probe_tactic: None,
            record_bytes: None,
            callers: false,
            args: false,
            retval: false,
            output: None,
            store: StoreKind::default(),
            force: false,
            occasions: Vec::new(),
        }
    }
}

/// What tracing begins with.
#[derive(Debug, Clone)]
pub struct TracingOptions {
    /// Whether the default session traces from the attach point on.
    pub enabled: bool,
    /// What the default session records.
    pub tracer: Tracer,
    /// How the default session records it.
    pub session: SessionOptions,
    /// Globs of functions to trace; none means all.
    pub filter: Vec<String>,
    /// Globs of functions not to trace.
    pub notrace: Vec<String>,
    /// Whether the guest runs already, so that tracing begins where it is.
    pub is_running: bool,
    /// Attach when this function is reached.
    pub attach_at: Option<String>,
    /// Whether functions without a patch site are to be traceable.
    pub any: bool,
    /// Whether the guest's lock prefixes are effective from the start on.
    pub smp_locks: Option<LockPrefixes>,
    /// How the guest's text is changed.
    pub patch_method: PatchMethod,
    /// How a tracepoint leads to its only callback.
    pub dispatch: Dispatch,
    /// How long text may be written in one pause; none for everything in one.
    pub max_pause: Option<Duration>,
    /// How many vCPUs the guest has.
    pub vcpus: u16,
    /// Bytes of the window that rings of one session may take.
    pub rings_room: u64,
    /// What records, events and threads of all traces may take of the disk, dumps among them.
    pub budget: Budget,
    /// The port to which probes of last resort write, so that they leave the guest; none where nobody serves it.
    pub probe_port: Option<u8>,
    /// The port to which the guest, or a stub in it, announces text that comes, and waits; none where nobody serves it.
    pub doorbell_port: Option<u8>,
    /// Whether a vCPU that has left the guest can be made to wait.
    pub vcpus_can_wait: bool,
    /// Whether the guest need not see that: asked when it matters, since it has to be tried.
    pub can_hide_waits: fn() -> bool,
}

/// One vCPU, and a default session that waits to be started.
impl Default for TracingOptions {
    fn default() -> Self {
        Self {
            enabled: false,
            tracer: Tracer::default(),
            session: SessionOptions::default(),
            filter: Vec::new(),
            notrace: Vec::new(),
            is_running: false,
            attach_at: None,
            any: false,
            smp_locks: None,
            patch_method: PatchMethod::default(),
            dispatch: Dispatch::default(),
            max_pause: None,
            vcpus: 1,
            budget: Budget::default(),
            rings_room: u64::MAX,
            probe_port: None,
            doorbell_port: None,
            vcpus_can_wait: false,
            can_hide_waits: || false,
        }
    }
}
