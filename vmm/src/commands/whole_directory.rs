//! A directory that is there as a whole or not at all: filled beside its place, and put there when it is complete.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::parts::{self, Part};

/// What is being filled. Dropped before it is put in its place, nothing is left of it.
#[derive(Debug)]
pub struct WholeDirectory {
    part: Part,
    path: PathBuf,
}

impl WholeDirectory {
    /// One that is to stand at `path`, where nothing is, or an empty directory.
    ///
    /// # Errors
    /// When something is there, or nothing can be written there.
    pub fn create(path: &Path) -> io::Result<Self> {
        // `a/b/` is `a/b`.
        let place: PathBuf = path.components().collect();
        let is_free = match fs::read_dir(&place) {
            Ok(mut there) => there.next().is_none(),
            Err(error) => error.kind() != io::ErrorKind::NotADirectory,
        };
        if !is_free {
            let text =
                "something is there already; name a directory that is not there, or is empty";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        parts::remove_left(&place);
        let part = Part::beside(&place)?;
        let path = part.path();
        // Whoever may read what this user makes, may read this.
        fs::create_dir(&path)?;
        Ok(Self { part, path })
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
        self.part.put()
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
            let directory = WholeDirectory::create(place).unwrap();
            fs::write(directory.path().join("file"), "").unwrap();
            assert!(!place.join("file").exists());
            directory.put().unwrap();
            assert_eq!(names(place), ["file"]);
        }
        drop(WholeDirectory::create(&folder.path().join("none")).unwrap());
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
            WholeDirectory::create(place).unwrap_err();
        }
        assert_eq!(names(folder.path()), ["file", "full"]);
        assert_eq!(names(&full), ["x"]);
    }
}
