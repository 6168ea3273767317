//! What a trigger waits for.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use terms::event_format::EventFormat;
use terms::function::Function;
use terms::quantity::{self, BadQuantity};

use super::open::OpenCalls;
use crate::event::{Event, EventKind};
use crate::glob::{GlobError, Pattern};

/// What stands before the name of an event.
const EVENT: &str = "event ";

/// A call of a function (`vfs_open`), one that took longer than a time (`vfs_open > 5ms`), or an event or a probe
/// (`event sched_switch`). Names are globs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occasion {
    /// A function is called.
    Call(Pattern),
    /// A call ends that took longer than so many nanoseconds.
    Longer(Pattern, u64),
    /// An event is passed, or a probe is hit.
    Event(Pattern),
}

/// Why a text is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadOccasion {
    /// Nothing stands there.
    #[error("'{0}' names nothing: write FUNCTION, FUNCTION > TIME, or event NAME")]
    Empty(String),
    /// No glob.
    #[error(transparent)]
    Glob(#[from] GlobError),
    /// No duration.
    #[error(transparent)]
    Duration(#[from] BadQuantity),
}

impl FromStr for Occasion {
    type Err = BadOccasion;

    fn from_str(text: &str) -> Result<Self, BadOccasion> {
        let glob = |name: &str| match name.trim() {
            "" => Err(BadOccasion::Empty(text.to_owned())),
            name => Ok(Pattern::new(name)?),
        };
        if let Some(name) = text.trim_start().strip_prefix(EVENT) {
            return Ok(Self::Event(glob(name)?));
        }
        // Names can have such brackets, but no blanks around them.
        match text.rsplit_once(" > ") {
            Some((name, time)) => {
                let longer_ns = quantity::nanoseconds(time.trim(), "us")?;
                Ok(Self::Longer(glob(name)?, longer_ns))
            }
            None => Ok(Self::Call(glob(text)?)),
        }
    }
}

impl fmt::Display for Occasion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(pattern) => f.write_str(pattern.text()),
            Self::Longer(pattern, longer_ns) => {
                let longer = Duration::from_nanos(*longer_ns);
                write!(f, "{} > {longer:?}", pattern.text())
            }
            Self::Event(pattern) => write!(f, "{EVENT}{}", pattern.text()),
        }
    }
}

/// Waits for an occasion, so many times.
#[derive(Debug)]
pub(super) struct Watch {
    pub occasion: Occasion,
    /// How often it is still waited for.
    pub left: u64,
    /// Which functions, or events, it is about, as far as they were met.
    marks: Vec<bool>,
    /// Calls of those that have not ended, where it is about long ones.
    open: OpenCalls,
}

impl Watch {
    pub fn new(occasion: Occasion, times: u64) -> Self {
        Self {
            occasion,
            left: times,
            marks: Vec::new(),
            open: OpenCalls::default(),
        }
    }

    /// The entry of a call that takes too long already and has not ended; then it is waited for once less. What ends by
    /// `now_ns` was seen.
    pub fn overdue(&mut self, now_ns: u64) -> Option<Event> {
        let Occasion::Longer(_, longer_ns) = self.occasion else {
            return None;
        };
        let entry = self
            .open
            .longer(now_ns, longer_ns)
            .filter(|_| self.left > 0)?;
        self.left -= 1;
        Some(entry)
    }

    /// Whether this is one; then it is waited for once less.
    pub fn sees(
        &mut self,
        event: &Event,
        functions: &[Function],
        points: &[Arc<EventFormat>],
    ) -> bool {
        let was_told = self.follow(event, functions);
        let marks = &mut self.marks;
        let is_it = match (&self.occasion, event.kind) {
            (Occasion::Call(name), EventKind::Entry(function)) => {
                is_marked(marks, functions, function.index(), |one| name.matches(one))
            }
            (
                Occasion::Longer(name, longer_ns),
                EventKind::Exit {
                    function,
                    duration: Some(duration),
                    ..
                },
            ) if duration > *longer_ns => {
                is_marked(marks, functions, function.index(), |one| name.matches(one))
            }
            (Occasion::Event(name), EventKind::Point(point)) => {
                is_marked(marks, points, point.index(), |one| {
                    name.matches_name(&one.name)
                })
            }
            _ => false,
        };
        let is_it = is_it && !was_told && self.left > 0;
        self.left -= u64::from(is_it);
        is_it
    }

    /// Keeps what is open where that matters. Says whether this ends a call that was told while it was open.
    fn follow(&mut self, event: &Event, functions: &[Function]) -> bool {
        let (Occasion::Longer(name, _), marks) = (&self.occasion, &mut self.marks) else {
            return false;
        };
        self.open.follow(event, || match event.kind {
            EventKind::Entry(function) => {
                is_marked(marks, functions, function.index(), |one| name.matches(one))
            }
            _ => false,
        })
    }
}

/// Whether it is about the one of this index; those of before are the same as when they were asked for first.
fn is_marked<T>(
    marks: &mut Vec<bool>,
    all: &[T],
    index: usize,
    matches: impl Fn(&T) -> bool,
) -> bool {
    if index >= marks.len() {
        let fresh = all.get(marks.len()..).unwrap_or_default();
        marks.extend(fresh.iter().map(matches));
    }
    marks.get(index).copied().unwrap_or_default()
}
