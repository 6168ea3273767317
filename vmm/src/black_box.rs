//! What a guest did last: the end of a trace, shown when the guest has died.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use trace::report::ReportError;
use trace::report::last::{Last, print_last};
use tracer::PanicMarks;
use tracer::tracing::session::LastCalls;

/// Calls of each vCPU that are shown.
const CALLS: usize = 20;

/// The trace of one session of a guest that has died. What was made for this only is removed with it.
#[derive(Debug)]
pub struct BlackBox(LastCalls);

/// Names a directory for each session that has none.
pub type Scratch = dyn Fn(&str) -> PathBuf;

/// A directory below `folder` for a session that has none.
#[must_use]
pub fn scratch(folder: &Path, session: &str) -> PathBuf {
    folder.join(format!("exotrace-{}-{session}", std::process::id()))
}

impl From<LastCalls> for BlackBox {
    fn from(last: LastCalls) -> Self {
        Self(last)
    }
}

impl BlackBox {
    /// Prints the last calls of each vCPU: up to the panic, if there was one and it is in the trace.
    ///
    /// # Errors
    /// When the trace cannot be read, or `out` not written.
    pub fn print(&self, mut out: impl Write) -> Result<(), ReportError> {
        let session = &self.0.session;
        let header = format!("last {CALLS} calls of each vCPU (session {session}):");
        writeln!(out, "{header}").map_err(ReportError::Output)?;
        let fatal = PanicMarks::all().flat_map(|marks| marks.functions);
        let fatal: Vec<&str> = fatal.copied().collect();
        let last = Last {
            calls: CALLS,
            until: &fatal,
            room: self.0.room.parent(),
        };
        let printed = print_last(&self.0.directory, last, &mut out)?;
        let hint = match (printed.entries, self.0.is_scratch) {
            (0, _) => "  none were recorded".to_owned(),
            (_, true) => "--output DIR keeps all of them".to_owned(),
            (_, false) => format!("all of them: vmm report {}", self.0.directory.display()),
        };
        writeln!(out, "{hint}").map_err(ReportError::Output)
    }
}

impl Drop for BlackBox {
    fn drop(&mut self) {
        let left = |error: &io::Error| error.kind() != io::ErrorKind::NotFound;
        if self.0.is_scratch
            && let Err(error) = std::fs::remove_dir_all(&self.0.directory)
            && left(&error)
        {
            log::warn!("{} cannot be removed: {error}", self.0.directory.display());
        }
    }
}
