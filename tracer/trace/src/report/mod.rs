//! Traces as text: a trace directory read back, and printed as ftrace prints the buffer of its
//! `function` or `function_graph` tracer, or added up in tables: calls per function, who calls whom, the slowest.

pub(crate) mod anomalies;
mod answer;
mod boot;
#[cfg(test)]
mod boot_tests;
#[cfg(test)]
mod caller_tests;
mod callers;
pub mod calls;
pub mod condition;
mod data_file;
#[cfg(test)]
mod deep_tests;
pub mod diff;
#[cfg(test)]
mod diff_tests;
pub mod directory;
mod error;
pub mod events;
#[cfg(test)]
mod excerpt_tests;
pub mod functions;
mod gather;
pub(crate) mod graph;
#[cfg(test)]
mod graph_tests;
#[cfg(test)]
mod hang_tests;
mod hits;
#[cfg(test)]
mod hits_tests;
mod init_calls;
pub mod last;
mod missing;
mod nesting;
mod open_calls;
mod overview;
pub mod rows;
mod scratch;
mod slowest;
mod spent;
pub(crate) mod spread;
mod step_map;
mod steps;
#[cfg(test)]
mod steps_tests;
pub(crate) mod stream;
pub(crate) mod summary;
mod table;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
mod timeline;
#[cfg(test)]
mod timeline_tests;
mod times;
mod trace_end;
mod unlisted;
#[cfg(test)]
mod value_tests;
mod values;

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};
use std::path::Path;

pub use self::answer::Notation;
use self::callers::Callers;
use self::calls::{Calls, Shown};
use self::directory::TraceDirectory;
pub use self::error::ReportError;
pub use self::missing::Missing;
use self::rows::Rows;
use self::steps::Steps;
use self::stream::{Happened, Leaves, Stream};
use self::summary::By;
use self::times::Times;
use crate::event::{Event, EventKind};
use crate::export::events::EventLine;
use crate::export::remark::Remark;
use crate::export::uftrace::NOP;
use crate::graph::excerpt::Excerpt;
pub use crate::watch::Watch;

/// How a trace is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// The first screen: what was traced and what is missing, the functions that took most, the slowest calls.
    #[default]
    Overview,
    /// One line per call, as ftrace's `function` tracer.
    Function,
    /// One line per function.
    Counts,
    /// The calls nested, with durations, as ftrace's `function_graph` tracer.
    Graph,
    /// One line per function and who called it, function by function.
    Callers,
    /// One line per function and what it called, caller by caller.
    Callees,
    /// The calls that took longest.
    Slowest,
    /// One line per field of each event.
    Values,
    /// When calls and events happened: one line per vCPU, and per thread.
    Timeline,
    /// Where the boot of a kernel went: its stages, its init calls, its waits.
    Boot,
    /// All that the tables of the others have, for a page that shows them.
    Everything,
}

impl Format {
    const fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Function => "function",
            Self::Counts => "counts",
            Self::Graph => "graph",
            Self::Callers => "callers",
            Self::Callees => "callees",
            Self::Slowest => "slowest",
            Self::Values => "values",
            Self::Timeline => "timeline",
            Self::Boot => "boot",
            Self::Everything => "everything",
        }
    }

    /// What it is for, if that needs returns.
    const fn of_graph(self) -> Option<&'static str> {
        match self {
            Self::Overview
            | Self::Function
            | Self::Counts
            | Self::Values
            | Self::Timeline
            | Self::Callers
            | Self::Callees
            | Self::Everything => None,
            Self::Graph => Some("showing calls in each other"),
            Self::Boot => Some("telling where the boot went"),
            Self::Slowest => Some("telling how long a call took"),
        }
    }

    /// What its rows are of, if it adds calls up.
    const fn by(self) -> Option<By> {
        match self {
            Self::Overview | Self::Counts | Self::Everything => Some(By::Function),
            Self::Callers => Some(By::Caller),
            Self::Callees => Some(By::Callee),
            Self::Function
            | Self::Graph
            | Self::Slowest
            | Self::Values
            | Self::Timeline
            | Self::Boot => None,
        }
    }

    /// How many of the slowest calls it shows when nobody says how many.
    const fn slowest(self) -> Option<usize> {
        match self {
            Self::Overview => Some(overview::CALLS),
            Self::Slowest => Some(SLOWEST),
            Self::Everything => Some(SLOWEST_OF_ALL),
            _ => None,
        }
    }

    /// Whether it shows what the fields of events were.
    const fn has_values(self) -> bool {
        matches!(self, Self::Overview | Self::Values | Self::Everything)
    }

    /// Whether it says what was traced, and what is missing.
    const fn has_about(self) -> bool {
        matches!(self, Self::Overview | Self::Everything)
    }

    /// How many waits it has one by one.
    const fn listed_waits(self) -> usize {
        match self {
            Self::Everything => WAITS_OF_PAGE,
            _ => 0,
        }
    }

    /// How many columns its timeline has, if it has one.
    const fn columns(self) -> Option<usize> {
        match self {
            Self::Timeline => Some(timeline::COLUMNS),
            Self::Everything => Some(timeline::COLUMNS_OF_PAGE),
            _ => None,
        }
    }
}

/// So many of the slowest calls when nobody says how many.
const SLOWEST: usize = 20;
/// And of a page.
const SLOWEST_OF_ALL: usize = 100;

/// So many waits of vCPUs a page draws.
const WAITS_OF_PAGE: usize = 4096;

/// What is to be printed.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// How.
    pub format: Format,
    /// Which part of it.
    pub excerpt: Excerpt,
    /// Which rows of a table.
    pub rows: Rows,
    /// For whom.
    pub notation: Notation,
    /// Whether people see when something happened with nanoseconds, and not with microseconds.
    pub has_nanoseconds: bool,
    /// Who watches.
    pub watch: Watch,
}

impl From<Format> for View {
    fn from(format: Format) -> Self {
        Self {
            format,
            ..Self::default()
        }
    }
}

/// What was printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Printed {
    /// Calls that were shown.
    pub entries: u64,
    /// Events that were shown.
    pub events: u64,
    /// Events in the trace.
    pub read_events: u64,
    /// Records that the trace says were lost.
    pub lost: u64,
    /// Remarks for the user, one line each.
    pub notes: Vec<String>,
    /// Calls or events that the trace should have and has not.
    pub missing: Option<Missing>,
}

impl Printed {
    /// A line about all vCPUs. A guest is held before it is traced: of that only the first screen tells.
    fn remark(&self, remark: &Remark, out: &mut impl Write) -> io::Result<()> {
        let is_before = (self.entries, self.events, self.lost) == (0, 0, 0);
        match remark {
            Remark::Pause(_) if is_before => Ok(()),
            other => writeln!(out, "# {other}"),
        }
    }

    fn count(&mut self, happened: &Happened) {
        match happened {
            Happened::Call(Shown::Step(step) | Shown::Leaf(step, _)) => self.count_step(step),
            Happened::Point(event) => {
                self.events += u64::from(event.event.is_some());
                self.lost = self.lost.saturating_add(event.lost);
            }
            Happened::Remark(_) => {}
        }
    }

    /// The same of a step of a thread.
    fn count_step(&mut self, step: &Event) {
        match step.kind {
            EventKind::Entry(_) => self.entries += 1,
            EventKind::Lost(count) | EventKind::LostPoints(count) => {
                self.lost = self.lost.saturating_add(count);
            }
            EventKind::Exit { .. }
            | EventKind::Point(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => {}
        }
    }
}

/// Prints what is viewed of the trace in `directory`.
///
/// # Errors
/// A [`ReportError`] that names the file; what was read before it is printed.
pub fn print(directory: &Path, view: &View, out: impl Write) -> Result<Printed, ReportError> {
    print_of(&TraceDirectory::open(directory)?, view, out)
}

/// The same of one that is open.
///
/// # Errors
/// As of [`print()`].
pub fn print_of(
    trace: &TraceDirectory,
    view: &View,
    out: impl Write,
) -> Result<Printed, ReportError> {
    view.check(trace)?;
    let mut out = BufWriter::new(out);
    let mut calls = Calls::open(trace, &view.excerpt)?;
    calls.watch = view.watch.clone();
    let result = match (view.format, view.notation) {
        (Format::Function, Notation::Json | Notation::Csv) => {
            steps::print(trace, &mut calls, (Steps::Entries, view.notation), &mut out)
        }
        (Format::Graph, Notation::Json | Notation::Csv) => {
            steps::print(trace, &mut calls, (Steps::All, view.notation), &mut out)
        }
        (Format::Function, Notation::Text) => {
            print_entries(trace, &mut calls, view.times(trace), &mut out)
        }
        (Format::Graph, Notation::Text) => graph::print_graph(trace, &mut calls, &mut out),
        _ => answer::print(trace, &mut calls, view, &mut out),
    };
    out.flush().map_err(ReportError::Output)?;
    let mut printed = result?;
    printed.notes.extend(std::mem::take(&mut calls.notes));
    // That it is damaged is an error, and said as one.
    let remark = trace.remark.clone().filter(|_| !trace.is_damaged);
    printed.notes.extend(remark);
    let missing = Missing::of(trace, &calls);
    printed.missing = missing.or_else(|| Missing::of_events(trace, printed.read_events));
    Ok(printed)
}

impl View {
    /// How times of this trace are shown.
    fn times(&self, trace: &TraceDirectory) -> Times {
        Times {
            period_ns: trace.clock_period_ns(),
            has_nanoseconds: self.has_nanoseconds,
        }
    }

    /// Whether this trace can be viewed so.
    fn check(&self, trace: &TraceDirectory) -> Result<(), ReportError> {
        if let Some(what) = self.format.of_graph().filter(|_| !trace.is_graph()) {
            return Err(trace.is_no_graph(what));
        }
        let is_of_callers = matches!(self.format, Format::Callers | Format::Callees);
        if is_of_callers && !trace.knows_callers() {
            return Err(ReportError::NoCallers);
        }
        let needs_times = match self.format {
            Format::Timeline => Some("a timeline"),
            Format::Boot => Some("telling where the boot went"),
            _ => None,
        };
        if let Some(what) = needs_times.filter(|_| !trace.has_times()) {
            return Err(ReportError::NoTimes(what));
        }
        let is_one_by_one = matches!(self.format, Format::Function | Format::Graph);
        if is_one_by_one && !self.rows.are_all() {
            return Err(ReportError::NotATable);
        }
        match (self.notation, self.format) {
            (Notation::Csv, Format::Overview) => Err(ReportError::SeveralTables),
            _ => Ok(()),
        }
    }
}

/// Every entry, whether or not the trace has returns, with events and remarks at their times.
fn print_entries(
    trace: &TraceDirectory,
    calls: &mut Calls,
    times: Times,
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    function_header(trace, out).map_err(ReportError::Output)?;
    let mut stream = Stream::of(trace, calls, Leaves::Apart)?;
    let mut printed = Printed::default();
    let mut callers = Callers::default();
    while let Some(happened) = stream.next()? {
        printed.count(&happened);
        let line = match &happened {
            Happened::Remark(remark) => printed.remark(remark, out),
            Happened::Point(event) => point_line(out, (trace, times), event),
            Happened::Call(Shown::Step(step) | Shown::Leaf(step, _)) => {
                let caller = callers.name(trace, stream.calls, step);
                entry_line((trace, stream.calls), times, (step, caller), out)
            }
        };
        line.map_err(ReportError::Output)?;
    }
    printed.read_events = stream.events();
    let mut remarks = anomalies::doubts(trace);
    remarks.extend(anomalies::waits(trace));
    anomalies::print(&remarks, out).map_err(ReportError::Output)?;
    Ok(printed)
}

/// The entry of a call, with who made it if that is known, or how many are lost.
fn entry_line(
    (trace, calls): (&TraceDirectory, &Calls),
    times: Times,
    (step, caller): (&Event, Option<Cow<'_, str>>),
    out: &mut impl Write,
) -> io::Result<()> {
    let vcpu = usize::from(step.vcpu);
    match step.kind {
        EventKind::Entry(function) => {
            let name = calls.name(trace, function);
            let name = match caller {
                Some(caller) => format!("{name} <-{caller}").into(),
                None => name,
            };
            let moment = times.moment_if_known(trace.time_of_record(step.time_ns));
            function_line(out, vcpu, &moment, &name)
        }
        EventKind::Lost(count) => writeln!(out, "CPU:{vcpu} [LOST {count} EVENTS]"),
        _ => Ok(()),
    }
}

/// An event, or how many are lost.
fn point_line(
    out: &mut impl Write,
    (trace, times): (&TraceDirectory, Times),
    event: &EventLine,
) -> io::Result<()> {
    let moment = times.moment_if_known(trace.time_of_event(event));
    let vcpu = usize::from(event.vcpu);
    match event.event {
        Some(_) => function_line(out, vcpu, &moment, &event.to_string()),
        None => writeln!(out, "CPU:{vcpu} {event}"),
    }
}

fn function_header(trace: &TraceDirectory, out: &mut impl Write) -> io::Result<()> {
    let tracer = match &trace.side {
        Some(side) if side.metadata.tracer == NOP => NOP,
        _ => "function",
    };
    writeln!(out, "# tracer: {tracer}\n#")?;
    // Of a graph a line is a call, and what is lost may be half of one.
    let side = trace.side.as_ref().filter(|_| !trace.is_graph());
    if let Some(side) = side.filter(|side| side.finished) {
        let sum = |of: fn(&crate::export::uftrace::VcpuTotals) -> u64| {
            side.totals.iter().map(of).fold(0, u64::saturating_add)
        };
        let calls = sum(|totals| totals.entries);
        let events = side.events.events.values().copied();
        let held = events.fold(calls, u64::saturating_add);
        let missing = sum(|totals| totals.lost.saturating_add(totals.dropped));
        let missing = missing.saturating_add(side.events.lost);
        let written = held.saturating_add(missing);
        let vcpus = trace.tasks.len();
        writeln!(
            out,
            "# entries-in-buffer/entries-written: {held}/{written}   #P:{vcpus}\n#"
        )?;
    }
    writeln!(out, "#           TASK-PID     CPU#    TIMESTAMP   FUNCTION")?;
    writeln!(out, "#              | |         |         |         |")
}

fn function_line(out: &mut impl Write, vcpu: usize, moment: &str, name: &str) -> io::Result<()> {
    // As ftrace has it: five digits before the point, six after it.
    writeln!(
        out,
        "{:>16}-{:<7} [{vcpu:03}] {moment:>12}: {name}",
        "<guest>", 0
    )
}
