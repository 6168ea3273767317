//! `vmm doctor`: what this host can do, or what can be done with a guest of another VMM.

use super::stdout;
use crate::doctor;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// Examines the host, or whether a guest of another VMM can be traced, and prints the findings.
///
/// # Errors
/// When stdout does not take them.
pub fn doctor(attach: Option<Option<&str>>, json: bool) -> Result<ExitStatus, Failure> {
    let report = match attach {
        Some(guest) => doctor::examine_guest(guest),
        None => doctor::examine(),
    };
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
