//! `vmm export`: a graph trace in the formats of other tools. Needs no KVM.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap::ValueEnum;
use inferno::flamegraph;
use tracer::event::FunctionId;
use tracer::export::chrome::Chrome;
use tracer::export::folded::{Folded, Weight};
use tracer::graph::selection::Rules;
use tracer::graph::{CallEvent, CallKind};
use tracer::report::ReportError;
use tracer::report::calls::{Calls, Shown};
use tracer::report::directory::TraceDirectory;
use tracer::report::events::Events;

use super::stdout;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Folded stacks with nanoseconds (calls, where a trace has no times), for flame graph tools.
    Folded,
    /// A flame graph as SVG.
    Flamegraph,
    /// JSON for Chrome's trace viewer and Perfetto.
    Chrome,
}

/// Writes the trace in `directory` to `file`, or to stdout.
///
/// # Errors
/// When the directory is no graph trace or a damaged one, or the output cannot be written.
pub fn export(
    directory: &Path,
    format: ExportFormat,
    rules: &Rules,
    file: Option<&Path>,
) -> Result<ExitStatus, Failure> {
    let trace = TraceDirectory::open(directory).map_err(Failure::bad_input)?;
    if !trace.is_graph() {
        return Err(Failure::bad_input(ReportError::NotAGraph("export")));
    }
    let calls = Calls::open(&trace, rules.clone()).map_err(Failure::bad_input)?;
    let outcome = match file {
        Some(path) => {
            let failed =
                |error| Failure::output(format!("cannot write {}: {error}", path.display()));
            let file = File::create(path).map_err(failed)?;
            write(&trace, calls, format, BufWriter::new(file)).map_err(|error| match error {
                ReportError::Output(error) => failed(error),
                other => Failure::bad_input(other),
            })
        }
        None => match write(&trace, calls, format, BufWriter::new(io::stdout().lock())) {
            Err(ReportError::Output(error)) => stdout::taken(error),
            other => other.map_err(Failure::bad_input),
        },
    };
    outcome.map(|()| ExitStatus::Success)
}

fn write(
    trace: &TraceDirectory,
    calls: Calls,
    format: ExportFormat,
    mut out: impl Write,
) -> Result<(), ReportError> {
    match format {
        ExportFormat::Chrome => chrome(trace, calls, &mut out)?,
        ExportFormat::Folded => out
            .write_all(&folded(trace, calls)?)
            .map_err(ReportError::Output)?,
        ExportFormat::Flamegraph => draw(weight(trace), &folded(trace, calls)?, &mut out)?,
    }
    out.flush().map_err(ReportError::Output)
}

fn name(trace: &TraceDirectory, calls: &Calls, function: FunctionId) -> String {
    let address = calls.functions.address(function);
    trace.names.name(address).into_owned()
}

/// Passes on every step.
fn each(
    calls: &mut Calls,
    mut step: impl FnMut(&Calls, &CallEvent) -> Result<(), ReportError>,
) -> Result<(), ReportError> {
    while let Some(shown) = calls.pop()? {
        match shown {
            Shown::Step(one) => step(calls, &one)?,
            Shown::Leaf(entry, exit) => {
                step(calls, &entry)?;
                step(calls, &exit)?;
            }
        }
    }
    Ok(())
}

/// Without times there is only how often stacks were called.
fn weight(trace: &TraceDirectory) -> Weight {
    if trace.has_times() {
        Weight::Time
    } else {
        Weight::Calls
    }
}

fn folded(trace: &TraceDirectory, mut calls: Calls) -> Result<Vec<u8>, ReportError> {
    let mut folded = Folded::by(weight(trace));
    each(&mut calls, |_, step| {
        folded.add(step);
        Ok(())
    })?;
    let mut text = Vec::new();
    folded
        .write(|function| name(trace, &calls, function), &mut text)
        .map_err(ReportError::Output)?;
    Ok(text)
}

fn chrome(
    trace: &TraceDirectory,
    mut calls: Calls,
    out: &mut impl Write,
) -> Result<(), ReportError> {
    let mut chrome = Chrome::begin(out, trace.clock_period_ns()).map_err(ReportError::Output)?;
    each(&mut calls, |calls, step| {
        let name = match step.kind {
            CallKind::Entry(function) | CallKind::Exit { function, .. } => {
                name(trace, calls, function)
            }
            CallKind::Lost(_) => String::new(),
        };
        chrome.add(step, &name).map_err(ReportError::Output)
    })?;
    let mut events = Events::of(trace)?;
    while let Some(event) = events.next_until(u64::MAX)? {
        chrome.point(&event).map_err(ReportError::Output)?;
    }
    chrome
        .finish(|function| name(trace, &calls, function))
        .map_err(ReportError::Output)
}

fn draw(weight: Weight, folded: &[u8], out: &mut impl Write) -> Result<(), ReportError> {
    let mut options = flamegraph::Options::default();
    options.title = "exotrace".to_owned();
    options.count_name = weight.unit().to_owned();
    if folded.is_empty() {
        let nothing = "the trace has no call of known duration to draw";
        return Err(ReportError::Output(io::Error::other(nothing)));
    }
    flamegraph::from_reader(&mut options, folded, out)
        .map_err(|error| ReportError::Output(io::Error::other(error.to_string())))
}
