//! Why a compact trace cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use crate::export::uftrace::ExportError;

use super::VERSION;

/// What is wrong with it, or with where it is read to.
#[derive(Debug, thiserror::Error)]
pub enum CompactError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is something else.
    #[error("{}: {problem}: not a trace of ours, or a damaged one", .path.display())]
    NotOne {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: &'static str,
    },
    /// It is of another version.
    #[error(
        "{} is a compact trace of version {found}, this program reads version {VERSION}: convert it to a uftrace directory with the one that wrote it",
        .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// What it holds cannot be put together there.
    #[error(transparent)]
    Output(#[from] ExportError),
    /// Who watches has said that it is to end.
    #[error("interrupted")]
    Interrupted,
}

impl CompactError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}
