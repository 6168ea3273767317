//! Tables: what a view of a trace finds, row by row, before anybody knows whether it is printed for people or for programs.

use std::cmp::Ordering;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};
use terms::quantity::in_microseconds;

use super::times::Times;
use crate::export::resolution::shorter;

/// What the cells of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Numbers, right-aligned in so many columns.
    Number(usize),
    /// Nanoseconds that something took, right-aligned in so many columns.
    Duration(usize),
    /// Nanoseconds that it took more or less.
    Change(usize),
    /// Tenths of a per cent.
    Percent(usize),
    /// Nanoseconds since the guest's time began.
    Time,
    /// What happened in parts of the time, in so many columns.
    Bar(usize),
    /// Names, after this mark. They stand last.
    Name(&'static str),
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    /// What options and programs call it.
    pub key: &'static str,
    /// What people see above it.
    pub heading: &'static str,
    pub unit: Unit,
}

impl Column {
    pub const fn new(key: &'static str, heading: &'static str, unit: Unit) -> Self {
        Self { key, heading, unit }
    }

    /// What programs find its cells by: times have their unit in it.
    fn field(self) -> String {
        match self.unit {
            Unit::Duration(_) | Unit::Change(_) | Unit::Time => format!("{}_ns", self.key),
            Unit::Number(_) | Unit::Percent(_) | Unit::Bar(_) | Unit::Name(_) => {
                self.key.to_owned()
            }
        }
    }
}

/// What happened in each part of the time, and what was lost: as many of both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Bar {
    pub happened: Vec<u64>,
    pub lost: Vec<u64>,
}

impl Bar {
    /// A character for each part; a full one is for `most`.
    fn shown(&self, most: u64) -> String {
        const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let full = |happened: u64| {
            // One alone is seen beside millions.
            let eighths = (u128::from(happened) * 8).div_ceil(u128::from(most.max(1)));
            let at = usize::try_from(eighths).unwrap_or(usize::MAX);
            EIGHTHS.get(at).copied().unwrap_or('█')
        };
        let parts = self.happened.iter().zip(&self.lost);
        parts
            .map(|(happened, lost)| if *lost > 0 { 'x' } else { full(*happened) })
            .collect()
    }
}

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cell {
    /// A number of the column's unit; none where it is not known.
    Number(Option<i128>),
    /// What happened in each part of the time.
    Bar(Bar),
    /// A name, of which everything can be printed; none where there is nobody who has one.
    Name(Option<String>),
}

impl Cell {
    /// A name that there is.
    pub fn name(name: impl Into<String>) -> Self {
        Self::Name(Some(name.into()))
    }

    /// What is more comes first, and what is not known last; names as in a dictionary.
    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => b.cmp(a),
            (Self::Name(a), Self::Name(b)) => a.cmp(b),
            // A column is of one kind; bars have no order.
            _ => Ordering::Equal,
        }
    }

    /// As programs read it; none also for what is too large for them.
    fn value(&self, unit: Unit) -> Value {
        match self {
            Self::Name(name) => json!(name),
            Self::Bar(bar) => json!(bar),
            Self::Number(number) => number.map_or(Value::Null, |number| match unit {
                Unit::Percent(_) => json!(tenths(number)),
                _ => match u64::try_from(number) {
                    Ok(number) => json!(number),
                    Err(_) => json!(i64::try_from(number).ok()),
                },
            }),
        }
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Number(Some(number.into()))
    }
}

impl From<Option<u64>> for Cell {
    fn from(number: Option<u64>) -> Self {
        Self::Number(number.map(i128::from))
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "one digit after the point is all that is shown"
)]
fn tenths(number: i128) -> f64 {
    number as f64 / 10.0
}

/// What stands where nobody has a name.
const NOBODY: &str = "(not traced)";

/// Microseconds; what is shorter than the `period` of the clock is said to be so.
fn microseconds(nanoseconds: u64, period: Option<u64>) -> String {
    match shorter(nanoseconds, period) {
        Some(period) => format!("<{}", in_microseconds(period)),
        None => in_microseconds(nanoseconds),
    }
}

/// How much it is, more or less; more than there can be of nanoseconds is the most.
fn size(number: i128) -> u64 {
    u64::try_from(number.unsigned_abs()).unwrap_or(u64::MAX)
}

/// More or less: with a sign unless it is the same.
fn signed(number: i128, shown: &str) -> String {
    let sign = match number {
        ..0 => "-",
        0 => "",
        1.. => "+",
    };
    format!("{sign}{shown}")
}

/// Rows of cells, with what is to be said below them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    /// What it is a table of.
    pub name: &'static str,
    pub columns: Vec<Column>,
    /// As many cells in each as there are columns.
    pub rows: Vec<Vec<Cell>>,
    /// One line each.
    pub remarks: Vec<String>,
}

impl Table {
    /// Takes the rows of another table, and what is said below them.
    ///
    /// # Errors
    /// The other table, where it has other columns.
    pub fn take_in(&mut self, mut other: Self) -> Result<(), Self> {
        if self.columns != other.columns {
            return Err(other);
        }
        self.rows.append(&mut other.rows);
        self.remarks.append(&mut other.remarks);
        Ok(())
    }

    /// Sorts the rows by a column, the largest numbers first; false if there is no such column.
    pub fn sort(&mut self, key: &str) -> bool {
        let Some(at) = self.columns.iter().position(|column| column.key == key) else {
            return false;
        };
        // What is equal stays as it was.
        self.rows.sort_by(|a, b| match (a.get(at), b.get(at)) {
            (Some(a), Some(b)) => a.order(b),
            _ => Ordering::Equal,
        });
        true
    }

    /// Prints it for people, with times so.
    pub fn print(&self, times: Times, out: &mut impl Write) -> io::Result<()> {
        let headings = self.columns.iter().map(|column| column.heading.to_owned());
        self.line(headings, times, out)?;
        let most = self.most();
        for row in &self.rows {
            let cells = row.iter().zip(&self.columns);
            let cells = cells.map(|(cell, column)| shown(cell, *column, times, most));
            self.line(cells, times, out)?;
        }
        self.remarks
            .iter()
            .try_for_each(|remark| writeln!(out, "# {remark}"))
    }

    /// Whether it shows what happened in parts of the time.
    pub fn has_bars(&self) -> bool {
        let mut columns = self.columns.iter();
        columns.any(|column| matches!(column.unit, Unit::Bar(_)))
    }

    /// The most that happened in a part of the time.
    fn most(&self) -> u64 {
        let bars = self.rows.iter().flatten().filter_map(|cell| match cell {
            Cell::Bar(bar) => bar.happened.iter().max(),
            Cell::Number(_) | Cell::Name(_) => None,
        });
        bars.max().copied().unwrap_or(0)
    }

    fn line(
        &self,
        cells: impl Iterator<Item = String>,
        times: Times,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let mut is_after_number = false;
        for (at, (cell, column)) in cells.zip(&self.columns).enumerate() {
            let space = match (at, column.unit) {
                (0, _) => "",
                (_, Unit::Name(_)) if is_after_number => "  ",
                _ => " ",
            };
            let width = match column.unit {
                Unit::Number(width)
                | Unit::Duration(width)
                | Unit::Change(width)
                | Unit::Percent(width)
                | Unit::Bar(width) => width,
                Unit::Time => times.width(),
                Unit::Name(_) => 0,
            };
            write!(out, "{space}{cell:>width$}")?;
            is_after_number = width > 0;
        }
        writeln!(out)
    }

    /// The rows as objects, times in nanoseconds.
    pub fn objects(&self) -> Vec<Value> {
        let object = |row: &Vec<Cell>| {
            let cells = row.iter().zip(&self.columns);
            let fields = cells.map(|(cell, column)| (column.field(), cell.value(column.unit)));
            Value::Object(fields.collect::<Map<_, _>>())
        };
        self.rows.iter().map(object).collect()
    }

    /// Prints the rows as comma-separated values (RFC 4180, lines end as on Unix), times in nanoseconds; nothing where
    /// something is not known.
    pub fn print_csv(&self, out: &mut impl Write) -> io::Result<()> {
        let mut csv = csv::Writer::from_writer(out);
        csv.write_record(self.columns.iter().map(|column| column.field()))?;
        for row in &self.rows {
            let cells = row.iter().zip(&self.columns);
            csv.write_record(cells.map(|(cell, column)| match (cell, column.unit) {
                (Cell::Name(name), _) => name.clone().unwrap_or_default(),
                (Cell::Bar(bar), _) => joined(&bar.happened),
                (Cell::Number(None), _) => String::new(),
                (Cell::Number(Some(number)), Unit::Percent(_)) => tenths(*number).to_string(),
                (Cell::Number(Some(number)), _) => number.to_string(),
            }))?;
        }
        csv.flush()
    }
}

/// Numbers in a cell of comma-separated values.
fn joined(numbers: &[u64]) -> String {
    let numbers = numbers.iter().map(u64::to_string);
    numbers.collect::<Vec<_>>().join(" ")
}

/// A cell as people see it; a full part of a bar is for `most`.
fn shown(cell: &Cell, column: Column, times: Times, most: u64) -> String {
    match (cell, column.unit) {
        (Cell::Name(name), Unit::Name(mark)) => {
            format!("{mark}{}", name.as_deref().unwrap_or(NOBODY))
        }
        (Cell::Name(name), _) => name.clone().unwrap_or_else(|| NOBODY.to_owned()),
        (Cell::Bar(bar), _) => bar.shown(most),
        (Cell::Number(None), _) => "-".to_owned(),
        (Cell::Number(Some(number)), Unit::Duration(_)) => {
            microseconds(size(*number), times.period_ns)
        }
        (Cell::Number(Some(number)), Unit::Change(_)) => {
            signed(*number, &microseconds(size(*number), None))
        }
        (Cell::Number(Some(number)), Unit::Percent(_)) => {
            let size = number.unsigned_abs();
            signed(*number, &format!("{}.{}", size / 10, size % 10))
        }
        (Cell::Number(Some(number)), Unit::Time) => times.moment(size(*number)),
        (Cell::Number(Some(number)), _) => number.to_string(),
    }
}
