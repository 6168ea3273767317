//! Which source files the functions of a kernel come from, once somebody asks: line tables are large.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use debuginfo::{DebugError, DebugInfo};
use image::Image;
use terms::addr::Gva;
use terms::function::Function;

use super::FilterError;

/// The files of functions, by where those begin.
#[derive(Debug, Default)]
pub struct Files(HashMap<Gva, Arc<str>>);

impl Files {
    /// The path of the file that a function comes from. What modules of Linux come from is not known: their debug information is in
    /// files of their own.
    #[must_use]
    pub fn of(&self, function: &Function) -> Option<&str> {
        match function.module {
            Some(_) => None,
            None => self.0.get(&function.address).map(|path| &**path),
        }
    }

    /// Every path.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(|path| &**path)
    }
}

/// Where the files of functions are looked up.
#[derive(Debug, Default)]
pub struct Sources {
    debug: Option<Arc<DebugInfo>>,
    files: OnceLock<Result<Files, DebugError>>,
}

impl Sources {
    /// By this debug information.
    #[must_use]
    pub fn new(debug: Option<Arc<DebugInfo>>) -> Self {
        Self {
            debug,
            files: OnceLock::new(),
        }
    }

    /// The files of all functions of the kernel, which are looked up once. `wanted` is what they are asked for by.
    ///
    /// # Errors
    /// [`FilterError::NoFiles`].
    pub fn files(&self, image: &Image, wanted: &str) -> Result<&Files, FilterError> {
        let files = self.files.get_or_init(|| self.read(image, wanted));
        files.as_ref().map_err(|why| FilterError::NoFiles {
            glob: wanted.to_owned(),
            why: match why {
                DebugError::Absent { .. } => None,
                other => Some(other.to_string()),
            },
        })
    }

    fn read(&self, image: &Image, wanted: &str) -> Result<Files, DebugError> {
        let debug = self.debug.as_ref().ok_or_else(|| DebugError::Absent {
            what: wanted.to_owned(),
        })?;
        let functions = || {
            let all = image.functions.iter();
            all.filter(|function| function.module.is_none())
        };
        let places =
            functions().map(|one| one.address..Gva(one.address.0.saturating_add(one.size)));
        let found = debug.sources(wanted, places)?.into_iter();
        let files = functions().zip(found);
        let files = files.filter_map(|(function, file)| Some((function.address, file?)));
        Ok(Files(files.collect()))
    }
}
