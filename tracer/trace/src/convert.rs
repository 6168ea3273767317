//! A trace directory in the formats of other tools: the one reader's calls and events, handed to the writer of a format.

use std::collections::HashMap;
use std::io::Write;

use serde_json::{Map, Value, json};
use terms::field::FieldValue;
use terms::function::FunctionId;

use crate::event::{Event, EventKind};
use crate::export::chrome::Chrome;
use crate::export::folded::{Folded, Weight};
use crate::report::ReportError;
use crate::report::calls::Calls;
use crate::report::directory::TraceDirectory;
use crate::report::stream::{Happened, Stream};

/// What is known of a call: its arguments by their names, or what it returned.
fn values(trace: &TraceDirectory, calls: &Calls, step: &Event) -> Map<String, Value> {
    let named = |(name, value): (&str, &FieldValue)| (name.to_owned(), json!(value));
    match step.kind {
        EventKind::Entry(function) => {
            let address = calls.functions.address(function);
            trace.arguments(address, step).map(named).collect()
        }
        EventKind::Exit { .. } => match step.values.as_deref() {
            None | Some([]) => Map::new(),
            Some([only]) => Map::from_iter([named(("returned", only))]),
            Some(several) => Map::from_iter([("returned".to_owned(), json!(several))]),
        },
        EventKind::Lost(_)
        | EventKind::Point(_)
        | EventKind::LostPoints(_)
        | EventKind::Stall(_) => Map::new(),
    }
}

/// Passes on every step, and after them what was met.
fn each(
    calls: &mut Calls,
    note: impl FnMut(&str),
    mut step: impl FnMut(&Calls, &Event) -> Result<(), ReportError>,
) -> Result<(), ReportError> {
    while let Some(shown) = calls.pop()? {
        shown.steps().try_for_each(|one| step(calls, &one))?;
    }
    calls.notes.iter().map(|note| &**note).for_each(note);
    Ok(())
}

/// What the stacks of a trace are weighed by: without times there is only how often they were called.
#[must_use]
pub fn weight(trace: &TraceDirectory) -> Weight {
    if trace.has_times() {
        Weight::Time
    } else {
        Weight::Calls
    }
}

/// A graph as folded stacks. With `with_values` calls of one function with other arguments are other frames. What was met in
/// the trace goes to `note`.
///
/// # Errors
/// As of [`Calls::pop`].
pub fn folded(
    trace: &TraceDirectory,
    calls: &mut Calls,
    with_values: bool,
    note: impl FnMut(&str),
) -> Result<Vec<u8>, ReportError> {
    let mut folded = Folded::by(weight(trace));
    let mut frames = Frames::default();
    each(calls, note, |calls, step| {
        let EventKind::Entry(function) = step.kind else {
            folded.add(step);
            return Ok(());
        };
        let mut frame = calls.name(trace, function).into_owned();
        let args = trace.args(calls.functions.address(function), step);
        if with_values && !args.is_empty() {
            frame = format!("{frame}({args})");
        }
        let kind = EventKind::Entry(frames.number(frame));
        folded.add(&Event {
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

/// A graph as JSON for Chrome's trace viewer, in the order of time: calls as they end, events, and what the clock did.
/// Returns how many events there were; what was met in the trace goes to `note`.
///
/// # Errors
/// As of [`Calls::pop`], [`ReportError::Events`] or [`ReportError::Output`].
pub fn chrome(
    trace: &TraceDirectory,
    calls: &mut Calls,
    note: impl FnMut(&str),
    out: &mut impl Write,
) -> Result<u64, ReportError> {
    let mut stream = Stream::of(trace, calls, true)?;
    let mut chrome = Chrome::begin(out, trace.clock_period_ns()).map_err(ReportError::Output)?;
    let mut count = 0;
    while let Some(happened) = stream.next()? {
        let written = match happened {
            Happened::Stall(stall) => chrome.stall(&stall),
            Happened::Point(event) => {
                count += u64::from(event.event.is_some());
                chrome.point(&event)
            }
            Happened::Call(shown) => shown.steps().try_for_each(|step| {
                let name = called(trace, stream.calls, &step);
                chrome.add(&step, &name, values(trace, stream.calls, &step))
            }),
        };
        written.map_err(ReportError::Output)?;
    }
    calls.notes.iter().map(|note| &**note).for_each(note);
    chrome
        .finish(|function| calls.name(trace, function).into_owned())
        .map_err(ReportError::Output)?;
    Ok(count)
}

/// The name of the function that is called or returns, if any.
fn called(trace: &TraceDirectory, calls: &Calls, step: &Event) -> String {
    match step.kind {
        EventKind::Entry(function) | EventKind::Exit { function, .. } => {
            calls.name(trace, function).into_owned()
        }
        EventKind::Lost(_)
        | EventKind::Point(_)
        | EventKind::LostPoints(_)
        | EventKind::Stall(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use terms::event_format::{EventFormat, EventId};

    use super::*;
    use crate::event::End;
    use crate::export::store::{News, Store};
    use crate::export::uftrace::{GRAPH, Metadata, UftraceWriter};
    use crate::graph::selection::Rules;
    use crate::testing::{functions, text_of};

    /// A call with a call in it, an event in this one, a loss of events after it, and a clock that stood still.
    fn trace() -> (TempDir, TraceDirectory) {
        let root = tempfile::tempdir().unwrap();
        let metadata = Metadata {
            vcpus: 1,
            tracer: GRAPH.into(),
            ..Metadata::default()
        };
        let path = root.path().join("trace");
        let text = functions(2);
        let mut writer = UftraceWriter::create(&path, text_of(&text), metadata, false).unwrap();
        let format = EventFormat::new("sent".into(), Vec::new());
        writer.learn(News::Points(&[format.into()]));
        let entry = |function| EventKind::Entry(FunctionId(function));
        let exit = |function| EventKind::Exit {
            function: FunctionId(function),
            end: End::Returned,
            duration: None,
        };
        for (time_ns, depth, kind) in [
            (1_000, 0, entry(0)),
            (2_000, 1, entry(1)),
            (3_000, 1, EventKind::Point(EventId(0))),
            (4_000, 1, exit(1)),
            (5_000, 0, EventKind::LostPoints(7)),
            (5_500, 0, EventKind::Stall(2_000)),
            (6_000, 0, exit(0)),
        ] {
            let (vcpu, thread, values) = (0, 0, None);
            let event = Event {
                time_ns,
                vcpu,
                thread,
                depth,
                kind,
                values,
            };
            writer.append(event).unwrap();
        }
        writer.finish().unwrap();
        (root, TraceDirectory::open(&path).unwrap())
    }

    /// What `chrome` writes and returns.
    fn written(trace: &TraceDirectory) -> (Vec<Value>, u64) {
        let mut calls = Calls::open(trace, Rules::default()).unwrap();
        let mut out = Vec::new();
        let events = chrome(trace, &mut calls, |note| panic!("{note}"), &mut out).unwrap();
        let json: Value = serde_json::from_slice(&out).unwrap();
        (json["traceEvents"].as_array().unwrap().clone(), events)
    }

    #[test]
    fn calls_as_they_end_events_and_what_the_clock_did_are_written_in_the_order_of_time() {
        let (_root, trace) = trace();
        let (written, events) = written(&trace);
        let names: Vec<&str> = written
            .iter()
            .filter(|event| event["ph"] != "M")
            .map(|event| event["name"].as_str().unwrap())
            .collect();
        let stall = "the clock stood still for 2 us up to here";
        let lost = "[LOST 7 EVENTS]";
        assert_eq!(names, ["sent", "f1", lost, stall, "f0"]);
        assert_eq!(events, 1, "a loss is no event");
    }
}
