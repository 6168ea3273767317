//! `vmm doctor`: what this host can do.

use super::stdout;
use crate::doctor;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// Examines the host and prints the findings.
///
/// # Errors
/// When stdout does not take them.
pub fn doctor(json: bool) -> Result<ExitStatus, Failure> {
    let report = doctor::examine();
    let text = if json {
        terms::printable::json_pretty(&report).map_err(Failure::output)? + "\n"
    } else {
        report.to_string()
    };
    stdout::print(text)?;
    Ok(if report.usable {
        ExitStatus::Success
    } else {
        ExitStatus::CheckFailed
    })
}
