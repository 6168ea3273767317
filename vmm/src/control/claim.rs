//! The right to make a socket at a path: a lock on a file beside it.
//!
//! Whoever has it looks what is at the path and replaces it; without it, one of two that start at the same time would
//! remove the socket that the other has just made. The file goes away with its lock. A process that is killed leaves the
//! file, not the lock.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What the lock's name has beside the socket's.
const ENDING: &str = ".lock";

/// Why it cannot be had.
#[derive(Debug)]
pub(super) enum NotClaimed {
    /// Another process has it.
    Held,
    /// The file of the lock cannot be opened or locked.
    Failed(io::Error),
}

/// The right, for as long as this lives.
#[derive(Debug)]
pub(super) struct Claim {
    _lock: File,
    at: PathBuf,
}

impl Claim {
    /// # Errors
    /// [`NotClaimed`].
    pub fn of(path: &Path) -> Result<Self, NotClaimed> {
        let mut at = OsString::from(path);
        at.push(ENDING);
        let at = PathBuf::from(at);
        loop {
            let lock = open(&at).map_err(NotClaimed::Failed)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(NotClaimed::Held),
                Err(TryLockError::Error(error)) => return Err(NotClaimed::Failed(error)),
            }
            // The one before may have removed the file after it was opened here: then this lock is on nothing.
            if is_at(&lock, &at) {
                return Ok(Self { _lock: lock, at });
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Before the lock ends: afterwards it could be another's.
        if let Err(error) = std::fs::remove_file(&self.at) {
            log::debug!("{} cannot be removed: {error}", self.at.display());
        }
    }
}

fn open(at: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW).open(at)
}

fn is_at(file: &File, path: &Path) -> bool {
    let of = |status: std::fs::Metadata| (status.dev(), status.ino());
    let there = std::fs::symlink_metadata(path).map(of).ok();
    there.is_some() && file.metadata().map(of).ok() == there
}
