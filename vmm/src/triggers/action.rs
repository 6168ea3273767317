//! What triggers do: to the guest, to its tracing, on this host.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use terms::quantity::plain;
use tracer::tracing::filters::Globs;
use tracer::tracing::probes::SomeProbes;
use tracer::tracing::{Begin, Tracing, TracingError, WantedDump};

use super::starter::Starter;
use crate::options::trigger::{Action, DumpAction, EventAction, Trigger};
use crate::provider::Provider;
use crate::signals;

/// Does it. `time_ns` is when it happened, if that is known. Says what was done.
pub(super) fn act(
    action: &Action,
    session: &str,
    time_ns: Option<u64>,
    guest: &impl Provider,
    tracing: &mut Tracing,
) -> Result<String, String> {
    let failed = |error: TracingError| error.to_string();
    match action {
        Action::Stop => stop(session, tracing),
        Action::Dump(wanted) => dump(wanted, session, time_ns, guest, tracing),
        Action::Start(session) => {
            let started = tracing.start(guest, session, None, &Globs::default());
            let started = started.map_err(failed)?;
            Ok(format!(
                "session {session} traces {}",
                plain(started.traced, "function")
            ))
        }
        Action::Switch(session, on) => switch(session, *on, tracing),
        Action::Event(wanted) => record_event(wanted, session, guest, tracing),
        Action::Pause => match guest.pause() {
            Ok(true) => Ok("the guest is paused".to_owned()),
            Ok(false) => Ok("the guest was paused".to_owned()),
            Err(error) => Err(error.to_string()),
        },
        Action::Run(_) => Ok(String::new()),
    }
}

fn switch(session: &str, on: bool, tracing: &mut Tracing) -> Result<String, String> {
    let failed = |error: TracingError| error.to_string();
    let one = tracing.session(session).map_err(failed)?;
    let switched = one.switch(on).map_err(failed)?;
    let is = if switched.changed { "is" } else { "was" };
    let how = if on { "on" } else { "off" };
    Ok(format!("tracing of session {session} {is} {how}"))
}

fn record_event(
    wanted: &EventAction,
    own: &str,
    guest: &impl Provider,
    tracing: &mut Tracing,
) -> Result<String, String> {
    let EventAction { event, session, on } = wanted;
    let session = session.as_deref().unwrap_or(own);
    // Probes of the session come first: it has named them itself.
    let probes = tracing.probes(guest).probes.into_iter();
    let ids = probes.filter(|probe| probe.session == session && probe.name == *event);
    let probes = SomeProbes {
        ids: ids.map(|probe| probe.id).collect(),
        all_of: None,
    };
    let changed = match probes.ids.as_slice() {
        [] => {
            let events = std::slice::from_ref(event);
            let changed = tracing.change_events(guest, session, events, &[], *on);
            changed.map(drop)
        }
        _ => tracing.enable_probes(guest, &probes, *on).map(drop),
    };
    changed.map_err(|error| error.to_string())?;
    let how = if *on {
        "is recorded"
    } else {
        "is recorded no more"
    };
    Ok(format!("{event} {how} in session {session}"))
}

fn stop(session: &str, tracing: &mut Tracing) -> Result<String, String> {
    let failed = |error: TracingError| error.to_string();
    let session = tracing.session(session).map_err(failed)?;
    let switched = session.switch(false).map_err(failed)?;
    Ok(match switched.changed {
        true => "nothing more is recorded".to_owned(),
        false => "nothing was recorded any more".to_owned(),
    })
}

fn dump(
    wanted: &DumpAction,
    session: &str,
    time_ns: Option<u64>,
    guest: &impl Provider,
    tracing: &mut Tracing,
) -> Result<String, String> {
    let stopped = match wanted.then_stops {
        true => format!("; {}", stop(session, tracing)?),
        false => String::new(),
    };
    let begin = wanted.last_ns.map_or(Begin::Oldest, |last_ns| {
        time_ns.map_or(Begin::Ago(last_ns), |time_ns| {
            Begin::At(time_ns.saturating_sub(last_ns))
        })
    });
    let dump = WantedDump {
        directory: &wanted.directory,
        is_live: false,
        begin,
    };
    let dumped = tracing.dump(guest, session, &dump);
    let dumped = dumped.map_err(|error| error.to_string())?;
    let records = plain(dumped.records, "record");
    let (dir, lost) = (dumped.dir, dumped.lost);
    Ok(format!("{records} in {dir}, {lost} lost{stopped}"))
}

/// Where it is written to the n-th time.
pub(super) fn numbered(directory: &Path, fired: u64) -> PathBuf {
    if fired == 1 {
        return directory.to_owned();
    }
    let mut name = directory.as_os_str().to_owned();
    name.push(format!(".{fired}"));
    name.into()
}

/// Starts a command; one at a time for each trigger. Nothing that the guest has written is given to it.
pub(super) fn run(
    command: &str,
    running: &mut Option<Child>,
    time_ns: Option<u64>,
    trigger: &Trigger,
    starter: &Starter,
) -> Result<String, String> {
    if let Some(child) = running
        && matches!(child.try_wait(), Ok(None))
    {
        return Err("the command of before still runs: not run again".to_owned());
    }
    let started = || -> io::Result<Child> {
        // Stdout is the guest's console.
        let out = io::stderr().as_fd().try_clone_to_owned()?;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", command]).stdin(Stdio::null()).stdout(out);
        shell.env("EXOTRACE_TRIGGER", trigger.to_string());
        shell.env("EXOTRACE_TIME_NS", time_ns.unwrap_or(0).to_string());
        signals::as_inherited(&mut shell);
        starter.spawn(shell)
    };
    let child = started().map_err(|error| format!("cannot run {command}: {error}"))?;
    let done = format!("process {} runs {command}", child.id());
    *running = Some(child);
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_has_a_directory_of_its_own() {
        let names: Vec<PathBuf> = (1..4).map(|n| numbered(Path::new("a/b.c"), n)).collect();
        assert_eq!(names, ["a/b.c", "a/b.c.2", "a/b.c.3"].map(PathBuf::from));
    }
}
