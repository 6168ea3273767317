//! `vmm doctor`: what this host can do, or what can be done with a guest of another VMM.

use super::stdout;
use crate::confine::root::{Deed, refuse_root};
use crate::doctor;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::options::as_root::AsRoot;

/// Examines the host, or whether a guest of another VMM can be traced, and prints the findings.
///
/// # Errors
/// When stdout does not take them, and of another VMM's guest for root without leave.
pub fn doctor(
    attach: Option<Option<&str>>,
    as_root: AsRoot,
    json: bool,
) -> Result<ExitStatus, Failure> {
    if attach.is_some() {
        refuse_root(Deed::Try, as_root.allow_root).map_err(Failure::bad_input)?;
    }
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
