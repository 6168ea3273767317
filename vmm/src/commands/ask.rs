//! One request to a running VMM, and its result on stdout.

use terms::printable;

use super::stdout;
use crate::control::client;
use crate::control::method::Method;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::verbs::ctl::CtlOptions;
use status::Switched;

/// Makes the request and prints the result: as `show` has it, or as it is.
pub(super) fn ask<M: Method>(
    options: &CtlOptions,
    method: &M,
    show: impl FnOnce(&M::Result) -> String,
) -> Result<ExitStatus, Failure> {
    let result = client::request(options.control()?, method).map_err(Failure::bad_input)?;
    let text = if options.json {
        printable::json(&result).map_err(Failure::output)? + "\n"
    } else {
        let result = client::read::<M>(result).map_err(Failure::bad_input)?;
        printable::masked_lines(&show(&result))
    };
    stdout::print(text)?;
    Ok(ExitStatus::Success)
}

/// Says whether something was as it was asked for already.
pub(super) fn switched(yes: &str, no: &str) -> impl FnOnce(&Switched) -> String {
    move |switched| format!("{}\n", if switched.changed { yes } else { no })
}
