//! What `vmm ctl dynfunc` prints.

use std::fmt::Write as _;

use super::ask::ask;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::verbs::ctl::{CtlOptions, DynfuncVerb};
use status::{DynamicChanged, DynamicList};

/// Makes the request and prints the result.
pub(super) fn dynfunc(options: &CtlOptions, verb: &DynfuncVerb) -> Result<ExitStatus, Failure> {
    match verb {
        DynfuncVerb::List(method) => ask(options, method, list),
        DynfuncVerb::Set(method) => ask(options, method, changed),
        DynfuncVerb::Reset(method) => ask(options, method, changed),
    }
}

/// One line for each function, and one for where it may lead.
fn list(list: &DynamicList) -> String {
    if list.functions.is_empty() {
        return "the image declares no dynamic functions\n".to_owned();
    }
    let mut text = String::new();
    for function in &list.functions {
        let default = if function.target == function.default {
            " (default)"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "{} leads to {}{default}, {}",
            function.name, function.target, function.types
        );
        if !function.targets.is_empty() {
            let _ = writeln!(text, "  targets  {}", function.targets.join(" "));
        }
    }
    text
}

/// One line for each function that leads somewhere else now.
fn changed(changed: &DynamicChanged) -> String {
    if changed.functions.is_empty() {
        return "nothing had to be changed\n".to_owned();
    }
    let mut text = String::new();
    for one in &changed.functions {
        let _ = writeln!(text, "{} leads to {} now", one.name, one.target);
    }
    let _ = writeln!(text, "{}", changed.paused());
    text
}
