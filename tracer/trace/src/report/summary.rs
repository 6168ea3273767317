//! Calls of a trace per function, or per function and who called it: how many, and of a graph how long they took.
//!
//! *Total* counts a recursive function once, for its outermost call. *Self* leaves out what was spent
//! in traced functions that were called. *Min*, *avg* and *max* are of single calls. Calls of unknown
//! duration are counted, and add no time. What is shorter than the period of the clock is said to be so.

use std::collections::{BTreeMap, HashMap};

use terms::function::FunctionId;
use terms::quantity::plain;

use super::callers::{Caller, Callers, NOT_SEEN_IS};
use super::nesting::{Nesting, OfRow};
use super::rows::Rows;
use super::spread::Spread;
use super::step_map::StepMap;
use super::table::{Cell, Column, Table, Unit};
use crate::event::{Event, EventKind};

/// What has a row of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum By {
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
    /// The same for all where callers have no rows.
    caller: Caller,
}

impl By {
    const fn table(self) -> &'static str {
        match self {
            Self::Function => "counts",
            Self::Caller => "callers",
            Self::Callee => "callees",
        }
    }

    const fn noun(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Caller | Self::Callee => "pair",
        }
    }

    /// Of a graph there are times.
    fn columns(self, has_times: bool) -> Vec<Column> {
        let calls = Column::new("calls", "CALLS", Unit::Number(14));
        let times = [
            ("total", "TOTAL us"),
            ("self", "SELF us"),
            ("min", "MIN us"),
            ("avg", "AVG us"),
            ("max", "MAX us"),
        ];
        let times = times.map(|(key, heading)| Column::new(key, heading, Unit::Duration(14)));
        let name = |key, heading, mark| Column::new(key, heading, Unit::Name(mark));
        let names = match self {
            Self::Function => vec![name("function", "FUNCTION", "")],
            Self::Caller => vec![
                name("function", "FUNCTION", ""),
                name("caller", "<-CALLER", "<-"),
            ],
            Self::Callee => vec![
                name("caller", "CALLER", ""),
                name("function", "->FUNCTION", "->"),
            ],
        };
        let times = times.into_iter().filter(|_| has_times);
        std::iter::once(calls).chain(times).chain(names).collect()
    }
}

/// The sums of one row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// All calls.
    pub calls: u64,
    /// Calls of known duration in no other call of the same row, with what they called.
    pub total: Spread,
    /// Calls of known duration, without what they called.
    pub own: Spread,
    /// Calls of known duration, with what they called.
    pub each: Spread,
    /// The shortest and the longest of these, in nanoseconds.
    pub range: Option<(u64, u64)>,
}

/// A call that is open.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// The place of its row.
    row: usize,
    /// Nanoseconds in the calls from it.
    inner: u64,
    is_outermost: bool,
}

impl OfRow for Open {
    fn row(&self) -> usize {
        self.row
    }
}

/// Adds calls up.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    by: By,
    /// In the order in which they were met first.
    rows: Vec<(Key, Row)>,
    /// Where in `rows`.
    places: StepMap<Key, usize>,
    threads: StepMap<u32, Nesting<Open>>,
    callers: Callers,
    calls: u64,
    /// Of each vCPU that has lost any.
    lost: BTreeMap<u16, u64>,
    /// Of nobody knows which.
    unsaid: u64,
}

impl Summary {
    /// With a row for each of these.
    pub fn new(by: By) -> Self {
        Self {
            by,
            ..Self::default()
        }
    }

    /// Whether callers have rows.
    pub fn has_callers(&self) -> bool {
        self.by != By::Function
    }

    /// The next step of a thread; `caller` is who made the call, where the trace itself says that: else steps of all threads come in the order of time, where callers have rows.
    pub fn add(&mut self, step: &Event, caller: Option<Caller>) {
        let caller = match self.by {
            By::Function => Caller::default(),
            By::Caller | By::Callee => caller.unwrap_or_else(|| self.callers.caller(step)),
        };
        let open = self.threads.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(function) => {
                self.calls += 1;
                // Of a trace of functions nothing returns.
                open.cut(step.depth as usize);
                let key = Key { function, caller };
                let row = *self.places.entry(key).or_insert_with(|| {
                    self.rows.push((key, Row::default()));
                    self.rows.len() - 1
                });
                if let Some((_, row)) = self.rows.get_mut(row) {
                    row.calls += 1;
                }
                let is_outermost = !open.has(row);
                open.push(Open {
                    row,
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
                if let Some((_, row)) = self.rows.get_mut(call.row) {
                    row.add(duration, call);
                }
            }
            EventKind::Lost(count) => {
                let lost = self.lost.entry(step.vcpu).or_default();
                *lost = lost.saturating_add(count);
            }
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => {}
        }
    }

    /// So many records are missing, of which no step says so.
    pub fn lost_unsaid(&mut self, count: u64) {
        self.unsaid = self.unsaid.saturating_add(count);
    }

    /// The rows, with the names of their functions.
    pub fn functions<'a, N: Into<String>>(
        &'a self,
        name: impl Fn(FunctionId) -> N + 'a,
    ) -> impl Iterator<Item = (String, &'a Row)> {
        let named = move |(key, row): &'a (Key, Row)| (name(key.function).into(), row);
        self.rows.iter().map(named)
    }

    /// Calls that are open, in all threads.
    #[cfg(test)]
    pub fn open_calls(&self) -> usize {
        self.threads.values().map(Nesting::len).sum()
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The rows that are wanted, those of one function together, the first what took or was called most.
    pub(super) fn table<N: Into<String>>(
        &self,
        name: impl Fn(FunctionId) -> N,
        has_times: bool,
        wanted: &Rows,
    ) -> Table {
        let all_lost = self
            .lost
            .values()
            .copied()
            .fold(self.unsaid, u64::saturating_add);
        let calls = plain(self.calls, "call");
        let rows = plain(self.rows.len() as u64, self.by.noun());
        let mut remarks = vec![format!("{calls} of {rows}, {all_lost} lost")];
        let of_vcpu = |(vcpu, count)| format!("CPU:{vcpu} [LOST {count} EVENTS]");
        remarks.extend(self.lost.iter().map(of_vcpu));
        let sorted = self.sorted(name, has_times).into_iter();
        let not_seen = self
            .rows
            .iter()
            .any(|(key, _)| key.caller == Caller::NotSeen);
        remarks.extend(not_seen.then(|| NOT_SEEN_IS.to_owned()));
        let chosen = sorted.filter(|named| wanted.have(named.chosen_by()));
        Table {
            name: self.by.table(),
            columns: self.by.columns(has_times),
            rows: chosen.map(|named| named.cells(has_times)).collect(),
            remarks,
        }
    }

    fn sorted<N: Into<String>>(
        &self,
        name: impl Fn(FunctionId) -> N,
        has_times: bool,
    ) -> Vec<Named<'_>> {
        let weight = |row: &Row| if has_times { row.total.sum } else { row.calls };
        let mut rows: Vec<Named<'_>> = self
            .rows
            .iter()
            .map(|(key, row)| Named {
                row,
                group: self.group(*key),
                names: self.names(*key, &name),
            })
            .collect();
        let mut groups: HashMap<Caller, u64> = HashMap::new();
        for named in &rows {
            let sum = groups.entry(named.group).or_default();
            *sum = sum.saturating_add(weight(named.row));
        }
        let sum = |group: &Caller| groups.get(group).copied().unwrap_or_default();
        rows.sort_by(|a, b| {
            let by_group = sum(&b.group).cmp(&sum(&a.group));
            let by_group = by_group.then_with(|| a.names.first().cmp(&b.names.first()));
            let by_row = weight(b.row).cmp(&weight(a.row));
            by_group.then(by_row).then_with(|| a.names.cmp(&b.names))
        });
        rows
    }

    /// What stands together.
    fn group(&self, key: Key) -> Caller {
        match self.by {
            By::Function | By::Caller => Caller::Function(key.function),
            By::Callee => key.caller,
        }
    }

    /// In the order of the columns: by the first of them rows are chosen.
    fn names<N: Into<String>>(
        &self,
        Key { function, caller }: Key,
        name: impl Fn(FunctionId) -> N,
    ) -> Vec<Option<String>> {
        let name = |id| name(id).into();
        let (function, caller) = (Some(name(function)), caller.shown(name));
        match self.by {
            By::Function => vec![function],
            By::Caller => vec![function, caller],
            By::Callee => vec![caller, function],
        }
    }
}

impl Row {
    /// The calls of both.
    pub fn merge(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.total.merge(other.total);
        self.own.merge(other.own);
        self.each.merge(other.each);
        let ranges = [self.range, other.range];
        let (least, most) = ranges
            .iter()
            .flatten()
            .copied()
            .unzip::<_, _, Vec<_>, Vec<_>>();
        self.range = least.into_iter().min().zip(most.into_iter().max());
    }

    fn add(&mut self, duration: u64, call: Open) {
        self.each.add(duration);
        // Nothing is cut: a thread's times do not go back between the entry and the exit of a call of known duration,
        // so the calls in it took no more than it did.
        self.own.add(duration.saturating_sub(call.inner));
        let (least, most) = self.range.unwrap_or((duration, duration));
        self.range = Some((least.min(duration), most.max(duration)));
        if call.is_outermost {
            self.total.add(duration);
        }
    }

    fn times(&self) -> [Option<u64>; 5] {
        let known = |value| self.range.map(|_| value);
        let average = self.each.sum.checked_div(self.each.count);
        [
            known(self.total.sum),
            known(self.own.sum),
            self.range.map(|(least, _)| least),
            average,
            self.range.map(|(_, most)| most),
        ]
    }
}

/// A row with the names that it is shown with.
struct Named<'a> {
    row: &'a Row,
    group: Caller,
    names: Vec<Option<String>>,
}

impl Named<'_> {
    /// None of the callees of what is not traced.
    fn chosen_by(&self) -> Option<&str> {
        self.names.first()?.as_deref()
    }

    fn cells(self, has_times: bool) -> Vec<Cell> {
        let times = self.row.times().into_iter().filter(|_| has_times);
        let calls = Cell::from(self.row.calls);
        let names = self.names.into_iter().map(Cell::Name);
        std::iter::once(calls)
            .chain(times.map(Cell::from))
            .chain(names)
            .collect()
    }
}
