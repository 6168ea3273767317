//! `--trigger 'WHAT: ACTION [xN]'`: what is done when something happens in the guest.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use trace::live::{BadOccasion, Occasion};

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing more is recorded.
    Stop,
    /// What the rings hold is written to this directory; the next times to others, with a number after it.
    Dump(PathBuf),
    /// Another session is started, as it was made.
    Start(String),
    /// The guest is paused.
    Pause,
    /// The shell of this host runs this.
    Run(String),
}

/// What is waited for, and what is done then.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    #[error("'{0}' is no action: write stop, dump DIR, start SESSION, pause, or run COMMAND")]
    Action(String),
    /// It is never done.
    #[error("'{0}' is no number of times: write x1 or more")]
    Times(String),
    /// What is waited for.
    #[error(transparent)]
    Occasion(#[from] BadOccasion),
}

impl FromStr for Trigger {
    type Err = BadTrigger;

    fn from_str(text: &str) -> Result<Self, BadTrigger> {
        // Names of functions can have colons, but no blank after one.
        let parts = text.split_once(": ");
        let (what, action) = parts.ok_or_else(|| BadTrigger::Form(text.to_owned()))?;
        let (action, times) = times(action.trim())?;
        Ok(Self {
            occasion: what.parse()?,
            action: action.parse()?,
            times,
            text: text.trim().to_owned(),
        })
    }
}

/// `dump slow x3` is `dump slow`, three times.
fn times(action: &str) -> Result<(&str, u64), BadTrigger> {
    let Some((action, digits)) = action.rsplit_once(" x") else {
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
            ("dump", false) => Ok(Self::Dump(rest.into())),
            ("start", false) => Ok(Self::Start(rest.to_owned())),
            ("run", false) => Ok(Self::Run(rest.to_owned())),
            _ => Err(BadTrigger::Action(text.to_owned())),
        }
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
                ("vfs_* > 5ms", Action::Dump("a b".into()), 1),
            ),
            ("a::b<c> > 2: pause x9", ("a::b<c> > 2µs", Action::Pause, 9)),
            (
                "event sched:*: start more",
                ("event sched:*", Action::Start("more".to_owned()), 1),
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
            ("f: stop x0", "no number of times"),
            ("f: stop xy", "no number of times"),
            ("f[: stop", "f["),
        ] {
            let error = text.parse::<Trigger>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
