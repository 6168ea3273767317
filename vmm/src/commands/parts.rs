//! What is written beside its place until it is complete. Whoever writes it holds a lock on it, which ends with the process:
//! what a killed one has left is known by that, and removed by who writes to the same place next.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// How the name of a part begins, of what is to stand at `place`.
pub fn prefix(place: &Path) -> OsString {
    let mut prefix = place.file_name().unwrap_or_default().to_owned();
    prefix.push(".part-");
    prefix
}

/// Where the parts of what is to stand at `place` are.
pub fn folder(place: &Path) -> &Path {
    let folder = place.parent().filter(|folder| *folder != Path::new(""));
    folder.unwrap_or(Path::new("."))
}

/// Has a part that was just made, and takes it from nobody.
///
/// # Errors
/// When it cannot be opened, or somebody has taken it for a left one meanwhile.
pub fn hold(part: &Path) -> io::Result<File> {
    let held = File::open(part)?;
    flock(&held, FlockOperation::NonBlockingLockExclusive)?;
    let (there, mine) = (fs::metadata(part)?, held.metadata()?);
    match there.ino() == mine.ino() {
        true => Ok(held),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Removes the parts of what was to stand at `place` that nobody writes any more. One that cannot be removed is left.
pub fn remove_left(place: &Path) {
    let prefix = prefix(place);
    let Ok(entries) = fs::read_dir(folder(place)) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_part = name
            .as_encoded_bytes()
            .starts_with(prefix.as_encoded_bytes());
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if is_part && !is_link {
            remove_if_left(&entry.path());
        }
    }
}

fn remove_if_left(part: &Path) {
    let Ok(found) = File::open(part) else {
        return;
    };
    if flock(&found, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let removed = match found.metadata() {
        Ok(kind) if kind.is_dir() => fs::remove_dir_all(part),
        _ => fs::remove_file(part),
    };
    match removed {
        Ok(()) => log::info!(
            "removed {}, which somebody left half written",
            part.display()
        ),
        Err(error) => log::warn!("{} is left half written: {error}", part.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_writes_any_more_is_removed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for name in ["out.part-1", "out.part-2", "other.part-1"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("file"), "").unwrap();
        }
        fs::write(at("out.part-3"), "").unwrap();
        fs::write(at("out"), "").unwrap();
        std::os::unix::fs::symlink("other.part-1", at("out.part-4")).unwrap();
        let held = hold(&at("out.part-2")).unwrap();
        remove_left(&at("out"));
        let names = || {
            let entries = fs::read_dir(root.path()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        let others = ["other.part-1", "out", "out.part-4"];
        assert_eq!(
            names(),
            [&others[..2], &["out.part-2"], &others[2..]].concat()
        );
        drop(held);
        remove_left(&at("out"));
        assert_eq!(names(), others);
    }
}
