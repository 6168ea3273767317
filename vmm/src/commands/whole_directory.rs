//! A directory that is there as a whole or not at all: filled beside its place, and put there when it is complete.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::parts::{self, Part};

/// Says whether a directory is one that may go for what is being filled.
pub type MayGo = fn(&Path) -> io::Result<bool>;

/// What is being filled. Dropped before it is put in its place, nothing is left of it.
#[derive(Debug)]
pub struct WholeDirectory {
    part: Part,
    path: PathBuf,
    /// What stands in its place, and whether that may go.
    old: Option<(PathBuf, MayGo)>,
}

impl WholeDirectory {
    /// One that is to stand at `path`, where nothing is, an empty directory, or one that `may_go`.
    ///
    /// # Errors
    /// When something else is there, or nothing can be written there.
    pub fn create(path: &Path, may_go: Option<MayGo>) -> io::Result<Self> {
        // `a/b/` is `a/b`.
        let place: PathBuf = path.components().collect();
        let is_free = match fs::read_dir(&place) {
            Ok(mut there) => there.next().is_none(),
            Err(error) => error.kind() != io::ErrorKind::NotADirectory,
        };
        let (place, old) = match may_go {
            _ if is_free => (place, None),
            None => {
                return Err(taken(
                    "something is there already; name a directory that is not there, or is empty",
                ));
            }
            Some(may_go) => {
                // Where it is a link, where the link leads.
                let place = fs::canonicalize(place)?;
                check(&place, may_go)?;
                (place.clone(), Some((place, may_go)))
            }
        };
        parts::remove_left(&place);
        let part = Part::beside(&place)?;
        let path = part.path();
        // Whoever may read what this user makes, may read this.
        fs::create_dir(&path)?;
        Ok(Self { part, path, old })
    }

    /// Where it is filled.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It is complete.
    ///
    /// # Errors
    /// When it cannot take its place; then nothing is left of it.
    pub fn put(self) -> io::Result<()> {
        match self.old {
            None => self.part.put(),
            // It was long ago that it was looked at.
            Some((old, may_go)) if old.exists() => {
                check(&old, may_go)?;
                self.part.put_instead()
            }
            Some(_) => self.part.put(),
        }
    }
}

fn taken(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, text)
}

/// That a directory may go.
fn check(old: &Path, may_go: MayGo) -> io::Result<()> {
    match old.is_dir() && may_go(old)? {
        true => Ok(()),
        false => Err(taken(
            "what is there is no such export, or has more in it: --force replaces nothing else; name another directory",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let files = fs::read_dir(folder).unwrap();
        let name = |file: io::Result<fs::DirEntry>| file.unwrap().file_name().into_string();
        let mut names: Vec<String> = files.map(|file| name(file).unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn it_is_there_when_it_is_complete_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let [new, empty] = ["new/", "empty"].map(|name| folder.path().join(name));
        fs::create_dir(&empty).unwrap();
        for place in [&new, &empty] {
            let directory = WholeDirectory::create(place, None).unwrap();
            fs::write(directory.path().join("file"), "").unwrap();
            assert!(!place.join("file").exists());
            directory.put().unwrap();
            assert_eq!(names(place), ["file"]);
        }
        drop(WholeDirectory::create(&folder.path().join("none"), None).unwrap());
        assert_eq!(names(folder.path()), ["empty", "new"]);
        let mode = fs::metadata(&new).unwrap().permissions().mode();
        assert_eq!(mode & 0o700, 0o700);
    }

    #[test]
    fn what_is_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [full, file] = ["full", "file"].map(|name| folder.path().join(name));
        fs::create_dir(&full).unwrap();
        fs::write(full.join("x"), "").unwrap();
        fs::write(&file, "").unwrap();
        for place in [&full, &file, &folder.path().join("no/such")] {
            WholeDirectory::create(place, None).unwrap_err();
        }
        assert_eq!(names(folder.path()), ["file", "full"]);
        assert_eq!(names(&full), ["x"]);
    }

    /// Whether it is only what is to be replaced.
    fn is_old(directory: &Path) -> io::Result<bool> {
        let mut there = fs::read_dir(directory)?;
        Ok(there.all(|file| file.is_ok_and(|file| file.file_name() == "old")))
    }

    #[test]
    fn what_may_go_goes_when_the_new_one_is_complete_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let [there, other, file, link] =
            ["there", "other", "file", "link"].map(|name| folder.path().join(name));
        for place in [&there, &other] {
            fs::create_dir(place).unwrap();
            fs::write(place.join("old"), "").unwrap();
        }
        fs::write(other.join("mine"), "").unwrap();
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&there, &link).unwrap();
        for place in [&other, &file] {
            let refused = WholeDirectory::create(place, Some(is_old)).unwrap_err();
            assert!(refused.to_string().contains("no such export"), "{refused}");
        }
        drop(WholeDirectory::create(&there, Some(is_old)).unwrap());
        assert_eq!(names(&there), ["old"]);
        // What has come into it meanwhile is somebody's.
        let directory = WholeDirectory::create(&there, Some(is_old)).unwrap();
        fs::write(there.join("mine"), "").unwrap();
        directory.put().unwrap_err();
        assert_eq!(names(&there), ["mine", "old"]);
        fs::remove_file(there.join("mine")).unwrap();
        let directory = WholeDirectory::create(&link, Some(is_old)).unwrap();
        fs::write(directory.path().join("new"), "").unwrap();
        assert_eq!(names(&there), ["old"]);
        directory.put().unwrap();
        assert_eq!(names(&there), ["new"]);
        assert!(link.is_symlink());
        assert_eq!(names(folder.path()), ["file", "link", "other", "there"]);
        assert_eq!(names(&other), ["mine", "old"]);
    }
}
