//! Which tasks a session records, in the words of its user: by number, process, name or cgroup; only these, or all but
//! these; and whether those that they make belong to them.

use std::fmt;
use std::str::FromStr;

use status::TaskStatus;

use crate::stub::task::NUMBERS;

/// Which tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedTasks {
    /// Whether these are *not* recorded, but all others are.
    pub is_not: bool,
    /// Which; all are recorded when none is named.
    pub terms: Vec<TaskTerm>,
    /// Whether tasks belong to them that they make from now on, and those that these make.
    pub follows: bool,
}

/// What names tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskTerm {
    /// The one of this number.
    Number(u32),
    /// All of the process of this number.
    Process(u32),
    /// Those of this name, at the moment of the call.
    Name(String),
    /// Those whose name begins so.
    NameBegins(String),
    /// Those in this cgroup, or below it, at the moment of the call.
    Cgroup(String),
}

/// Terms of one session: who asks for more and more of them is to fill no memory.
const TERMS_MAX: usize = 4096;

/// What is wrong with a term, or with so many of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskTermError {
    /// Nothing at all.
    #[error("'' names no task: a number, a name, process:NUMBER, name:TEXT or cgroup:/PATH")]
    Empty,
    /// No number of a task.
    #[error("'{0}' is no number of a task: 0 to {max}", max = NUMBERS - 1)]
    Number(String),
    /// A glob that is compared nowhere.
    #[error("'{0}' cannot be compared in the guest: a name may have one *, at its end")]
    Glob(String),
    /// Not from the root on.
    #[error("'{0}' is no path of a cgroup: it begins with /")]
    Path(String),
    /// The limit.
    #[error(
        "a session names at most {TERMS_MAX} tasks: name fewer, all of a process (process:NUMBER), a name that ends in * or a cgroup"
    )]
    TooMany,
}

impl FromStr for TaskTerm {
    type Err = TaskTermError;

    fn from_str(text: &str) -> Result<Self, TaskTermError> {
        let number = |digits: &str| {
            let number = digits.parse().ok().filter(|number| *number < NUMBERS);
            number.ok_or_else(|| TaskTermError::Number(text.to_owned()))
        };
        match text.split_once(':') {
            Some(("process", digits)) => number(digits).map(Self::Process),
            Some(("name", name)) => name_term(text, name),
            Some(("cgroup", path)) if path.starts_with('/') => Ok(Self::Cgroup(path.to_owned())),
            Some(("cgroup", _)) => Err(TaskTermError::Path(text.to_owned())),
            _ if text.starts_with(|first: char| first.is_ascii_digit())
                && text.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                number(text).map(Self::Number)
            }
            _ => name_term(text, text),
        }
    }
}

fn name_term(text: &str, name: &str) -> Result<TaskTerm, TaskTermError> {
    let (beginning, is_all) = match name.strip_suffix('*') {
        Some(beginning) => (beginning, false),
        None => (name, true),
    };
    if beginning.is_empty() {
        return Err(TaskTermError::Empty);
    }
    if beginning.contains(['*', '?', '[']) {
        return Err(TaskTermError::Glob(text.to_owned()));
    }
    let name = beginning.to_owned();
    Ok(match is_all {
        true => TaskTerm::Name(name),
        false => TaskTerm::NameBegins(name),
    })
}

impl fmt::Display for TaskTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Process(number) => write!(f, "process:{number}"),
            // As it would be read back.
            Self::Name(name) | Self::NameBegins(name)
                if name.contains(':') || name.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                write!(f, "name:{name}{}", self.star())
            }
            Self::Name(name) | Self::NameBegins(name) => write!(f, "{name}{}", self.star()),
            Self::Cgroup(path) => write!(f, "cgroup:{path}"),
        }
    }
}

impl TaskTerm {
    const fn star(&self) -> &'static str {
        match self {
            Self::NameBegins(_) => "*",
            _ => "",
        }
    }
}

impl From<&WantedTasks> for TaskStatus {
    fn from(wanted: &WantedTasks) -> Self {
        let (only, not) = match wanted.is_not {
            true => (Vec::new(), wanted.written()),
            false => (wanted.written(), Vec::new()),
        };
        Self {
            only,
            not,
            follow_forks: wanted.follows,
            by: (!wanted.is_all()).then(|| "stub".to_owned()),
        }
    }
}

impl WantedTasks {
    /// What is written of them, and what follows.
    ///
    /// # Errors
    /// A [`TaskTermError`] about the first that names nothing, or about their number.
    pub fn new(is_not: bool, terms: &[String], follows: bool) -> Result<Self, TaskTermError> {
        if terms.len() > TERMS_MAX {
            return Err(TaskTermError::TooMany);
        }
        let terms = terms.iter().map(|term| term.parse());
        Ok(Self {
            is_not,
            terms: terms.collect::<Result<_, _>>()?,
            follows,
        })
    }

    /// Whether all tasks are recorded.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.terms.is_empty()
    }

    /// The terms, as they are written.
    #[must_use]
    pub fn written(&self) -> Vec<String> {
        self.terms.iter().map(ToString::to_string).collect()
    }

    /// These come to them; those that are there already stay.
    ///
    /// # Errors
    /// [`TaskTermError::TooMany`]; then some of them have come.
    pub fn add(&mut self, more: Vec<TaskTerm>) -> Result<(), TaskTermError> {
        for term in more {
            if self.terms.contains(&term) {
                continue;
            }
            if self.terms.len() >= TERMS_MAX {
                return Err(TaskTermError::TooMany);
            }
            self.terms.push(term);
        }
        Ok(())
    }

    /// These are taken out.
    ///
    /// # Errors
    /// The first that is not there; then nothing has changed.
    pub fn remove(&mut self, less: &[TaskTerm]) -> Result<(), TaskTerm> {
        if let Some(missing) = less.iter().find(|term| !self.terms.contains(term)) {
            return Err(missing.clone());
        }
        self.terms.retain(|term| !less.contains(term));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_and_written_back() {
        for (text, term) in [
            ("0", TaskTerm::Number(0)),
            ("1234", TaskTerm::Number(1234)),
            ("process:7", TaskTerm::Process(7)),
            ("sh", TaskTerm::Name("sh".to_owned())),
            ("name:12", TaskTerm::Name("12".to_owned())),
            ("kworker/*", TaskTerm::NameBegins("kworker/".to_owned())),
            ("name:a:*", TaskTerm::NameBegins("a:".to_owned())),
            ("cgroup:/a/b", TaskTerm::Cgroup("/a/b".to_owned())),
        ] {
            assert_eq!(text.parse(), Ok(term.clone()));
            assert_eq!(term.to_string(), text);
        }
        for (text, word) in [
            ("", "names no task"),
            ("*", "names no task"),
            ("4194304", "0 to 4194303"),
            ("process:x", "no number"),
            ("a*b", "one *"),
            ("s?", "one *"),
            ("cgroup:a", "begins with /"),
        ] {
            let error = text.parse::<TaskTerm>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn terms_come_and_go_and_what_is_not_there_is_not_taken_out() {
        let read = |texts: &[&str]| {
            let terms = texts.iter().map(|text| text.parse().unwrap());
            terms.collect::<Vec<TaskTerm>>()
        };
        let mut wanted = WantedTasks::new(false, &["1".to_owned(), "sh".to_owned()], true).unwrap();
        assert_eq!(wanted.add(read(&["sh", "2"])), Ok(()));
        assert_eq!(wanted.written(), ["1", "sh", "2"]);
        assert_eq!(wanted.remove(&read(&["1", "3"])), Err(TaskTerm::Number(3)));
        assert_eq!(wanted.written(), ["1", "sh", "2"]);
        assert_eq!(wanted.remove(&read(&["1", "2", "sh"])), Ok(()));
        assert!(wanted.is_all());
    }

    #[test]
    fn a_session_names_so_many_tasks_and_no_more() {
        let numbers = |count: usize| (0..count).map(|number| number.to_string());
        let all: Vec<String> = numbers(TERMS_MAX).collect();
        let mut wanted = WantedTasks::new(false, &all, false).unwrap();
        assert_eq!(wanted.add(vec![TaskTerm::Number(0)]), Ok(()));
        let one_more = vec![TaskTerm::Process(0)];
        assert_eq!(wanted.add(one_more), Err(TaskTermError::TooMany));
        let too_many: Vec<String> = numbers(TERMS_MAX + 1).collect();
        let refused = WantedTasks::new(false, &too_many, false).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("at most 4096 tasks: name fewer")
        );
    }
}
