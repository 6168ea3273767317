//! The slowest calls of a graph, each with when and where it was made, and who made it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, Write};

use terms::function::FunctionId;
use terms::quantity::plain;

use super::calls::{Calls, Shown};
use super::directory::TraceDirectory;
use super::error::ReportError;
use super::rows::Rows;
use super::stream::{Happened, Stream};
use super::summary::{UNTRACED, column};
use super::{Printed, anomalies};
use crate::event::{Event, EventKind};

/// So many when nobody says how many.
const MOST: usize = 20;

/// A call that has returned. The order is that of what took longer, and of that what came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    duration_ns: u64,
    entered_ns: Reverse<u64>,
    vcpu: u16,
    thread: u32,
    function: FunctionId,
    caller: Option<FunctionId>,
}

/// The slowest so far.
struct Slowest {
    most: usize,
    calls: BinaryHeap<Reverse<Call>>,
    open: HashMap<u32, Vec<FunctionId>>,
    timed: u64,
}

impl Slowest {
    fn new(most: usize) -> Self {
        Self {
            most,
            calls: BinaryHeap::new(),
            open: HashMap::new(),
            timed: 0,
        }
    }

    fn step(&mut self, step: &Event, is_wanted: impl Fn(FunctionId) -> bool) {
        let open = self.open.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(function) => {
                open.truncate(step.depth as usize);
                open.push(function);
            }
            EventKind::Exit {
                function, duration, ..
            } => {
                open.truncate(step.depth as usize);
                let caller = open.last().copied();
                let Some(duration_ns) = duration.filter(|_| is_wanted(function)) else {
                    return;
                };
                self.timed += 1;
                self.calls.push(Reverse(Call {
                    duration_ns,
                    entered_ns: Reverse(step.time_ns.saturating_sub(duration_ns)),
                    vcpu: step.vcpu,
                    thread: step.thread,
                    function,
                    caller,
                }));
                if self.calls.len() > self.most {
                    self.calls.pop();
                }
            }
            _ => {}
        }
    }
}

pub(super) fn print_slowest(
    trace: &TraceDirectory,
    calls: &mut Calls,
    rows: &Rows,
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    let mut slowest = Slowest::new(rows.most.unwrap_or(MOST));
    let mut printed = Printed::default();
    let mut wanted: HashMap<FunctionId, bool> = HashMap::new();
    let mut stream = Stream::of(trace, calls, false)?;
    let end = loop {
        let happened = match stream.next() {
            Ok(Some(happened)) => happened,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        printed.count(&happened);
        let Happened::Call(shown) = happened else {
            continue;
        };
        let (first, second) = match shown {
            Shown::Step(step) => (step, None),
            Shown::Leaf(entry, exit) => (entry, Some(exit)),
        };
        for step in [Some(first), second].iter().flatten() {
            if let EventKind::Entry(function) = step.kind {
                let have = || rows.have(&stream.calls.name(trace, function));
                wanted.entry(function).or_insert_with(have);
            }
            slowest.step(step, |function| wanted.get(&function) == Some(&true));
        }
    };
    table(trace, calls, slowest, out).map_err(ReportError::Output)?;
    anomalies::print(trace, out).map_err(ReportError::Output)?;
    end.map(|()| printed)
}

fn table(
    trace: &TraceDirectory,
    calls: &Calls,
    slowest: Slowest,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(
        out,
        "{:>14} {:>14} {:>4} {:>7}  FUNCTION <-CALLER",
        "DURATION us", "ENTERED AT s", "CPU", "THREAD"
    )?;
    let timed = slowest.timed;
    let shown = slowest.calls.into_sorted_vec();
    for Reverse(call) in &shown {
        let duration = column(call.duration_ns, trace.clock_period_ns());
        let Reverse(entered_ns) = call.entered_ns;
        let (seconds, micros) = (entered_ns / 1_000_000_000, entered_ns / 1_000 % 1_000_000);
        let name = calls.name(trace, call.function);
        let caller = call.caller.map(|caller| calls.name(trace, caller));
        let caller = caller.as_deref().unwrap_or(UNTRACED);
        let (vcpu, thread) = (call.vcpu, call.thread);
        writeln!(
            out,
            "{duration:>14} {seconds:>7}.{micros:06} {vcpu:>4} {thread:>7}  {name} <-{caller}"
        )?;
    }
    let (shown, timed) = (shown.len(), plain(timed, "call"));
    writeln!(out, "# {shown} of {timed} of known duration")
}
