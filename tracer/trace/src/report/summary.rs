//! Calls of a trace per function: how many, and of a graph how long they took.
//!
//! *Total* counts a recursive function once, for its outermost call. *Self* leaves out what was spent
//! in traced functions that were called. *Min*, *avg* and *max* are of single calls. Calls of unknown
//! duration are counted, and add no time. What is shorter than the period of the clock is said to be so.

use std::collections::HashMap;
use std::io::{self, Write};

use terms::function::FunctionId;

use super::calls::{Calls, Shown};
use super::directory::TraceDirectory;
use super::error::ReportError;
use super::events::Counts;
use super::stream::{Happened, Stream};
use super::{Printed, anomalies};
use crate::event::{Event, EventKind};
use crate::export::resolution::shorter;
use terms::quantity::plain;

/// What there is of a graph beside calls.
const HEADINGS: [&str; 5] = ["TOTAL us", "SELF us", "MIN us", "AVG us", "MAX us"];

/// The sums of one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// All calls.
    pub calls: u64,
    /// Calls of known duration.
    pub timed: u64,
    /// Nanoseconds in the function and what it called.
    pub total: u64,
    /// Nanoseconds in the function itself.
    pub own: u64,
    /// Nanoseconds of all calls of known duration, nested ones too.
    pub sum: u64,
    /// The shortest call.
    pub min: u64,
    /// The longest call.
    pub max: u64,
}

impl Default for Row {
    fn default() -> Self {
        Self {
            calls: 0,
            timed: 0,
            total: 0,
            own: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

/// A call that is open.
#[derive(Debug, Clone, Copy)]
struct Open {
    function: FunctionId,
    /// Nanoseconds in the calls from it.
    inner: u64,
    is_outermost: bool,
}

/// Adds calls up.
#[derive(Debug, Default)]
pub struct Summary {
    rows: HashMap<FunctionId, Row>,
    threads: HashMap<u32, Vec<Open>>,
    lost: Vec<u64>,
    printed: Printed,
}

impl Summary {
    /// The next step of a thread.
    pub fn add(&mut self, step: &Event) {
        let open = self.threads.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(function) => {
                self.printed.entries += 1;
                self.rows.entry(function).or_default().calls += 1;
                // Of a trace of functions nothing returns.
                open.truncate(step.depth as usize);
                let is_outermost = open.iter().all(|call| call.function != function);
                open.push(Open {
                    function,
                    inner: 0,
                    is_outermost,
                });
            }
            EventKind::Exit { duration, .. } => {
                let (Some(call), Some(duration)) = (open.pop(), duration) else {
                    return;
                };
                if let Some(around) = open.last_mut() {
                    around.inner = around.inner.saturating_add(duration);
                }
                let row = self.rows.entry(call.function).or_default();
                row.add(duration, call);
            }
            EventKind::Lost(count) => {
                self.printed.lost = self.printed.lost.saturating_add(count);
                let vcpu = usize::from(step.vcpu);
                if self.lost.len() <= vcpu {
                    self.lost.resize(vcpu + 1, 0);
                }
                if let Some(lost) = self.lost.get_mut(vcpu) {
                    *lost = lost.saturating_add(count);
                }
            }
            EventKind::Point(_) | EventKind::LostPoints(_) | EventKind::Stall(_) => {}
        }
    }
}

impl Row {
    fn add(&mut self, duration: u64, call: Open) {
        self.timed += 1;
        self.sum = self.sum.saturating_add(duration);
        // Nothing is cut: a thread's times do not go back between the entry and the exit of a call of known duration,
        // so the calls in it took no more than it did.
        self.own = self.own.saturating_add(duration.saturating_sub(call.inner));
        self.min = self.min.min(duration);
        self.max = self.max.max(duration);
        if call.is_outermost {
            self.total = self.total.saturating_add(duration);
        }
    }

    fn times(&self) -> [Option<u64>; 5] {
        let known = |value| (self.timed > 0).then_some(value);
        let average = self.sum.checked_div(self.timed);
        [
            known(self.total),
            known(self.own),
            known(self.min),
            average,
            known(self.max),
        ]
    }
}

/// Microseconds.
fn column(nanoseconds: u64, period: Option<u64>) -> String {
    let (sign, shown) = match shorter(nanoseconds, period) {
        Some(period) => ("<", period),
        None => ("", nanoseconds),
    };
    format!("{sign}{}.{:03}", shown / 1000, shown % 1000)
}

pub(super) fn print_summary(
    trace: &TraceDirectory,
    calls: &mut Calls,
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    let mut summary = Summary::default();
    let mut points = Counts::default();
    let mut stream = Stream::of(trace, calls, false)?;
    let end = loop {
        match stream.next() {
            Ok(Some(Happened::Call(Shown::Step(step)))) => summary.add(&step),
            Ok(Some(Happened::Call(Shown::Leaf(entry, exit)))) => {
                summary.add(&entry);
                summary.add(&exit);
            }
            Ok(Some(Happened::Point(point))) => points.add(point),
            Ok(Some(Happened::Stall(_))) => {}
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    table(trace, calls, &summary, out).map_err(ReportError::Output)?;
    if trace.is_graph() {
        anomalies::print(trace, out).map_err(ReportError::Output)?;
    }
    let mut printed = summary.printed;
    points.print(out).map_err(ReportError::Output)?;
    printed.events = points.all();
    printed.lost = printed.lost.saturating_add(points.lost);
    end.map(|()| printed)
}

fn table(
    trace: &TraceDirectory,
    calls: &Calls,
    summary: &Summary,
    out: &mut impl Write,
) -> io::Result<()> {
    let rows = summary.rows.iter();
    let mut rows: Vec<_> = rows
        .map(|(id, row)| (row, calls.name(trace, *id)))
        .collect();
    let has_times = trace.is_graph();
    let key = |row: &Row| if has_times { row.total } else { row.calls };
    rows.sort_by(|a, b| key(b.0).cmp(&key(a.0)).then_with(|| a.1.cmp(&b.1)));
    write!(out, "{:>14}", "CALLS")?;
    for heading in HEADINGS.iter().filter(|_| has_times) {
        write!(out, " {heading:>14}")?;
    }
    writeln!(out, "  FUNCTION")?;
    for (row, name) in &rows {
        write!(out, "{:>14}", row.calls)?;
        for time in row.times().into_iter().filter(|_| has_times) {
            match time {
                Some(time) => write!(out, " {:>14}", column(time, trace.clock_period_ns()))?,
                None => write!(out, " {:>14}", "-")?,
            }
        }
        writeln!(out, "  {name}")?;
    }
    let (calls, lost) = (summary.printed.entries, summary.printed.lost);
    let functions = rows.len() as u64;
    let (calls, functions) = (plain(calls, "call"), plain(functions, "function"));
    writeln!(out, "# {calls} of {functions}, {lost} lost")?;
    for (vcpu, count) in summary
        .lost
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0)
    {
        writeln!(out, "# CPU:{vcpu} [LOST {count} EVENTS]")?;
    }
    Ok(())
}
