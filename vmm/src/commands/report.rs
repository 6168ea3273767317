//! `vmm report`: a trace directory as text. Needs no KVM.

use std::io;
use std::path::Path;

use clap::{Args, ValueEnum};
use trace::glob::Pattern;
use trace::graph::selection::Rules;
use trace::report::rows::Rows;
use trace::report::{self, Format, ReportError, View};

use super::stdout;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// How a trace is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// One line per call, as ftrace's function tracer.
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
}

impl From<ReportFormat> for Format {
    fn from(format: ReportFormat) -> Self {
        match format {
            ReportFormat::Function => Self::Function,
            ReportFormat::Counts => Self::Counts,
            ReportFormat::Graph => Self::Graph,
            ReportFormat::Callers => Self::Callers,
            ReportFormat::Callees => Self::Callees,
            ReportFormat::Slowest => Self::Slowest,
        }
    }
}

/// Which rows of a table.
#[derive(Debug, Args)]
pub struct RowOptions {
    /// Only rows of functions whose name matches (counts, callers, callees, slowest); may be given several times
    #[arg(long = "function", value_name = "GLOB", value_parser = Pattern::new)]
    functions: Vec<Pattern>,
    /// So many rows at most (counts, callers, callees, slowest)
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

impl From<RowOptions> for Rows {
    fn from(options: RowOptions) -> Self {
        Self {
            functions: options.functions,
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
    format: Option<ReportFormat>,
    rules: Rules,
    rows: RowOptions,
) -> Result<ExitStatus, Failure> {
    let view = View {
        format: format.map(Format::from),
        rules,
        rows: rows.into(),
    };
    match report::print(directory, &view, io::stdout().lock()) {
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
