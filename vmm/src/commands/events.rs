//! What `vmm ctl events` prints.

use std::fmt::Write as _;

use super::ask::ask;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::verbs::ctl::{CtlOptions, EventsVerb};
use status::{EventList, EventsChanged};

/// Makes the request and prints the result.
pub(super) fn events(options: &CtlOptions, verb: &EventsVerb) -> Result<ExitStatus, Failure> {
    match verb {
        EventsVerb::List(method) => ask(options, method, list),
        EventsVerb::Enable(method) => ask(options, method, changed),
        EventsVerb::Disable(method) => ask(options, method, changed),
    }
}

/// One line for each event, and those of its callbacks.
fn list(list: &EventList) -> String {
    if list.events.is_empty() {
        return "the image declares no events\n".to_owned();
    }
    let mut text = String::new();
    for event in &list.events {
        let fields = event.fields.iter();
        let fields: Vec<String> = fields
            .map(|field| format!("{}: {}", field.name, field.r#type))
            .collect();
        let sites = if event.sites == 1 { "site" } else { "sites" };
        let _ = writeln!(
            text,
            "{}({}): {}, {}, {} {sites}",
            event.name,
            fields.join(", "),
            event.kind,
            event.state,
            event.sites
        );
        for (what, names) in [
            ("calls", &event.callbacks),
            ("could call", &event.candidates),
        ] {
            if !names.is_empty() {
                let _ = writeln!(text, "  {what:<10} {}", names.join(", "));
            }
        }
    }
    text
}

/// One line for what was changed.
fn changed(changed: &EventsChanged) -> String {
    if changed.events.is_empty() {
        return "nothing had to be changed\n".to_owned();
    }
    let what = if changed.on { "enabled" } else { "disabled" };
    let events = changed.events.join(", ");
    let paused = changed.paused();
    format!("{what}: {events}; {paused}\n")
}
