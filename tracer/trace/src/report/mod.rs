//! Traces as text: a trace directory read back, and printed as ftrace prints the buffer of its
//! `function` or `function_graph` tracer, or as calls per function.

mod anomalies;
pub mod calls;
pub mod directory;
mod error;
pub mod events;
mod graph;
#[cfg(test)]
mod graph_tests;
pub mod last;
mod missing;
pub mod records;
mod stalls;
pub mod summary;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use self::calls::{Calls, Shown};
use self::directory::TraceDirectory;
pub use self::error::ReportError;
use self::events::Events;
pub use self::missing::Missing;
use self::records::{Head, Records};
use self::stalls::Stalls;
use crate::export::uftrace::{NOP, writer_of};
use crate::graph::CallKind;
use crate::graph::selection::Rules;
use terms::quantity::plain;

/// How a trace is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One line per call, as ftrace's `function` tracer.
    Function,
    /// One line per function.
    Counts,
    /// The calls nested, with durations, as ftrace's `function_graph` tracer.
    Graph,
}

impl Format {
    /// As what was recorded is shown when nobody says how.
    fn usual(trace: &TraceDirectory) -> Self {
        match trace.is_graph() {
            true => Self::Graph,
            false => Self::Function,
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

/// Prints the trace in `directory`; of a graph trace what the rules select. Without a format, as it was recorded.
///
/// # Errors
/// A [`ReportError`] that names the file; what was read before it is printed.
pub fn print(
    directory: &Path,
    format: impl Into<Option<Format>>,
    rules: &Rules,
    out: impl Write,
) -> Result<Printed, ReportError> {
    // Asked first: a trace that is completed meanwhile is read as a whole.
    let writer = writer_of(directory);
    let trace = TraceDirectory::open(directory)?;
    let format = format.into().unwrap_or_else(|| Format::usual(&trace));
    let mut out = BufWriter::new(out);
    let (result, notes, read) = if trace.is_graph() {
        let mut calls = Calls::open(&trace, rules.clone())?;
        let result = match format {
            Format::Function => print_entries(&trace, &mut calls, &mut out),
            Format::Counts => summary::print_summary(&trace, &mut calls, &mut out),
            Format::Graph => graph::print_graph(&trace, &mut calls, &mut out),
        };
        let read = calls.entries();
        (result, calls.notes, read)
    } else {
        if !rules.is_everything() {
            let options = "--max-depth, --graph-function, --graph-notrace or --threshold";
            return Err(ReportError::NotAGraph(options));
        }
        let mut records = Records::open(&trace.tasks, &trace.values)?;
        let result = match format {
            Format::Function => print_function(&trace, &mut records, &mut out),
            Format::Counts => print_counts(&trace, &mut records, &mut out),
            Format::Graph => Err(ReportError::NotAGraph("--format graph")),
        };
        let read = records.entries;
        (result, records.notes, read)
    };
    if result.is_ok() {
        anomalies::print_doubts(&trace, &mut out).map_err(ReportError::Output)?;
    }
    out.flush().map_err(ReportError::Output)?;
    let mut printed = result?;
    printed.notes.extend(notes);
    printed.notes.extend(unfinished(&trace, writer));
    let calls = Missing::of(&trace, read);
    printed.missing = calls.or_else(|| Missing::of_events(&trace, printed.events));
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

/// The lines of a trace as the function tracer shows it, with events and clock stalls at their times.
struct FunctionLines<'a, W> {
    stalls: Stalls<'a>,
    events: Events,
    printed: Printed,
    out: &'a mut W,
}

impl<'a, W: Write> FunctionLines<'a, W> {
    fn begin(trace: &'a TraceDirectory, out: &'a mut W) -> Result<Self, ReportError> {
        function_header(trace, out).map_err(ReportError::Output)?;
        Ok(Self {
            stalls: Stalls::of(trace),
            events: Events::of(trace)?,
            printed: Printed::default(),
            out,
        })
    }

    /// What happened beside the calls up to a time.
    fn until(&mut self, time_ns: u64) -> Result<(), ReportError> {
        let stalls = self.stalls.print_until(time_ns, self.out);
        stalls.map_err(ReportError::Output)?;
        self.events_until(time_ns)
    }

    fn events_until(&mut self, time_ns: u64) -> Result<(), ReportError> {
        while let Some(event) = self.events.next_until(time_ns)? {
            self.printed.lost = self.printed.lost.saturating_add(event.lost);
            let vcpu = usize::from(event.vcpu);
            let line = match event.event {
                Some(_) => {
                    self.printed.events += 1;
                    function_line(self.out, vcpu, event.time_ns, &event.to_string())
                }
                None => writeln!(self.out, "CPU:{vcpu} {event}"),
            };
            line.map_err(ReportError::Output)?;
        }
        Ok(())
    }

    fn entry(&mut self, vcpu: usize, time_ns: u64, name: &str) -> Result<(), ReportError> {
        self.printed.entries += 1;
        function_line(self.out, vcpu, time_ns, name).map_err(ReportError::Output)
    }

    fn lost(&mut self, vcpu: usize, count: u64) -> Result<(), ReportError> {
        self.printed.lost = self.printed.lost.saturating_add(count);
        writeln!(self.out, "CPU:{vcpu} [LOST {count} EVENTS]").map_err(ReportError::Output)
    }

    fn end(mut self) -> Result<Printed, ReportError> {
        self.events_until(u64::MAX)?;
        Ok(self.printed)
    }
}

/// The entries of a graph trace, as the function tracer would show them.
fn print_entries(
    trace: &TraceDirectory,
    calls: &mut Calls,
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    let mut lines = FunctionLines::begin(trace, out)?;
    while let Some(shown) = calls.pop()? {
        let (Shown::Step(step) | Shown::Leaf(step, _)) = shown;
        lines.until(step.time_ns)?;
        let vcpu = usize::from(step.vcpu);
        match step.kind {
            CallKind::Entry(function) => {
                let name = trace.names.name(calls.functions.address(function));
                lines.entry(vcpu, step.time_ns, &name)?;
            }
            CallKind::Lost(count) => lines.lost(vcpu, count)?,
            CallKind::Exit { .. } => {}
        }
    }
    lines.end()
}

fn print_function(
    trace: &TraceDirectory,
    records: &mut Records,
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    let mut lines = FunctionLines::begin(trace, out)?;
    while let Some((vcpu, time, head)) = records.pop()? {
        lines.until(time)?;
        match head {
            Head::Entry(address) => lines.entry(vcpu, time, &trace.names.name(address))?,
            Head::Lost(count) => lines.lost(vcpu, count)?,
        }
    }
    lines.end()
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

fn print_counts(
    trace: &TraceDirectory,
    records: &mut Records,
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    let mut calls: HashMap<u64, u64> = HashMap::new();
    let mut lost = vec![0u64; trace.tasks.len()];
    let mut printed = Printed::default();
    let end = loop {
        match records.pop() {
            Ok(Some((_, _, Head::Entry(address)))) => {
                printed.entries += 1;
                *calls.entry(address).or_default() += 1;
            }
            Ok(Some((vcpu, _, Head::Lost(count)))) => {
                printed.lost = printed.lost.saturating_add(count);
                if let Some(of_vcpu) = lost.get_mut(vcpu) {
                    *of_vcpu = of_vcpu.saturating_add(count);
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    counts_table(trace, &calls, &lost, &printed, out).map_err(ReportError::Output)?;
    let (events, events_lost) = Events::of(trace)?.print_counts(out)?;
    printed.events = events;
    printed.lost = printed.lost.saturating_add(events_lost);
    end.map(|()| printed)
}

fn counts_table(
    trace: &TraceDirectory,
    calls: &HashMap<u64, u64>,
    lost: &[u64],
    printed: &Printed,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut rows: Vec<_> = calls
        .iter()
        .map(|(at, count)| (*count, trace.names.name(*at)))
        .collect();
    rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    writeln!(out, "{:>14}  FUNCTION", "CALLS")?;
    for (count, name) in &rows {
        writeln!(out, "{count:>14}  {name}")?;
    }
    writeln!(
        out,
        "# {} of {}, {} lost",
        plain(printed.entries, "call"),
        plain(rows.len() as u64, "function"),
        printed.lost
    )?;
    for (vcpu, count) in lost.iter().enumerate().filter(|(_, count)| **count > 0) {
        writeln!(out, "# CPU:{vcpu} [LOST {count} EVENTS]")?;
    }
    Ok(())
}
