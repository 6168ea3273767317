//! `vmm export`: a graph trace in the formats of other tools. Needs no KVM.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap::ValueEnum;
use inferno::flamegraph;
use serde_json::{Map, Value, json};
use terms::field::FieldValue;
use terms::function::FunctionId;
use trace::export::chrome::Chrome;
use trace::export::folded::{Folded, Weight};
use trace::export::uftrace::writer_of;
use trace::graph::selection::Rules;
use trace::graph::{CallEvent, CallKind};
use trace::report::calls::{Calls, Shown};
use trace::report::directory::TraceDirectory;
use trace::report::events::Events;
use trace::report::{Missing, ReportError, unfinished};

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

/// Writes the trace in `directory` to `file`, or to stdout. In stacks a call's arguments are part of its name
/// if `with_values`.
///
/// # Errors
/// When the directory is no graph trace, a damaged one, or one that lacks calls that were written, or the output cannot
/// be written. What is there is written all the same.
pub fn export(
    directory: &Path,
    format: ExportFormat,
    rules: &Rules,
    with_values: bool,
    file: Option<&Path>,
) -> Result<ExitStatus, Failure> {
    if with_values && format == ExportFormat::Chrome {
        let message = "--values: is about the stacks of folded and flamegraph; chrome has the values of every call anyway";
        return Err(Failure::bad_input(message));
    }
    // Asked first: a trace that is completed meanwhile is read as a whole.
    let writer = writer_of(directory);
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
            write(&trace, calls, format, with_values, BufWriter::new(file)).map_err(|error| {
                match error {
                    ReportError::Output(error) => failed(error),
                    other => Failure::bad_input(other),
                }
            })
        }
        None => match write(
            &trace,
            calls,
            format,
            with_values,
            BufWriter::new(io::stdout().lock()),
        ) {
            Err(ReportError::Output(error)) => stdout::taken(error).map(|()| None),
            other => other.map_err(Failure::bad_input),
        },
    };
    if let Some(note) = unfinished(&trace, writer) {
        log::warn!("{note}");
    }
    match outcome? {
        Some(missing) => Err(Failure::bad_input(missing)),
        None => Ok(ExitStatus::Success),
    }
}

/// Returns what the trace should have and has not.
fn write(
    trace: &TraceDirectory,
    mut calls: Calls,
    format: ExportFormat,
    with_values: bool,
    mut out: impl Write,
) -> Result<Option<Missing>, ReportError> {
    let mut events = None;
    match format {
        ExportFormat::Chrome => events = Some(chrome(trace, &mut calls, &mut out)?),
        ExportFormat::Folded => out
            .write_all(&folded(trace, &mut calls, with_values)?)
            .map_err(ReportError::Output)?,
        ExportFormat::Flamegraph => {
            let folded = folded(trace, &mut calls, with_values)?;
            draw(weight(trace), &folded, &mut out)?;
        }
    }
    out.flush().map_err(ReportError::Output)?;
    let missing = Missing::of(trace, calls.entries());
    Ok(missing.or_else(|| Missing::of_events(trace, events?)))
}

fn name(trace: &TraceDirectory, calls: &Calls, function: FunctionId) -> String {
    let address = calls.functions.address(function);
    trace.names.name(address).into_owned()
}

/// What is known of a call: its arguments by their names, or what it returned.
fn values(trace: &TraceDirectory, calls: &Calls, step: &CallEvent) -> Map<String, Value> {
    let named = |(name, value): (&str, &FieldValue)| (name.to_owned(), json!(value));
    match step.kind {
        CallKind::Entry(function) => {
            let address = calls.functions.address(function);
            trace.arguments(address, step).map(named).collect()
        }
        CallKind::Exit { .. } => match step.values.as_deref() {
            None | Some([]) => Map::new(),
            Some([only]) => Map::from_iter([named(("returned", only))]),
            Some(several) => Map::from_iter([("returned".to_owned(), json!(several))]),
        },
        CallKind::Lost(_) => Map::new(),
    }
}

/// Passes on every step, and says what was met.
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
    for note in &calls.notes {
        log::warn!("{note}");
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

/// With `with_values` calls of one function with other arguments are other frames.
fn folded(
    trace: &TraceDirectory,
    calls: &mut Calls,
    with_values: bool,
) -> Result<Vec<u8>, ReportError> {
    let mut folded = Folded::by(weight(trace));
    let mut frames = Frames::default();
    each(calls, |calls, step| {
        let CallKind::Entry(function) = step.kind else {
            folded.add(step);
            return Ok(());
        };
        let mut frame = name(trace, calls, function);
        let args = trace.args(calls.functions.address(function), step);
        if with_values && !args.is_empty() {
            frame = format!("{frame}({args})");
        }
        let kind = CallKind::Entry(frames.number(frame));
        folded.add(&CallEvent {
            kind,
            ..step.clone()
        });
        Ok(())
    })?;
    let mut text = Vec::new();
    folded
        .write(|frame| frames.name(frame), &mut text)
        .map_err(ReportError::Output)?;
    Ok(text)
}

/// The frames of stacks, numbered as they come.
#[derive(Default)]
struct Frames {
    numbers: HashMap<String, FunctionId>,
    names: Vec<String>,
}

impl Frames {
    fn number(&mut self, name: String) -> FunctionId {
        let next = FunctionId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        let number = *self.numbers.entry(name.clone()).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        number
    }

    fn name(&self, frame: FunctionId) -> String {
        self.names.get(frame.index()).cloned().unwrap_or_default()
    }
}

/// Returns how many events there were.
fn chrome(
    trace: &TraceDirectory,
    calls: &mut Calls,
    out: &mut impl Write,
) -> Result<u64, ReportError> {
    let mut chrome = Chrome::begin(out, trace.clock_period_ns()).map_err(ReportError::Output)?;
    each(calls, |calls, step| {
        let name = match step.kind {
            CallKind::Entry(function) | CallKind::Exit { function, .. } => {
                name(trace, calls, function)
            }
            CallKind::Lost(_) => String::new(),
        };
        let values = values(trace, calls, step);
        chrome.add(step, &name, values).map_err(ReportError::Output)
    })?;
    let (mut events, mut count) = (Events::of(trace)?, 0);
    while let Some(event) = events.next_until(u64::MAX)? {
        count += 1;
        chrome.point(&event).map_err(ReportError::Output)?;
    }
    chrome
        .finish(|function| name(trace, calls, function))
        .map_err(ReportError::Output)?;
    Ok(count)
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
