//! Which functions are traced: globs that include, globs that exclude (`notrace`), and the list of
//! what must never be patched.

mod deny;
mod ordered;
#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use self::deny::DenyList;

use image::Image;
use terms::function::Function;
use terms::function::FunctionId;
use terms::nearest::nearest;
use terms::quantity::counted;
use trace::glob::{GlobError, Pattern};

use self::ordered::{Decision, Ordered};

use crate::guest_kind;

/// How many near misses an error names.
const NEAR_MISSES: usize = 3;
/// The most globs on one side of a filter: each is compared with every function, and one request is not to keep the
/// others waiting for longer than a moment.
const GLOBS_MAX: usize = 512;

/// Why a filter was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Not a glob that can be compared.
    #[error(transparent)]
    Glob(#[from] GlobError),
    /// More than are compared.
    #[error("{count} globs: at most {GLOBS_MAX} are compared; a '*' in one can stand for several")]
    ManyGlobs {
        /// How many there would be.
        count: usize,
    },
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

    /// The functions of `image` that the filter selects.
    ///
    /// # Errors
    /// [`FilterError::NoMatch`] for the first glob that matches no function,
    /// [`FilterError::NothingTraceable`] for the first include glob of whose functions none has a
    /// site, [`FilterError::NothingLeft`] when notrace and the deny list leave none.
    pub fn select(&self, image: &Image) -> Result<Selection, FilterError> {
        for pattern in self.include.patterns().chain(self.notrace.patterns()) {
            check_matches(pattern, image)?;
        }
        for pattern in self.include.put_in() {
            check_traceable(pattern, image)?;
        }
        let deny = DenyList::new()?;
        let mut selection = Selection::default();
        for (function, id) in image.functions.iter().zip((0u32..).map(FunctionId)) {
            let taken_out = match self.include.decide(function) {
                Decision::Out => continue,
                Decision::TakenOut(glob) => Some(Reason::TakenOut {
                    glob: glob.to_owned(),
                }),
                Decision::In => None,
            };
            match taken_out.or_else(|| self.refusal(image, id, function, &deny)) {
                Some(reason) => selection.denied.push((id, reason)),
                None => selection.selected.push(id),
            }
        }
        let may_come = self.include.put_in().any(Pattern::is_for_modules);
        if selection.selected.is_empty() && !may_come {
            Err(nothing_left(image, selection))
        } else {
            Ok(selection)
        }
    }

    fn refusal(
        &self,
        image: &Image,
        id: FunctionId,
        function: &Function,
        deny: &DenyList,
    ) -> Option<Reason> {
        if let Some((glob, why)) = function.names().find_map(|name| deny.forbids(name)) {
            return Some(Reason::BuiltIn { glob, why });
        }
        if image.site_of(id).is_none() {
            return Some(untraceable(image, id));
        }
        let notrace = self.notrace.puts_in(function)?;
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

fn check_count(count: usize) -> Result<(), FilterError> {
    if count > GLOBS_MAX {
        return Err(FilterError::ManyGlobs { count });
    }
    Ok(())
}

/// Whether the image has a function that the glob matches.
///
/// # Errors
/// [`FilterError::NoMatch`] names what is like it.
pub fn check_matches(pattern: &Pattern, image: &Image) -> Result<(), FilterError> {
    let is_there = || image.functions.iter().any(|one| pattern.matches(one));
    let may_come = || guest_kind::has_modules(image);
    if is_there() || pattern.is_for_modules() && may_come() {
        return Ok(());
    }
    // A glob is compared without its wildcards: `*laef*` is near `leaf`.
    let wanted: String = pattern
        .text()
        .chars()
        .filter(|char| !"*?[]".contains(*char))
        .collect();
    let names = image.functions.iter().map(|function| &*function.display);
    let near_misses = nearest(&wanted, names, NEAR_MISSES);
    Err(FilterError::NoMatch {
        glob: pattern.text().to_owned(),
        may_come: !pattern.is_for_modules() && may_come(),
        near_misses,
    })
}

fn check_traceable(pattern: &Pattern, image: &Image) -> Result<(), FilterError> {
    let matching = || {
        let functions = image.functions.iter().zip((0u32..).map(FunctionId));
        functions.filter(|(function, _)| pattern.matches(function))
    };
    if matching().any(|(_, id)| image.site_of(id).is_some()) {
        return Ok(());
    }
    let Some((first, id)) = matching().next() else {
        return Ok(());
    };
    Err(FilterError::NothingTraceable {
        glob: pattern.text().to_owned(),
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
