//! A file that is there as a whole or not at all: written without a name, or where the file system has no such files beside
//! its place, and put there when it is complete. What stood there stays until then, and also when the writing fails.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::parts::{self, Part};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};

/// What is being written. Dropped before it is put in its place, nothing is left of it.
#[derive(Debug)]
pub struct WholeFile {
    place: PathBuf,
    fresh: Fresh,
}

#[derive(Debug)]
enum Fresh {
    /// A file without a name: when this process is killed, nothing is left of it.
    Nameless(File),
    /// A file beside the place, until it takes it.
    Beside { file: File, part: Part },
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
            there => {
                let fresh = fresh(&place)?;
                if let Ok(there) = there {
                    fresh.file().set_permissions(there.permissions())?;
                }
                fresh
            }
        };
        Ok(Self { place, fresh })
    }

    /// It is complete.
    ///
    /// # Errors
    /// When it cannot take its place.
    pub fn put(self) -> io::Result<()> {
        match self.fresh {
            Fresh::Nameless(file) => name(&file, &self.place),
            Fresh::Beside { part, .. } => part.put(),
            Fresh::There(_) => Ok(()),
        }
    }
}

impl Write for &WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.fresh.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Fresh {
    fn file(&self) -> &File {
        match self {
            Self::Beside { file, .. } | Self::Nameless(file) | Self::There(file) => file,
        }
    }
}

/// Where this process finds its own files by their numbers.
const OWN_FILES: &str = "/proc/self/fd";

/// An empty file on the same file system.
fn fresh(place: &Path) -> io::Result<Fresh> {
    parts::remove_left(place);
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let has_names = Path::new(OWN_FILES).is_dir();
    match openat(CWD, parts::folder(place), flags, mode) {
        Ok(nameless) if has_names => Ok(Fresh::Nameless(nameless.into())),
        // Whatever is wrong is wrong with this, too, unless it is that such files are not known.
        _ => beside(place),
    }
}

/// One with a name, in the same folder.
fn beside(place: &Path) -> io::Result<Fresh> {
    let part = Part::beside(place)?;
    let mut only_ours = File::options();
    let only_ours = only_ours.write(true).create_new(true).mode(0o600);
    let file = only_ours.open(part.path())?;
    Ok(Fresh::Beside { file, part })
}

/// Gives a file its name. Only a name that is free can be given at once; another one is taken from who has it.
fn name(file: &File, place: &Path) -> io::Result<()> {
    let number = format!("{OWN_FILES}/{}", file.as_raw_fd());
    let link = |path: &Path| -> io::Result<()> {
        let (this, follow) = (&number, AtFlags::SYMLINK_FOLLOW);
        Ok(linkat(CWD, this, CWD, path, follow)?)
    };
    match link(place) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let part = Part::beside(place)?;
    link(&part.path())?;
    part.put()
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
    fn nothing_is_there_of_what_is_written_without_a_name_and_it_can_be_put_beside_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let (one, another) = (fresh(&path).unwrap(), beside(&path).unwrap());
        let is_nameless = matches!(one, Fresh::Nameless(_));
        assert!(is_nameless, "this file system has such files");
        assert_eq!(names(folder.path()).len(), 1, "the other one");
        for fresh in [one, another] {
            let place = path.clone();
            WholeFile { place, fresh }.put().unwrap();
        }
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
