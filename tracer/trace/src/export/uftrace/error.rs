//! What can go wrong with a trace directory.

use std::io;
use std::path::{Path, PathBuf};

use crate::export::events::EventFileError;

/// Why a trace could not be written. The trace on disk up to there stays readable.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The directory is there already.
    #[error("{} exists already: choose another directory", .0.display())]
    Exists(PathBuf),
    /// Somebody else writes there.
    #[error(
        "{} is being written by {writer}: choose another directory, or end that first",
        .directory.display()
    )]
    Busy {
        /// The directory.
        directory: PathBuf,
        /// Who writes it.
        writer: String,
    },
    /// Something else has its name.
    #[error("{} exists and is no directory: choose another name", .0.display())]
    NotADirectory(PathBuf),
    /// The directory to be replaced holds something that no trace has.
    #[error(
        "{} holds {}, which is no part of a trace: it is left as it is, choose another directory",
        .directory.display(), .file.display()
    )]
    NotATrace {
        /// The directory.
        directory: PathBuf,
        /// The first file in it that is foreign.
        file: PathBuf,
    },
    /// The directory cannot be made.
    #[error(
        "cannot create the trace directory {}: {source}; the one that it is in must exist and be writable",
        .path.display()
    )]
    Create {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file operation failed.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The events that were written cannot be read back to be shown among the calls.
    #[error("the events of the trace cannot be merged: {0}")]
    Events(#[source] EventFileError),
    /// It is not there any more.
    #[error("{} is gone: somebody has taken it away, and with it what was recorded", .0.display())]
    Gone(PathBuf),
    /// Its disk takes nothing, and does not say that it has failed.
    #[error(
        "what was read could not be written to {} for a minute, since its disk takes nothing: the trace ends before that",
        .0.display()
    )]
    Stands(PathBuf),
    /// Events could not be written. They are counted, and the count is written as lost records
    /// once there is room again.
    #[error("cannot write {}: {source}; {dropped} records are missing from the trace", .path.display())]
    Dropped {
        /// The data file.
        path: PathBuf,
        /// Records that are missing so far.
        dropped: u64,
        /// Why it failed.
        source: io::Error,
    },
}

impl ExportError {
    /// Whether a file was not there that had been put there just before: somebody takes the trace away.
    #[must_use]
    pub fn is_of_removed(&self) -> bool {
        let (Self::Io { source, .. } | Self::Dropped { source, .. }) = self else {
            return false;
        };
        source.kind() == io::ErrorKind::NotFound
    }

    /// The same error, where so many records are missing because of it.
    #[must_use]
    pub fn with_dropped(self, dropped: u64) -> Self {
        match self {
            Self::Io { path, source, .. } | Self::Dropped { path, source, .. } if dropped > 0 => {
                Self::Dropped {
                    path,
                    dropped,
                    source,
                }
            }
            other => other,
        }
    }

    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: path.to_owned(),
            source,
        }
    }
}
