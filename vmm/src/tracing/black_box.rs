//! What a guest did last: the end of a trace, shown when the guest has died.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tracer::report::ReportError;
use tracer::report::last::{Last, print_last};

use crate::panic_watch::FATAL;

/// Calls of each vCPU that are shown.
const CALLS: usize = 20;

/// The trace of one session of a guest that has died.
#[derive(Debug)]
pub struct BlackBox {
    session: String,
    directory: PathBuf,
    /// Made for this only, and removed with it.
    is_scratch: bool,
}

impl BlackBox {
    /// A trace that the user asked for.
    pub(super) fn kept(session: &str, directory: &Path) -> Self {
        Self {
            session: session.to_owned(),
            directory: directory.to_owned(),
            is_scratch: false,
        }
    }

    /// One at [`Self::scratch`].
    pub(super) fn made(session: &str, directory: PathBuf) -> Self {
        Self {
            session: session.to_owned(),
            directory,
            is_scratch: true,
        }
    }

    /// A directory for a session that has none.
    pub(super) fn scratch(session: &str) -> PathBuf {
        let name = format!("exotrace-{}-{session}", std::process::id());
        std::env::temp_dir().join(name)
    }

    /// Prints the last calls of each vCPU: up to the panic, if there was one and it is in the trace.
    ///
    /// # Errors
    /// When the trace cannot be read, or `out` not written.
    pub fn print(&self, mut out: impl Write) -> Result<(), ReportError> {
        let session = &self.session;
        let header = format!("last {CALLS} calls of each vCPU (session {session}):");
        writeln!(out, "{header}").map_err(ReportError::Output)?;
        let last = Last {
            calls: CALLS,
            until: &FATAL,
        };
        let printed = print_last(&self.directory, last, &mut out)?;
        let hint = match (printed.entries, self.is_scratch) {
            (0, _) => "  none were recorded".to_owned(),
            (_, true) => "--output DIR keeps all of them".to_owned(),
            (_, false) => format!("all of them: vmm report {}", self.directory.display()),
        };
        writeln!(out, "{hint}").map_err(ReportError::Output)
    }
}

impl Drop for BlackBox {
    fn drop(&mut self) {
        let left = |error: &io::Error| error.kind() != io::ErrorKind::NotFound;
        if self.is_scratch
            && let Err(error) = std::fs::remove_dir_all(&self.directory)
            && left(&error)
        {
            log::warn!("{} is left behind: {error}", self.directory.display());
        }
    }
}
