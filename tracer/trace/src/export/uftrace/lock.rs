//! Who writes a trace directory: a lock on a file in it, with the name of the writer. It goes with the writer,
//! however that ends, so a file that is left is in nobody's way.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::ExportError;

/// The file that is locked.
pub(super) const LOCK_FILE: &str = "exotrace.lock";
/// The most that is read of who has it.
const WRITER_MAX: u64 = 512;

/// A directory that nobody else writes as long as this lives.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    /// Closing it is what lets go.
    _file: File,
    path: PathBuf,
}

impl DirectoryLock {
    /// Locks a directory that is there; `command` is who we are.
    ///
    /// # Errors
    /// [`ExportError::Busy`] names who writes it.
    pub fn take(directory: &Path, command: &str) -> Result<Self, ExportError> {
        let path = directory.join(LOCK_FILE);
        loop {
            let mut file = open(&path).map_err(ExportError::io("create", &path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(ExportError::Busy {
                        directory: directory.to_owned(),
                        writer: read_writer(file),
                    });
                }
                Err(TryLockError::Error(error)) => {
                    return Err(ExportError::io("lock", &path)(error));
                }
            }
            // Its last owner may have removed it after we opened it: then it locks nothing.
            if is_same(&file, &path) {
                let writer = format!("process {} ({command})\n", std::process::id());
                let written = file
                    .set_len(0)
                    .and_then(|()| file.write_all(writer.as_bytes()));
                written.map_err(ExportError::io("write", &path))?;
                return Ok(Self { _file: file, path });
            }
        }
    }

    /// The directory is written no more.
    ///
    /// # Errors
    /// When the file cannot be removed; it is unlocked all the same.
    pub fn release(self) -> Result<(), ExportError> {
        // Before it is unlocked: later it may be somebody else's.
        fs::remove_file(&self.path).map_err(ExportError::io("remove", &self.path))
    }
}

/// Who writes the trace in a directory now, if anybody does.
#[must_use]
pub fn writer_of(directory: &Path) -> Option<String> {
    let path = directory.join(LOCK_FILE);
    let found = fs::symlink_metadata(&path).ok();
    // Before it is opened: a pipe would be waited for.
    found.filter(std::fs::Metadata::is_file)?;
    let file = File::open(path).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(read_writer(file)),
        _ => None,
    }
}

/// Whether a writer is there, or was there and did not come to its end.
pub(crate) fn has_lock(directory: &Path) -> bool {
    fs::symlink_metadata(directory.join(LOCK_FILE)).is_ok()
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path)
}

fn is_same(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(theirs)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())
}

/// What its owner has written, as one line that a terminal can show: the file may be anybody's.
fn read_writer(file: File) -> String {
    let mut bytes = Vec::new();
    // What was read before an error is there.
    let _ = file.take(WRITER_MAX).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().unwrap_or_default();
    let plain = |char: char| if char.is_control() { '?' } else { char };
    match line.is_empty() {
        true => "another process".to_owned(),
        false => line.chars().map(plain).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_writer_who_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let ours = DirectoryLock::take(directory.path(), "vmm run \u{1b}[2J").unwrap();
        let expected = format!("process {} (vmm run ?[2J)", std::process::id());
        assert_eq!(writer_of(directory.path()), Some(expected.clone()));
        let error = DirectoryLock::take(directory.path(), "other").unwrap_err();
        assert!(error.to_string().contains(&expected), "{error}");
        ours.release().unwrap();
        assert_eq!(writer_of(directory.path()), None);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    /// To open it waits for who writes to it.
    #[test]
    fn a_pipe_is_nobodys_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(LOCK_FILE);
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        assert_eq!(writer_of(directory.path()), None);
    }

    #[test]
    fn a_lock_of_a_writer_that_is_gone_holds_nobody_up() {
        let directory = tempfile::tempdir().unwrap();
        drop(DirectoryLock::take(directory.path(), "killed").unwrap());
        assert!(directory.path().join(LOCK_FILE).exists());
        assert_eq!(writer_of(directory.path()), None);
        let next = DirectoryLock::take(directory.path(), "a longer name that comes later").unwrap();
        assert!(writer_of(directory.path()).unwrap().contains("comes later"));
        // And the shorter name leaves nothing of the longer.
        drop(next);
        let _last = DirectoryLock::take(directory.path(), "x").unwrap();
        assert!(writer_of(directory.path()).unwrap().ends_with("(x)"));
    }
}
