//! One tracer at a guest: who has made a window holds a lock on its file, which nobody else's death or life changes. A
//! tracer that is dead holds none.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use super::backing;
use super::error::ForeignError;
use super::process::{Mapping, Process};

/// What the file of a window is called: `/proc/PID/maps` shows it.
pub(super) const NAME: &str = "exotrace";

/// The lock on the file of a window, until this is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Locks a window of our own.
    ///
    /// # Errors
    /// What the system said.
    pub fn take(window: &File) -> io::Result<Self> {
        // Opened anew: what the VMM has mapped holds the file as it was opened first, and with it a lock on that.
        let fd = window.as_raw_fd();
        let file = File::open(format!("/proc/self/fd/{fd}"))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { _file: file })
    }
}

/// The windows in this process whose tracers are dead, or have left them there.
///
/// # Errors
/// [`ForeignError::Traced`] when somebody who lives has one, [`ForeignError::Proc`] when that cannot be seen.
pub(super) fn left_in(process: &Process) -> Result<Vec<Mapping>, ForeignError> {
    let pid = process.pid();
    let ours = PathBuf::from(format!("/memfd:{NAME}"));
    let mut windows = process.mappings()?;
    windows.retain(|mapping| mapping.file.as_ref() == Some(&ours));
    let mut left = Vec::new();
    for window in windows {
        let file = match backing::open(pid, &window) {
            // A call that its tracer had begun took it away just now.
            Err(ForeignError::Proc { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                continue;
            }
            file => file?,
        };
        // Locked for this moment only, to see whether somebody else has.
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(ForeignError::Traced { pid });
        }
        left.push(window);
    }
    Ok(left)
}

/// Descriptors of windows that this process has: one that was made for us, and not closed.
///
/// # Errors
/// [`ForeignError::Proc`].
pub(super) fn descriptors_left_in(process: &Process) -> Result<Vec<i32>, ForeignError> {
    let found = process.descriptors(&format!("/memfd:{NAME}"))?;
    let whole = found.into_iter().filter(|(_, rest)| rest == " (deleted)");
    Ok(whole.map(|(fd, _)| fd).collect())
}
