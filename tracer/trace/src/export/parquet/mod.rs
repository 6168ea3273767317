//! A trace as tables in Parquet, for DuckDB, Spark, ClickHouse and the like: a directory with one file for each table. All
//! times are nanoseconds; those of records that have none are null.

mod table;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::Path;

use ::parquet::data_type::ByteArray;
use terms::function::FunctionId;
use terms::printable;

use self::table::Presence::{Always, Sometimes};
use self::table::{Cell, Column, Kind, Table};
use crate::event::{Event, EventKind};
use crate::export::alone;
use crate::export::events::EventLine;
use crate::export::remark::Remark;

/// A row for each call, as it ends.
const CALLS: [Column; 12] = [
    ("start_ns", Kind::Rising, Sometimes),
    ("duration_ns", Kind::Number, Sometimes),
    ("self_ns", Kind::Number, Sometimes),
    ("function", Kind::Text, Always),
    ("caller", Kind::Text, Sometimes),
    ("depth", Kind::Number, Always),
    ("vcpu", Kind::Number, Always),
    ("thread", Kind::Number, Always),
    ("task", Kind::Text, Sometimes),
    ("remark", Kind::Text, Sometimes),
    ("args", Kind::Text, Sometimes),
    ("retval", Kind::Text, Sometimes),
];
/// A row for each event: `side` is `guest` or `host`, `fields` an object of JSON.
const EVENTS: [Column; 5] = [
    ("time_ns", Kind::Rising, Sometimes),
    ("vcpu", Kind::Number, Always),
    ("side", Kind::Text, Always),
    ("event", Kind::Text, Always),
    ("fields", Kind::Text, Always),
];
/// A row for each function that was called.
const FUNCTIONS: [Column; 6] = [
    ("function", Kind::Text, Always),
    ("calls", Kind::Number, Always),
    ("total_ns", Kind::Number, Sometimes),
    ("self_ns", Kind::Number, Sometimes),
    ("min_ns", Kind::Number, Sometimes),
    ("max_ns", Kind::Number, Sometimes),
];
/// A row for each loss: `what` is `calls` or `events`.
const LOSSES: [Column; 4] = [
    ("time_ns", Kind::Rising, Sometimes),
    ("vcpu", Kind::Number, Always),
    ("what", Kind::Text, Always),
    ("lost", Kind::Number, Always),
];

/// A row for each time that something concerned all vCPUs: `what` it is, and the same in words.
const REMARKS: [Column; 4] = [
    ("time_ns", Kind::Rising, Always),
    ("what", Kind::Text, Always),
    ("length_ns", Kind::Number, Sometimes),
    ("said", Kind::Text, Always),
];

/// What is known of all calls of a function.
#[derive(Debug, Clone, Default)]
pub struct FunctionRow {
    /// Its name.
    pub function: String,
    /// How often it was called.
    pub calls: u64,
    /// Nanoseconds in total, by itself, in the shortest and in the longest call, where returns are traced.
    pub times_ns: Option<[u64; 4]>,
}

/// What is known of a step beside itself.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// When it was, where records have times.
    pub time_ns: Option<u64>,
    /// What the guest calls its thread.
    pub task: Option<&'a str>,
    /// Of an entry what made the call, where that is known of the call itself.
    pub caller: Option<&'a str>,
    /// Of an entry its arguments, of an exit what was returned.
    pub values: &'a str,
}

/// A call that has begun.
#[derive(Debug)]
struct Open {
    start_ns: Option<u64>,
    name: ByteArray,
    vcpu: u16,
    /// Nanoseconds of the calls from it.
    inner_ns: u64,
    args: Option<ByteArray>,
    task: Option<ByteArray>,
    caller: Option<ByteArray>,
}

/// The tables.
const TABLES: [&str; 5] = ["calls", "events", "functions", "losses", "remarks"];

/// Whether a directory is such an export and nothing else: it has every table, and no other file.
///
/// # Errors
/// What the system says.
pub fn is_alone_in(directory: &Path) -> io::Result<bool> {
    let is_table = |name: &str| {
        let table = name.strip_suffix(".parquet");
        table.is_some_and(|table| TABLES.contains(&table))
    };
    let tables = alone::files(directory, is_table)?;
    Ok(tables == Some(TABLES.len()))
}

/// Writes one trace.
#[derive(Debug)]
pub struct Parquet {
    calls: Table,
    events: Table,
    functions: Table,
    losses: Table,
    remarks: Table,
    has_ends: bool,
    open: HashMap<u32, Vec<Open>>,
    names: HashMap<FunctionId, ByteArray>,
}

impl Parquet {
    /// Into a directory that is there and empty; `has_ends` where returns are traced.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(directory: &Path, has_ends: bool) -> io::Result<Self> {
        let table = |name: &str, columns| {
            let path = directory.join(format!("{name}.parquet"));
            Table::create(&path, name, columns)
        };
        let [calls, events, functions, losses, remarks] = TABLES;
        Ok(Self {
            calls: table(calls, &CALLS)?,
            events: table(events, &EVENTS)?,
            functions: table(functions, &FUNCTIONS)?,
            losses: table(losses, &LOSSES)?,
            remarks: table(remarks, &REMARKS)?,
            has_ends,
            open: HashMap::new(),
            names: HashMap::new(),
        })
    }

    /// The next step of a thread; `name` gives the names of functions, and is asked once for each.
    ///
    /// # Errors
    /// What the system says.
    pub fn step<'a>(
        &mut self,
        step: &Event,
        name: impl FnOnce(FunctionId) -> Cow<'a, str>,
        known: Known<'_>,
    ) -> io::Result<()> {
        let values = || (!known.values.is_empty()).then(|| ByteArray::from(known.values));
        match step.kind {
            EventKind::Entry(function) => {
                let known_name = self.names.entry(function);
                let name = known_name.or_insert_with(|| (&*name(function)).into());
                let open = Open {
                    start_ns: known.time_ns,
                    name: name.clone(),
                    vcpu: step.vcpu,
                    inner_ns: 0,
                    args: values(),
                    task: known.task.map(ByteArray::from),
                    caller: known.caller.map(ByteArray::from),
                };
                if self.has_ends {
                    self.open.entry(step.thread).or_default().push(open);
                    return Ok(());
                }
                self.row(step.thread, step.depth, open, Ended::default())
            }
            EventKind::Exit { end, duration, .. } => {
                let around = self.open.entry(step.thread).or_default();
                let Some(open) = around.pop() else {
                    return Ok(());
                };
                if let (Some(caller), Some(duration)) = (around.last_mut(), duration) {
                    caller.inner_ns = caller.inner_ns.saturating_add(duration);
                }
                let ended = Ended {
                    duration_ns: duration,
                    remark: end.remark(),
                    retval: values(),
                };
                self.row(step.thread, step.depth, open, ended)
            }
            EventKind::Lost(count) => self.lost(known.time_ns, step.vcpu, "calls", count),
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => Ok(()),
        }
    }

    fn row(&mut self, thread: u32, depth: u32, open: Open, ended: Ended) -> io::Result<()> {
        let around = self.open.get(&thread).and_then(|open| open.last());
        let caller = around.map(|caller| caller.name.clone());
        let caller = open.caller.clone().or(caller);
        let duration = ended.duration_ns;
        let own = duration.map(|duration| duration.saturating_sub(open.inner_ns));
        self.calls.push([
            open.start_ns.into(),
            duration.into(),
            own.into(),
            Cell::Text(open.name),
            caller.into(),
            u64::from(depth).into(),
            u64::from(open.vcpu).into(),
            u64::from(thread).into(),
            open.task.into(),
            ended.remark.map_or(Cell::Nothing, Cell::from),
            open.args.into(),
            ended.retval.into(),
        ])
    }

    fn lost(&mut self, time_ns: Option<u64>, vcpu: u16, what: &str, count: u64) -> io::Result<()> {
        let vcpu = u64::from(vcpu);
        self.losses
            .push([time_ns.into(), vcpu.into(), what.into(), count.into()])
    }

    /// An event, or a loss of some, and when that was where it is known.
    ///
    /// # Errors
    /// What the system says.
    pub fn point(&mut self, event: &EventLine, time_ns: Option<u64>) -> io::Result<()> {
        let Some(name) = &event.event else {
            return self.lost(time_ns, event.vcpu, "events", event.lost);
        };
        let side = if event.is_of_host { "host" } else { "guest" };
        self.events.push([
            time_ns.into(),
            u64::from(event.vcpu).into(),
            side.into(),
            (&**name).into(),
            (&*printable::json(&event.fields)?).into(),
        ])
    }

    /// Something that concerned all vCPUs.
    ///
    /// # Errors
    /// What the system says.
    pub fn remark(&mut self, remark: &Remark) -> io::Result<()> {
        self.remarks.push([
            remark.time_ns().into(),
            remark.what().into(),
            remark.length_ns().into(),
            (&*remark.to_string()).into(),
        ])
    }

    /// Writes the rest: calls that are open still, and what is known of functions.
    ///
    /// # Errors
    /// What the system says.
    pub fn finish(mut self, functions: impl Iterator<Item = FunctionRow>) -> io::Result<()> {
        let mut threads: Vec<u32> = self.open.keys().copied().collect();
        threads.sort_unstable();
        for thread in threads {
            let pop = |one: &mut Self| one.open.get_mut(&thread).and_then(Vec::pop);
            while let Some(open) = pop(&mut self) {
                let depth = self.open.get(&thread).map_or(0, Vec::len);
                let ended = Ended {
                    remark: Some("open at the end"),
                    ..Ended::default()
                };
                let depth = u32::try_from(depth).unwrap_or(u32::MAX);
                self.row(thread, depth, open, ended)?;
            }
        }
        for row in functions {
            let time = |index: usize| row.times_ns.and_then(|times| times.get(index).copied());
            self.functions.push([
                (&*row.function).into(),
                row.calls.into(),
                time(0).into(),
                time(1).into(),
                time(2).into(),
                time(3).into(),
            ])?;
        }
        let tables = [
            self.calls,
            self.events,
            self.functions,
            self.losses,
            self.remarks,
        ];
        tables.into_iter().try_for_each(Table::finish)
    }
}

/// How a call ended.
#[derive(Debug, Default)]
struct Ended {
    duration_ns: Option<u64>,
    remark: Option<&'static str>,
    retval: Option<ByteArray>,
}
