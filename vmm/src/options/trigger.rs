//! `--trigger 'WHAT: ACTION [xN]'`: what is done when something happens in the guest.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use terms::quantity::{self, BadQuantity};
use trace::live::{BadOccasion, Occasion};

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing more is recorded.
    Stop,
    /// What the rings hold is written to a directory.
    Dump(DumpAction),
    /// Another session is started, as it was made.
    Start(String),
    /// A session records again, or no more, as by `tracing-on` and `tracing-off`.
    Switch(String, bool),
    /// An event is recorded from then on, or no more.
    Event(EventAction),
    /// The guest is paused.
    Pause,
    /// The shell of this host runs this.
    Run(String),
}

/// What is written, and what then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpAction {
    /// Where to; the next times to others, with a number after it.
    pub directory: PathBuf,
    /// What was recorded so many nanoseconds before, and later; all if nothing is said.
    pub last_ns: Option<u64>,
    /// Whether nothing more is recorded from then on.
    pub then_stops: bool,
}

/// Which event is recorded from then on, or no more, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventAction {
    /// The event.
    pub event: String,
    /// The session; the trigger's own if none is named.
    pub session: Option<String>,
    /// Whether it is recorded.
    pub on: bool,
}

/// What is waited for, and what is done then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Trigger {
    text: String,
    /// What is waited for.
    pub occasion: Occasion,
    /// What is done.
    pub action: Action,
    /// At most so often.
    pub times: u64,
}

/// Why a text is no trigger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTrigger {
    /// There is no action.
    #[error("'{0}' is no trigger: write WHAT: ACTION, as 'vfs_open > 5ms: dump slow'")]
    Form(String),
    /// The action is none.
    #[error(
        "'{0}' is no action: write stop, dump DIR [last TIME] [and stop], start SESSION, tracing-on SESSION, tracing-off SESSION, \
         enable EVENT [in SESSION], disable EVENT [in SESSION], pause, or run COMMAND"
    )]
    Action(String),
    /// It is never done.
    #[error("'{0}' is no number of times: write x1 or more")]
    Times(String),
    /// How far back it goes.
    #[error("after 'last': {0}")]
    Last(BadQuantity),
    /// What is waited for.
    #[error(transparent)]
    Occasion(#[from] BadOccasion),
    /// Where it is wrong.
    #[error("column {column}: {why}")]
    At {
        /// From 1.
        column: usize,
        /// What.
        why: Box<Self>,
    },
}

impl BadTrigger {
    /// The same, of a part of a text.
    fn within(self, text: &str, part: &str) -> Self {
        // A part lies in its text.
        let offset = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
        let column = text.get(..offset).unwrap_or_default().chars().count() + 1;
        let why = Box::new(self);
        Self::At { column, why }
    }
}

impl FromStr for Trigger {
    type Err = BadTrigger;

    fn from_str(text: &str) -> Result<Self, BadTrigger> {
        // Names of functions can have colons, but no blank after one.
        let parts = text.split_once(": ");
        let (what, rest) = parts.ok_or_else(|| BadTrigger::Form(text.to_owned()))?;
        let rest = rest.trim();
        let within = |part: &str, error: BadTrigger| error.within(text, part);
        let occasion = what.parse().map_err(BadTrigger::Occasion);
        let (action, times) = times(rest).map_err(|error| within(rest, error))?;
        Ok(Self {
            occasion: occasion.map_err(|error| within(what, error))?,
            action: action.parse().map_err(|error| within(action, error))?,
            times,
            text: text.trim().to_owned(),
        })
    }
}

impl TryFrom<String> for Trigger {
    type Error = BadTrigger;

    fn try_from(text: String) -> Result<Self, BadTrigger> {
        text.parse()
    }
}

impl From<Trigger> for String {
    fn from(trigger: Trigger) -> Self {
        trigger.text
    }
}

impl Trigger {
    /// The same, with what it dumps where `place` says.
    ///
    /// # Errors
    /// Those of `place`.
    pub fn placed<E>(self, place: impl FnOnce(PathBuf) -> Result<PathBuf, E>) -> Result<Self, E> {
        let Action::Dump(dump) = self.action else {
            return Ok(self);
        };
        let directory = place(dump.directory.clone())?;
        let (old, new) = (dump.directory.display(), directory.display());
        // After what is waited for, which may be named like it.
        let text = match self.text.split_once(": ") {
            Some((what, action)) => {
                let rest = action.trim_start().trim_start_matches("dump");
                let rest = rest.replacen(&old.to_string(), &new.to_string(), 1);
                format!("{what}: dump{rest}")
            }
            None => self.text,
        };
        let action = Action::Dump(DumpAction { directory, ..dump });
        Ok(Self {
            text,
            action,
            ..self
        })
    }
}

/// `dump slow x3` is `dump slow`, three times; `dump xfs` is that, once.
fn times(action: &str) -> Result<(&str, u64), BadTrigger> {
    let counts = |word: &str| !word.is_empty() && word.bytes().all(|digit| digit.is_ascii_digit());
    let parts = action.rsplit_once(" x");
    let Some((action, digits)) = parts.filter(|(_, word)| counts(word)) else {
        return Ok((action, 1));
    };
    match digits.parse() {
        Ok(times) if times > 0 => Ok((action.trim_end(), times)),
        _ => Err(BadTrigger::Times(format!("x{digits}"))),
    }
}

impl FromStr for Action {
    type Err = BadTrigger;

    fn from_str(text: &str) -> Result<Self, BadTrigger> {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        let rest = rest.trim();
        match (verb, rest.is_empty()) {
            ("stop", true) => Ok(Self::Stop),
            ("pause", true) => Ok(Self::Pause),
            ("dump", false) => rest.parse().map(Self::Dump),
            ("start", false) => Ok(Self::Start(rest.to_owned())),
            ("tracing-on" | "tracing-off", false) => {
                Ok(Self::Switch(rest.to_owned(), verb == "tracing-on"))
            }
            ("enable" | "disable", false) => {
                let (event, session) = match rest.rsplit_once(" in ") {
                    Some((event, session)) => (event.trim(), Some(session.trim().to_owned())),
                    None => (rest, None),
                };
                Ok(Self::Event(EventAction {
                    event: event.to_owned(),
                    session,
                    on: verb == "enable",
                }))
            }
            ("run", false) => Ok(Self::Run(rest.to_owned())),
            _ => Err(BadTrigger::Action(text.to_owned())),
        }
    }
}

impl Action {
    /// Of what ends recording, whether calls are counted as lost until it is done.
    #[must_use]
    pub const fn counts_lost(&self) -> Option<bool> {
        match self {
            Self::Stop => Some(false),
            Self::Dump(dump) => Some(!dump.then_stops),
            Self::Start(_) | Self::Switch(..) | Self::Event(_) | Self::Pause | Self::Run(_) => None,
        }
    }

    /// The session that it is about, where it names one.
    #[must_use]
    pub fn other_session(&self) -> Option<&str> {
        match self {
            Self::Start(session) | Self::Switch(session, _) => Some(session),
            Self::Event(event) => event.session.as_deref(),
            Self::Stop | Self::Dump(_) | Self::Pause | Self::Run(_) => None,
        }
    }
}

impl FromStr for DumpAction {
    type Err = BadTrigger;

    fn from_str(text: &str) -> Result<Self, BadTrigger> {
        let stripped = text.strip_suffix(" and stop");
        let (rest, then_stops) = (stripped.unwrap_or(text).trim(), stripped.is_some());
        let is_word = |rest: &str| rest.is_empty() || rest.starts_with(' ');
        let parts = rest.rsplit_once(" last");
        let (directory, last_ns) = match parts.filter(|(_, rest)| is_word(rest)) {
            Some((directory, last)) => {
                let last = quantity::nanoseconds(last.trim(), "ms");
                (directory.trim_end(), Some(last.map_err(BadTrigger::Last)?))
            }
            None => (rest, None),
        };
        Ok(Self {
            directory: directory.into(),
            last_ns,
            then_stops,
        })
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(directory: &str, last_ns: Option<u64>, then_stops: bool) -> Action {
        Action::Dump(DumpAction {
            directory: directory.into(),
            last_ns,
            then_stops,
        })
    }

    fn event(event: &str, session: Option<&str>, on: bool) -> Action {
        Action::Event(EventAction {
            event: event.to_owned(),
            session: session.map(ToOwned::to_owned),
            on,
        })
    }

    fn parsed(text: &str) -> (String, Action, u64) {
        let trigger: Trigger = text.parse().unwrap();
        assert_eq!(trigger.to_string(), text);
        (trigger.occasion.to_string(), trigger.action, trigger.times)
    }

    #[test]
    fn each_action_on_each_occasion() {
        let cases = [
            ("f: stop", ("f", Action::Stop, 1)),
            (
                "vfs_* > 5ms: dump a b",
                ("vfs_* > 5ms", dump("a b", None, false), 1),
            ),
            (
                "f: dump a last 2 x3",
                ("f", dump("a", Some(2_000_000), false), 3),
            ),
            (
                "f > 1: dump a and b last 100ms and stop",
                ("f > 1µs", dump("a and b", Some(100_000_000), true), 1),
            ),
            (
                "f: dump a last.d last 1s",
                ("f", dump("a last.d", Some(1_000_000_000), false), 1),
            ),
            ("f: dump a and stop", ("f", dump("a", None, true), 1)),
            ("a::b<c> > 2: pause x9", ("a::b<c> > 2µs", Action::Pause, 9)),
            (
                "event sched:*: start more",
                ("event sched:*", Action::Start("more".to_owned()), 1),
            ),
            (
                "f: tracing-on more x2",
                ("f", Action::Switch("more".to_owned(), true), 2),
            ),
            (
                "f > 2us: tracing-off more",
                ("f > 2µs", Action::Switch("more".to_owned(), false), 1),
            ),
            ("f: enable sched:a", ("f", event("sched:a", None, true), 1)),
            (
                "f: disable a in more x3",
                ("f", event("a", Some("more"), false), 3),
            ),
            (
                "f: run echo: x > y x2",
                ("f", Action::Run("echo: x > y".to_owned()), 2),
            ),
        ];
        for (text, (occasion, action, times)) in cases {
            assert_eq!(parsed(text), (occasion.to_owned(), action, times), "{text}");
        }
    }

    /// They were refused for a number of times that is none.
    #[test]
    fn a_word_that_begins_as_a_number_of_times_does_is_part_of_the_action() {
        let run = |command: &str| Action::Run(command.to_owned());
        for (text, action, times) in [
            ("f: dump xfs", dump("xfs", None, false), 1),
            ("f: dump xfs x2", dump("xfs", None, false), 2),
            ("f: dump x2 x", dump("x2 x", None, false), 1),
            ("f: dump a x+3", dump("a x+3", None, false), 1),
            ("f: start xfs", Action::Start("xfs".to_owned()), 1),
            (
                "f: enable xfs:xfs_iomap",
                event("xfs:xfs_iomap", None, true),
                1,
            ),
            ("f: run xz -T0 log", run("xz -T0 log"), 1),
            ("f: run echo x > y", run("echo x > y"), 1),
            ("f: run tar x3 y x04", run("tar x3 y"), 4),
        ] {
            assert_eq!(parsed(text), ("f".to_owned(), action, times), "{text}");
        }
    }

    #[test]
    fn a_directory_of_another_process_is_absolute() {
        let here = |path: PathBuf| Ok::<_, ()>(PathBuf::from("/here").join(path));
        for (text, expected) in [
            ("f > 1us: dump f last 5ms", "f > 1us: dump /here/f last 5ms"),
            ("dump: dump d x2", "dump: dump /here/d x2"),
            ("f: stop", "f: stop"),
        ] {
            let trigger: Trigger = text.parse().unwrap();
            let moved = trigger.placed(here).unwrap();
            assert_eq!(moved.to_string(), expected);
            assert_eq!(expected.parse::<Trigger>().unwrap(), moved);
        }
    }

    #[test]
    fn what_is_none_is_refused_with_what_is_wrong() {
        for (text, words) in [
            ("", "no trigger"),
            ("vfs_open", "no trigger"),
            ("vfs_open:stop", "no trigger"),
            (": stop", "names nothing"),
            ("event : stop", "names nothing"),
            ("f > soon: stop", "no duration"),
            ("f: fly", "no action"),
            ("f: stop now", "no action"),
            ("f: dump", "no action"),
            ("f: run ", "no action"),
            ("f: tracing-on", "no action"),
            ("f: enable ", "no action"),
            ("f: stop x0", "column 4: 'x0' is no number of times"),
            (
                "f: dump xfs x99999999999999999999",
                "'x99999999999999999999' is no number of times",
            ),
            ("f: stop xy", "'stop xy' is no action"),
            ("f: dump a last soon", "column 4: after 'last': 'soon'"),
            ("f: dump a last", "column 4: after 'last': ''"),
            ("f: dump a last x3", "column 4: after 'last': ''"),
            ("f: dump a last and stop", "column 4: after 'last': ''"),
            ("ä > 1us: fly", "column 10: 'fly' is no action"),
            ("f > soon: stop", "column 1: "),
            ("f[: stop", "f["),
        ] {
            let error = text.parse::<Trigger>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
