//! Why tracing operations fail.

use std::path::PathBuf;

#[cfg(feature = "foreign")]
use crate::engine::RestoreError;
use crate::engine::call_values::CallValuesError;
use crate::engine::locks::LockError;
use crate::engine::probes::ProbeError;
use crate::engine::{ApplyError, AttachError, TaskFilterError};
use crate::filter::{FilterError, expression};
use crate::points::dynamic::RetargetError;
use crate::points::events::NoSuchEvent;
use crate::ring::geometry::RingSizeError;
use crate::stack::UnwindError;
use crate::stub::cell::SESSIONS_MAX;
use crate::target::MemoryError;
use crate::tasks::TaskTermError;
use crate::text::poke::TransactionError;
use image::ImageError;
use terms::addr::Gva;
use terms::quantity::counted;
use trace::export::uftrace::ExportError;
use trace::glob::GlobError;
use trace::graph::threads::BadStackSize;

use super::lossless::NotLossless;
use super::options::{PERIODS_NS, PROBES_MAX, RECORD_BYTES};
use crate::guest::{NoClockPage, NotLive, RegisterError, StopError};

/// Why a tracing operation failed. The guest continues in each case.
#[derive(Debug, thiserror::Error)]
pub enum TracingError {
    /// The guest could not be paused.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A glob beside the filter's.
    #[error(transparent)]
    Glob(#[from] GlobError),
    /// The window or the session.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The change.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// What a dead tracer has left.
    #[error("what was left in the guest cannot be given back: {0}")]
    #[cfg(feature = "foreign")]
    Restore(#[from] RestoreError),
    /// What was asked of events.
    #[error(transparent)]
    Event(#[from] NoSuchEvent),
    /// What was asked of a probe.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// What was written for a probe.
    #[error("probe '{probe}'{}: {why}", column(.why))]
    BadProbe {
        /// As it was written.
        probe: String,
        /// What is wrong with it.
        #[source]
        why: crate::probe::BadProbe,
    },
    /// Stacks cannot be walked.
    #[error(transparent)]
    Unwind(#[from] UnwindError),
    /// A module has come, and what is to be probed in it cannot be.
    #[error("{what}")]
    ModuleProbe {
        /// Why not.
        what: String,
    },
    /// What was asked of a vCPU.
    #[error("there is no vCPU {vcpu}: the guest has {vcpus}, numbered from 0")]
    NoSuchVcpu {
        /// Its number.
        vcpu: u16,
        /// How many there are.
        vcpus: u16,
    },
    /// Times are to be taken from counters that have nothing to do with the host's.
    #[error(
        "session '{session}' cannot take times from the guest's counters (tsc): that of vCPU {vcpu} makes {khz} ticks in a millisecond, the host's \
         {host_khz}, which its VMM has KVM make up for"
    )]
    ClockSpeed {
        /// The session.
        session: String,
        /// The vCPU.
        vcpu: u16,
        /// Ticks of its counter in a millisecond.
        khz: u32,
        /// Ticks of the host's.
        host_khz: u32,
    },
    /// Some vCPUs are to be recorded where nobody can tell them apart.
    #[error(
        "session '{session}' cannot record only some vCPUs: their stubs write to one ring (`status` says why): read the trace of all"
    )]
    VcpusAlike {
        /// The session.
        session: String,
    },
    /// What was written for a task.
    #[error(transparent)]
    BadTask(#[from] TaskTermError),
    /// What was asked of tasks.
    #[error("only some tasks cannot be recorded: {0}")]
    Tasks(#[from] TaskFilterError),
    /// Something was to be taken out that is not there.
    #[error("session '{session}' names no task '{term}': it {has}")]
    NoSuchTask {
        /// The session.
        session: String,
        /// What was to be taken out.
        term: String,
        /// What it has.
        has: String,
    },
    /// Two filters of tasks.
    #[error(
        "tasks are named that alone are recorded, and others that are not: name those or these"
    )]
    TwoTaskFilters,
    /// What was asked of a dynamic function.
    #[error(transparent)]
    Retarget(#[from] RetargetError),
    /// Normalising the sites.
    #[error("the image's patch sites cannot be prepared: {0}")]
    Normalise(TransactionError),
    /// Live patching.
    #[error(transparent)]
    Live(#[from] NotLive),
    /// The lock prefixes.
    #[error(transparent)]
    Locks(#[from] LockError),
    /// The image has nothing to trace.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The session is on already.
    #[error("session '{session}' has been started already")]
    AlreadyStarted {
        /// Its name.
        session: String,
    },
    /// The session is off.
    #[error("tracing has not been started in session '{session}'")]
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
        /// The names that there are, as text.
        there: String,
    },
    /// Sixteen are there.
    #[error("session '{name}' cannot be made: there are {SESSIONS_MAX} already, delete one")]
    TooManySessions {
        /// The name asked for.
        name: String,
    },
    /// The limit of probes.
    #[error(
        "{wanted} cannot be added to the {there} that there are: there is room for {PROBES_MAX} of all sessions, remove some"
    )]
    TooManyProbes {
        /// How many were asked for.
        wanted: String,
        /// How many there are.
        there: usize,
    },
    /// A session that has recorded cannot become another kind.
    #[error(
        "session '{session}' is a {is} session with rings of its own: make another one that traces {asked}"
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
    #[error("session '{session}' is a profile session: it writes no trace")]
    NoRecords {
        /// Its name.
        session: String,
    },
    /// Something is waited for that can never be.
    #[error("'{occasion}' can never be: {reason}")]
    NoOccasion {
        /// What.
        occasion: String,
        /// Why not.
        reason: &'static str,
    },
    /// A session has gone meanwhile.
    #[error("the session is not there any more")]
    NoSuchIndex,
    /// The ring size.
    #[error("the size of a ring: {0}")]
    RingSize(#[from] RingSizeError),
    /// More than there is room for in the window region.
    #[error(
        "the rings of {} would take {} MiB, there is room for {} MiB: at most {most_kib} KiB each",
        counted(u64::from(*rings), "vCPU"),
        wanted >> 20,
        room >> 20
    )]
    RingsTooLarge {
        /// What was asked for, in KiB.
        kib: u64,
        /// How many rings of that size.
        rings: u16,
        /// What they and their details take, in bytes.
        wanted: u64,
        /// What there is for them, in bytes.
        room: u64,
        /// The largest ring size that fits, in KiB.
        most_kib: u64,
    },
    /// vCPUs cannot wait for its reader.
    #[error("a session cannot be lossless: {0}")]
    NotLossless(#[from] NotLossless),
    /// The room for what events say.
    #[error("room for {0} bytes in a record: powers of two from {min} to {max} are possible", min = RECORD_BYTES.start(), max = RECORD_BYTES.end())]
    RecordBytes(u64),
    /// Something that would change nothing.
    #[error("{0}: leave it out, or ask for that, too")]
    NotApplicable(#[from] NotApplicable),
    /// Arguments and return values of something else than calls with exact times.
    #[error(
        "values of calls are for the graph tracer with the clock tsc: they are put to calls by their times"
    )]
    NoValues,
    /// Nothing is known of what functions take and return.
    #[error(
        "of none of the {functions} functions the types are known; without debug information probes can \
         capture registers, and $arg1 to $arg16"
    )]
    NoTypes {
        /// How many were asked for.
        functions: usize,
    },
    /// Values of calls.
    #[error("values of calls: {0}")]
    CallValues(#[from] CallValuesError),
    /// The period of the clock page.
    #[error("a period of {0} ns for the clock page: from {min} to {max} ns are possible", min = PERIODS_NS.start(), max = PERIODS_NS.end())]
    ClockPeriod(u64),
    /// The clock page.
    #[error(transparent)]
    ClockPage(#[from] NoClockPage),
    /// The stack size.
    #[error("the size of a stack: {0}")]
    StackSize(#[from] BadStackSize),
    /// A root of the graph.
    #[error("'{glob}' matches no function of the image{}", expression(glob))]
    NoRoot {
        /// The glob as given.
        glob: String,
    },
    /// The trace directory.
    #[error(transparent)]
    Output(#[from] ExportError),
    /// The directory of a session is there, where replacing it is possible.
    #[error("{}", ExportError::Exists(.directory.clone()))]
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
    #[error(transparent)]
    Register(#[from] RegisterError),
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
    /// Another kernel runs than the image's.
    #[error(
        "another kernel runs than that of the file: of {compared} functions that were looked at {others} are not in \
         memory as the file has them; {function} has {runs} at {at}, in the file {file}"
    )]
    OtherKernel {
        /// Functions that were looked at.
        compared: usize,
        /// Those that are other ones.
        others: usize,
        /// The first of these.
        function: String,
        /// A place in it.
        at: Gva,
        /// What is there.
        runs: String,
        /// What the image has there.
        file: String,
    },
    /// No such symbol to attach at.
    #[error("the kernel has no symbol '{symbol}' to attach at; near: {near}")]
    NoAttachSymbol {
        /// The name given.
        symbol: String,
        /// What is like it, as text; empty when nothing is.
        near: String,
    },
    /// The kernel is none that we know.
    #[error(
        "this kernel has none of the functions {known:?}, so it is not known when it can be traced"
    )]
    NoDefaultAttach {
        /// Where kernels that we know can be traced.
        known: Vec<&'static str>,
    },
    /// The kernel has not come to where it can be traced, and is not trapped.
    #[error(
        "the kernel has not made its function sites nops yet, so it cannot be traced now; begin with it, or later"
    )]
    TooEarly,
    /// The function is unknown in which the kernel changes what tracing rests on.
    #[error(
        "the kernel has no symbol '{function}', where it changes what tracing rests on while it starts; it cannot be traced before it has"
    )]
    NoBorder {
        /// Its name.
        function: &'static str,
    },
    /// The kernel's sites must be as they were linked.
    #[error("the kernel rewrites its function sites now ({function}); try again when it has")]
    Rewriting {
        /// The function in which it does.
        function: &'static str,
    },
    /// It is not known when such a function has run.
    #[error("it cannot be seen when {function} returns: {why}; nothing more can be traced")]
    NoWayBack {
        /// Its name.
        function: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// Words that stubs and host share.
    #[error("session '{session}': its rings cannot be handed over: {source}")]
    Cells {
        /// The session.
        session: String,
        /// Why not.
        source: MemoryError,
    },
    /// A machine that runs already cannot be prepared.
    #[error("the guest has been started already")]
    Started,
}

/// What is asked of a session and would change nothing in it, because it is for something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotApplicable {
    /// [`GraphOptions::max_depth`](super::options::GraphOptions::max_depth).
    #[error("a limit of depth is for the graph tracer")]
    MaxDepth,
    /// [`GraphOptions::functions`](super::options::GraphOptions::functions).
    #[error("showing only some functions with what they call is for the graph tracer")]
    GraphFunctions,
    /// [`GraphOptions::notrace`](super::options::GraphOptions::notrace).
    #[error("leaving out what functions call is for the graph tracer")]
    GraphNotrace,
    /// [`GraphOptions::threshold`](super::options::GraphOptions::threshold).
    #[error("a threshold of duration is for the graph tracer")]
    Threshold,
    /// [`SessionOptions::stack_bytes`](super::options::SessionOptions::stack_bytes).
    #[error("the size of a stack is for the graph tracer")]
    StackSize,
    /// [`SessionOptions::callers`](super::options::SessionOptions::callers).
    #[error("recording where calls are made is for the function tracer (a graph has that anyhow)")]
    Callers,
    /// [`SessionOptions::on_full`](super::options::SessionOptions::on_full).
    #[error("what happens when nothing ends a wait is for the lossless mode")]
    OnFull,
    /// [`SessionOptions::wait_time`](super::options::SessionOptions::wait_time).
    #[error("hiding waits from the guest is for the lossless mode")]
    WaitTime,
    /// [`SessionOptions::clock_cpu`](super::options::SessionOptions::clock_cpu).
    #[error("a CPU for the clock's thread is for the clock page")]
    ClockCpu,
    /// [`SessionOptions::clock_period`](super::options::SessionOptions::clock_period).
    #[error("a period of the clock is for the clock page")]
    ClockPeriod,
    /// [`SessionOptions::follow_forks`](super::options::SessionOptions::follow_forks).
    #[error("following forks is for tasks that are named")]
    FollowForks,
}

/// Where in a probe's text an error is, to be said before what it is.
fn column(of: &crate::probe::BadProbe) -> String {
    let column = of.column();
    column.map_or_else(String::new, |column| format!(", column {column}"))
}

impl TracingError {
    /// Whether what was asked for takes debug information, and there is none.
    #[must_use]
    pub const fn wants_debug_information(&self) -> bool {
        matches!(self, Self::Filter(FilterError::NoFiles { why: None, .. }))
    }

    /// Whether what was written for a task is why it cannot be recorded, and nothing of ours or of the guest's.
    #[must_use]
    pub const fn is_of_named_task(&self) -> bool {
        match self {
            // That is what the stub is made of.
            Self::Tasks(why) => !matches!(why, TaskFilterError::Attach(_)),
            other => matches!(other, Self::BadTask(_) | Self::TwoTaskFilters),
        }
    }
}
