//! Which functions are traced: globs that include, globs that exclude (`notrace`), and the list of
//! what must never be patched.

mod deny;
mod ordered;
mod selector;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

pub(crate) use self::deny::DenyList;
pub use self::selector::Selector;
pub use self::sources::{Files, Sources};

use image::Image;
use terms::function::Function;
use terms::function::FunctionId;
use terms::nearest::{did_you_mean, nearest};
use terms::quantity::counted;
use trace::glob::{GlobError, check_count};

use self::ordered::{Decision, Ordered};

use crate::guest_kind;

/// How many near misses an error names.
const NEAR_MISSES: usize = 3;
/// Why a filter was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Not a glob that can be compared.
    #[error(transparent)]
    Glob(#[from] GlobError),
    /// No function has such a name.
    #[error("no function matches '{glob}'{}{}{}", expression(.glob), near(.near_misses), waiting(*.may_come, .glob))]
    NoMatch {
        /// The glob as given.
        glob: String,
        /// Whether functions can come with a module later.
        may_come: bool,
        /// The function names most like it.
        near_misses: Vec<String>,
    },
    /// Nobody knows which files the functions come from.
    #[error("'{glob}' asks for a source file, {}", no_files(.why.as_deref()))]
    NoFiles {
        /// The glob as given.
        glob: String,
        /// What is wrong with the debug information, if there is some.
        why: Option<String>,
    },
    /// No function comes from such a file.
    #[error("no function comes from a source file as in '{glob}'{}", did_you_mean(.near_misses))]
    NoFile {
        /// The glob as given.
        glob: String,
        /// The names of files most like it.
        near_misses: Vec<String>,
    },
    /// Functions match, but none can be traced.
    #[error("'{glob}' matches {}, of which none can be traced: {first}: {reason}", counted(*matched as u64, "function"))]
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

/// What to say of a pattern that has what regular expressions have and names of functions have not.
#[must_use]
pub fn expression(glob: &str) -> &'static str {
    let is_anchored = glob.starts_with('^') || glob.ends_with('$');
    if is_anchored
        || [".*", ".+", "|", "\\"]
            .iter()
            .any(|sign| glob.contains(sign))
    {
        "; it is taken for a glob, not for a regular expression: `*` is any run of characters, `?` any one, \
         and each alternative is an option of its own"
    } else {
        ""
    }
}

fn near(names: &[String]) -> String {
    if names.is_empty() {
        "; `vmm sites` and `vmm ctl functions` list them".to_owned()
    } else {
        format!("; near: {}", names.join(", "))
    }
}

/// Why no files are known, and what to do.
fn no_files(why: Option<&str>) -> String {
    match why {
        None => "and there is no debug information that has them".to_owned(),
        Some(why) => format!("but {why}"),
    }
}

/// What to write for functions that are to come.
fn waiting(may_come: bool, glob: &str) -> String {
    match may_come {
        true => format!("; `mod:*:{glob}` waits for a module that has it"),
        false => String::new(),
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
    /// A glob that takes out what those before it select.
    TakenOut {
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
            Self::TakenOut { glob } => write!(f, "excluded by '{glob}'"),
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

/// The two sets of globs of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// What is traced.
    Include,
    /// What is not, though included.
    Notrace,
}

/// Two lists of globs. Without an include glob, every function is included. On either side, `!GLOB` takes out what those before
/// it match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    include: Ordered,
    notrace: Ordered,
}

impl Filter {
    /// A filter of these globs.
    ///
    /// # Errors
    /// [`FilterError::Glob`] for the first that is none.
    pub fn new<S: AsRef<str>>(include: &[S], notrace: &[S]) -> Result<Self, FilterError> {
        let mut filter = Self::default();
        for (side, globs) in [(Side::Include, include), (Side::Notrace, notrace)] {
            check_count(globs.len())?;
            for glob in globs {
                filter.add(side, glob.as_ref())?;
            }
        }
        Ok(filter)
    }

    /// The globs of one side, as they were given.
    pub fn globs(&self, side: Side) -> impl Iterator<Item = &str> {
        self.side(side).texts()
    }

    /// Adds a glob, which decides after those that are there; one that is there already changes nothing.
    ///
    /// # Errors
    /// [`FilterError::Glob`].
    pub fn add(&mut self, side: Side, glob: &str) -> Result<(), FilterError> {
        let mut globs = self.side(side).clone();
        globs.add(glob)?;
        check_count(globs.len())?;
        *self.side_mut(side) = globs;
        Ok(())
    }

    /// Removes a glob that is there.
    ///
    /// # Errors
    /// [`FilterError::NotInFilter`].
    pub fn remove(&mut self, side: Side, glob: &str) -> Result<(), FilterError> {
        if self.side_mut(side).remove(glob) {
            return Ok(());
        }
        let present: Vec<&str> = self.globs(side).collect();
        let present = if present.is_empty() {
            "none".to_owned()
        } else {
            present.join(", ")
        };
        Err(FilterError::NotInFilter {
            glob: glob.to_owned(),
            present,
        })
    }

    /// The functions of `image` that the filter selects; `sources` knows which files they come from, if it is asked.
    ///
    /// # Errors
    /// [`FilterError::NoFiles`] where that is not known, [`FilterError::NoFile`] or [`FilterError::NoMatch`] for the first glob that matches no function,
    /// [`FilterError::NothingTraceable`] for the first include glob of whose functions none has a
    /// site, [`FilterError::NothingLeft`] when notrace and the deny list leave none.
    pub fn select(&self, image: &Image, sources: &Sources) -> Result<Selection, FilterError> {
        let selectors = || self.include.selectors().chain(self.notrace.selectors());
        let known = Files::default();
        let files = match selectors().find(|one| one.is_by_file()) {
            Some(first) => sources.files(image, first.text())?,
            None => &known,
        };
        for selector in selectors() {
            check_matches(selector, image, files)?;
        }
        for selector in self.include.put_in() {
            check_traceable(selector, image, files)?;
        }
        let deny = DenyList::new()?;
        let mut selection = Selection::default();
        for (function, id) in image.functions.iter().zip((0u32..).map(FunctionId)) {
            let taken_out = match self.include.decide(function, files) {
                Decision::Out => continue,
                Decision::TakenOut(glob) => Some(Reason::TakenOut {
                    glob: glob.to_owned(),
                }),
                Decision::In => None,
            };
            match taken_out.or_else(|| self.refusal((image, files), id, function, &deny)) {
                Some(reason) => selection.denied.push((id, reason)),
                None => selection.selected.push(id),
            }
        }
        let may_come = self.include.put_in().any(Selector::is_for_modules);
        if selection.selected.is_empty() && !may_come {
            Err(nothing_left(image, selection))
        } else {
            Ok(selection)
        }
    }

    fn refusal(
        &self,
        (image, files): (&Image, &Files),
        id: FunctionId,
        function: &Function,
        deny: &DenyList,
    ) -> Option<Reason> {
        if let Some((glob, why)) = deny.forbids_function(function) {
            return Some(Reason::BuiltIn { glob, why });
        }
        if image.site_of(id).is_none() {
            return Some(untraceable(image, id));
        }
        let notrace = self.notrace.puts_in(function, files)?;
        Some(Reason::Notrace {
            glob: notrace.to_owned(),
        })
    }

    fn side(&self, side: Side) -> &Ordered {
        match side {
            Side::Include => &self.include,
            Side::Notrace => &self.notrace,
        }
    }

    fn side_mut(&mut self, side: Side) -> &mut Ordered {
        match side {
            Side::Include => &mut self.include,
            Side::Notrace => &mut self.notrace,
        }
    }
}

/// Whether the image has a function that is meant.
///
/// # Errors
/// [`FilterError::NoMatch`] or [`FilterError::NoFile`] names what is like it.
pub fn check_matches(selector: &Selector, image: &Image, files: &Files) -> Result<(), FilterError> {
    let is_there = || {
        let mut all = image.functions.iter();
        all.any(|one| selector.matches(one, files))
    };
    let may_come = || guest_kind::has_modules(image);
    if is_there() || selector.is_for_modules() && may_come() {
        return Ok(());
    }
    // A glob is compared without its wildcards: `*laef*` is near `leaf`.
    let plain = selector.text().chars();
    let wanted: String = plain.filter(|char| !"*?[]".contains(*char)).collect();
    if selector.is_by_file() {
        return Err(no_file(selector, &wanted, files));
    }
    let names = image.functions.iter().map(|function| &*function.display);
    let near_misses = nearest(&wanted, names, NEAR_MISSES);
    Err(FilterError::NoMatch {
        glob: selector.text().to_owned(),
        may_come: !selector.is_for_modules() && may_come(),
        near_misses,
    })
}

/// Files are compared by the last part of their paths.
fn no_file(selector: &Selector, wanted: &str, files: &Files) -> FilterError {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let path = wanted.split(':').nth(1).unwrap_or_default();
    let names: BTreeSet<String> = files.paths().map(last).collect();
    FilterError::NoFile {
        glob: selector.text().to_owned(),
        near_misses: nearest(&last(path), names.iter().map(String::as_str), NEAR_MISSES),
    }
}

fn check_traceable(selector: &Selector, image: &Image, files: &Files) -> Result<(), FilterError> {
    let matching = || {
        let functions = image.functions.iter().zip((0u32..).map(FunctionId));
        functions.filter(|(function, _)| selector.matches(function, files))
    };
    if matching().any(|(_, id)| image.site_of(id).is_some()) {
        return Ok(());
    }
    let Some((first, id)) = matching().next() else {
        return Ok(());
    };
    Err(FilterError::NothingTraceable {
        glob: selector.text().to_owned(),
        matched: matching().count(),
        first: first.display.to_string(),
        reason: untraceable(image, id),
    })
}

fn untraceable(image: &Image, id: FunctionId) -> Reason {
    let reason = image.untraceable(id).map(|entry| entry.reason.to_string());
    Reason::Untraceable(reason.unwrap_or_else(|| "no patch site".to_owned()))
}

fn nothing_left(image: &Image, selection: Selection) -> FilterError {
    let denied = selection.denied.len();
    // What the filter or the deny list did says more than that some function has no site.
    let untraceable = |entry: &(FunctionId, Reason)| matches!(entry.1, Reason::Untraceable(_));
    let first = selection.denied.into_iter().min_by_key(untraceable);
    let (first, reason) = match first {
        Some((id, reason)) => (
            image
                .function(id)
                .map_or(String::new(), |f| f.display.to_string()),
            reason,
        ),
        None => (
            "the image".to_owned(),
            Reason::Untraceable("has no functions".to_owned()),
        ),
    };
    FilterError::NothingLeft {
        denied,
        first,
        reason,
    }
}
