//! What is written beside its place until it is complete: in a directory of its own, which goes with who writes it. What a
//! killed one has left is removed by who writes to the same place next. What is ours is told by a file in it, which is locked
//! as long as its process lives: a name can be anybody's.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tempfile::{Builder, TempDir};

/// The file that is locked.
const MARK: &str = "exotrace.part";
/// What is written there.
const WHOLE: &str = "whole";
/// What stood in its place, on its way out.
const OLD: &str = "old";
/// Letters and digits at random at the end of the name.
const RANDOM: usize = 6;

/// Room beside a place. Dropped before what is in it is put there, nothing is left of it.
#[derive(Debug)]
pub struct Part {
    place: PathBuf,
    // Dropped in this order: what nobody holds is removed by others.
    directory: TempDir,
    _mark: File,
}

impl Part {
    /// Room for what is to stand at `place`.
    ///
    /// # Errors
    /// When nothing can be written there.
    pub fn beside(place: &Path) -> io::Result<Self> {
        let directory = Builder::new()
            .prefix(&prefix(place))
            .rand_bytes(RANDOM)
            .tempdir_in(folder(place))?;
        let mark = hold(directory.path())?;
        Ok(Self {
            place: place.to_owned(),
            directory,
            _mark: mark,
        })
    }

    /// Where it is to be made.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join(WHOLE)
    }

    /// It is complete.
    ///
    /// # Errors
    /// When it cannot take its place; then nothing is left of it.
    pub fn put(self) -> io::Result<()> {
        fs::rename(self.path(), &self.place)
    }

    /// It is complete, and what stands in its place goes: at no moment is nothing there, where the file system can exchange two
    /// names.
    ///
    /// # Errors
    /// When it cannot take its place; then nothing is left of it, and what stood there stays.
    pub fn put_instead(self) -> io::Result<()> {
        let (fresh, place) = (self.path(), &self.place);
        match renameat_with(CWD, &fresh, CWD, place, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS) => {
                let old = self.directory.path().join(OLD);
                fs::rename(place, &old)?;
                fs::rename(&fresh, place).inspect_err(|_| {
                    // What is wrong is said.
                    let _ = fs::rename(&old, place);
                })
            }
            other => Ok(other?),
        }
    }
}

/// How the name of a part begins, of what is to stand at `place`.
fn prefix(place: &Path) -> OsString {
    let mut prefix = place.file_name().unwrap_or_default().to_owned();
    prefix.push(".part-");
    prefix
}

/// Where the parts of what is to stand at `place` are.
pub fn folder(place: &Path) -> &Path {
    let folder = place.parent().filter(|folder| *folder != Path::new(""));
    folder.unwrap_or(Path::new("."))
}

/// Marks a directory as ours for as long as what is returned is open.
fn hold(directory: &Path) -> io::Result<File> {
    let fresh = directory.join(format!("{MARK}.new"));
    let mark = File::create_new(&fresh)?;
    // Whoever sees it sees it locked. Where files cannot be locked, nobody sees it, and what a killed one leaves stays.
    if mark.try_lock().is_ok() {
        fs::rename(fresh, directory.join(MARK))?;
    }
    Ok(mark)
}

/// Removes the parts of what was to stand at `place` that nobody writes any more. One that cannot be removed is left.
pub fn remove_left(place: &Path) {
    let prefix = prefix(place);
    let Ok(entries) = fs::read_dir(folder(place)) else {
        return;
    };
    for entry in entries.flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory && is_name(&entry.file_name(), &prefix) {
            remove_if_left(&entry.path());
        }
    }
}

/// Whether a part has such a name.
fn is_name(name: &OsStr, prefix: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let random = name.strip_prefix(prefix.as_encoded_bytes());
    random.is_some_and(|random| {
        random.len() == RANDOM && random.iter().all(u8::is_ascii_alphanumeric)
    })
}

fn remove_if_left(part: &Path) {
    // While this is open, nobody else takes it for left.
    let Some(_mark) = left(&part.join(MARK)) else {
        return;
    };
    match fs::remove_dir_all(part) {
        Ok(()) => log::info!(
            "removed {}, which somebody left half written",
            part.display()
        ),
        Err(error) => log::warn!("{} is left half written: {error}", part.display()),
    }
}

/// The mark, if there is one, and nobody holds it. Whatever else has its name holds up nobody.
fn left(mark: &Path) -> Option<File> {
    let mark = File::options()
        .read(true)
        // Some file systems lock only what can be written.
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(mark)
        .ok()?;
    let is_file = mark.metadata().is_ok_and(|found| found.is_file());
    (is_file && mark.try_lock().is_ok()).then_some(mark)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FileType, Mode, mknodat};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn what_nobody_writes_any_more_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("out");
        let [left, held] =
            ["out.part-aB3xyz", "out.part-Zz9xyz"].map(|name| root.path().join(name));
        for part in [&left, &held] {
            fs::create_dir_all(part.join(WHOLE)).unwrap();
        }
        drop(hold(&left).unwrap());
        let mark = hold(&held).unwrap();
        remove_left(&place);
        assert_eq!(names(root.path()), ["out.part-Zz9xyz"]);
        drop(mark);
        let part = Part::beside(&place).unwrap();
        fs::write(part.path(), "").unwrap();
        remove_left(&place);
        assert_eq!(names(root.path()).len(), 1, "the one that is written");
        part.put().unwrap();
        assert_eq!(names(root.path()), ["out"]);
    }

    /// It once went by the beginning of the name alone: `split -b 1G out out.part-` makes such names.
    #[test]
    fn what_is_somebody_elses_stays_whatever_its_name_is() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for file in ["out", "out.part-aa", "out.part-aB3xyz"] {
            fs::write(at(file), "what it holds").unwrap();
        }
        let pipe = |name: &str| mknodat(CWD, at(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
        pipe("out.part-aFifo1");
        for directory in [
            "nobody",
            "marked",
            "begun",
            "pipe",
            "other.part-aB3xyz",
            "out.part-aB3xyz7",
        ] {
            let name = match directory.contains('.') {
                true => directory.to_owned(),
                false => format!("out.part-{directory:x<6}"),
            };
            fs::create_dir(at(&name)).unwrap();
            fs::write(at(&name).join("file"), "").unwrap();
        }
        // Somebody's who has not come to lock it.
        fs::write(at("out.part-begunx").join(format!("{MARK}.new")), "").unwrap();
        pipe(&format!("out.part-pipexx/{MARK}"));
        for other in ["other.part-aB3xyz", "out.part-aB3xyz7"] {
            drop(hold(&at(other)).unwrap());
        }
        let linked = Path::new("../other.part-aB3xyz").join(MARK);
        std::os::unix::fs::symlink(linked, at("out.part-marked").join(MARK)).unwrap();
        std::os::unix::fs::symlink("other.part-aB3xyz", at("out.part-linked")).unwrap();
        let before = names(root.path());
        remove_left(&at("out"));
        assert_eq!(names(root.path()), before);
        let held = fs::read_to_string(at("out.part-aB3xyz")).unwrap();
        assert_eq!(held, "what it holds");
    }
}
