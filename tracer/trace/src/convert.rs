//! A trace directory in the formats of other tools: the one reader's calls and events, handed to the writer of a format.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value};
use terms::field::FieldValue;
use terms::function::FunctionId;
use terms::quantity::counted;

use crate::event::{Event, EventKind};
use crate::export::call_formats::CALLER;
use crate::export::chrome::{Chrome, plain};
use crate::export::ctf::{self, Ctf};
use crate::export::events::EventLine;
use crate::export::folded::{Folded, Weight};
use crate::export::html;
#[cfg(feature = "parquet")]
use crate::export::parquet::{self, Parquet};
use crate::export::perfetto::Perfetto;
use crate::export::remark::Remark;
use crate::export::tids::Threads;
use crate::export::trace_dat::{self, Failed, HostDat, Pair, TraceDat};
use crate::export::uftrace::SideFile;
use crate::export::uftrace::record::canonical;
use crate::graph::excerpt::Excerpt;
use crate::report::anomalies::{in_doubt, without_place};
use crate::report::calls::Calls;
use crate::report::directory::TraceDirectory;
use crate::report::stream::{Happened, Leaves, Stream};
#[cfg(feature = "parquet")]
use crate::report::summary::{By, Summary};
use crate::report::{self, Format, Notation, Printed, ReportError, View, Watch};

/// What is said where a format has no way to say that a time is not known.
const NO_TIMES: &str = "recorded without a clock: no time and no duration here is known, only the order of what each CPU recorded";
/// What values that a call returned are called.
const RETURNED: &str = "returned";

/// What is known of a call: its arguments by their names, or what made it, or what it returned.
fn known<'a>(
    trace: &'a TraceDirectory,
    calls: &Calls,
    step: &'a Event,
) -> Vec<(&'a str, Cow<'a, FieldValue>)> {
    match step.kind {
        EventKind::Entry(_) if trace.has_callers() => {
            let caller = calls.caller_name(trace, step).into_iter();
            let named = |name: Cow<'_, str>| FieldValue::Enumerator {
                name: (*name).into(),
            };
            caller
                .map(|name| (CALLER, Cow::Owned(named(name))))
                .collect()
        }
        EventKind::Entry(function) => {
            let address = calls.functions.address(function);
            let arguments = trace.arguments(address, step);
            let borrowed = |(name, value)| (name, Cow::Borrowed(value));
            arguments.map(borrowed).collect()
        }
        EventKind::Exit { .. } => {
            let values = step.values.as_deref().unwrap_or_default().iter();
            values
                .map(|value| (RETURNED, Cow::Borrowed(value)))
                .collect()
        }
        EventKind::Lost(_)
        | EventKind::Point(_)
        | EventKind::LostPoints(_)
        | EventKind::Stall(_)
        | EventKind::Wait(_)
        | EventKind::Host(_) => Vec::new(),
    }
}

/// The same as JSON; several values that were returned are one list.
fn values(trace: &TraceDirectory, calls: &Calls, step: &Event) -> Map<String, Value> {
    let known = known(trace, calls, step);
    let is_exit = matches!(step.kind, EventKind::Exit { .. });
    if is_exit && known.len() > 1 {
        let values = known.iter().map(|(_, value)| plain(value)).collect();
        return Map::from_iter([(RETURNED.to_owned(), Value::Array(values))]);
    }
    let named = |(name, value): (&str, Cow<'_, FieldValue>)| (name.to_owned(), plain(&value));
    known.into_iter().map(named).collect()
}

/// What a writer is given.
enum Next<'a> {
    Step(&'a Event),
    Point(&'a EventLine),
    Remark(&'a Remark),
}

/// Gives a writer all that happened, in the order of time; what was met goes to `note`. Returns how many events the trace has.
fn each(
    trace: &TraceDirectory,
    calls: &mut Calls,
    leaves: Leaves,
    note: impl FnMut(&str),
    mut write: impl FnMut(&Calls, Next<'_>) -> io::Result<()>,
) -> Result<u64, ReportError> {
    let mut stream = Stream::of(trace, calls, leaves)?;
    let mut last_ns = 0;
    while let Some(happened) = stream.next()? {
        last_ns = last_ns.max(happened.time_ns());
        let written = match happened {
            Happened::Remark(remark) => write(stream.calls, Next::Remark(&remark)),
            Happened::Point(event) => write(stream.calls, Next::Point(&event)),
            Happened::Call(shown) => {
                let mut steps = shown.steps();
                steps.try_for_each(|step| write(stream.calls, Next::Step(&step)))
            }
        };
        written.map_err(ReportError::Output)?;
    }
    let read = stream.events();
    let cut = trace.remark.iter().cloned();
    let cut = cut.map(|said| Remark::Cut(last_ns, said));
    let in_doubt = in_doubt(trace).into_iter();
    let in_doubt = in_doubt.map(|said| Remark::Doubt(last_ns, said));
    for remark in cut.chain(in_doubt) {
        write(calls, Next::Remark(&remark)).map_err(ReportError::Output)?;
    }
    let notes = calls.notes.iter().map(String::as_str);
    // What is there one by one tells of itself.
    let waits = trace.side.as_ref().filter(|side| !side.waits.are_listed());
    let waits = waits.and_then(SideFile::waits_said);
    notes.chain(waits.as_deref()).for_each(note);
    Ok(read)
}

/// The same for a writer that has no way to say of a time that it is not known: of a trace without a clock that is said before
/// anything else.
fn each_timed(
    trace: &TraceDirectory,
    calls: &mut Calls,
    mut note: impl FnMut(&str),
    mut write: impl FnMut(&Calls, Next<'_>) -> io::Result<()>,
) -> Result<u64, ReportError> {
    if !trace.has_times() {
        note(NO_TIMES);
        let untimed = Remark::Doubt(0, NO_TIMES.to_owned());
        write(calls, Next::Remark(&untimed)).map_err(ReportError::Output)?;
    }
    each(trace, calls, Leaves::Apart, note, write)
}

/// What the stacks of a trace are weighed by: without times, or without returns, there is only how often they were called.
#[must_use]
pub fn weight(trace: &TraceDirectory) -> Weight {
    if trace.has_times() && trace.is_graph() {
        Weight::Time
    } else {
        Weight::Calls
    }
}

/// A trace as folded stacks; without returns each is one function. With `with_values` calls of one function with other arguments are other frames. What was met in
/// the trace goes to `note`, and all that is lost of it or in doubt, but for that it is not whole: stacks have no place where it would be said.
///
/// # Errors
/// As of [`Calls::pop`].
pub fn folded(
    trace: &TraceDirectory,
    calls: &mut Calls,
    with_values: bool,
    mut note: impl FnMut(&str),
) -> Result<Vec<u8>, ReportError> {
    let mut folded = Folded::by(weight(trace));
    let mut frames = Frames::default();
    let mut is_empty = true;
    // Events are no part of a stack: they are not read.
    while let Some(next) = calls.pop()? {
        is_empty = false;
        for mut step in next.steps() {
            if let EventKind::Entry(function) = step.kind {
                let mut frame = calls.name(trace, function).into_owned();
                let args = shown(trace, calls, &step);
                if with_values && !args.is_empty() {
                    frame = format!("{frame}({args})");
                }
                step.kind = EventKind::Entry(frames.number(frame));
            }
            match step.kind {
                EventKind::Entry(function) if !trace.is_graph() => folded.add_alone(function),
                _ => folded.add(&step),
            }
        }
    }
    if is_empty {
        calls.note_empty_part(0);
    }
    let mut text = Vec::new();
    let left_out = folded
        .write(|frame| frames.name(frame), &mut text)
        .map_err(ReportError::Output)?;
    let left_out = (left_out > 0).then(|| {
        let stacks = counted(left_out, "stack");
        format!("{stacks} left out: there are too many that are too deep")
    });
    let remarks = folded.remarks().into_iter().chain(left_out);
    // Nor has a stack a place for what is in doubt, or happened at a moment.
    let remarks = remarks.chain(without_place(trace));
    let notes = calls.notes.iter().cloned().chain(remarks);
    notes.for_each(|said| note(&said));
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

/// A trace as JSON for Chrome's trace viewer, in the order of time: calls, events, and what the clock did.
/// Returns how many events the trace has; what was met in the trace goes to `note`.
///
/// # Errors
/// As of [`Calls::pop`], [`ReportError::Events`] or [`ReportError::Output`].
pub fn chrome(
    trace: &TraceDirectory,
    calls: &mut Calls,
    note: impl FnMut(&str),
    out: &mut impl Write,
) -> Result<u64, ReportError> {
    let names = trace.side.as_ref().map(|side| side.threads.clone());
    let names = names.unwrap_or_default();
    let mut chrome = Chrome::begin(out, names, trace.clock_period_ns(), trace.is_graph())
        .map_err(ReportError::Output)?;
    let read = each_timed(trace, calls, note, |calls, next| match next {
        Next::Remark(remark) => chrome.remark(remark),
        Next::Point(event) => chrome.point(event),
        Next::Step(step) => {
            let name = called(trace, calls, step);
            chrome.add(step, &name, values(trace, calls, step))
        }
    })?;
    chrome.finish().map_err(ReportError::Output)?;
    Ok(read)
}

/// A trace as trace.dat, for trace-cmd and KernelShark: calls, and events as text. What the host did is among these, or with
/// `host` in a file of its own, which such readers show beside the guest's. Returns how many events the trace has; what was
/// met in it goes to `note`, and what has to wait to files in `room`.
///
/// # Errors
/// As of [`Calls::pop`], [`ReportError::Events`], [`ReportError::Scratch`], [`ReportError::HostOutput`] or
/// [`ReportError::Output`].
pub fn trace_dat(
    trace: &TraceDirectory,
    calls: &mut Calls,
    note: impl FnMut(&str),
    room: &Path,
    out: &mut impl Write,
    host: Option<&mut dyn Write>,
) -> Result<u64, ReportError> {
    let mut file = TraceDat::new(room);
    let mut of_host = host.is_some().then(|| HostDat::new(room));
    let threads = threads(trace);
    let has_ends = trace.is_graph();
    let read = each_timed(trace, calls, note, |calls, next| match next {
        Next::Remark(remark) => file.remark(remark),
        Next::Point(event) => {
            if let Some(host) = of_host.as_mut().filter(|_| event.is_of_host) {
                return host.add(event);
            }
            // Of a graph a vCPU is no thread.
            let nobody = (!has_ends).then(|| threads.pid(event.vcpu.into()));
            file.point(event, nobody.unwrap_or_default())
        }
        Next::Step(step) => {
            let (places, pid) = (places(trace, calls, step), threads.pid(step.thread));
            let name = || called(trace, calls, step);
            file.step(step, (places, name), pid, has_ends)
        }
    })
    .map_err(|error| match error {
        // By now they only wait.
        ReportError::Output(source) => not_kept(room, source),
        other => other,
    })?;
    let pair = of_host.is_some().then(|| pair(trace));
    let failed = |error, written: fn(io::Error) -> ReportError| match error {
        Failed::Waiting(source) => not_kept(room, source),
        Failed::Writing(source) => written(source),
    };
    let written = file.finish(&names(trace, &threads), pair, out);
    written.map_err(|error| failed(error, ReportError::Output))?;
    if let (Some(file), Some(pair), Some(mut out)) = (of_host, pair, host) {
        let guest = image_name(trace).unwrap_or("guest");
        let written = file.finish(pair, guest, &mut out);
        written.map_err(|error| failed(error, ReportError::HostOutput))?;
    }
    Ok(read)
}

/// What tells that this trace and its host's are one.
fn pair(trace: &TraceDirectory) -> Pair {
    let side = trace.side.as_ref();
    let described = side.and_then(|side| serde_json::to_string(side).ok());
    Pair::of(&described.unwrap_or_default())
}

/// What stands before the events.
fn names<'a>(trace: &'a TraceDirectory, threads: &Threads) -> trace_dat::Names<'a> {
    let functions = trace.names.sorted().into_iter();
    trace_dat::Names {
        functions: functions
            .map(|(address, name)| (canonical(address), name))
            .collect(),
        threads: threads.names_of_pids(),
        vcpus: trace.side.as_ref().map_or(0, |side| side.metadata.vcpus),
    }
}

/// What has to wait could not be kept.
fn not_kept(room: &Path, source: io::Error) -> ReportError {
    let path = room.to_owned();
    ReportError::Scratch { path, source }
}

/// Where a call is in the guest, and where it was made, if the trace says that.
fn places(trace: &TraceDirectory, calls: &Calls, step: &Event) -> trace_dat::Places {
    let function = step.function().map(|one| calls.functions.address(one));
    let caller = step.caller().filter(|_| trace.has_callers());
    trace_dat::Places {
        function: function.map_or(0, canonical),
        caller: caller.map_or(0, |caller| caller.0),
    }
}

/// What the kernel's file is called.
fn image_name(trace: &TraceDirectory) -> Option<&str> {
    let image = trace.side.as_ref().map(|side| &*side.metadata.image)?;
    image.rsplit('/').next()
}

/// A trace in the Common Trace Format, into a directory that is there and empty. Returns how many events the trace has; what
/// was met in it goes to `note`.
///
/// # Errors
/// As of [`Calls::pop`], [`ReportError::Events`] or [`ReportError::Output`].
pub fn ctf(
    trace: &TraceDirectory,
    calls: &mut Calls,
    note: impl FnMut(&str),
    directory: &Path,
) -> Result<u64, ReportError> {
    let mut ctf = Ctf::new(directory, threads(trace).apart(), trace.is_graph());
    let read = each_timed(trace, calls, note, |calls, next| match next {
        Next::Remark(remark) => ctf.remark(remark),
        Next::Point(event) => ctf.point(event),
        Next::Step(step) => {
            let values = shown(trace, calls, step);
            let name = |function| calls.name(trace, function).into_owned();
            ctf.step(step, name, &values)
        }
    })?;
    let metadata = trace.side.as_ref().map(|side| side.metadata.clone());
    let metadata = metadata.unwrap_or_default();
    let about = ctf::About {
        image: metadata.image,
        command_line: metadata.command_line,
        clock: metadata.clock,
    };
    ctf.finish(&about).map_err(ReportError::Output)?;
    Ok(read)
}

/// A trace as tables in Parquet, into a directory that is there and empty. Returns how many events the trace has; what was met
/// in it goes to `note`.
///
/// # Errors
/// As of [`Calls::pop`], [`ReportError::Events`] or [`ReportError::Output`].
#[cfg(feature = "parquet")]
pub fn parquet(
    trace: &TraceDirectory,
    calls: &mut Calls,
    note: impl FnMut(&str),
    directory: &Path,
) -> Result<u64, ReportError> {
    let has_ends = trace.is_graph();
    let mut tables = Parquet::create(directory, has_ends).map_err(ReportError::Output)?;
    let mut summary = Summary::new(By::Function);
    let tasks = trace.side.as_ref().map(|side| &side.threads);
    let read = each(
        trace,
        calls,
        Leaves::Apart,
        note,
        |calls, next| match next {
            Next::Remark(remark) => tables.remark(remark),
            Next::Point(event) => tables.point(event, trace.time_of_event(event)),
            Next::Step(step) => {
                summary.add(step, None);
                let task = tasks.and_then(|tasks| tasks.get(&step.thread));
                let caller = calls.caller_name(trace, step);
                let values = match caller {
                    Some(_) => String::new(),
                    None => shown(trace, calls, step),
                };
                let known = parquet::Known {
                    time_ns: trace.time_of_record(step.time_ns),
                    task: task.map(|name| &**name),
                    caller: caller.as_deref(),
                    values: &values,
                };
                tables.step(step, |one| calls.name(trace, one), known)
            }
        },
    )?;
    let named = summary.functions(|function| calls.name(trace, function));
    let mut rows: Vec<_> = named.collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let rows = rows.into_iter().map(|(function, row)| {
        let times = |(least, most)| [row.total.sum, row.own.sum, least, most];
        parquet::FunctionRow {
            function,
            calls: row.calls,
            times_ns: row.range.filter(|_| has_ends).map(times),
        }
    });
    tables.finish(rows).map_err(ReportError::Output)?;
    Ok(read)
}

/// A trace as a page of HTML, with this flame graph (SVG). Returns what was found of it.
///
/// # Errors
/// As of [`report::print`].
pub fn html(
    trace: &TraceDirectory,
    excerpt: &Excerpt,
    watch: &Watch,
    flamegraph: Option<&str>,
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    let view = View {
        format: Format::Everything,
        excerpt: excerpt.clone(),
        notation: Notation::Json,
        watch: watch.clone(),
        ..View::default()
    };
    let mut data = Vec::new();
    let printed = report::print_of(trace, &view, &mut data)?;
    let data = String::from_utf8_lossy(&data);
    let page = html::Page {
        title: &format!("exotrace: {}", image_name(trace).unwrap_or("a guest")),
        data: data.trim_end(),
        flamegraph,
    };
    page.write(out).map_err(ReportError::Output)?;
    Ok(printed)
}

/// A trace in Perfetto's own format. Returns how many events the trace has; what was met in it goes to `note`.
///
/// # Errors
/// As of [`Calls::pop`], [`ReportError::Events`] or [`ReportError::Output`].
pub fn perfetto(
    trace: &TraceDirectory,
    calls: &mut Calls,
    note: impl FnMut(&str),
    out: &mut impl Write,
) -> Result<u64, ReportError> {
    let image = trace.side.as_ref().map(|side| &*side.metadata.image);
    let guest = image.unwrap_or("guest");
    let (threads, period_ns) = (threads(trace).apart(), trace.clock_period_ns());
    let mut perfetto =
        Perfetto::begin(out, guest, threads, period_ns).map_err(ReportError::Output)?;
    let has_ends = trace.is_graph();
    let read = each_timed(trace, calls, note, |calls, next| match next {
        Next::Remark(remark) => perfetto.remark(remark),
        Next::Point(event) => perfetto.point(event),
        Next::Step(step) => {
            let name = called(trace, calls, step);
            let values = known(trace, calls, step);
            let values = values.iter().map(|(name, value)| (*name, &**value));
            perfetto.step(step, &name, values, has_ends)
        }
    })?;
    perfetto.finish().map_err(ReportError::Output)?;
    Ok(read)
}

/// The threads of a trace; of one without returns, its vCPUs.
fn threads(trace: &TraceDirectory) -> Threads {
    let told = trace.side.as_ref().map(|side| &side.threads);
    let is_graph = trace.is_graph();
    let threads = trace.tasks.iter().map(|task| {
        let name = told.and_then(|told| told.get(&task.thread));
        let thread = match is_graph {
            true => task.thread,
            false => u32::try_from(task.vcpu).unwrap_or(u32::MAX),
        };
        (thread, name.map(String::as_str))
    });
    Threads::of(threads, if is_graph { "thread" } else { "vcpu" })
}

/// What is known of a call as people read it: its arguments, or what made it, or what it returned.
fn shown(trace: &TraceDirectory, calls: &Calls, step: &Event) -> String {
    match step.kind {
        EventKind::Entry(_) if trace.has_callers() => {
            let caller = calls.caller_name(trace, step);
            caller.map_or_else(String::new, |caller| format!("{CALLER}={caller}"))
        }
        EventKind::Entry(function) => trace.args(calls.functions.address(function), step),
        _ => step.shown_values(),
    }
}

/// The name of the function that is called or returns, if any.
fn called(trace: &TraceDirectory, calls: &Calls, step: &Event) -> String {
    let name = step.function().map(|one| calls.name(trace, one));
    name.map_or_else(String::new, Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use terms::event_format::{EventFormat, EventId};

    use super::*;
    use crate::doubt::{TimeDoubt, TimeNote};
    use crate::export::store::{Ending, News, Store};
    use crate::export::uftrace::{
        AnomalyNote, Fired, GRAPH, Metadata, NO_CLOCK, Pause, UftraceWriter,
    };
    use crate::graph::excerpt::Excerpt;
    use crate::graph::{Anomalies, Anomaly};
    use crate::testing::{entry, event, exit, functions, text_of};

    /// A call with a call in it, an event in this one, a loss of events after it, and a clock that stood still.
    fn trace() -> (TempDir, TraceDirectory) {
        let root = tempfile::tempdir().unwrap();
        let metadata = Metadata {
            vcpus: 1,
            tracer: GRAPH.into(),
            paused: [(500, 46_000), (2_500, 100), (9_000, 50)]
                .map(|(begin_ns, length_ns)| Pause {
                    begin_ns,
                    length_ns,
                })
                .into(),
            fired: vec![Fired {
                time_ns: Some(4_000),
                trigger: "f1: stop".to_owned(),
            }],
            ..Metadata::default()
        };
        let path = root.path().join("trace");
        let text = functions(2);
        let mut writer = UftraceWriter::create(&path, text_of(&text), metadata, false).unwrap();
        let format = EventFormat::new("sent".into(), Vec::new());
        writer.learn(News::Points(&[format.into()]));
        for (time_ns, depth, kind) in [
            (1_000, 0, entry(0)),
            (2_000, 1, entry(1)),
            (3_000, 1, EventKind::Point(EventId(0))),
            (4_000, 1, exit(1)),
            (5_000, 0, EventKind::LostPoints(7)),
            (5_500, 0, EventKind::Stall(2_000)),
            (6_000, 0, exit(0)),
        ] {
            writer.append(event(time_ns, 0, 0, depth, kind)).unwrap();
        }
        writer.learn(News::Thread(0, "cat-42".to_owned()));
        writer.finish().unwrap();
        (root, TraceDirectory::open(&path).unwrap())
    }

    /// What `chrome` writes and returns.
    fn written(trace: &TraceDirectory) -> (Vec<Value>, u64) {
        let mut calls = Calls::open(trace, &Excerpt::default()).unwrap();
        let mut out = Vec::new();
        let events = chrome(trace, &mut calls, |note| panic!("{note}"), &mut out).unwrap();
        let json: Value = serde_json::from_slice(&out).unwrap();
        (json["traceEvents"].as_array().unwrap().clone(), events)
    }

    /// A call of each thread, of which the first two have one pid: each processor has its idle task.
    fn idle() -> (TempDir, TraceDirectory) {
        let root = tempfile::tempdir().unwrap();
        let metadata = Metadata {
            vcpus: 1,
            tracer: GRAPH.into(),
            ..Metadata::default()
        };
        let path = root.path().join("trace");
        let text = functions(3);
        let mut writer = UftraceWriter::create(&path, text_of(&text), metadata, false).unwrap();
        for (thread, name) in (0..).zip(["swapper/0-0", "swapper/1-0", "sh-7"]) {
            let time_ns = 1_000 * u64::from(thread);
            for (time_ns, kind) in [(time_ns, entry(thread)), (time_ns + 9, exit(thread))] {
                writer.append(event(time_ns, 0, thread, 0, kind)).unwrap();
            }
            writer.learn(News::Thread(thread, name.to_owned()));
        }
        writer.finish().unwrap();
        (root, TraceDirectory::open(&path).unwrap())
    }

    /// What is told of the threads of [`idle`] that are told apart.
    const APART: [(u32, &str); 3] = [(0, "swapper/0"), (4_194_305, "swapper/1"), (7, "sh")];

    fn has(bytes: &[u8], wanted: &[u8]) -> bool {
        bytes.windows(wanted.len()).any(|window| window == wanted)
    }

    #[test]
    fn perfetto_has_each_thread_of_a_pid_on_a_track_of_its_own() {
        let (_root, trace) = idle();
        let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
        let mut out = Vec::new();
        perfetto(&trace, &mut calls, |note| panic!("{note}"), &mut out).unwrap();
        for (tid, name) in APART {
            // The last fields of what describes a thread: its number, and its name.
            let mut described = vec![2 << 3];
            prost::encoding::encode_varint(tid.into(), &mut described);
            described.extend([5 << 3 | 2, u8::try_from(name.len()).unwrap()]);
            described.extend(name.as_bytes());
            assert!(has(&out, &described), "{name}");
        }
    }

    #[test]
    fn a_ctf_trace_has_a_number_and_a_name_for_each_thread_of_a_pid() {
        let (root, trace) = idle();
        let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
        let to = root.path().join("ctf");
        std::fs::create_dir(&to).unwrap();
        ctf(&trace, &mut calls, |note| panic!("{note}"), &to).unwrap();
        let metadata = std::fs::read_to_string(to.join("metadata")).unwrap();
        let events = std::fs::read(to.join("vcpu0")).unwrap();
        for (function, (tid, name)) in (0u32..).zip(APART) {
            assert!(
                metadata.contains(&format!("\"{name}\" = {tid},")),
                "{metadata}"
            );
            let call = [tid.to_le_bytes(), function.to_le_bytes()].concat();
            assert!(has(&events, &call), "{name}");
        }
    }

    /// There a pid is what the kernel means by it.
    #[test]
    fn a_trace_dat_has_pids_with_the_names_of_all_their_threads() {
        let (_root, trace) = idle();
        let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
        let (mut out, room) = (Vec::new(), std::env::temp_dir());
        let note = |note: &str| panic!("{note}");
        trace_dat(&trace, &mut calls, note, &room, &mut out, None).unwrap();
        assert!(has(&out, b"0 swapper/0|swapper/1\n7 sh\n"));
        for (function, pid) in [(0u64, 0u8), (1, 0), (2, 7)] {
            let mut call = vec![11, 0, 0, 0, pid, 0, 0, 0];
            call.extend((0xffff_ffff_8010_0000 + 16 * function).to_le_bytes());
            assert!(has(&out, &call), "{function}");
        }
    }

    /// Each error once named the file of the guest.
    #[test]
    fn what_of_a_trace_dat_cannot_be_written_is_told_apart() {
        let (root, trace) = trace();
        let failed = |room: &Path, out: &str, host: &str| {
            let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
            let open = |path: &str| std::fs::File::options().write(true).open(path).unwrap();
            let (mut out, mut host, note) = (open(out), open(host), |_: &str| ());
            let host = Some(&mut host as &mut dyn Write);
            trace_dat(&trace, &mut calls, note, room, &mut out, host).unwrap_err()
        };
        let (null, full, there) = ("/dev/null", "/dev/full", root.path());
        let missing = root.path().join("no/such/folder");
        let error = failed(&missing, null, null);
        let names_it = error.to_string().contains(missing.to_str().unwrap());
        assert!(
            matches!(error, ReportError::Scratch { .. }) && names_it,
            "{error}"
        );
        let error = failed(there, full, null);
        assert!(matches!(error, ReportError::Output(_)), "{error}");
        let error = failed(there, null, full);
        assert!(matches!(error, ReportError::HostOutput(_)), "{error}");
    }

    #[test]
    fn a_trace_dat_has_functions_threads_and_events_by_name() {
        let (_root, trace) = trace();
        let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
        let mut out = Vec::new();
        let read = trace_dat(
            &trace,
            &mut calls,
            |note| panic!("{note}"),
            &std::env::temp_dir(),
            &mut out,
            None,
        )
        .unwrap();
        assert_eq!(read, 1);
        let has = |bytes: &[u8]| has(&out, bytes);
        for expected in [
            "ffffffff80100010 T f1\n",
            "42 cat\n",
            "name: sent\nID: 1000\n",
            "[LOST 7 EVENTS]\0",
            "the clock stood still for 2 us up to here\0",
            "the guest was held for 46.0 us from here on\0",
            "trigger 'f1: stop' has fired\0",
        ] {
            assert!(has(expected.as_bytes()), "{expected}");
        }
        assert!(out.starts_with(b"\x17\x08\x44tracing6\0\0\x08\0\x10\0\0"));
        // The entry of f0 by thread 42, at depth 0.
        let mut entry = vec![11, 0, 0, 0, 42, 0, 0, 0];
        entry.extend(0xffff_ffff_8010_0000u64.to_le_bytes());
        entry.extend(0u32.to_le_bytes());
        assert!(has(&entry));
        assert_eq!(out.len() % 4096, 0);
    }

    /// Calls of one thread by this clock: times, depths and what they are.
    fn calls_by(
        clock: &str,
        steps: impl IntoIterator<Item = (u64, u32, EventKind)>,
    ) -> (TempDir, TraceDirectory) {
        let root = tempfile::tempdir().unwrap();
        let metadata = Metadata {
            vcpus: 1,
            tracer: GRAPH.into(),
            clock: clock.into(),
            ..Metadata::default()
        };
        let path = root.path().join("trace");
        let text = functions(2);
        let mut writer = UftraceWriter::create(&path, text_of(&text), metadata, false).unwrap();
        for (time_ns, depth, kind) in steps {
            writer.append(event(time_ns, 0, 0, depth, kind)).unwrap();
        }
        Store::finish(&mut writer, Ending::default()).unwrap();
        let trace = TraceDirectory::open(&path).unwrap();
        (root, trace)
    }

    /// As an entry and an exit trace-cmd showed how long they took, which nobody knows.
    #[test]
    fn of_a_trace_dat_a_call_of_unknown_duration_has_no_exit() {
        let steps = [
            (1_000, 0, entry(0)),
            (2_000, 1, entry(1)),
            (3_000, 1, EventKind::Lost(7)),
            (4_000, 1, exit(1)),
            (5_000, 1, entry(1)),
            (6_000, 1, exit(1)),
        ];
        let (root, trace) = calls_by("tsc", steps);
        let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
        let mut out = Vec::new();
        let note = |_: &str| ();
        trace_dat(&trace, &mut calls, note, root.path(), &mut out, None).unwrap();
        let times = |begin: u64, end: u64| [begin.to_le_bytes(), end.to_le_bytes()].concat();
        assert!(has(&out, &times(5_000, 6_000)));
        assert!(!has(&out, &times(2_000, 4_000)));
        assert!(has(&out, b"} /* f1: records lost meanwhile */\0"));
    }

    /// Each call had a time and took none there, and nothing said why.
    #[test]
    fn exports_that_have_a_time_for_everything_say_first_that_there_are_none() {
        type Export = fn(&TraceDirectory, &mut Calls, &mut dyn FnMut(&str), &Path) -> Vec<u8>;
        let exports: [Export; 3] = [
            |trace, calls, note, _| {
                let mut out = Vec::new();
                chrome(trace, calls, note, &mut out).unwrap();
                out
            },
            |trace, calls, note, _| {
                let mut out = Vec::new();
                perfetto(trace, calls, note, &mut out).unwrap();
                out
            },
            |trace, calls, note, room| {
                ctf(trace, calls, note, room).unwrap();
                std::fs::read(room.join("vcpu0")).unwrap()
            },
        ];
        for export in exports {
            for (clock, said) in [(NO_CLOCK, 1), ("tsc", 0)] {
                let (root, trace) = calls_by(clock, [(500, 0, entry(0)), (500, 0, exit(0))]);
                let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
                let mut notes = Vec::new();
                let mut note = |note: &str| notes.push(note.to_owned());
                let out = export(&trace, &mut calls, &mut note, root.path());
                assert_eq!(notes, vec![NO_TIMES; said]);
                let times = out.windows(NO_TIMES.len());
                let times = times.filter(|bytes| *bytes == NO_TIMES.as_bytes()).count();
                assert_eq!(times, said);
            }
        }
    }

    /// Each call took 0.000 us there, and nothing said why.
    #[test]
    fn a_trace_dat_without_times_says_so_first() {
        let (root, trace) = calls_by(NO_CLOCK, [(500, 0, entry(0)), (500, 0, exit(0))]);
        let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let note = |note: &str| notes.push(note.to_owned());
        trace_dat(&trace, &mut calls, note, root.path(), &mut out, None).unwrap();
        assert_eq!(notes, [NO_TIMES]);
        let said = out.windows(NO_TIMES.len());
        let said = said.filter(|bytes| *bytes == NO_TIMES.as_bytes());
        assert_eq!(said.count(), 1);
    }

    #[cfg(feature = "parquet")]
    #[test]
    fn tables_of_a_trace_without_times_have_none() {
        use ::parquet::file::reader::{FileReader, SerializedFileReader};
        for (clock, expected) in [("tsc", "500"), (NO_CLOCK, "null")] {
            let lost = (500, 0, EventKind::Lost(7));
            let (root, trace) = calls_by(clock, [(500, 0, entry(0)), (500, 0, exit(0)), lost]);
            let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
            let to = root.path().join("tables");
            std::fs::create_dir(&to).unwrap();
            parquet(&trace, &mut calls, |_: &str| (), &to).unwrap();
            for (table, column) in [("calls", "start_ns"), ("losses", "time_ns")] {
                let file = std::fs::File::open(to.join(format!("{table}.parquet"))).unwrap();
                let rows = SerializedFileReader::new(file).unwrap();
                let rows = rows.get_row_iter(None).unwrap();
                let rows: Vec<String> = rows.map(|row| row.unwrap().to_string()).collect();
                let time = format!("{{{column}: {expected},");
                assert!(rows.len() == 1 && rows[0].starts_with(&time), "{rows:?}");
            }
        }
    }

    /// A trace of which something is lost and in doubt, and that is cut short; what is to be said of its doubts.
    fn in_doubt() -> (TempDir, TraceDirectory, [String; 2]) {
        let root = tempfile::tempdir().unwrap();
        let metadata = Metadata {
            vcpus: 1,
            tracer: GRAPH.into(),
            ..Metadata::default()
        };
        let path = root.path().join("trace");
        let text = functions(2);
        let mut writer = UftraceWriter::create(&path, text_of(&text), metadata, false).unwrap();
        for (time_ns, depth, kind) in [
            (1_000, 0, entry(0)),
            (2_000, 1, entry(1)),
            (4_000, 1, exit(1)),
            (4_500, 1, EventKind::Lost(7)),
        ] {
            writer.append(event(time_ns, 0, 0, depth, kind)).unwrap();
        }
        let mut anomalies = Anomalies::default();
        anomalies.note(Anomaly::Unhooked, 5, FunctionId(1), 0);
        let doubt = TimeNote {
            kind: TimeDoubt::Late,
            count: 3,
        };
        let end = Ending {
            anomalies: AnomalyNote::list(&anomalies, &text),
            doubts: vec![doubt],
            is_cut: true,
            ..Ending::default()
        };
        let said = [end.anomalies[0].to_string(), end.doubts[0].to_string()];
        Store::finish(&mut writer, end).unwrap();
        let trace = TraceDirectory::open(&path).unwrap();
        (root, trace, said)
    }

    /// They have no place for it, and whoever looks at a picture of them saw nothing of it.
    #[test]
    fn what_is_lost_or_in_doubt_is_said_to_who_asks_for_stacks() {
        let (_root, trace, [unfit, late]) = in_doubt();
        let expected = [
            "7 records lost: what they would have said is in no stack".to_owned(),
            "1 call of unknown duration adds no time of its own".to_owned(),
            unfit,
            late,
        ];
        let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
        let mut said = Vec::new();
        let stacks = folded(&trace, &mut calls, false, |note| said.push(note.to_owned()));
        assert_eq!(String::from_utf8(stacks.unwrap()).unwrap(), "f0;f1 2000\n");
        assert_eq!(said, expected);
        // That is said of every format.
        assert!(trace.remark.is_some_and(|remark| !said.contains(&remark)));
    }

    /// Whoever looked at such a trace in a viewer saw times that may be wrong, and no word of that.
    #[test]
    fn what_is_in_doubt_is_in_what_every_viewer_reads() {
        let (root, trace, said) = in_doubt();
        let calls = || Calls::open(&trace, &Excerpt::default()).unwrap();
        let note = |note: &str| panic!("{note}");
        let is_said = |format: &str, written: &[u8]| {
            for doubt in &said {
                assert!(has(written, doubt.as_bytes()), "{format}: {doubt}");
            }
        };
        let mut out = Vec::new();
        chrome(&trace, &mut calls(), note, &mut out).unwrap();
        is_said("chrome", &out);
        out.clear();
        perfetto(&trace, &mut calls(), note, &mut out).unwrap();
        is_said("perfetto", &out);
        out.clear();
        trace_dat(&trace, &mut calls(), note, root.path(), &mut out, None).unwrap();
        is_said("trace-dat", &out);
        let to = root.path().join("ctf");
        std::fs::create_dir(&to).unwrap();
        ctf(&trace, &mut calls(), note, &to).unwrap();
        is_said("ctf", &std::fs::read(to.join("vcpu0")).unwrap());
    }

    #[test]
    fn calls_events_and_what_the_clock_did_are_written_in_the_order_of_time() {
        let (_root, trace) = trace();
        let (written, events) = written(&trace);
        let names: Vec<&str> = written
            .iter()
            .filter(|event| event["ph"] != "M")
            .map(|event| event["name"].as_str().unwrap_or("an end"))
            .collect();
        let times = written.iter().filter_map(|event| event["ts"].as_f64());
        let times: Vec<f64> = times.collect();
        assert!(times.is_sorted(), "{times:?}");
        let stall = "the clock stood still for 2 us up to here";
        let lost = "[LOST 7 EVENTS]";
        let held = |us: &str| format!("the guest was held for {us} us from here on");
        let [before, inside, after] = ["46.0", "0.1", "0.0"].map(held);
        let fired = "trigger 'f1: stop' has fired";
        assert_eq!(
            names,
            [
                &before, "f0", "f1", &inside, "sent", fired, "an end", lost, stall, "an end",
                &after
            ]
        );
        assert_eq!(events, 1, "a loss is no event");
        let thread = written.iter().find(|event| event["name"] == "thread_name");
        assert_eq!(thread.unwrap()["args"]["name"], "cat-42");
    }
}
