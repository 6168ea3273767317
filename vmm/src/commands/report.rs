//! `vmm report`: a trace directory as text. Needs no KVM.

use std::io;
use std::path::Path;

use clap::ValueEnum;
use trace::graph::selection::Rules;
use trace::report::{self, Format, ReportError};

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
}

impl From<ReportFormat> for Format {
    fn from(format: ReportFormat) -> Self {
        match format {
            ReportFormat::Function => Self::Function,
            ReportFormat::Counts => Self::Counts,
            ReportFormat::Graph => Self::Graph,
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
    rules: &Rules,
) -> Result<ExitStatus, Failure> {
    match report::print(
        directory,
        format.map(Format::from),
        rules,
        io::stdout().lock(),
    ) {
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
