//! Calls of a trace per function, or per function and who called it: how many, and of a graph how long they took.
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
use super::rows::Rows;
use super::stream::{Happened, Stream};
use super::{Printed, anomalies};
use crate::event::{Event, EventKind};
use crate::export::resolution::shorter;
use terms::quantity::plain;

/// What there is of a graph beside calls.
const HEADINGS: [&str; 5] = ["TOTAL us", "SELF us", "MIN us", "AVG us", "MAX us"];

/// Who called what no function that is traced has called.
pub(super) const UNTRACED: &str = "(not traced)";

/// What has a row of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum By {
    /// Each function.
    #[default]
    Function,
    /// Each function and who called it, function by function.
    Caller,
    /// The same, caller by caller.
    Callee,
}

/// Whose calls a row has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    function: FunctionId,
    /// None of what nobody who is traced has called, and where callers have no rows.
    caller: Option<FunctionId>,
}

impl By {
    const fn heading(self) -> &'static str {
        match self {
            Self::Function => "FUNCTION",
            Self::Caller => "FUNCTION <-CALLER",
            Self::Callee => "CALLER ->FUNCTION",
        }
    }

    const fn noun(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Caller | Self::Callee => "pair",
        }
    }
}

/// The sums of one row.
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
    key: Key,
    /// Nanoseconds in the calls from it.
    inner: u64,
    is_outermost: bool,
}

/// Adds calls up.
#[derive(Debug, Default)]
pub struct Summary {
    by: By,
    rows: HashMap<Key, Row>,
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
                // Of a trace of functions nothing returns.
                open.truncate(step.depth as usize);
                let around = open.last().filter(|_| self.by != By::Function);
                let caller = around.map(|call| call.key.function);
                let key = Key { function, caller };
                self.rows.entry(key).or_default().calls += 1;
                let is_outermost = open.iter().all(|call| call.key != key);
                open.push(Open {
                    key,
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
                let row = self.rows.entry(call.key).or_default();
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
pub(super) fn column(nanoseconds: u64, period: Option<u64>) -> String {
    let (sign, shown) = match shorter(nanoseconds, period) {
        Some(period) => ("<", period),
        None => ("", nanoseconds),
    };
    format!("{sign}{}.{:03}", shown / 1000, shown % 1000)
}

pub(super) fn print_summary(
    trace: &TraceDirectory,
    calls: &mut Calls,
    (by, rows): (By, &Rows),
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    let mut summary = Summary {
        by,
        ..Summary::default()
    };
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
    let sorted = summary.sorted(|id| calls.name(trace, id), trace.is_graph());
    table(trace, &summary, rows, &sorted, out).map_err(ReportError::Output)?;
    if trace.is_graph() {
        anomalies::print(trace, out).map_err(ReportError::Output)?;
    }
    let mut printed = summary.printed;
    points.print(out).map_err(ReportError::Output)?;
    printed.events = points.all();
    printed.lost = printed.lost.saturating_add(points.lost);
    end.map(|()| printed)
}

/// A row with the name that it is shown with, and that of the function it is chosen by.
struct Named<'a> {
    row: &'a Row,
    name: String,
    chosen_by: String,
}

impl Summary {
    /// All rows, those of one function together, the first what took or was called most.
    fn sorted<N: Into<String>>(
        &self,
        name: impl Fn(FunctionId) -> N,
        has_times: bool,
    ) -> Vec<Named<'_>> {
        let weight = |row: &Row| if has_times { row.total } else { row.calls };
        let named = |(key, row): (&Key, _)| (self.named(*key, row, &name), self.group(*key));
        let mut rows: Vec<_> = self.rows.iter().map(named).collect();
        let mut groups: HashMap<Option<FunctionId>, u64> = HashMap::new();
        for (named, group) in &rows {
            let sum = groups.entry(*group).or_default();
            *sum = sum.saturating_add(weight(named.row));
        }
        let sum = |group: &Option<FunctionId>| groups.get(group).copied().unwrap_or_default();
        rows.sort_by(|(a, a_group), (b, b_group)| {
            let by_group = sum(b_group).cmp(&sum(a_group));
            let by_group = by_group.then_with(|| a.chosen_by.cmp(&b.chosen_by));
            let by_row = weight(b.row).cmp(&weight(a.row));
            by_group.then(by_row).then_with(|| a.name.cmp(&b.name))
        });
        rows.into_iter().map(|(named, _)| named).collect()
    }

    /// What stands together.
    fn group(&self, key: Key) -> Option<FunctionId> {
        match self.by {
            By::Function | By::Caller => Some(key.function),
            By::Callee => key.caller,
        }
    }

    fn named<'a, N: Into<String>>(
        &self,
        key: Key,
        row: &'a Row,
        name: impl Fn(FunctionId) -> N,
    ) -> Named<'a> {
        let function: String = name(key.function).into();
        let caller = || {
            key.caller
                .map_or_else(|| UNTRACED.to_owned(), |id| name(id).into())
        };
        let (name, chosen_by) = match self.by {
            By::Function => (function.clone(), function),
            By::Caller => (format!("{function} <-{}", caller()), function),
            By::Callee => (format!("{} ->{function}", caller()), caller()),
        };
        Named {
            row,
            name,
            chosen_by,
        }
    }
}

fn table(
    trace: &TraceDirectory,
    summary: &Summary,
    wanted: &Rows,
    rows: &[Named<'_>],
    out: &mut impl Write,
) -> io::Result<()> {
    let has_times = trace.is_graph();
    write!(out, "{:>14}", "CALLS")?;
    for heading in HEADINGS.iter().filter(|_| has_times) {
        write!(out, " {heading:>14}")?;
    }
    writeln!(out, "  {}", summary.by.heading())?;
    let chosen = || rows.iter().filter(|row| wanted.have(&row.chosen_by));
    for Named { row, name, .. } in chosen().take(wanted.most()) {
        write!(out, "{:>14}", row.calls)?;
        for time in row.times().into_iter().filter(|_| has_times) {
            match time {
                Some(time) => write!(out, " {:>14}", column(time, trace.clock_period_ns()))?,
                None => write!(out, " {:>14}", "-")?,
            }
        }
        writeln!(out, "  {name}")?;
    }
    wanted.print_left_out(chosen().count(), rows.len(), out)?;
    let (calls, lost) = (summary.printed.entries, summary.printed.lost);
    let calls = plain(calls, "call");
    let rows = plain(rows.len() as u64, summary.by.noun());
    writeln!(out, "# {calls} of {rows}, {lost} lost")?;
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
