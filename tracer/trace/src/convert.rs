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
use crate::report::calls::{Calls, Shown};
use crate::report::directory::TraceDirectory;
use crate::report::events::Events;

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
        match shown {
            Shown::Step(one) => step(calls, &one)?,
            Shown::Leaf(entry, exit) => {
                step(calls, &entry)?;
                step(calls, &exit)?;
            }
        }
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

/// A graph as JSON for Chrome's trace viewer. Returns how many events there were; what was met in the trace goes to `note`.
///
/// # Errors
/// As of [`Calls::pop`], [`ReportError::Events`] or [`ReportError::Output`].
pub fn chrome(
    trace: &TraceDirectory,
    calls: &mut Calls,
    note: impl FnMut(&str),
    out: &mut impl Write,
) -> Result<u64, ReportError> {
    let mut chrome = Chrome::begin(out, trace.clock_period_ns()).map_err(ReportError::Output)?;
    each(calls, note, |calls, step| {
        let name = match step.kind {
            EventKind::Entry(function) | EventKind::Exit { function, .. } => {
                calls.name(trace, function).into_owned()
            }
            EventKind::Lost(_)
            | EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_) => String::new(),
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
        .finish(|function| calls.name(trace, function).into_owned())
        .map_err(ReportError::Output)?;
    Ok(count)
}
