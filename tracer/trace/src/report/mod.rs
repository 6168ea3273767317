//! Traces as text: a trace directory read back, and printed as ftrace prints the buffer of its
//! `function` or `function_graph` tracer, or as a table: calls per function, who calls whom, the slowest.

mod anomalies;
pub mod calls;
mod data_file;
pub mod directory;
mod error;
pub mod events;
mod graph;
#[cfg(test)]
mod graph_tests;
pub mod last;
mod missing;
pub mod rows;
mod slowest;
pub(crate) mod stream;
pub mod summary;
#[cfg(test)]
mod tests;

use std::io::{self, BufWriter, Write};
use std::path::Path;

use self::calls::{Calls, Shown};
use self::directory::TraceDirectory;
pub use self::error::ReportError;
pub use self::missing::Missing;
use self::rows::Rows;
use self::slowest::print_slowest;
use self::stream::{Happened, Stream};
use self::summary::{By, print_summary};
use crate::event::{Event, EventKind};
use crate::export::events::EventLine;
use crate::export::uftrace::{NOP, writer_of};
use crate::graph::selection::Rules;

/// How a trace is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
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
}

impl Format {
    /// As what was recorded is shown when nobody says how.
    fn usual(trace: &TraceDirectory) -> Self {
        match trace.is_graph() {
            true => Self::Graph,
            false => Self::Function,
        }
    }

    /// Whether it has rows of functions.
    const fn is_table(self) -> bool {
        !matches!(self, Self::Function | Self::Graph)
    }

    /// What it is for, if that needs returns.
    const fn of_graph(self) -> Option<&'static str> {
        match self {
            Self::Function | Self::Counts => None,
            Self::Graph => Some("showing calls in each other"),
            Self::Callers | Self::Callees => Some("telling who called whom"),
            Self::Slowest => Some("telling how long a call took"),
        }
    }
}

/// What is to be printed.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// How; without it as it was recorded.
    pub format: Option<Format>,
    /// Which calls of a graph.
    pub rules: Rules,
    /// Which rows of a table.
    pub rows: Rows,
}

impl From<Format> for View {
    fn from(format: Format) -> Self {
        Self {
            format: Some(format),
            ..Self::default()
        }
    }
}

/// What was printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Printed {
    /// Calls in the trace.
    pub entries: u64,
    /// Events in the trace.
    pub events: u64,
    /// Records that the trace says were lost.
    pub lost: u64,
    /// Remarks for the user, one line each.
    pub notes: Vec<String>,
    /// Calls or events that the trace should have and has not.
    pub missing: Option<Missing>,
}

impl Printed {
    fn count(&mut self, happened: &Happened) {
        let lost = match happened {
            Happened::Call(Shown::Step(step) | Shown::Leaf(step, _)) => match step.kind {
                EventKind::Entry(_) => {
                    self.entries += 1;
                    0
                }
                EventKind::Lost(count) | EventKind::LostPoints(count) => count,
                EventKind::Exit { .. } | EventKind::Point(_) | EventKind::Stall(_) => 0,
            },
            Happened::Point(event) => {
                self.events += u64::from(event.event.is_some());
                event.lost
            }
            Happened::Stall(_) => 0,
        };
        self.lost = self.lost.saturating_add(lost);
    }
}

/// Prints what is viewed of the trace in `directory`.
///
/// # Errors
/// A [`ReportError`] that names the file; what was read before it is printed.
pub fn print(
    directory: &Path,
    View {
        format,
        rules,
        rows,
    }: &View,
    out: impl Write,
) -> Result<Printed, ReportError> {
    // Asked first: a trace that is completed meanwhile is read as a whole.
    let writer = writer_of(directory);
    let trace = TraceDirectory::open(directory)?;
    let format = format.unwrap_or_else(|| Format::usual(&trace));
    let mut out = BufWriter::new(out);
    if !trace.is_graph() && !rules.is_everything() {
        let selecting = "selecting calls by depth, root or duration";
        return Err(ReportError::NotAGraph(selecting));
    }
    if let Some(what) = format.of_graph().filter(|_| !trace.is_graph()) {
        return Err(ReportError::NotAGraph(what));
    }
    if !format.is_table() && !rows.are_all() {
        return Err(ReportError::NotATable);
    }
    let mut calls = Calls::open(&trace, rules.clone())?;
    let by = match format {
        Format::Callers => By::Caller,
        Format::Callees => By::Callee,
        _ => By::Function,
    };
    let result = match format {
        Format::Function => print_entries(&trace, &mut calls, &mut out),
        Format::Counts | Format::Callers | Format::Callees => {
            print_summary(&trace, &mut calls, (by, rows), &mut out)
        }
        Format::Slowest => print_slowest(&trace, &mut calls, rows, &mut out),
        Format::Graph => graph::print_graph(&trace, &mut calls, &mut out),
    };
    if result.is_ok() {
        anomalies::print_doubts(&trace, &mut out).map_err(ReportError::Output)?;
    }
    out.flush().map_err(ReportError::Output)?;
    let mut printed = result?;
    printed.notes.extend(std::mem::take(&mut calls.notes));
    printed.notes.extend(unfinished(&trace, writer));
    let missing = Missing::of(&trace, calls.entries());
    printed.missing = missing.or_else(|| Missing::of_events(&trace, printed.events));
    Ok(printed)
}

/// What is to be said of a trace that was not completed; its `writer` was asked for before the trace was opened.
#[must_use]
pub fn unfinished(trace: &TraceDirectory, writer: Option<String>) -> Option<String> {
    trace.side.as_ref().filter(|side| !side.finished)?;
    Some(match writer {
        Some(writer) => format!(
            "the trace is being written by {writer}: what has not been written yet is not shown"
        ),
        None => "the trace was not ended in order: its end may be missing".to_owned(),
    })
}

/// Every entry, whether or not the trace has returns, with events and clock stalls at their times.
fn print_entries(
    trace: &TraceDirectory,
    calls: &mut Calls,
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    function_header(trace, out).map_err(ReportError::Output)?;
    let mut stream = Stream::of(trace, calls, false)?;
    let mut printed = Printed::default();
    while let Some(happened) = stream.next()? {
        printed.count(&happened);
        let line = match &happened {
            Happened::Stall(stall) => writeln!(out, "# {stall}"),
            Happened::Point(event) => point_line(out, event),
            Happened::Call(Shown::Step(step) | Shown::Leaf(step, _)) => {
                entry_line(trace, stream.calls, step, out)
            }
        };
        line.map_err(ReportError::Output)?;
    }
    Ok(printed)
}

/// The entry of a call, or how many are lost.
fn entry_line(
    trace: &TraceDirectory,
    calls: &Calls,
    step: &Event,
    out: &mut impl Write,
) -> io::Result<()> {
    let vcpu = usize::from(step.vcpu);
    match step.kind {
        EventKind::Entry(function) => {
            function_line(out, vcpu, step.time_ns, &calls.name(trace, function))
        }
        EventKind::Lost(count) => writeln!(out, "CPU:{vcpu} [LOST {count} EVENTS]"),
        _ => Ok(()),
    }
}

/// An event, or how many are lost.
fn point_line(out: &mut impl Write, event: &EventLine) -> io::Result<()> {
    let vcpu = usize::from(event.vcpu);
    match event.event {
        Some(_) => function_line(out, vcpu, event.time_ns, &event.to_string()),
        None => writeln!(out, "CPU:{vcpu} {event}"),
    }
}

fn function_header(trace: &TraceDirectory, out: &mut impl Write) -> io::Result<()> {
    let vcpus = match &trace.side {
        Some(side) if trace.is_graph() => side.metadata.vcpus.into(),
        _ => trace.tasks.len(),
    };
    let tracer = match &trace.side {
        Some(side) if side.metadata.tracer == NOP => NOP,
        _ => "function",
    };
    writeln!(out, "# tracer: {tracer}\n#")?;
    if let Some(side) = trace.side.as_ref().filter(|side| side.finished) {
        let sum = |of: fn(&crate::export::uftrace::VcpuTotals) -> u64| {
            side.totals.iter().map(of).fold(0, u64::saturating_add)
        };
        // Calls of a graph that could not be written are in no vCPU's count of them.
        let held = sum(|totals| totals.entries).saturating_sub(side.dropped);
        let missing = sum(|totals| totals.lost.saturating_add(totals.dropped));
        let missing = missing.saturating_add(side.dropped);
        let written = held.saturating_add(missing);
        writeln!(
            out,
            "# entries-in-buffer/entries-written: {held}/{written}   #P:{vcpus}\n#"
        )?;
    }
    writeln!(out, "#           TASK-PID     CPU#    TIMESTAMP   FUNCTION")?;
    writeln!(out, "#              | |         |         |         |")
}

fn function_line(out: &mut impl Write, vcpu: usize, time: u64, name: &str) -> io::Result<()> {
    let (seconds, micros) = (time / 1_000_000_000, time / 1_000 % 1_000_000);
    writeln!(
        out,
        "{:>16}-{:<7} [{vcpu:03}] {seconds:>5}.{micros:06}: {name}",
        "<guest>", 0
    )
}
