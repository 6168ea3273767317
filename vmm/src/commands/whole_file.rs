//! A file that is there as a whole or not at all: written beside its place, and put there when it is complete. What
//! stood there stays until then, and also when the writing fails.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// What is being written. Dropped before it is put in its place, nothing is left of it.
#[derive(Debug)]
pub struct WholeFile {
    place: PathBuf,
    fresh: Fresh,
}

#[derive(Debug)]
enum Fresh {
    /// A file beside the place, until it takes it.
    Beside(NamedTempFile),
    /// A pipe or a device: nothing can take its place.
    There(File),
}

impl WholeFile {
    /// One that is to stand at `path`; where that is a link, where the link leads.
    ///
    /// # Errors
    /// When nothing can be written there.
    pub fn create(path: &Path) -> io::Result<Self> {
        let place = match fs::canonicalize(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            place => place?,
        };
        let fresh = match fs::metadata(&place) {
            Ok(there) if !there.is_file() => Fresh::There(File::create(&place)?),
            Ok(there) => {
                let fresh = beside(&place)?;
                fresh.as_file().set_permissions(there.permissions())?;
                Fresh::Beside(fresh)
            }
            Err(_) => Fresh::Beside(beside(&place)?),
        };
        Ok(Self { place, fresh })
    }

    /// It is complete.
    ///
    /// # Errors
    /// When it cannot take its place.
    pub fn put(self) -> io::Result<()> {
        match self.fresh {
            Fresh::Beside(fresh) => fresh.persist(&self.place).map(drop).map_err(Into::into),
            Fresh::There(_) => Ok(()),
        }
    }
}

impl Write for &WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.fresh {
            Fresh::Beside(fresh) => fresh.as_file().write(bytes),
            Fresh::There(file) => (&*file).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An empty file in the same folder, of a name that says whose it is should this process be killed.
fn beside(place: &Path) -> io::Result<NamedTempFile> {
    let folder = place.parent().filter(|folder| *folder != Path::new(""));
    let mut prefix = place.file_name().unwrap_or_default().to_owned();
    prefix.push(".part-");
    Builder::new()
        .prefix(&prefix)
        .tempfile_in(folder.unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let files = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn it_is_there_when_it_is_complete_and_what_stood_there_until_then() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for (before, bytes) in [(None, "one"), (Some("one"), "another")] {
            let file = WholeFile::create(&path).unwrap();
            (&file).write_all(bytes.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), before);
            file.put().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), bytes);
        }
        drop(WholeFile::create(&path).unwrap());
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn a_link_stays_one_and_who_may_read_the_file_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "before").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        let fresh = WholeFile::create(&link).unwrap();
        (&fresh).write_all(b"after").unwrap();
        fresh.put().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "after");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(names(folder.path()), ["file", "link"]);
    }

    #[test]
    fn a_device_is_written_to_and_stays_one() {
        let null = Path::new("/dev/null");
        let file = WholeFile::create(null).unwrap();
        (&file).write_all(b"nothing").unwrap();
        file.put().unwrap();
        assert!(fs::metadata(null).unwrap().file_type().is_char_device());
    }

    #[test]
    fn where_nothing_can_be_written_it_is_said_at_once() {
        let folder = tempfile::tempdir().unwrap();
        WholeFile::create(folder.path()).unwrap_err();
        let missing = folder.path().join("no/such/folder");
        WholeFile::create(&missing).unwrap_err();
        assert_eq!(names(folder.path()), <[&str; 0]>::default());
    }
}
