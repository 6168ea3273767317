//! The result: rows with a median, a spread and a target, as text and as JSON.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Failed;
use super::host::{Machine, load};
use super::sample::Samples;

/// What a row should come to.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// No target: the row explains others.
    None,
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

impl Target {
    fn is_met(self, value: f64) -> Option<bool> {
        match self {
            Self::None => None,
            Self::AtMost(most) => Some(value <= most),
            Self::AtLeast(least) => Some(value >= least),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

/// One line of the table.
#[derive(Debug)]
pub struct Row {
    what: String,
    unit: &'static str,
    value: f64,
    min: f64,
    max: f64,
    count: usize,
    target: Target,
}

impl Row {
    /// The median of `samples`.
    #[must_use]
    pub fn median(
        what: impl Into<String>,
        unit: &'static str,
        samples: &Samples,
        target: Target,
    ) -> Self {
        Self {
            value: samples.median(),
            ..Self::percentile(what, unit, samples, 50, target)
        }
    }

    /// A percentile of `samples`.
    #[must_use]
    pub fn percentile(
        what: impl Into<String>,
        unit: &'static str,
        samples: &Samples,
        parts: usize,
        target: Target,
    ) -> Self {
        Self {
            what: what.into(),
            unit,
            value: samples.percentile(parts),
            min: samples.min(),
            max: samples.max(),
            count: samples.count(),
            target,
        }
    }

    fn verdict(&self) -> &'static str {
        match self.target.is_met(self.value) {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        }
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "unit": self.unit,
            "value": self.value,
            "min": self.min,
            "max": self.max,
            "count": self.count,
            "target": self.target.to_string(),
            "met": self.target.is_met(self.value),
        })
    }
}

/// All lines, and where and when they were measured.
#[derive(Debug)]
pub struct Table {
    /// Where it was.
    pub host: Machine,
    /// Load averages before and after: what else ran.
    pub load: [String; 2],
    /// Seconds since 1970.
    pub unix_time: u64,
    /// The lines.
    pub rows: Vec<Row>,
}

impl Table {
    /// Prints the table, and writes it as JSON to the file `result`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn publish(&self, result: &str) -> Result<(), Failed> {
        println!("{self}");
        let json = serde_json::to_string_pretty(&self.json())?;
        fs::write(result, json + "\n").map_err(|error| format!("{result}: {error}"))?;
        println!("{result}");
        Ok(())
    }

    /// A table of `rows` that were measured on `host`, from the load `before` to now.
    ///
    /// # Errors
    /// When the system does not say its load or its time.
    pub fn new(host: Machine, before: String, rows: Vec<Row>) -> Result<Self, Failed> {
        Ok(Self {
            host,
            load: [before, load()?],
            unix_time: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
            rows,
        })
    }

    /// The table as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "host": self.host.json(),
            "load_before": self.load[0],
            "load_after": self.load[1],
            "unix_time": self.unix_time,
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after] = &self.load;
        writeln!(f, "{}; load before {before}, after {after}\n", self.host)?;
        writeln!(
            f,
            "| {:<52} | {:>10} | {:>21} | {:>4} | {:<11} | {:>8} | {:<6} |",
            "what", "value", "min..max", "n", "unit", "target", ""
        )?;
        writeln!(
            f,
            "|{:-<54}|{:-<11}:|{:-<22}:|{:-<5}:|{:-<13}|{:-<9}:|{:-<8}|",
            "", "", "", "", "", "", ""
        )?;
        for row in &self.rows {
            let spread = format!("{:.2}..{:.2}", row.min, row.max);
            let target = row.target.to_string();
            writeln!(
                f,
                "| {:<52} | {:>10.2} | {spread:>21} | {:>4} | {:<11} | {target:>8} | {:<6} |",
                row.what,
                row.value,
                row.count,
                row.unit,
                row.verdict()
            )?;
        }
        Ok(())
    }
}
