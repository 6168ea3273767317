//! Triggers of a run: what is done when something happens in the guest. The thread that reads the rings sees it, some
//! milliseconds after it has happened; it is carried out on the main thread, like everything that is done to a run.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use terms::printable::masked;
use terms::quantity::{in_microseconds, in_seconds, plain};
use trace::live::{Happening, LiveEvent, Tail, tail};
use tracer::tracing::filters::Globs;
use tracer::tracing::options::DEFAULT_SESSION;
use tracer::tracing::{Tracing, TracingError};

use crate::bell::Bell;
use crate::control::status::TriggerStatus;
use crate::options::trigger::{Action, Trigger};
use crate::provider::Provider;

/// Occasions of one trigger that are seen to at a time: in between it is the turn of everything else.
const AT_A_TIME: usize = 16;
/// Of one trigger so many are told of one by one, and the rest at the end.
const SAID_MAX: u64 = 16;

/// A trigger, and what it has seen and not done yet.
#[derive(Debug)]
struct Armed {
    trigger: Trigger,
    tail: Tail,
    fired: u64,
    failed: u64,
    /// The command that it has started last.
    command: Option<Child>,
}

/// Those of a run.
#[derive(Debug)]
pub struct Triggers {
    bell: Bell,
    armed: Vec<Armed>,
}

impl Triggers {
    /// Has them wait in the session that a run begins with.
    ///
    /// # Errors
    /// [`TracingError`] about one for which there can be no occasion.
    pub fn arm(list: &[Trigger], bell: Bell, tracing: &mut Tracing) -> Result<Self, TracingError> {
        let arm = |trigger: &Trigger| -> Result<Armed, TracingError> {
            let (tail, listener) = tail({
                let bell = bell.clone();
                move || bell.ring()
            });
            let listener = listener.of(trigger.occasion.clone(), trigger.times);
            tracing.session(DEFAULT_SESSION)?.listen(listener)?;
            Ok(Armed {
                trigger: trigger.clone(),
                tail,
                fired: 0,
                failed: 0,
                command: None,
            })
        };
        let armed = list.iter().map(arm).collect::<Result<_, _>>()?;
        Ok(Self { bell, armed })
    }

    /// What rings when there is something to see to.
    #[must_use]
    pub const fn bell(&self) -> &Bell {
        &self.bell
    }

    /// How they are.
    #[must_use]
    pub fn status(&self) -> Vec<TriggerStatus> {
        let status = |one: &Armed| TriggerStatus {
            trigger: one.trigger.to_string(),
            fired: one.fired,
            failed: one.failed,
        };
        self.armed.iter().map(status).collect()
    }

    /// Does what is to be done by now.
    pub fn see_to(&mut self, guest: &impl Provider, tracing: &mut Tracing) {
        for one in &mut self.armed {
            for event in one.tail.take(AT_A_TIME) {
                one.fire(&event, |action| act(action, guest, tracing));
            }
            if one.tail.has_any() {
                self.bell.ring();
            }
        }
    }

    /// The run is over. What was seen at its end can only have commands run; says what has not fired.
    pub fn end(&mut self) {
        for one in &mut self.armed {
            let late = |_: &Action| Err("the run was over by then".to_owned());
            for event in one.tail.take(usize::MAX) {
                one.fire(&event, late);
            }
            let unread = one.tail.end().unwrap_or_default();
            one.fired = one.fired.saturating_add(unread);
            one.failed = one.failed.saturating_add(unread);
            if let Some(sum) = one.sum() {
                log::warn!("{sum}");
            }
        }
    }
}

impl Armed {
    /// There was an occasion.
    fn fire(&mut self, event: &LiveEvent, act: impl FnOnce(&Action) -> Result<String, String>) {
        if let Happening::Unread { count } = event.what {
            // More than could be kept came while others were seen to.
            self.fired = self.fired.saturating_add(count);
            self.failed = self.failed.saturating_add(count);
            return;
        }
        self.fired = self.fired.saturating_add(1);
        let done = match &self.trigger.action {
            Action::Run(command) => run(command, &mut self.command, event, &self.trigger),
            Action::Dump(directory) => act(&Action::Dump(numbered(directory, self.fired))),
            other => act(other),
        };
        self.failed += u64::from(done.is_err());
        if self.fired > SAID_MAX {
            return;
        }
        let (trigger, what) = (&self.trigger, said(event));
        match done {
            Ok(done) => log::info!("trigger '{trigger}': {what}: {done}"),
            Err(error) => log::error!("trigger '{trigger}': {what}: {error}"),
        }
    }

    /// What is to be said at the end.
    fn sum(&self) -> Option<String> {
        let Self {
            trigger,
            fired,
            failed,
            ..
        } = self;
        match *fired {
            0 => Some(format!("trigger '{trigger}' has not fired")),
            1..=SAID_MAX => None,
            _ => Some(format!(
                "trigger '{trigger}' has fired {fired} times, {failed} of them in vain"
            )),
        }
    }
}

/// Where it is written to the n-th time.
fn numbered(directory: &Path, fired: u64) -> PathBuf {
    if fired == 1 {
        return directory.to_owned();
    }
    let mut name = directory.as_os_str().to_owned();
    name.push(format!(".{fired}"));
    name.into()
}

/// What has happened, for a message.
fn said(event: &LiveEvent) -> String {
    let time = in_seconds(event.time_ns);
    let at = format!("at {time} s on vCPU {}", event.vcpu);
    match &event.what {
        Happening::Entry { function } | Happening::Call { function, .. } => {
            format!("{} {at}", masked(function))
        }
        Happening::Return {
            function,
            duration_ns,
            ..
        } => {
            let took = in_microseconds(duration_ns.unwrap_or(0));
            format!("{} took {took} us {at}", masked(function))
        }
        Happening::Event { event: name, .. } => format!("{} {at}", masked(name)),
        // Nobody waits for these.
        Happening::Lost { .. }
        | Happening::LostEvents { .. }
        | Happening::Stall { .. }
        | Happening::Unread { .. } => at,
    }
}

/// Does it to the guest, or to its tracing. Says what was done.
fn act(action: &Action, guest: &impl Provider, tracing: &mut Tracing) -> Result<String, String> {
    let failed = |error: TracingError| error.to_string();
    match action {
        Action::Stop => {
            let session = tracing.session(DEFAULT_SESSION).map_err(failed)?;
            let switched = session.switch(false).map_err(failed)?;
            Ok(match switched.changed {
                true => "nothing more is recorded".to_owned(),
                false => "nothing was recorded any more".to_owned(),
            })
        }
        Action::Dump(directory) => {
            let dumped = tracing.dump(guest, DEFAULT_SESSION, directory, false);
            let dumped = dumped.map_err(failed)?;
            let records = plain(dumped.records, "record");
            Ok(format!("{records} in {}, {} lost", dumped.dir, dumped.lost))
        }
        Action::Start(session) => {
            let started = tracing.start(guest, session, None, &Globs::default());
            let started = started.map_err(failed)?;
            Ok(format!(
                "session {session} traces {}",
                plain(started.traced, "function")
            ))
        }
        Action::Pause => match guest.pause() {
            Ok(true) => Ok("the guest is paused".to_owned()),
            Ok(false) => Ok("the guest was paused".to_owned()),
            Err(error) => Err(error.to_string()),
        },
        Action::Run(_) => Ok(String::new()),
    }
}

/// Starts a command; one at a time for each trigger. Nothing that the guest has written is given to it.
fn run(
    command: &str,
    running: &mut Option<Child>,
    event: &LiveEvent,
    trigger: &Trigger,
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
        shell.env("EXOTRACE_TIME_NS", event.time_ns.to_string());
        shell.spawn()
    };
    let child = started().map_err(|error| format!("cannot run {command}: {error}"))?;
    let done = format!("process {} runs {command}", child.id());
    *running = Some(child);
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(trigger: &str) -> Armed {
        Armed {
            trigger: trigger.parse().unwrap(),
            tail: tail(|| ()).0,
            fired: 0,
            failed: 0,
            command: None,
        }
    }

    fn event(what: Happening) -> LiveEvent {
        LiveEvent {
            time_ns: 1_000_000_002,
            vcpu: 1,
            thread: 0,
            task: None,
            depth: 0,
            what,
        }
    }

    #[test]
    fn what_could_not_be_kept_is_counted_and_nothing_is_done_for_it() {
        let mut one = armed("f: stop x100000");
        one.fire(&event(Happening::Unread { count: 7 }), |_| panic!("done"));
        assert_eq!((one.fired, one.failed), (7, 7));
        let function = "f".to_owned();
        let mut done = 0;
        one.fire(&event(Happening::Entry { function }), |action| {
            assert_eq!(*action, Action::Stop);
            done += 1;
            Ok(String::new())
        });
        assert_eq!((one.fired, one.failed, done), (8, 7, 1));
        assert_eq!(one.sum(), None);
        one.fire(&event(Happening::Unread { count: u64::MAX }), |_| {
            panic!("done")
        });
        let sum = one.sum().unwrap();
        assert!(sum.contains("of them in vain"), "{sum}");
    }

    #[test]
    fn each_time_has_a_directory_of_its_own() {
        let names: Vec<PathBuf> = (1..4).map(|n| numbered(Path::new("a/b.c"), n)).collect();
        assert_eq!(names, ["a/b.c", "a/b.c.2", "a/b.c.3"].map(PathBuf::from));
    }

    #[test]
    fn what_has_happened_is_said_with_when_and_where() {
        let took = Happening::Return {
            function: "\u{1b}f".to_owned(),
            duration_ns: Some(6_200_001),
            remark: None,
            retval: Vec::new(),
        };
        let expected = "?f took 6200.001 us at 1.000000002 s on vCPU 1";
        assert_eq!(said(&event(took)), expected);
    }
}
