//! What a user writes to mean functions: a glob of names, or one of source files.

use globset::GlobMatcher;
use terms::function::Function;
use trace::glob::{FILE, GlobError, Pattern, compile};

use super::sources::Files;

/// What functions are selected by.
#[derive(Debug, Clone)]
pub struct Selector {
    /// As it was given.
    text: String,
    /// The names; of a file all, where nothing is said of them.
    names: Option<Pattern>,
    /// The source file, however much of its path is written.
    file: Option<[GlobMatcher; 2]>,
}

impl PartialEq for Selector {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Selector {}

impl Selector {
    /// `GLOB` and `mod:NAME:GLOB` as of a [`Pattern`]; `file:PATH` is for all functions of the source files whose path, or the end
    /// of it after a slash, the glob matches, and `file:PATH:GLOB` for those of them that have such a name.
    ///
    /// # Errors
    /// [`GlobError`].
    pub fn new(text: &str) -> Result<Self, GlobError> {
        let Some(rest) = text.strip_prefix(FILE) else {
            return Ok(Self {
                text: text.to_owned(),
                names: Some(Pattern::new(text)?),
                file: None,
            });
        };
        let (path, names) = match rest.split_once(':') {
            Some((path, names)) => (path, Some(Pattern::new(names)?)),
            None => (rest, None),
        };
        if path.is_empty() {
            return Err(GlobError::Bad {
                glob: text.to_owned(),
                reason: "expected file:PATH or file:PATH:GLOB".to_owned(),
            });
        }
        let path = path.strip_prefix("./").unwrap_or(path);
        let below = compile(&format!("*/{path}"))?;
        Ok(Self {
            text: text.to_owned(),
            names,
            file: Some([compile(path)?, below].map(|glob| glob.compile_matcher())),
        })
    }

    /// Whether it means the function. `files` are those of all functions, where [`Self::is_by_file`].
    #[must_use]
    pub fn matches(&self, function: &Function, files: &Files) -> bool {
        let is_of_file = self.file.as_ref().is_none_or(|wanted| {
            let file = files.of(function);
            file.is_some_and(|file| wanted.iter().any(|one| one.is_match(file)))
        });
        let names = self.names.as_ref();
        is_of_file && names.is_none_or(|names| names.matches(function))
    }

    /// Whether it asks for the files of functions.
    #[must_use]
    pub const fn is_by_file(&self) -> bool {
        self.file.is_some()
    }

    /// Whether it is for modules, which may come later.
    #[must_use]
    pub fn is_for_modules(&self) -> bool {
        self.names.as_ref().is_some_and(Pattern::is_for_modules) && self.file.is_none()
    }

    /// As it was given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}
