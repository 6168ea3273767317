//! Room to put a compact trace together in, among the temporary files. It goes with who reads it; what is left of a process that
//! was killed is removed by the next one. What is ours is told by a file in it, which is locked as long as its process lives: a
//! name can be anybody's.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::error::ReportError;
use crate::export::compact::CompactError;
use crate::export::uftrace::ExportError;

/// How the names of these directories begin.
const NAME: &str = "exotrace-";
/// The file that is locked.
const MARK: &str = "exotrace.scratch";

/// A directory that goes when this is dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    // Dropped in this order: what nobody holds is removed by others.
    directory: TempDir,
    _mark: File,
    /// What it lies in.
    below: PathBuf,
}

impl Scratch {
    /// A new one, below `place` if that is given.
    ///
    /// # Errors
    /// [`ReportError::Scratch`].
    pub fn make(place: Option<&Path>) -> Result<Self, ReportError> {
        let path = place.map_or_else(std::env::temp_dir, Path::to_owned);
        sweep(&path);
        Self::below(&path).map_err(|source| ReportError::Scratch { path, source })
    }

    fn below(place: &Path) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix(NAME).tempdir_in(place)?;
        let mark = hold(directory.path())?;
        Ok(Self {
            directory,
            _mark: mark,
            below: place.to_owned(),
        })
    }

    /// What an error is of who puts it together here.
    pub fn failed(&self, error: CompactError) -> ReportError {
        match error {
            // Nothing is missing from the trace: there is no room beside it.
            CompactError::Output(error) => ReportError::Scratch {
                path: self.below.clone(),
                source: match error {
                    ExportError::Io { source, .. } | ExportError::Dropped { source, .. } => source,
                    other => io::Error::other(other),
                },
            },
            other => other.into(),
        }
    }

    /// Where what is put together goes.
    pub fn trace(&self) -> PathBuf {
        self.directory.path().join("trace")
    }
}

/// Marks a directory as ours for as long as what is returned is open.
fn hold(directory: &Path) -> io::Result<File> {
    let fresh = directory.join(format!("{MARK}.new"));
    let mark = File::create_new(&fresh)?;
    mark.try_lock()?;
    // Whoever sees it sees it locked.
    fs::rename(fresh, directory.join(MARK))?;
    Ok(mark)
}

/// Removes those of processes that are no more. What cannot be removed is somebody else's.
fn sweep(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_named_so = name.to_str().is_some_and(|name| name.starts_with(NAME));
        let is_directory = entry.file_type().is_ok_and(|is| is.is_dir());
        if is_named_so && is_directory && is_left(&entry.path().join(MARK)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether there is this mark, and nobody holds it.
fn is_left(mark: &Path) -> bool {
    let is_file = fs::symlink_metadata(mark).is_ok_and(|found| found.is_file());
    is_file && File::open(mark).is_ok_and(|mark| mark.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It once said that records were missing from the trace.
    #[test]
    fn where_there_is_no_room_the_place_is_named_and_not_the_trace() {
        let place = tempfile::tempdir().unwrap();
        let ours = Scratch::make(Some(place.path())).unwrap();
        let full = CompactError::Output(ExportError::Dropped {
            path: ours.trace().join("1000.dat"),
            dropped: 2,
            source: io::ErrorKind::StorageFull.into(),
        });
        let said = ours.failed(full).to_string();
        let expected = format!(
            "cannot write temporary files in {}: ",
            place.path().display()
        );
        assert!(
            said.starts_with(&expected) && !said.contains("missing"),
            "{said}"
        );
    }

    /// It once went by the names alone: `exotrace-2026-11-26` was that of a process 2026, which was no more.
    #[test]
    fn what_a_killed_process_has_left_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let ours = Scratch::make(Some(place.path())).unwrap();
        let make = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let left = make("exotrace-Ab3xyz");
        drop(hold(&left).unwrap());
        fs::create_dir(left.join("trace")).unwrap();
        let others = [
            make("exotrace-2026-11-26"),
            make("exotrace-4194305-Ab3xyz"),
            make("exotrace"),
            make("other-Ab3xyz"),
        ];
        drop(hold(&others[3]).unwrap());
        // It is of who began it, who has not come to lock it.
        fs::write(others[1].join(format!("{MARK}.new")), "").unwrap();
        std::os::unix::fs::symlink(&left, place.path().join("exotrace-link")).unwrap();
        let next = Scratch::make(Some(place.path())).unwrap();
        assert!(!left.exists());
        for kept in others
            .iter()
            .map(PathBuf::as_path)
            .chain([ours.directory.path()])
        {
            assert!(kept.exists(), "{}", kept.display());
        }
        let paths = [&ours, &next].map(|scratch| scratch.directory.path().to_owned());
        drop((ours, next));
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
