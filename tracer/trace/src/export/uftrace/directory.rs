//! The directory that a trace is written into: made new, or emptied of an older trace.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::error::ExportError;
use super::layout::{COMMENT_FILE, NAMES_FILE, SIDE_FILE, STORE_FILE};
use super::lock::{DirectoryLock, LOCK_FILE, writer_of};
use crate::export::call_formats::is_values_file;
use crate::export::events::is_event_file;
use crate::export::probes::is_probes_file;

/// Has `begin` begin a trace in [`prepare`]d `directory`. Nothing stays of one that cannot be begun: it would be in the way of the next,
/// and is none that could be read.
pub(crate) fn begin_in<T>(
    directory: &Path,
    force: bool,
    command: &str,
    begin: impl FnOnce(DirectoryLock) -> Result<T, ExportError>,
) -> Result<T, ExportError> {
    let begun = begin(prepare(directory, force, command)?);
    if begun.is_err() {
        // Why it could not be begun is to be said, and not that something could not be removed.
        drop(take_away(directory, command));
    }
    begun
}

/// Makes `directory`, for `command` alone. One that is there is refused, or with `force` emptied, if everything
/// in it looks like part of a trace, and nobody writes it.
fn prepare(directory: &Path, force: bool, command: &str) -> Result<DirectoryLock, ExportError> {
    if !is_there(directory)? {
        fs::create_dir(directory).map_err(cannot_create(directory))?;
        return DirectoryLock::take(directory, command);
    }
    if !force {
        return Err(ExportError::Exists(directory.to_owned()));
    }
    emptied(directory, command)
}

/// Takes a trace away that was made for what came to nothing; `command` is who does.
///
/// # Errors
/// [`ExportError`] names what is in the way, or who writes it.
pub fn take_away(directory: &Path, command: &str) -> Result<(), ExportError> {
    emptied(directory, command)?.release()?;
    fs::remove_dir(directory).map_err(ExportError::io("remove", directory))
}

/// Empties a directory in which everything looks like part of a trace, and which nobody writes.
fn emptied(directory: &Path, command: &str) -> Result<DirectoryLock, ExportError> {
    // Nothing is written where anything is foreign, not even a lock.
    old_files(directory)?;
    let lock = DirectoryLock::take(directory, command)?;
    for path in whole_no_more(old_files(directory)?) {
        fs::remove_file(&path).map_err(ExportError::io("remove the old", &path))?;
    }
    Ok(lock)
}

/// What every trace has from its beginning on: one of these.
const FIRST: [&str; 2] = [SIDE_FILE, STORE_FILE];

/// Whether the trace that was begun in `directory` was taken away from there.
#[must_use]
pub fn is_gone(directory: &Path) -> bool {
    FIRST.iter().all(|name| {
        let found = fs::symlink_metadata(directory.join(name));
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    })
}

/// The files of a trace in the order in which they go: first those that say that it is whole. Half of one is not taken for a
/// trace then, if we are killed in between.
fn whole_no_more(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    let says_so = |path: &PathBuf| FIRST.iter().any(|name| path.ends_with(name));
    files.sort_by_key(|path| !says_so(path));
    files
}

/// Whether a directory is there.
fn is_there(directory: &Path) -> Result<bool, ExportError> {
    match fs::symlink_metadata(directory) {
        Ok(found) if !found.is_dir() => Err(ExportError::NotADirectory(directory.to_owned())),
        Ok(_) => Ok(true),
        Err(_) => Ok(false),
    }
}

fn cannot_create(path: &Path) -> impl FnOnce(io::Error) -> ExportError {
    let path = path.to_owned();
    move |source| ExportError::Create { path, source }
}

/// Whether a trace can be made in `directory` later, as far as that can be told now; with `force` also where an older one is. Nothing
/// there is changed.
///
/// # Errors
/// [`ExportError::Exists`] and others that say why not.
pub fn check_output(directory: &Path, force: bool) -> Result<(), ExportError> {
    if is_there(directory)? {
        if !force {
            return Err(ExportError::Exists(directory.to_owned()));
        }
        old_files(directory)?;
        return match writer_of(directory) {
            Some(writer) => Err(ExportError::Busy {
                directory: directory.to_owned(),
                writer,
            }),
            None => Ok(()),
        };
    }
    let parent = directory.parent().unwrap_or(Path::new(""));
    let parent = match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    };
    let found = fs::metadata(parent).map_err(cannot_create(directory))?;
    match found.is_dir() {
        true => Ok(()),
        false => Err(cannot_create(directory)(
            io::ErrorKind::NotADirectory.into(),
        )),
    }
}

/// Adds to a file that is there.
pub(super) fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(bytes)
}

/// The files of the trace in a directory that has nothing else, without its lock.
fn old_files(directory: &Path) -> Result<Vec<PathBuf>, ExportError> {
    let failed = || ExportError::io("list", directory);
    let mut old = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let is_file = entry.file_type().map_err(failed())?.is_file();
        if !is_file || !is_ours(&entry.path(), &entry.file_name()) {
            let (directory, file) = (directory.to_owned(), entry.file_name().into());
            return Err(ExportError::NotATrace { directory, file });
        }
        if entry.file_name() != LOCK_FILE {
            old.push(entry.path());
        }
    }
    Ok(old)
}

/// Replaces a file in one step: a reader finds the old one or the new one.
pub(super) fn replace(directory: &Path, name: &str, contents: &[u8]) -> Result<(), ExportError> {
    let (path, fresh) = (directory.join(name), directory.join(format!("{name}.new")));
    fs::write(&fresh, contents)
        .and_then(|()| fs::rename(&fresh, &path))
        .map_err(ExportError::io("write", &path))
}

/// Whether a file has the name that a part of a trace has; of `info`, also the first bytes.
fn is_ours(path: &Path, name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    match name.rsplit_once('.') {
        None => name == "info" && begins_as_info(path),
        Some(_) if [COMMENT_FILE, NAMES_FILE, STORE_FILE].contains(&name) => true,
        Some((stem, "dat" | "side")) => stem.bytes().all(|byte| byte.is_ascii_digit()),
        Some((stem, "map")) => stem.starts_with("sid-"),
        Some((_, "sym")) => true,
        Some((stem, "new")) if stem.ends_with(".sym") => true,
        Some(_) if is_event_file(name) || is_probes_file(name) || is_values_file(name) => true,
        Some(_) => {
            let new =
                [NAMES_FILE, STORE_FILE, "task.txt", "info"].map(|name| format!("{name}.new"));
            name == "task.txt"
                || name == LOCK_FILE
                || new.iter().any(|new| new == name)
                || name.starts_with(SIDE_FILE)
                || name == "default.opts"
        }
    }
}

fn begins_as_info(path: &Path) -> bool {
    let mut start = [0; 8];
    let read = fs::File::open(path).and_then(|mut file| file.read(&mut start));
    read.is_ok_and(|length| length == 0 || start.starts_with(b"Ftrace!"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_about_to_replace_a_file_of_a_trace_is_a_part_of_it() {
        let is_ours = |name: &str| is_ours(Path::new(name), OsStr::new(name));
        for name in ["exotrace.json", "task.txt", "guest.elf.sym"] {
            assert!(is_ours(name) && is_ours(&format!("{name}.new")), "{name}");
        }
        assert!(!is_ours("guest.elf.new") && !is_ours("sym.new"));
    }

    #[test]
    fn what_says_that_a_trace_is_whole_goes_first() {
        let names = ["1000.dat", SIDE_FILE, "info", STORE_FILE, "task.txt"];
        let files = names.map(|name| Path::new("trace").join(name)).to_vec();
        let order = whole_no_more(files);
        let expected = [SIDE_FILE, STORE_FILE, "1000.dat", "info", "task.txt"];
        assert_eq!(order, expected.map(|name| Path::new("trace").join(name)));
    }
}
