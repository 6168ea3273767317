//! What a view that adds up has found: tables, and what is to be said of them. For people, or for programs.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use terms::printable;
use terms::quantity::plain;

use super::boot::Boot;
use super::calls::Calls;
use super::directory::TraceDirectory;
use super::error::ReportError;
use super::gather::Gathered;
use super::overview::About;
use super::slowest::Slowest;
use super::summary::Summary;
use super::table::Table;
use super::timeline::Timeline;
use super::times::Times;
use super::values::Values;
use super::{Format, Printed, View, anomalies};

/// What parts of the time look like in text.
const LEGEND: &str = "the fuller a column is, the more happened; x where records were lost";

/// How an answer is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Notation {
    /// For people.
    #[default]
    Text,
    /// One JSON object; times in nanoseconds.
    Json,
    /// Comma-separated values with a heading; times in nanoseconds. What is to be said beside them is a remark.
    Csv,
}

/// Prints what is found by adding up; of a damaged trace what was good before, too.
pub(super) fn print(
    trace: &TraceDirectory,
    calls: &mut Calls,
    view: &View,
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    let slowest = view.format.slowest().filter(|_| trace.is_graph());
    // Without times nobody knows when.
    let columns = view.format.columns().filter(|_| trace.has_times());
    let mut gathered = Gathered {
        summary: view.format.by().map(Summary::new),
        slowest: slowest.map(|most| Slowest::new(view.rows.most.unwrap_or(most))),
        timeline: columns.map(|columns| Timeline::new(trace.is_graph(), columns)),
        values: view.format.has_values().then(Values::default),
        boot: (view.format == Format::Boot).then(|| Boot::new(trace, &calls.functions)),
        ..Gathered::default()
    };
    let end = gathered.walk(trace, calls, &view.rows);
    if end.is_ok() {
        check_rows(view, trace, calls, &gathered)?;
    }
    let answer = Answer::of(view, trace, calls, &gathered)?;
    let mut printed = gathered.printed;
    let notes = answer.write(view.notation, view.times(trace), out);
    printed.notes.extend(notes.map_err(ReportError::Output)?);
    end.map(|()| printed)
}

/// That there is something of each name that rows are asked for by, whether or not it has happened: a function, or a probe. Of other
/// events a trace knows those that have.
fn check_rows(
    view: &View,
    trace: &TraceDirectory,
    calls: &Calls,
    gathered: &Gathered,
) -> Result<(), ReportError> {
    if view.rows.functions.is_empty() {
        return Ok(());
    }
    let (functions, events) = match view.format {
        Format::Values => (None, gathered.values.as_ref()),
        _ => (Some(calls.functions.names(trace)), gathered.values.as_ref()),
    };
    let what = match (&functions, events) {
        (None, _) => "no event of the trace",
        (Some(_), Some(_)) => "no function and no event of the trace",
        (Some(_), None) => "no function of the trace",
    };
    let functions = functions.unwrap_or_default();
    // What is said of probes may be damaged, which takes nothing from the rest.
    let probes = events.and_then(|_| trace.probes().ok()).unwrap_or_default();
    let probes = probes.iter().map(|probe| &*probe.name);
    let events = events.into_iter().flat_map(Values::events).chain(probes);
    let names = functions.iter().map(|name| &**name).chain(events);
    view.rows.check(what, names)
}

/// All that was gathered, as tables. The first screen has no empty one.
fn tables(
    view: &View,
    trace: &TraceDirectory,
    calls: &Calls,
    gathered: &Gathered,
) -> Result<Vec<Table>, ReportError> {
    let name = |id| calls.name(trace, id);
    let is_overview = view.format == Format::Overview;
    let mut tables = Vec::new();
    let has_calls =
        |summary: &&Summary| !is_overview || summary.len() > 0 || gathered.printed.events == 0;
    if let Some(summary) = gathered.summary.as_ref().filter(has_calls) {
        let mut table = summary.table(name, trace.is_graph(), &view.rows);
        let rows = match is_overview {
            true => &view.rows.of_overview(trace.is_graph()),
            false => &view.rows,
        };
        rows.arrange(&mut table, summary.len())?;
        tables.push(table);
    }
    // What is sorted on the first screen is its first table.
    let rows = view.rows.unsorted_if(is_overview);
    let slowest = gathered.slowest.as_ref().map(|slowest| slowest.table(name));
    if let Some(mut table) = slowest.filter(|table| !is_overview || !table.rows.is_empty()) {
        let all = table.rows.len();
        rows.arrange(&mut table, all)?;
        tables.push(table);
    }
    // Beside the slowest calls alone nobody asks for them.
    let events = gathered.events.table();
    tables.extend(events.filter(|_| gathered.summary.is_some()));
    if let Some(timeline) = &gathered.timeline {
        let is_page = view.format == Format::Everything;
        let vcpus = (timeline.vcpus(), view.rows.of_vcpus());
        let threads = timeline.threads(trace);
        let threads = threads.map(|threads| (threads, view.rows.of_threads(is_page)));
        for (mut table, rows) in [vcpus].into_iter().chain(threads) {
            let all = table.rows.len();
            rows.arrange(&mut table, all)?;
            tables.push(table);
        }
    }
    if let Some(boot) = &gathered.boot {
        for (mut table, all) in boot.tables(&view.rows, |id| name(id).into_owned()) {
            view.rows.of_boot().arrange(&mut table, all)?;
            tables.push(table);
        }
    }
    let values = gathered.values.as_ref();
    if let Some(values) = values.filter(|values| !is_overview || values.len() > 0) {
        let mut table = values.table(&view.rows);
        rows.arrange(&mut table, values.len())?;
        tables.push(table);
    }
    Ok(tables)
}

/// What was found.
#[derive(Debug)]
pub(super) struct Answer {
    /// Which view found it.
    pub view: &'static str,
    /// What the trace is, where that was asked for.
    pub about: Option<About>,
    pub tables: Vec<Table>,
    /// What is to be said below all tables.
    pub remarks: Vec<String>,
    /// What programs are told beside the tables.
    pub facts: Vec<(&'static str, Value)>,
    /// Records that were lost.
    pub lost: u64,
}

impl Answer {
    fn of(
        view: &View,
        trace: &TraceDirectory,
        calls: &Calls,
        gathered: &Gathered,
    ) -> Result<Self, ReportError> {
        let listed = view.format.listed_waits();
        let about = view.format.has_about();
        let about = about.then(|| About::new(trace, calls, gathered, listed));
        let tables = tables(view, trace, calls, gathered)?;
        // What tells of the trace tells of waits.
        let remarks = match about {
            Some(_) => anomalies::doubtful(trace),
            None => anomalies::all(trace),
        };
        let mut facts = vec![
            ("calls", json!(gathered.printed.entries)),
            ("lost", json!(gathered.printed.lost)),
        ];
        facts.extend(
            trace
                .remark
                .as_ref()
                .map(|said| ("incomplete", json!(said))),
        );
        let width_ns = gathered.timeline.as_ref().map(Timeline::width_ns);
        facts.extend(width_ns.map(|width_ns| ("column_ns", json!(width_ns))));
        let start_ns = gathered.timeline.as_ref().and_then(Timeline::start_ns);
        facts.extend(start_ns.map(|start_ns| ("start_ns", json!(start_ns))));
        facts.extend(about.as_ref().map(|about| ("about", json!(about))));
        Ok(Self {
            view: view.format.name(),
            about,
            tables,
            remarks,
            facts,
            lost: gathered.printed.lost,
        })
    }

    /// Writes it, with times so. Returns what is to be said beside it.
    pub fn write(
        self,
        notation: Notation,
        times: Times,
        out: &mut impl Write,
    ) -> io::Result<Vec<String>> {
        match notation {
            Notation::Text => self.print(times, out).map(|()| Vec::new()),
            Notation::Json => self.print_json(times.period_ns, out).map(|()| Vec::new()),
            Notation::Csv => self.print_csv(out),
        }
    }

    fn print(&self, times: Times, out: &mut impl Write) -> io::Result<()> {
        if let Some(about) = &self.about {
            about.print(times, out)?;
        }
        for table in &self.tables {
            if self.about.is_some() {
                writeln!(out)?;
            }
            table.print(times, out)?;
        }
        if self.tables.iter().any(Table::has_bars) {
            writeln!(out, "# {LEGEND}")?;
        }
        anomalies::print(&self.remarks, out)
    }

    /// One object, on a line.
    fn print_json(&self, period_ns: Option<u64>, out: &mut impl Write) -> io::Result<()> {
        let mut object = Map::new();
        object.insert("view".to_owned(), json!(self.view));
        for (key, value) in &self.facts {
            object.insert((*key).to_owned(), value.clone());
        }
        if let Some(period_ns) = period_ns {
            object.insert("clock_period_ns".to_owned(), json!(period_ns));
        }
        for table in &self.tables {
            object.insert(table.name.to_owned(), Value::Array(table.objects()));
        }
        let of_tables = self.tables.iter().flat_map(|table| &table.remarks);
        let remarks: Vec<&String> = of_tables.chain(&self.remarks).collect();
        object.insert("remarks".to_owned(), json!(remarks));
        writeln!(out, "{}", printable::json(&object)?)
    }

    /// The first table, with the rows of others that have its columns. Returns what is to be said beside it.
    fn print_csv(self, out: &mut impl Write) -> io::Result<Vec<String>> {
        let mut said: Vec<String> = (self.lost > 0)
            .then(|| format!("{} lost", plain(self.lost, "record")))
            .into_iter()
            .collect();
        let mut tables = self.tables.into_iter();
        if let Some(mut table) = tables.next() {
            for other in tables {
                if let Err(other) = table.take_in(other) {
                    said.push(format!(
                        "{} are another table, which is not among these rows",
                        other.name
                    ));
                }
            }
            table.print_csv(out)?;
            // What the numbers of its bars are of.
            if table.has_bars() {
                said.append(&mut table.remarks);
            }
        }
        said.extend(self.remarks);
        Ok(said)
    }
}
