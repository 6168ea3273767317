//! Two traces compared, function by function: what got slower or faster, what appeared or vanished, and how sure that is.
//!
//! The calls of each trace are a sample: two means differ by more than chance if they are more than three standard errors
//! apart. What else may be another way from one run to the next, as where things lie in caches, no spread within a run
//! tells: two runs of the same show it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use terms::quantity::counted;

use super::anomalies;
use super::answer::{Answer, Notation};
use super::calls::Calls;
use super::condition::Condition;
use super::directory::{Names, TraceDirectory};
use super::error::ReportError;
use super::gather::Gathered;
use super::missing::Missing;
use super::rows::Rows;
use super::summary::{By, Row, Summary};
use super::table::{Cell, Column, Table, Unit};
use super::times::Times;
use crate::graph::excerpt::Excerpt;
use crate::watch::Watch;

/// How traces are compared.
#[derive(Debug, Clone, Default)]
pub struct Comparison {
    /// Which part of each.
    pub excerpt: Excerpt,
    /// Which functions.
    pub rows: Rows,
    /// For whom.
    pub notation: Notation,
    /// What must not have happened, to any of these functions.
    pub conditions: Vec<Condition>,
    /// Who watches.
    pub watch: Watch,
}

impl Comparison {
    /// Whether times can be compared; nothing can where what is asked for is not there.
    fn check(&self, a: &Side, b: &Side) -> Result<bool, ReportError> {
        let reason = a.has_no_durations().or_else(|| b.has_no_durations());
        let has_times = reason.is_none();
        let asks_for_times = self.conditions.iter().any(Condition::is_of_times);
        if let Some(reason) = reason.filter(|_| asks_for_times) {
            return Err(reason);
        }
        let names = a.all_names().chain(b.all_names());
        self.rows.check("no function of either trace", names)?;
        Ok(has_times)
    }

    /// The conditions that hold for these functions.
    fn failed(&self, pairs: &[(&str, Row, Row)]) -> Vec<String> {
        let mut failed = Vec::new();
        for condition in &self.conditions {
            let check = |(name, was, is): &(&str, Row, Row)| condition.check(name, was, is);
            failed.extend(pairs.iter().filter_map(check));
        }
        failed
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Compared {
    /// Whether the table could be printed.
    pub printed: io::Result<()>,
    /// Remarks for the user, one line each.
    pub notes: Vec<String>,
    /// What the traces should have and have not.
    pub missing: Vec<Missing>,
    /// The conditions that hold, each with a function that it holds for.
    pub failed: Vec<String>,
    /// Why nobody knows whether others hold, of each trace that is not whole or has lost something; nothing where there are no conditions.
    pub unknown: Vec<String>,
}

/// One of the two.
struct Side {
    path: PathBuf,
    is_graph: bool,
    /// Whether it says what it is.
    is_described: bool,
    has_times: bool,
    period_ns: Option<u64>,
    calls: u64,
    lost: u64,
    functions: BTreeMap<String, Row>,
    /// Those that it has beside these: rows can be asked for by them.
    names: Names,
    notes: Vec<String>,
    missing: Option<Missing>,
    /// Why it is not whole, if it is not.
    incomplete: Option<String>,
}

impl Side {
    fn read(path: &Path, how: &Comparison) -> Result<Self, ReportError> {
        let trace = TraceDirectory::open(path)?;
        let mut calls = Calls::open(&trace, &how.excerpt)?;
        calls.watch = how.watch.clone();
        let mut gathered = Gathered {
            summary: Some(Summary::new(By::Function)),
            ..Gathered::default()
        };
        gathered.walk(&trace, &mut calls, &Rows::default())?;
        let mut functions: BTreeMap<String, Row> = BTreeMap::new();
        if let Some(summary) = &gathered.summary {
            // Addresses are others in another build; functions of one name are one.
            for (name, row) in summary.functions(|id| calls.name(&trace, id)) {
                functions.entry(name).or_default().merge(row);
            }
        }
        let missing = Missing::of(&trace, &calls);
        // That it is damaged is an error, and said as one.
        let remark = trace.remark.clone().filter(|_| !trace.is_damaged);
        let notes = calls.notes.into_iter().chain(remark);
        let notes = notes.chain(anomalies::without_place(&trace));
        let of = |note| format!("{}: {note}", path.display());
        Ok(Self {
            path: path.to_owned(),
            is_graph: trace.is_graph(),
            is_described: trace.side.is_some(),
            has_times: trace.has_times(),
            period_ns: trace.clock_period_ns(),
            calls: gathered.printed.entries,
            lost: gathered.printed.lost,
            functions,
            notes: notes.map(of).collect(),
            missing: missing.or_else(|| Missing::of_events(&trace, gathered.printed.read_events)),
            incomplete: trace
                .remark
                .map(|said| format!("{}: {said}", path.display())),
            names: trace.names,
        })
    }

    /// Why what it has may not be all that happened, if so.
    fn unknown(&self) -> impl Iterator<Item = String> {
        let lost = (self.lost > 0).then(|| {
            let (path, records) = (self.path.display(), counted(self.lost, "record"));
            format!("{path}: {records} lost")
        });
        self.incomplete.iter().cloned().chain(lost)
    }

    /// Why it does not say how long calls took, if it does not.
    fn has_no_durations(&self) -> Option<ReportError> {
        const WHAT: &str = "comparing times";
        if !self.is_graph {
            return Some(ReportError::no_graph(WHAT, &self.path, self.is_described));
        }
        (!self.has_times).then_some(ReportError::NoTimes(WHAT))
    }

    /// The names of its functions, called or not.
    fn all_names(&self) -> impl Iterator<Item = &str> + Clone {
        let called = self.functions.keys().map(String::as_str);
        called.chain(self.names.all())
    }

    fn remark(&self, label: &str) -> String {
        let (path, calls) = (self.path.display(), counted(self.calls, "call"));
        let functions = counted(self.functions.len() as u64, "function");
        let lost = match self.lost {
            0 => "0 lost".to_owned(),
            lost => format!("{lost} lost: there were more calls than are compared"),
        };
        format!("{label}: {path}: {calls} of {functions}, {lost}")
    }
}

/// Compares two traces, and prints what is to be seen.
///
/// # Errors
/// A [`ReportError`] that names the file, or the condition that needs times.
pub fn compare(
    before: &Path,
    after: &Path,
    comparison: &Comparison,
    out: impl Write,
) -> Result<Compared, ReportError> {
    let (a, b) = (
        Side::read(before, comparison)?,
        Side::read(after, comparison)?,
    );
    let has_times = comparison.check(&a, &b)?;
    let pairs = pairs(&a, &b, &comparison.rows);
    let failed = comparison.failed(&pairs);
    let mut table = table(pairs, has_times);
    let names = a.functions.keys().chain(b.functions.keys());
    let names: BTreeSet<&String> = names.collect();
    comparison.rows.arrange(&mut table, names.len())?;
    let remarks = [a.remark("A"), b.remark("B")].into_iter();
    table.remarks.extend(remarks.chain(only_one_has(&a, &b)));
    let incomplete = a.incomplete.iter().chain(&b.incomplete).cloned().collect();
    let unknown = a.unknown().chain(b.unknown());
    let unknown = unknown.filter(|_| !comparison.conditions.is_empty());
    let unknown: Vec<String> = unknown.collect();
    let answer = Answer {
        view: "diff",
        facts: vec![
            ("calls_a", json!(a.calls)),
            ("lost_a", json!(a.lost)),
            ("calls_b", json!(b.calls)),
            ("lost_b", json!(b.lost)),
            ("failed", json!(failed)),
        ],
        about: None,
        tables: vec![table],
        remarks: incomplete,
        lost: a.lost.saturating_add(b.lost),
    };
    let mut out = BufWriter::new(out);
    let times = Times {
        period_ns: a.period_ns.max(b.period_ns),
        ..Times::default()
    };
    let mut notes = [a.notes, b.notes].concat();
    let printed = answer.write(comparison.notation, times, &mut out);
    let printed = printed.and_then(|more| {
        notes.splice(..0, more);
        out.flush()
    });
    Ok(Compared {
        printed,
        notes,
        unknown,
        missing: a.missing.into_iter().chain(b.missing).collect(),
        failed,
    })
}

/// What keeps times from being compared, where one of the two has them.
fn only_one_has(a: &Side, b: &Side) -> impl Iterator<Item = String> {
    let has = [
        (a.is_graph, b.is_graph, "returns"),
        (a.has_times, b.has_times, "times"),
    ];
    let one = has.into_iter().filter(|(a, b, _)| a != b);
    one.map(|(_, _, what)| {
        format!("only one of them has {what}: there are no durations to compare")
    })
}

/// The functions that are wanted of either trace, with what they did in both.
fn pairs<'a>(a: &'a Side, b: &'a Side, wanted: &Rows) -> Vec<(&'a str, Row, Row)> {
    let mut pairs: BTreeMap<&str, (Row, Row)> = BTreeMap::new();
    for (name, row) in &a.functions {
        pairs.entry(name).or_default().0 = *row;
    }
    for (name, row) in &b.functions {
        pairs.entry(name).or_default().1 = *row;
    }
    let chosen = pairs
        .into_iter()
        .filter(|(name, _)| wanted.have(Some(name)));
    chosen.map(|(name, (was, is))| (name, was, is)).collect()
}

/// What is to be said of a function.
fn verdict(was: &Row, is: &Row, has_times: bool) -> &'static str {
    if was.calls == 0 {
        return "appeared";
    }
    if is.calls == 0 {
        return "vanished";
    }
    let change = has_times.then(|| change(was, is)).flatten();
    match change {
        Some((more, error)) if more > error => "slower",
        Some((more, error)) if -more > error => "faster",
        _ if is.calls > was.calls => "more calls",
        _ if is.calls < was.calls => "fewer calls",
        _ => "alike",
    }
}

/// By how many nanoseconds each call took longer itself, and how much of that may be chance.
fn change(was: &Row, is: &Row) -> Option<(f64, f64)> {
    let more = is.own.mean()? - was.own.mean()?;
    Some((more, was.own.mean_error(is.own)?))
}

/// The largest effects first: those on the time that functions took themselves, or on how often they were called.
fn table(mut pairs: Vec<(&str, Row, Row)>, has_times: bool) -> Table {
    let effect = |(_, was, is): &(&str, Row, Row)| match has_times {
        true => was.own.sum.abs_diff(is.own.sum),
        false => was.calls.abs_diff(is.calls),
    };
    pairs.sort_by_key(|pair| std::cmp::Reverse(effect(pair)));
    let mut columns = vec![
        Column::new("calls_a", "CALLS A", Unit::Number(10)),
        Column::new("calls_b", "CALLS B", Unit::Number(10)),
    ];
    if has_times {
        columns.extend([
            Column::new("total_a", "TOTAL A us", Unit::Duration(14)),
            Column::new("total_b", "TOTAL B us", Unit::Duration(14)),
            Column::new("self_a", "SELF A us", Unit::Duration(14)),
            Column::new("self_b", "SELF B us", Unit::Duration(14)),
            Column::new("change", "CHANGE us", Unit::Change(14)),
            Column::new("each_percent", "EACH %", Unit::Percent(8)),
            Column::new("error_percent", "+-", Unit::Percent(7)),
        ]);
    }
    columns.extend([
        Column::new("verdict", "VERDICT", Unit::Number(11)),
        Column::new("function", "FUNCTION", Unit::Name("")),
    ]);
    let rows = pairs.iter().map(|(name, was, is)| {
        let mut cells = vec![was.calls.into(), is.calls.into()];
        if has_times {
            cells.extend(times(was, is));
        }
        cells.extend([Cell::name(verdict(was, is, has_times)), Cell::name(*name)]);
        cells
    });
    Table {
        name: "diff",
        rows: rows.collect(),
        columns,
        remarks: Vec::new(),
    }
}

fn times(was: &Row, is: &Row) -> [Cell; 7] {
    let known = |count: u64, sum: u64| Cell::from((count > 0).then_some(sum));
    let change = i128::from(is.own.sum) - i128::from(was.own.sum);
    let has_any = was.own.count > 0 || is.own.count > 0;
    // Of what it was.
    let percent = |ns: f64| {
        let share = ns / was.own.mean().filter(|mean| *mean > 0.0)?;
        tenths_of_percent(share)
    };
    let each = self::change(was, is);
    [
        known(was.total.count, was.total.sum),
        known(is.total.count, is.total.sum),
        known(was.own.count, was.own.sum),
        known(is.own.count, is.own.sum),
        Cell::Number(has_any.then_some(change)),
        Cell::Number(each.and_then(|(more, _)| percent(more))),
        Cell::Number(each.and_then(|(_, error)| percent(error))),
    ]
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "what is no number becomes 0, what is too large the largest"
)]
fn tenths_of_percent(share: f64) -> Option<i128> {
    share.is_finite().then(|| (share * 1000.0).round() as i128)
}
