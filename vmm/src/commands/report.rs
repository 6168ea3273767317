//! `vmm report`: a trace directory as text. Needs no KVM.

use std::path::Path;

use clap::{Args, ValueEnum};
use trace::glob::Pattern;
use trace::graph::excerpt::Excerpt;
use trace::report::rows::Rows;
use trace::report::{self, Format, Notation, ReportError, View};

use super::page::Page;
use super::progress;
use super::stdout;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// How a trace is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// The first screen: what was traced, what is missing, the functions that took most, the slowest calls.
    Overview,
    /// One line per call, as ftrace's function tracer; of a graph with who made it.
    Function,
    /// One line per function.
    Counts,
    /// The calls nested, with durations, as ftrace's function_graph tracer.
    Graph,
    /// One line per function and who called it (graph).
    Callers,
    /// One line per function and what it called (graph).
    Callees,
    /// The calls that took longest: 20, or --limit (graph).
    Slowest,
    /// One line per field of each event and probe: its values.
    Values,
    /// When calls and events happened: one line per vCPU, and per thread, 20 or --limit (graph).
    Timeline,
    /// Where the boot of a Linux went: its stages, its init calls, its waits, 20 of each, or --limit (graph).
    Boot,
}

impl From<ReportFormat> for Format {
    fn from(format: ReportFormat) -> Self {
        match format {
            ReportFormat::Overview => Self::Overview,
            ReportFormat::Function => Self::Function,
            ReportFormat::Counts => Self::Counts,
            ReportFormat::Graph => Self::Graph,
            ReportFormat::Callers => Self::Callers,
            ReportFormat::Callees => Self::Callees,
            ReportFormat::Slowest => Self::Slowest,
            ReportFormat::Values => Self::Values,
            ReportFormat::Timeline => Self::Timeline,
            ReportFormat::Boot => Self::Boot,
        }
    }
}

/// How a trace is printed, and how exact its times.
#[derive(Debug, Args)]
pub struct ReportOptions {
    /// How
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "overview")]
    format: ReportFormat,
    /// The same as --format boot: where the boot of a Linux went
    #[arg(long, conflicts_with = "format")]
    boot: bool,
    /// Show when something happened with nine digits after the point, and not six (text)
    #[arg(long)]
    ns: bool,
}

/// Which rows of a table, and how they are written.
#[derive(Debug, Args)]
pub struct TableOptions {
    /// Only rows of functions whose name matches (tables; of values: of events); may be given several times
    #[arg(long = "function", value_name = "GLOB", value_parser = Pattern::new)]
    functions: Vec<Pattern>,
    /// Sort by a column: calls, total, self, min, avg, max, function, caller, ..., of diff calls_a, self_b, change, ... (tables)
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
    /// So many rows at most (tables)
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print one JSON object, times in nanoseconds; of function and graph one for each thing that happened
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values, times in nanoseconds: one table; of function and graph each thing that happened
    #[arg(long)]
    csv: bool,
}

impl TableOptions {
    /// For whom they are written.
    pub(super) fn notation(&self) -> Notation {
        match (self.json, self.csv) {
            (true, _) => Notation::Json,
            (_, true) => Notation::Csv,
            (false, false) => Notation::Text,
        }
    }
}

impl From<TableOptions> for Rows {
    fn from(options: TableOptions) -> Self {
        Self {
            functions: options.functions,
            sort: options.sort,
            most: options.limit,
        }
    }
}

/// Prints the trace in `directory` on stdout, remarks on stderr.
///
/// # Errors
/// When the directory is no trace, a damaged one, or one that lacks calls that were written, or stdout does not
/// take the report. What is there is printed all the same.
pub fn report(
    directory: &Path,
    how: &ReportOptions,
    excerpt: Excerpt,
    table: TableOptions,
) -> Result<ExitStatus, Failure> {
    let view = View {
        format: match how.boot {
            true => Format::Boot,
            false => how.format.into(),
        },
        excerpt,
        notation: table.notation(),
        rows: table.into(),
        has_nanoseconds: how.ns,
        ..View::default()
    };
    // The others write while they read.
    let is_table = !matches!(how.format, ReportFormat::Function | ReportFormat::Graph);
    let page = Page::on_stdout();
    let printed = if is_table {
        let calls = progress::written_calls(directory);
        let (watch, page) = progress::until_written(calls, page);
        report::print(directory, &View { watch, ..view }, page)
    } else {
        report::print(directory, &view, page)
    };
    match printed {
        Ok(printed) => {
            for note in printed.notes {
                log::warn!("{note}");
            }
            if let Some(missing) = printed.missing {
                return Err(Failure::bad_input(missing));
            }
        }
        Err(ReportError::Output(error)) => stdout::taken(error)?,
        Err(error) => return Err(error.into()),
    }
    Ok(ExitStatus::Success)
}
