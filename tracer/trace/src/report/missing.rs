//! What a completed trace says that it holds, against what was read of it: files that were cut or exchanged
//! since look like a guest that called nothing.

use std::fmt;
use std::path::PathBuf;

use super::calls::Calls;
use super::directory::TraceDirectory;
use super::unlisted::Unlisted;
use crate::export::uftrace::layout::SIDE_FILE;
use terms::quantity::{counted, grouped};

/// What was written and is not there any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// Calls or events.
    Counted {
        /// Which of the two.
        what: &'static str,
        /// How many.
        count: u64,
        /// How many were written.
        of: u64,
        /// Which file says so.
        by: PathBuf,
        /// Data files that are there, and which the list of them lacks.
        unlisted: Option<Unlisted>,
    },
    /// What stood beside records: on which vCPU they were, and how a call has ended.
    Beside {
        /// Of how many.
        count: u64,
        /// Of which thread the first is.
        thread: u32,
        /// Where it stood.
        by: PathBuf,
    },
    /// What follows the damage in the file of a compact trace, however much that was: where it is, and how far it reaches. Or what is in data
    /// files of a trace that was never completed, and is not listed.
    Damaged(String),
}

impl Missing {
    /// What is missing where these calls were read to the end.
    #[must_use]
    pub fn of(trace: &TraceDirectory, calls: &Calls) -> Option<Self> {
        if trace.is_damaged {
            return trace.remark.clone().map(Self::Damaged);
        }
        let written = Self::written(trace);
        let missing =
            written.and_then(|written| Self::between(trace, "calls", written, calls.entries()));
        missing.or_else(|| Self::beside(trace, calls))
    }

    fn beside(trace: &TraceDirectory, calls: &Calls) -> Option<Self> {
        let (count, thread) = calls.unplaced()?;
        let task = trace.tasks.iter().find(|task| task.thread == thread)?;
        Some(Self::Beside {
            count,
            thread,
            by: task.side.clone(),
        })
    }

    /// How many calls a completed trace has.
    #[must_use]
    pub fn written(trace: &TraceDirectory) -> Option<u64> {
        let side = trace.side.as_ref().filter(|side| side.finished)?;
        let entries = side.totals.iter().map(|totals| totals.entries);
        let written = entries.fold(0, u64::saturating_add);
        Some(written.saturating_sub(side.dropped))
    }

    /// The same of events.
    #[must_use]
    pub fn of_events(trace: &TraceDirectory, read: u64) -> Option<Self> {
        let side = trace.side.as_ref().filter(|side| side.finished)?;
        let written = side.events.events.values().copied();
        let written = written.fold(0, u64::saturating_add);
        Self::between(trace, "events", written, read)
    }

    fn between(trace: &TraceDirectory, what: &'static str, of: u64, read: u64) -> Option<Self> {
        let count = of.saturating_sub(read);
        (count > 0).then(|| Self::Counted {
            what,
            count,
            of,
            by: trace.path.join(SIDE_FILE),
            unlisted: trace.unlisted.clone(),
        })
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(said) => f.write_str(said),
            Self::Beside { count, thread, by } => write!(
                f,
                "of {} nobody knows the vCPU any more, they are shown as of vCPU 0 (first: of thread {thread}): {} was cut or removed since",
                counted(*count, "record"),
                by.display()
            ),
            Self::Counted {
                what,
                count,
                of,
                by,
                unlisted,
            } => {
                let (count, of) = (grouped(*count), grouped(*of));
                let by = by.display();
                write!(
                    f,
                    "{count} of {of} {what} are missing: {by} says that they were written, so "
                )?;
                match unlisted {
                    None => f.write_str("data files were cut or exchanged since"),
                    Some(unlisted) => unlisted.fmt(f),
                }
            }
        }
    }
}
