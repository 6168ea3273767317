//! What `vmm ctl probe` prints.

use std::fmt::Write as _;

use super::ask::ask;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::verbs::ctl::{CtlOptions, ProbeVerb};
use status::{ProbeList, ProbeStatus, ProbesChanged};

/// Makes the request and prints the result.
pub(super) fn probes(options: &CtlOptions, verb: &ProbeVerb) -> Result<ExitStatus, Failure> {
    match verb {
        ProbeVerb::Add(method) => ask(options, &method.joined(), changed("set")),
        ProbeVerb::List(method) => ask(options, method, list),
        ProbeVerb::Remove(method) => ask(options, method, changed("removed")),
        ProbeVerb::Enable(method) => ask(options, method, changed("enabled")),
        ProbeVerb::Disable(method) => ask(options, method, changed("disabled")),
    }
}

/// One line for each probe, and one for what it captures.
fn list(list: &ProbeList) -> String {
    if list.probes.is_empty() {
        return "there are no probes\n".to_owned();
    }
    let mut text: String = list.probes.iter().map(line).collect();
    if list.exits > 0 {
        let _ = writeln!(text, "{} VM exits at breakpoints", list.exits);
    }
    text
}

fn line(probe: &ProbeStatus) -> String {
    let hits = probe.hits.map(|hits| format!(", {hits} hits"));
    let mut text = format!(
        "{:<4} {}, {}{}, session {}\n",
        probe.id,
        whereabouts(probe, probe.address.as_deref()),
        probe.state,
        hits.unwrap_or_default(),
        probe.session
    );
    if let Some(reason) = &probe.reason {
        let _ = writeln!(text, "     {reason}");
    }
    let values = probe.values.iter();
    let values: Vec<String> = values
        .map(|value| format!("{}: {}", value.name, value.r#type))
        .collect();
    if !values.is_empty() {
        let _ = writeln!(text, "     {}", values.join(", "));
    }
    text
}

/// Where a probe is and how, or what it waits for.
fn whereabouts(probe: &ProbeStatus, address: Option<&str>) -> String {
    let mut text = probe.name.clone();
    if let Some(place) = &probe.place {
        let _ = write!(text, " at {place}");
    }
    if let Some(address) = address {
        let _ = write!(text, " ({address})");
    }
    if let Some(tactic) = &probe.tactic {
        let _ = write!(text, ", {tactic}");
    }
    if let Some(module) = &probe.waits_for {
        let _ = write!(text, " in module {module}");
    }
    text
}

/// One line for each probe to which that was done, and one for the pause.
fn changed(what: &str) -> impl FnOnce(&ProbesChanged) -> String {
    move |changed| told(changed, what)
}

fn told(changed: &ProbesChanged, what: &str) -> String {
    if changed.probes.is_empty() {
        return "nothing had to be changed\n".to_owned();
    }
    let mut text = String::new();
    for probe in &changed.probes {
        let waits = match probe.waits_for {
            Some(_) => ", waiting",
            None => "",
        };
        let (id, place) = (probe.id, whereabouts(probe, None));
        let _ = writeln!(text, "probe {id} {what}: {place}{waits}");
    }
    let _ = writeln!(text, "{}", changed.paused());
    text
}
