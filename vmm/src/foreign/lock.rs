//! One tracer at a guest: who has made a window holds a lock on its file, which nobody else's death or life changes. A
//! tracer that is dead holds none.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

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

/// Whether nobody else who lives has a window in this process.
///
/// # Errors
/// [`ForeignError::Traced`] when somebody has, [`ForeignError::Proc`] when that cannot be seen.
pub(super) fn check(process: &Process) -> Result<(), ForeignError> {
    let pid = process.pid();
    let ours = PathBuf::from(format!("/memfd:{NAME}"));
    let windows = process.mappings()?.into_iter();
    for window in windows.filter(|mapping| mapping.file.as_ref() == Some(&ours)) {
        let unreadable = |source| ForeignError::Proc {
            pid,
            what: "map_files",
            source,
        };
        let file = File::open(path(pid, &window)).map_err(unreadable)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(ForeignError::Traced { pid });
        }
    }
    Ok(())
}

fn path(pid: i32, mapping: &Mapping) -> PathBuf {
    let (start, end) = (mapping.start, mapping.start.saturating_add(mapping.bytes));
    Path::new("/proc")
        .join(pid.to_string())
        .join("map_files")
        .join(format!("{start:x}-{end:x}"))
}
