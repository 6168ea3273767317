//! The calls of a trace, read back: all threads, merged by time. A trace of functions is one of threads that never return:
//! each vCPU is one.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use terms::function::FunctionId;
use terms::quantity::{counted, in_seconds};

use super::data_file::{DataFile, Next};
use super::directory::{Task, TraceDirectory};
use super::error::ReportError;
use super::functions::Functions;
use super::open_calls::OpenCalls;
use super::trace_end::TraceEnd;
use crate::as_found::open_file;
use crate::event::{End, Event, EventKind, Sink};
use crate::event::{Moment, Values};
use crate::export::call_formats::CallFormats;
use crate::export::uftrace::record::{Kind, Record};
use crate::export::uftrace::threads::{has_values_beside, read_side_word};
use crate::graph::excerpt::Excerpt;
use crate::graph::selection::Selection;
use crate::watch::Watch;

/// One thread; of a trace of functions, one vCPU.
#[derive(Debug)]
struct Lane {
    thread: u32,
    /// What remarks call it.
    name: String,
    data: DataFile,
    /// Of a trace of functions: whose it is. There are entries only, then, and what looks like a return is none.
    of_vcpu: Option<u16>,
    /// Whether it is asked for. Its calls are counted all the same.
    is_wanted: bool,
    /// vCPUs and ends; what has none there is shown as of vCPU 0.
    side: Option<BufReader<File>>,
    /// The records of which it does not say them, though it stood beside them once.
    unplaced: u64,
    /// What values stand there.
    values: Arc<CallFormats>,
    open: OpenCalls,
    entries: u64,
    /// Ends of calls that are in its file.
    exits: u64,
    has_times: bool,
    last_ns: u64,
    /// When its first record was, and its last.
    span_ns: Option<(u64, u64)>,
    /// Times that were before those before them.
    backwards: u64,
    /// What comes next.
    ready: VecDeque<Event>,
    is_at_end: bool,
}

impl Lane {
    fn open(trace: &TraceDirectory, task: &Task, excerpt: &Excerpt) -> Result<Self, ReportError> {
        let vcpu = u16::try_from(task.vcpu).unwrap_or(u16::MAX);
        let of_vcpu = (!trace.is_graph()).then_some(vcpu);
        let (thread, name, side) = match of_vcpu {
            Some(vcpu) => (vcpu.into(), task.data.display().to_string(), None),
            None => (
                task.thread,
                format!("thread {}", task.thread),
                // To its end, not as it is found: it is written before the records that it stands beside.
                beside(&task.side)?.map(BufReader::new),
            ),
        };
        let told = trace
            .side
            .as_ref()
            .and_then(|side| side.threads.get(&thread));
        Ok(Self {
            is_wanted: excerpt.has_thread(thread, told.map(String::as_str)),
            thread,
            name,
            data: DataFile::open(task, &trace.values)?,
            of_vcpu,
            side,
            unplaced: 0,
            values: Arc::clone(&trace.values),
            open: OpenCalls::default(),
            entries: 0,
            exits: 0,
            has_times: trace.has_times(),
            last_ns: 0,
            span_ns: None,
            backwards: 0,
            ready: VecDeque::new(),
            is_at_end: false,
        })
    }

    /// Reads the next record. After the last, and after what cannot be read, it is at its end.
    fn read(
        &mut self,
        functions: &mut Functions,
        notes: &mut Vec<String>,
        sink: &mut impl Sink,
    ) -> Result<(), ReportError> {
        match self.data.next() {
            Ok(Next::Record(record, values)) => {
                self.take(record, values, functions, sink);
                return Ok(());
            }
            Ok(Next::End) => {}
            Ok(Next::Torn(part)) => {
                let name = &self.name;
                notes.push(format!("{name}: {part} bytes of a torn record at its end"));
            }
            Err(error) => {
                self.is_at_end = true;
                return Err(error);
            }
        }
        self.is_at_end = true;
        notes.extend(self.remarks());
        Ok(())
    }

    /// What stands beside a record. After what cannot be read there is nothing.
    fn side(&mut self, record: Record) -> (u16, End, Option<Values>) {
        let mut word = [0; 2];
        let read = self.side.as_mut().map(|side| side.read_exact(&mut word));
        let (Some(side), Some(Ok(()))) = (&mut self.side, read) else {
            self.unplaced += 1;
            return (0, End::Returned, None);
        };
        let word = u16::from_le_bytes(word);
        let (vcpu, end) = read_side_word(word);
        if !has_values_beside(word) {
            return (vcpu, end, None);
        }
        let moment = match record.kind {
            Kind::Entry => Moment::Entry,
            Kind::Exit | Kind::Lost | Kind::Event => Moment::Exit,
        };
        let values = self.values.decode(record.value, moment, side);
        let values = values.ok().flatten().map(|(values, _)| values);
        if values.is_none() {
            self.side = None;
        }
        (vcpu, end, values)
    }

    /// The file is damaged or was made by somebody else when times go back in it: ours do not. What is open then gets no
    /// duration, so that calls of known duration are never longer than the one that they were made in.
    fn check_time(&mut self, time_ns: u64) {
        if self.has_times && time_ns < self.last_ns {
            self.open.lose();
            self.backwards += 1;
        }
        self.last_ns = time_ns;
        self.spans(time_ns);
    }

    /// Something was at this time.
    fn spans(&mut self, time_ns: u64) {
        let (first, last) = self.span_ns.unwrap_or((time_ns, time_ns));
        self.span_ns = Some((first.min(time_ns), last.max(time_ns)));
    }

    /// Turns a record into steps of the thread. Its depth is trusted only as far as it fits.
    fn take(
        &mut self,
        record: Record,
        values: Option<Values>,
        functions: &mut Functions,
        sink: &mut impl Sink,
    ) {
        if let Some(vcpu) = self.of_vcpu {
            self.take_entry(vcpu, (record, values), functions, sink);
            return;
        }
        self.check_time(record.time);
        let (vcpu, end, beside) = self.side(record);
        let at = Event {
            time_ns: record.time,
            vcpu,
            thread: self.thread,
            depth: 0,
            kind: EventKind::Lost(record.value),
            values: values.or(beside),
        };
        match record.kind {
            Kind::Entry => {
                self.entries += 1;
                self.close_to(record.depth, &at, sink);
                let function = functions.id(record.value);
                let (depth, kind) = (self.open.depth(), EventKind::Entry(function));
                let ended = self.open.enter(function, record.time);
                sink.event(Event { depth, kind, ..at });
                if let Some(kind) = ended {
                    let values = None;
                    sink.event(Event {
                        depth,
                        kind,
                        values,
                        ..at
                    });
                }
            }
            Kind::Exit => {
                self.exits += 1;
                self.close_to(record.depth.saturating_add(1), &at, sink);
                let is_it = |function| functions.address(function) == record.value;
                let has_times = self.has_times;
                if let Some(kind) = self.open.exit(is_it, end, record.time, has_times) {
                    let depth = self.open.depth();
                    sink.event(Event { depth, kind, ..at });
                }
            }
            Kind::Lost => {
                self.open.lose();
                let depth = self.open.depth();
                sink.event(Event { depth, ..at });
            }
            Kind::Event => {}
        }
    }

    /// The same of a trace of functions.
    fn take_entry(
        &mut self,
        vcpu: u16,
        (record, values): (Record, Option<Values>),
        functions: &mut Functions,
        sink: &mut impl Sink,
    ) {
        let kind = match record.kind {
            Kind::Entry => {
                self.entries += 1;
                EventKind::Entry(functions.id(record.value))
            }
            Kind::Lost => EventKind::Lost(record.value),
            Kind::Exit | Kind::Event => return,
        };
        self.spans(record.time);
        sink.event(Event {
            time_ns: record.time,
            vcpu,
            thread: self.thread,
            depth: 0,
            kind,
            values,
        });
    }

    /// Ends the calls at this depth and deeper: their exits are missing from the file.
    fn close_to(&mut self, depth: u32, at: &Event, sink: &mut impl Sink) {
        while self.open.are_missing(depth)
            && let Some(kind) = self.open.missing()
        {
            sink.event(Event {
                depth: self.open.depth(),
                kind,
                values: None,
                ..*at
            });
        }
    }

    /// What is to be said of it, at its end.
    fn remarks(&self) -> impl Iterator<Item = String> {
        let Self {
            name, backwards, ..
        } = self;
        let backwards = (*backwards > 0).then(|| {
            format!("{name}: {backwards} times go back; calls around them are of unknown duration")
        });
        let unfollowed = Some(self.open.unfollowed).filter(|count| *count > 0);
        let unfollowed = unfollowed.map(|count| {
            let calls = counted(count, "call");
            format!("{name}: {calls} not followed: too many calls open at once")
        });
        backwards.into_iter().chain(unfollowed)
    }
}

/// The steps of all threads, in the order of time; at the same time, in the order of the threads.
#[derive(Debug)]
pub struct Calls {
    lanes: Vec<Lane>,
    /// The time of the next step of each thread that has one, and its place in `lanes`.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    /// The thread of the last step, which has no place in `heads` until the next one is asked for.
    last: Option<usize>,
    /// The functions that were met.
    pub functions: Functions,
    /// Which part of the trace is read.
    pub excerpt: Excerpt,
    selection: Selection,
    /// Asked at most once, where it matters for what is open then.
    end: Option<TraceEnd>,
    failure: Option<ReportError>,
    /// Steps that were asked for.
    steps: u64,
    /// Who watches.
    pub watch: Watch,
    /// Remarks on what was met.
    pub notes: Vec<String>,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// A step.
    Step(Event),
    /// An entry and the exit that follows at once.
    Leaf(Event, Event),
}

impl Shown {
    /// One step, or two.
    pub fn steps(self) -> impl Iterator<Item = Event> {
        let (first, second) = match self {
            Self::Step(step) => (step, None),
            Self::Leaf(entry, exit) => (entry, Some(exit)),
        };
        std::iter::once(first).chain(second)
    }
}

impl Calls {
    /// Opens the data files of a trace.
    ///
    /// # Errors
    /// A [`ReportError`] that names the file, or what of the excerpt the trace does not have.
    pub fn open(trace: &TraceDirectory, excerpt: &Excerpt) -> Result<Self, ReportError> {
        if let Some(what) = excerpt.of_graph().filter(|_| !trace.is_graph()) {
            return Err(trace.is_no_graph(what));
        }
        if let Some(what) = excerpt.of_times().filter(|_| !trace.has_times()) {
            return Err(ReportError::NoTimes(what));
        }
        let vcpus = trace.side.as_ref().map(|side| side.metadata.vcpus);
        let is_missing = |vcpu: &&u16| vcpus.is_some_and(|vcpus| **vcpu >= vcpus);
        if let Some((vcpu, of)) = excerpt.vcpus.iter().find(is_missing).zip(vcpus) {
            return Err(ReportError::NoVcpu { vcpu: *vcpu, of });
        }
        let mut selection = Selection::new(excerpt.clone());
        let functions = Functions::new(&trace.names, &mut selection);
        if selection.root_is_missing() {
            return Err(ReportError::NoRoot);
        }
        if selection.goal_is_missing() {
            return Err(ReportError::NoGoal);
        }
        let lanes = trace
            .tasks
            .iter()
            .map(|task| Lane::open(trace, task, excerpt));
        let lanes = lanes.collect::<Result<Vec<_>, _>>()?;
        let notes = trace.names.unmatched(excerpt.functions());
        if !excerpt.threads.is_empty() && !lanes.iter().any(|lane| lane.is_wanted) {
            return Err(ReportError::NoThread);
        }
        let mut calls = Self {
            lanes,
            excerpt: excerpt.clone(),
            heads: BinaryHeap::new(),
            last: None,
            functions,
            selection,
            end: excerpt.rules.threshold.map(|_| TraceEnd::of(trace)),
            failure: None,
            steps: 0,
            watch: Watch::default(),
            notes,
        };
        for index in 0..calls.lanes.len() {
            calls.fill(index)?;
            calls.queue(index);
        }
        Ok(calls)
    }

    /// The next step. A call in which nothing was called comes whole.
    ///
    /// # Errors
    /// [`ReportError::BadRecord`], and others that name the file, after what was good.
    pub fn pop(&mut self) -> Result<Option<Shown>, ReportError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.steps += 1;
        if !self.watch.goes_on(self.steps, || self.entries()) {
            return Err(ReportError::Interrupted);
        }
        if let Some(last) = self.last.take() {
            self.queue(last);
        }
        let Some(Reverse((_, index))) = self.heads.pop() else {
            self.notes.extend(self.selection.take_remark());
            return Ok(None);
        };
        let first = self.take(index);
        let next = self.lanes.get(index).and_then(|lane| lane.ready.front());
        let is_entry = |first: &Event| matches!(first.kind, EventKind::Entry(_));
        let is_leaf = first.as_ref().is_some_and(is_entry)
            && next.is_some_and(|next| matches!(next.kind, EventKind::Exit { .. }));
        let second = if is_leaf { self.take(index) } else { None };
        self.last = Some(index);
        Ok(match (first, second) {
            (Some(entry), Some(exit)) => Some(Shown::Leaf(entry, exit)),
            (Some(step), None) => Some(Shown::Step(step)),
            (None, _) => None,
        })
    }

    /// Whether all that the trace has is asked for, as it is.
    pub(super) fn are_all(&self) -> bool {
        self.selection.is_everything() && self.lanes.iter().all(|lane| lane.is_wanted)
    }

    /// The steps of one thread after the other, for whom their order among each other says nothing; of [all](Self::are_all). What
    /// was good before an error comes, of every thread.
    ///
    /// # Errors
    /// As of [`Self::pop`].
    pub(super) fn each(
        &mut self,
        mut to: impl FnMut(&Event, &Functions),
    ) -> Result<(), ReportError> {
        (self.last, self.heads) = (None, BinaryHeap::new());
        let mut steps = Vec::new();
        let mut failure = self.failure.take();
        for index in 0..self.lanes.len() {
            while self.some_of(index, &mut steps, &mut failure)? {
                self.steps += steps.len() as u64;
                for step in steps.drain(..) {
                    to(&step, &self.functions);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// The next steps of this thread; whether there were any, or can be.
    fn some_of(
        &mut self,
        index: usize,
        to: &mut Vec<Event>,
        failure: &mut Option<ReportError>,
    ) -> Result<bool, ReportError> {
        if !self.watch.goes_on(self.steps, || entries_of(&self.lanes)) {
            return Err(ReportError::Interrupted);
        }
        let Some(lane) = self.lanes.get_mut(index) else {
            return Ok(false);
        };
        to.extend(lane.ready.drain(..));
        if lane.is_at_end {
            return Ok(!to.is_empty());
        }
        if let Err(error) = lane.read(&mut self.functions, &mut self.notes, to) {
            failure.get_or_insert(error);
        }
        Ok(true)
    }

    /// Takes the end of the call back that came whole: it comes again when it is its turn.
    pub fn put_back(&mut self, exit: Event) {
        let lane = self.last.and_then(|last| self.lanes.get_mut(last));
        if let Some(lane) = lane {
            lane.ready.push_front(exit);
        }
    }

    /// The name of a function of this trace.
    #[must_use]
    pub fn name<'a>(&self, trace: &'a TraceDirectory, function: FunctionId) -> Cow<'a, str> {
        self.functions.name(trace, function)
    }

    /// The function that made the call that begins with this step, where the trace says where it was made.
    #[must_use]
    pub fn caller(&self, trace: &TraceDirectory, step: &Event) -> Option<FunctionId> {
        self.functions.caller(trace, step)
    }

    /// Its name, or the address that the call returns to, where that is in no function.
    #[must_use]
    pub fn caller_name<'a>(&self, trace: &'a TraceDirectory, step: &Event) -> Option<Cow<'a, str>> {
        let address = step.caller().filter(|_| trace.has_callers())?;
        let caller = self.caller(trace, step);
        Some(caller.map_or_else(
            || address.to_string().into(),
            |caller| self.name(trace, caller),
        ))
    }

    /// Entries that were read so far, whether or not they were asked for.
    #[must_use]
    pub fn entries(&self) -> u64 {
        entries_of(&self.lanes)
    }

    /// Records of calls that were read so far: of one of a graph its entry and its end.
    pub(super) fn records(&self) -> u64 {
        let records = self.lanes.iter().map(|lane| lane.entries + lane.exits);
        records.fold(0, u64::saturating_add)
    }

    /// Records of which no vCPU is known, though each had one beside it: how many, and the first thread that has such.
    pub(super) fn unplaced(&self) -> Option<(u64, u32)> {
        let lanes = self.lanes.iter().filter(|lane| lane.unplaced > 0);
        let count = lanes.clone().map(|lane| lane.unplaced);
        let count = count.fold(0, u64::saturating_add);
        lanes.map(|lane| (count, lane.thread)).next()
    }

    /// All was read, `events` events beside the calls, and nothing of it is shown: that is said where only a part was
    /// asked for.
    pub(crate) fn note_empty_part(&mut self, events: u64) {
        let has_any = events > 0 || self.entries() > 0;
        if self.excerpt.is_everything() || !has_any {
            return;
        }
        let is_of_time = self.excerpt.from_ns.or(self.excerpt.until_ns).is_some();
        let wanted = self.lanes.iter().filter(|lane| lane.is_wanted);
        let spans = wanted.filter_map(|lane| lane.span_ns);
        let span = spans.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)));
        let span = span.filter(|_| is_of_time).map(|(first, last)| {
            let [first, last] = [first, last].map(in_seconds);
            format!("; its calls are from {first} s to {last} s")
        });
        self.notes.push(format!(
            "nothing of the trace is in the part that was asked for{}",
            span.unwrap_or_default()
        ));
    }

    fn take(&mut self, index: usize) -> Option<Event> {
        let event = self.lanes.get_mut(index)?.ready.pop_front();
        if let Err(failure) = self.fill(index) {
            self.failure = Some(failure);
        }
        event
    }

    fn queue(&mut self, index: usize) {
        let next = self.lanes.get(index).and_then(|lane| lane.ready.front());
        if let Some(next) = next {
            self.heads.push(Reverse((next.time_ns, index)));
        }
    }

    /// Reads until a thread has a next step.
    fn fill(&mut self, index: usize) -> Result<(), ReportError> {
        let Some(lane) = self.lanes.get_mut(index) else {
            return Ok(());
        };
        let mut steps = Vec::new();
        while lane.ready.is_empty() && !lane.is_at_end {
            lane.read(&mut self.functions, &mut self.notes, &mut steps)?;
            for step in steps.drain(..).filter(|_| lane.is_wanted) {
                if lane.of_vcpu.is_none() {
                    self.selection.call(step, &mut lane.ready);
                } else if self.excerpt.has(step.vcpu, step.time_ns) {
                    lane.ready.push_back(step);
                }
            }
            if lane.is_at_end {
                // How far others have been read says nothing of how long it hangs.
                if self.selection.asks_for_end(lane.thread)
                    && let Some(end) = self.end.take()
                {
                    self.selection.lasts_until(end.time_ns());
                }
                self.selection.finish_thread(lane.thread, &mut lane.ready);
            }
        }
        Ok(())
    }
}

/// The file beside a data file, if there is one.
fn beside(path: &Path) -> Result<Option<File>, ReportError> {
    match open_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).map_err(ReportError::io("open", path)),
    }
}

fn entries_of(lanes: &[Lane]) -> u64 {
    let entries = lanes.iter().map(|lane| lane.entries);
    entries.fold(0, u64::saturating_add)
}
