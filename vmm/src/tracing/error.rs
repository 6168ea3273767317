//! Why tracing operations fail.

use std::path::PathBuf;

use image::ImageError;
use terms::addr::Gva;
use tracer::engine::call_values::CallValuesError;
use tracer::engine::locks::LockError;
use tracer::engine::probes::ProbeError;
use tracer::engine::{ApplyError, AttachError};
use tracer::export::uftrace::ExportError;
use tracer::filter::{FilterError, expression};
use tracer::graph::threads::BadStackSize;
use tracer::patch::dynamic::RetargetError;
use tracer::patch::events::NoSuchEvent;
use tracer::patch::poke::TransactionError;
use tracer::quantity::counted;
use tracer::ring::geometry::RingSizeError;
use tracer::stub::cell::SESSIONS_MAX;
use tracer::target::MemoryError;

use super::DEFAULT_ATTACH;
use super::clock_page::ClockPageError;
use super::options::{PERIODS_NS, RECORD_BYTES};
use crate::control::protocol::RpcError;
use crate::failure::Failure;
use crate::layout;
use crate::live::LiveError;
use crate::quiesce::QuiesceError;
use crate::vcpu::AskVcpuError;

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
    /// What was asked of events.
    #[error(transparent)]
    Event(#[from] NoSuchEvent),
    /// What was asked of a probe.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// What was written for a probe.
    #[error("probe '{probe}': {why}")]
    BadProbe {
        /// As it was written.
        probe: String,
        /// What is wrong with it.
        #[source]
        why: tracer::probe::ProbeError,
    },
    /// What was asked of a dynamic function.
    #[error(transparent)]
    Retarget(#[from] RetargetError),
    /// Normalising the sites.
    #[error("the image's patch sites cannot be prepared: {0}")]
    Normalise(#[from] TransactionError),
    /// Live patching.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The lock prefixes.
    #[error(transparent)]
    Locks(#[from] LockError),
    /// The image has nothing to trace.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The session is on already.
    #[error(
        "session '{session}' has been started already: `filter` changes what it traces, `stop` ends it"
    )]
    AlreadyStarted {
        /// Its name.
        session: String,
    },
    /// The session is off.
    #[error("tracing has not been started in session '{session}': use `start` first")]
    NotStarted {
        /// Its name.
        session: String,
    },
    /// The name is none.
    #[error("'{name}' is no name for a session: 1 to 64 letters, digits, '-', '_' and '.'")]
    BadName {
        /// The name asked for.
        name: String,
    },
    /// The name is there.
    #[error("there is a session '{name}' already: choose another name, or delete that one")]
    NameTaken {
        /// The name asked for.
        name: String,
    },
    /// The name is not there.
    #[error("there is no session '{name}'; there are: {there}")]
    NoSession {
        /// The name asked for.
        name: String,
        /// The names that there are.
        there: String,
    },
    /// Sixteen are there.
    #[error("session '{name}' cannot be made: there are {SESSIONS_MAX} already, delete one")]
    TooManySessions {
        /// The name asked for.
        name: String,
    },
    /// A session that has recorded cannot become another kind.
    #[error(
        "session '{session}' is a {is} session with rings of its own: make another one with `session create NAME --tracer {asked}`"
    )]
    OtherTracer {
        /// Its name.
        session: String,
        /// Its kind.
        is: &'static str,
        /// The kind asked for.
        asked: &'static str,
    },
    /// Counters are asked of a session that has none.
    #[error("session '{session}' is a {is} session: only a profile session has counters")]
    NoProfile {
        /// Its name.
        session: String,
        /// Its kind.
        is: &'static str,
    },
    /// Records are asked of a session that has none.
    #[error(
        "session '{session}' is a profile session: it writes no trace, `ctl profile` shows what it counts"
    )]
    NoRecords {
        /// Its name.
        session: String,
    },
    /// A session has gone meanwhile.
    #[error("the session is not there any more")]
    NoSuchIndex,
    /// The ring size.
    #[error("--ring-size: {0}")]
    RingSize(#[from] RingSizeError),
    /// More than there is room for in the window region.
    #[error(
        "--ring-size {kib}: the rings of {} would take {} MiB, there is room for {} MiB: \
         give at most --ring-size {most_kib}",
        counted(u64::from(*rings), "vCPU"),
        wanted / layout::MIB,
        layout::RINGS_SIZE / layout::MIB
    )]
    RingsTooLarge {
        /// What was asked for, in KiB.
        kib: u64,
        /// How many rings of that size.
        rings: u16,
        /// What they and their details take, in bytes.
        wanted: u64,
        /// The largest ring size that fits, in KiB.
        most_kib: u64,
    },
    /// The room for what events say.
    #[error("--record-bytes {0}: powers of two from {min} to {max} are possible", min = RECORD_BYTES.start(), max = RECORD_BYTES.end())]
    RecordBytes(u64),
    /// An option that would change nothing.
    #[error("{option} is for {what}: leave it out, or say that, too")]
    NotApplicable {
        /// The option.
        option: &'static str,
        /// What it is for.
        what: &'static str,
    },
    /// Arguments and return values of something else than calls with exact times.
    #[error(
        "--args and --retval are for the graph tracer with --clock tsc: values are put to calls by their times"
    )]
    NoValues,
    /// Nothing is known of what functions take and return.
    #[error(
        "--args and --retval: of none of the {functions} functions the types are known; without debug information probes can \
         capture registers, and $arg1 to $arg16"
    )]
    NoTypes {
        /// How many were asked for.
        functions: usize,
    },
    /// Values of calls.
    #[error("--args and --retval: {0}")]
    CallValues(#[from] CallValuesError),
    /// The period of the clock page.
    #[error("--clock-period {0}: from {min} to {max} ns are possible", min = PERIODS_NS.start(), max = PERIODS_NS.end())]
    ClockPeriod(u64),
    /// The clock page.
    #[error(transparent)]
    ClockPage(#[from] ClockPageError),
    /// The stack size.
    #[error("--stack-size: {0}")]
    StackSize(#[from] BadStackSize),
    /// A root of the graph.
    #[error(
        "--graph-function '{glob}' matches no function of the image{}",
        expression(glob)
    )]
    NoRoot {
        /// The glob as given.
        glob: String,
    },
    /// The trace directory.
    #[error(transparent)]
    Output(#[from] ExportError),
    /// The directory of a session is there, where replacing it is possible.
    #[error("{}; --force replaces an older trace", ExportError::Exists(.directory.clone()))]
    OutputExists {
        /// The directory.
        directory: PathBuf,
    },
    /// The drain thread.
    #[error("the system gives no thread to read the rings: {0}")]
    Thread(#[source] std::io::Error),
    /// The text cannot be read.
    #[error("the guest's text cannot be read: {0}")]
    Digest(#[source] MemoryError),
    /// A register of a vCPU.
    #[error("a register of the guest cannot be read: {0}")]
    Register(#[from] AskVcpuError),
    /// The kernel is elsewhere.
    #[error(
        "the kernel does not run where it was linked, so it cannot be traced: its system calls enter at {runs}, \
         where {entry} would be {linked}; boot it with nokaslr"
    )]
    Moved {
        /// The function that system calls enter.
        entry: &'static str,
        /// Where the image has it.
        linked: Gva,
        /// Where the processor enters it.
        runs: Gva,
    },
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
        "this kernel has none of the functions {DEFAULT_ATTACH:?}, so it is not known when it can be traced: say it with --attach-at SYMBOL, or leave --trace out and use `vmm ctl start` when it runs"
    )]
    NoDefaultAttach,
    /// A machine that runs already cannot be prepared.
    #[error("the guest has been started already")]
    Started,
}

impl From<TracingError> for RpcError {
    fn from(error: TracingError) -> Self {
        Self::failed(error)
    }
}

impl From<TracingError> for Failure {
    fn from(error: TracingError) -> Self {
        match &error {
            TracingError::Filter(_)
            | TracingError::Event(_)
            | TracingError::Probe(_)
            | TracingError::BadProbe { .. }
            | TracingError::Locks(_)
            | TracingError::Live(LiveError::NoService { .. })
            | TracingError::Image(_)
            | TracingError::RingSize(_)
            | TracingError::RingsTooLarge { .. }
            | TracingError::NoRecords { .. }
            | TracingError::ClockPeriod(_)
            | TracingError::RecordBytes(_)
            | TracingError::NotApplicable { .. }
            | TracingError::NoValues
            | TracingError::NoTypes { .. }
            | TracingError::CallValues(_)
            | TracingError::ClockPage(ClockPageError::Cpu { .. })
            | TracingError::StackSize(_)
            | TracingError::NoRoot { .. }
            | TracingError::NoAttachSymbol { .. }
            | TracingError::NoDefaultAttach => Self::bad_input(error),
            TracingError::OutputExists { .. } => Self::bad_input(error),
            TracingError::Output(
                ExportError::Exists(_)
                | ExportError::Busy { .. }
                | ExportError::NotADirectory(_)
                | ExportError::NotATrace { .. },
            ) => Self::bad_input(error),
            TracingError::Output(_) => Self::output(error),
            _ => Self::tracing(error),
        }
    }
}
