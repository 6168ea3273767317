//! Calls and events one by one, for programs: each on a line of its own, in the order of time. As JSON they have the keys of
//! what listeners are told ([`LiveEvent`](crate::live::LiveEvent)), as far as a trace has what they are for: of an event it
//! does not know the thread. Who made a call is said beside that, when the guest stood still, and what triggers did.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;
use terms::field::FieldValue;
use terms::printable;

use super::answer::Notation;
use super::callers::Callers;
use super::calls::Calls;
use super::directory::TraceDirectory;
use super::error::ReportError;
use super::stream::{Happened, Leaves, Stream};
use super::{Printed, anomalies};
use crate::event::{Event, EventKind};
use crate::export::events::{EventLine, Fields};
use crate::export::remark::Remark;

/// The columns of comma-separated values.
const COLUMNS: [&str; 12] = [
    "time_ns",
    "vcpu",
    "thread",
    "task",
    "depth",
    "kind",
    "name",
    "caller",
    "duration_ns",
    "count",
    "remark",
    "values",
];

/// Which steps of calls are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Steps {
    /// Where they begin.
    Entries,
    /// Where they begin, and where they end.
    All,
}

/// One thing that happened.
#[derive(Debug, Default, Serialize)]
struct Line<'a> {
    /// Nanoseconds since the guest's time began, where that is known.
    time_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vcpu: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u32>,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<Cow<'a, str>>,
    /// Where the call was made, if the trace says that: the instruction that it returns to.
    #[serde(skip_serializing_if = "Option::is_none")]
    return_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    length_ns: Option<u64>,
    /// Of records that were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<String>,
    #[serde(skip_serializing_if = "Fields::is_empty")]
    args: Fields,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    retval: Vec<FieldValue>,
    #[serde(skip_serializing_if = "Fields::is_empty")]
    fields: Fields,
}

impl<'a> Line<'a> {
    /// A step of a thread, if it is one that is shown.
    fn of_step(
        trace: &'a TraceDirectory,
        calls: &Calls,
        (step, which): (&Event, Steps),
        callers: &mut Callers,
    ) -> Option<Self> {
        let caller = callers.name(trace, calls, step);
        let name = |function| calls.name(trace, function);
        let is_graph = trace.is_graph();
        let side = trace.side.as_ref().filter(|_| is_graph);
        let task = side.and_then(|side| side.threads.get(&step.thread));
        let address = step.caller().filter(|_| trace.has_callers());
        let line = Self {
            time_ns: trace.time_of_record(step.time_ns),
            vcpu: Some(step.vcpu),
            thread: Some(step.thread),
            task: task.map(String::as_str),
            depth: Some(step.depth),
            caller,
            return_address: address.map(|address| address.to_string()),
            ..Self::default()
        };
        Some(match step.kind {
            EventKind::Entry(function) => {
                let address = calls.functions.address(function);
                let args = trace
                    .arguments(address, step)
                    .filter(|_| !trace.has_callers());
                let args = args.map(|(name, value)| (name.to_owned(), value.clone()));
                Self {
                    kind: if is_graph { "call" } else { "entry" },
                    function: Some(name(function)),
                    args: Fields(args.collect()),
                    ..line
                }
            }
            EventKind::Exit {
                function,
                end,
                duration,
            } if which == Steps::All => Self {
                kind: "return",
                function: Some(name(function)),
                duration_ns: duration,
                remark: end.remark().map(ToOwned::to_owned),
                retval: step.values.as_deref().unwrap_or_default().to_vec(),
                ..line
            },
            EventKind::Lost(count) => Self {
                kind: "lost",
                count: Some(count),
                ..line
            },
            _ => return None,
        })
    }

    /// An event, or a loss of some. Which thread it was on nobody knows.
    fn of_point(trace: &TraceDirectory, point: EventLine) -> Self {
        let count = point.event.is_none().then_some(point.lost);
        Self {
            time_ns: trace.time_of_event(&point),
            vcpu: Some(point.vcpu),
            kind: if count.is_some() {
                "lost-events"
            } else {
                "event"
            },
            event: point.event,
            fields: point.fields,
            count,
            ..Self::default()
        }
    }

    /// What is said beside calls and events: of a vCPU that waited, or of all.
    fn of_remark(remark: &Remark) -> Self {
        Self {
            time_ns: Some(remark.time_ns()),
            vcpu: remark.vcpu(),
            kind: remark.what(),
            length_ns: remark.length_ns(),
            remark: Some(remark.to_string()),
            ..Self::default()
        }
    }

    /// What was captured, as JSON; nothing if nothing was.
    fn values(&self) -> serde_json::Result<String> {
        if let Some(address) = &self.return_address {
            return printable::json(&json!({ "return_address": address }));
        }
        match (self.args.is_empty(), self.fields.is_empty()) {
            (false, _) => printable::json(&self.args),
            (_, false) => printable::json(&self.fields),
            _ if self.retval.is_empty() => Ok(String::new()),
            _ => printable::json(&self.retval),
        }
    }

    /// The cells of [`COLUMNS`].
    fn cells(&self) -> serde_json::Result<[String; COLUMNS.len()]> {
        fn shown(value: Option<impl ToString>) -> String {
            value.map_or_else(String::new, |value| value.to_string())
        }
        let name = self.function.as_deref().or(self.event.as_deref());
        Ok([
            shown(self.time_ns),
            shown(self.vcpu),
            shown(self.thread),
            shown(self.task.map(printable::masked)),
            shown(self.depth),
            self.kind.to_owned(),
            shown(name.map(printable::masked)),
            shown(self.caller.as_deref().map(printable::masked)),
            shown(self.duration_ns.or(self.length_ns)),
            shown(self.count),
            shown(self.remark.as_deref().map(printable::masked)),
            self.values()?,
        ])
    }
}

/// Where lines go.
enum Writer<W: Write> {
    Json(W),
    Csv(Box<csv::Writer<W>>),
}

impl<W: Write> Writer<W> {
    fn new(notation: Notation, out: W) -> io::Result<Self> {
        if notation != Notation::Csv {
            return Ok(Self::Json(out));
        }
        let mut csv = csv::Writer::from_writer(out);
        csv.write_record(COLUMNS)?;
        Ok(Self::Csv(Box::new(csv)))
    }

    fn line(&mut self, line: &Line<'_>) -> io::Result<()> {
        match self {
            Self::Json(out) => writeln!(out, "{}", printable::json(line)?),
            Self::Csv(csv) => Ok(csv.write_record(line.cells()?)?),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Json(out) => out.flush(),
            Self::Csv(csv) => csv.flush(),
        }
    }
}

/// Writes all steps, events and remarks. What is to be said of the trace as a whole is a note.
pub(super) fn print(
    trace: &TraceDirectory,
    calls: &mut Calls,
    (which, notation): (Steps, Notation),
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    let mut writer = Writer::new(notation, out).map_err(ReportError::Output)?;
    let mut printed = Printed::default();
    let mut callers = Callers::default();
    let mut stream = Stream::of(trace, calls, Leaves::Apart)?;
    while let Some(happened) = stream.next()? {
        printed.count(&happened);
        let written = match happened {
            Happened::Remark(remark) => writer.line(&Line::of_remark(&remark)),
            Happened::Point(point) => writer.line(&Line::of_point(trace, point)),
            Happened::Call(shown) => shown.steps().try_for_each(|step| {
                let line = Line::of_step(trace, stream.calls, (&step, which), &mut callers);
                line.map_or(Ok(()), |line| writer.line(&line))
            }),
        };
        written.map_err(ReportError::Output)?;
    }
    printed.read_events = stream.events();
    writer.flush().map_err(ReportError::Output)?;
    printed.notes.extend(anomalies::all(trace));
    Ok(printed)
}
