//! Where clients can have something written: below the output root, and below the directories that were named when the run
//! began. What leads elsewhere is refused before anything is opened.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::protocol::RpcError;

/// Why a client's directory is not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputsError {
    /// The root is none.
    #[error("--output-root {}: {source}; it must be a directory that is there", path.display())]
    Root {
        /// What was named.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// A path ends with `..`, or is empty.
    #[error("'{}' names no directory that could be made: end it with a name", .0.display())]
    NoName(PathBuf),
    /// The directory in which it is to be cannot be found.
    #[error("cannot create the trace directory {}: {source}; the one that it is in must exist", path.display())]
    NoFolder {
        /// What was named.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is somewhere else.
    #[error(
        "{} is not below {}, where clients of this run can have something written: name a directory there, or start with another --output-root",
        path.display(), root.display()
    )]
    Outside {
        /// Where it leads.
        path: PathBuf,
        /// The output root.
        root: PathBuf,
    },
}

impl From<OutputsError> for RpcError {
    fn from(error: OutputsError) -> Self {
        Self::failed(error)
    }
}

/// These places.
#[derive(Debug, Clone)]
pub struct Outputs {
    /// Without links in it.
    root: PathBuf,
    /// As they were named: they may come later.
    named: Vec<PathBuf>,
}

impl Outputs {
    /// Below this root, the current directory if none is given, and below these directories.
    ///
    /// # Errors
    /// [`OutputsError::Root`].
    pub fn new(root: Option<&Path>, named: Vec<PathBuf>) -> Result<Self, OutputsError> {
        let path = root.unwrap_or(Path::new("."));
        let found = fs::canonicalize(path).and_then(|found| match found.is_dir() {
            true => Ok(found),
            false => Err(io::ErrorKind::NotADirectory.into()),
        });
        let root = found.map_err(|source| OutputsError::Root {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { root, named })
    }

    /// The output root.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a directory is that a client names, a relative path from the root on, without links and `..` in it.
    ///
    /// # Errors
    /// [`OutputsError`], when it is elsewhere.
    pub fn admit(&self, wanted: &Path) -> Result<PathBuf, OutputsError> {
        let wanted = self.root.join(wanted);
        let name = wanted.file_name().zip(wanted.parent());
        let (name, folder) = name.ok_or_else(|| OutputsError::NoName(wanted.clone()))?;
        let folder = fs::canonicalize(folder).map_err(|source| OutputsError::NoFolder {
            path: wanted.clone(),
            source,
        })?;
        let path = folder.join(name);
        // Those that are not there have nothing below them.
        let named = self
            .named
            .iter()
            .filter_map(|one| fs::canonicalize(one).ok());
        let mut places = named.chain([self.root.clone()]);
        match places.any(|place| path.starts_with(place)) {
            true => Ok(path),
            false => Err(OutputsError::Outside {
                path,
                root: self.root.clone(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_leads_out_of_the_root_is_refused_however_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        for folder in ["root", "root/deep", "rooted", "trace"] {
            fs::create_dir(at(folder)).unwrap();
        }
        symlink(at("rooted"), at("root/out")).unwrap();
        symlink(at("root/deep"), at("rooted/in")).unwrap();
        let outputs = Outputs::new(Some(&at("root")), vec![at("trace"), at("later")]).unwrap();
        let admitted = |path: &Path| outputs.admit(path).map_err(|error| error.to_string());
        for (wanted, expected) in [
            ("new", "root/new"),
            ("deep/new", "root/deep/new"),
            ("deep/../new/", "root/new"),
            ("../trace/new", "trace/new"),
            ("../rooted/in/new", "root/deep/new"),
        ] {
            assert_eq!(admitted(Path::new(wanted)), Ok(at(expected)), "{wanted}");
            let whole = at("root").join(wanted);
            assert_eq!(admitted(&whole), Ok(at(expected)), "{wanted}");
        }
        for (wanted, words) in [
            ("../new", "is not below"),
            ("../rooted", "is not below"),
            ("out/new", "rooted/new is not below"),
            ("deep/../../new", "start with another --output-root"),
            ("../later", "is not below"),
            ("deep/..", "end it with a name"),
            ("no/such", "must exist"),
        ] {
            for path in [Path::new(wanted), &at("root").join(wanted)] {
                let error = admitted(path).unwrap_err();
                assert!(error.contains(words), "{wanted}: {error}");
            }
        }
    }

    #[test]
    fn the_root_is_a_directory_and_by_default_the_current_one() {
        let here = Outputs::new(None, Vec::new()).unwrap();
        let current = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(here.admit(Path::new("x")).unwrap(), current.join("x"));
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [Path::new("/no/such"), file.path()] {
            let error = Outputs::new(Some(path), Vec::new()).unwrap_err();
            let said = error.to_string();
            assert!(said.starts_with("--output-root /"), "{said}");
        }
    }
}
