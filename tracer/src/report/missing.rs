//! What a completed trace says that it holds, against what was read of it: files that were cut or exchanged
//! since look like a guest that called nothing.

use std::fmt;
use std::path::PathBuf;

use super::directory::TraceDirectory;
use crate::export::uftrace::layout::SIDE_FILE;
use crate::quantity::grouped;

/// Calls that were written and are not there any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// How many.
    pub calls: u64,
    /// How many were written.
    pub of: u64,
    /// Which file says so.
    pub by: PathBuf,
}

impl Missing {
    /// What is missing where `read` calls were read to the end.
    pub(super) fn of(trace: &TraceDirectory, read: u64) -> Option<Self> {
        let side = trace.side.as_ref().filter(|side| side.finished)?;
        let entries = side.totals.iter().map(|totals| totals.entries);
        let of = entries
            .fold(0, u64::saturating_add)
            .saturating_sub(side.dropped);
        let calls = of.saturating_sub(read);
        (calls > 0).then(|| Self {
            calls,
            of,
            by: trace.path.join(SIDE_FILE),
        })
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (calls, of) = (grouped(self.calls), grouped(self.of));
        write!(
            f,
            "{calls} of {of} calls are missing: {} says that they were written, so data files were cut or exchanged since",
            self.by.display()
        )
    }
}
