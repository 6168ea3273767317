//! `vmm report`: a trace directory as text. Needs no KVM.

use std::io;
use std::path::Path;

use tracer::graph::selection::Rules;
use tracer::report::{self, Format, ReportError};

use super::stdout;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// Prints the trace in `directory` on stdout, remarks on stderr.
///
/// # Errors
/// When the directory is no trace or a damaged one, or stdout does not take the report.
pub fn report(directory: &Path, format: Format, rules: &Rules) -> Result<ExitStatus, Failure> {
    match report::print(directory, format, rules, io::stdout().lock()) {
        Ok(printed) => {
            for note in printed.notes {
                log::warn!("{note}");
            }
        }
        Err(ReportError::Output(error)) => stdout::taken(error)?,
        Err(error) => return Err(Failure::bad_input(error)),
    }
    Ok(ExitStatus::Success)
}
