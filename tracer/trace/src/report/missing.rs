//! What a completed trace says that it holds, against what was read of it: files that were cut or exchanged
//! since look like a guest that called nothing.

use std::fmt;
use std::path::PathBuf;

use super::directory::TraceDirectory;
use crate::export::uftrace::layout::SIDE_FILE;
use terms::quantity::grouped;

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
    },
    /// What follows the damage in the file of a compact trace, however much that was: where it is, and how far it reaches.
    Damaged(String),
}

impl Missing {
    /// What is missing where `read` calls were read to the end.
    #[must_use]
    pub fn of(trace: &TraceDirectory, read: u64) -> Option<Self> {
        if trace.is_damaged {
            return trace.remark.clone().map(Self::Damaged);
        }
        Self::between(trace, "calls", Self::written(trace)?, read)
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
        })
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(said) => f.write_str(said),
            Self::Counted {
                what,
                count,
                of,
                by,
            } => write!(
                f,
                "{} of {} {what} are missing: {} says that they were written, so data files were cut or exchanged since",
                grouped(*count),
                grouped(*of),
                by.display()
            ),
        }
    }
}
