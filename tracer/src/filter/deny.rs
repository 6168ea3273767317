//! What must never be patched, whatever the user asks for: what any kind of guest says of itself. A name here is harmless
//! in a guest that has no such function. Nearly all of these have no patch site in the first place: the list holds
//! where a build forgot to.

use globset::{GlobSet, GlobSetBuilder};

use crate::guest_kind;
use crate::personality::NeverTraced;
use trace::glob::{GlobError, compile};

/// The list, ready to match.
#[derive(Debug)]
pub struct DenyList {
    set: GlobSet,
    /// The glob and the reason for each member of the set.
    entries: Vec<(&'static str, &'static str)>,
}

impl DenyList {
    /// The list.
    ///
    /// # Errors
    /// [`GlobError::Bad`], which a test rules out.
    pub fn new() -> Result<Self, GlobError> {
        Self::of(guest_kind::never_traced())
    }

    /// That of functions without a patch site, which is longer.
    ///
    /// # Errors
    /// As of [`Self::new`].
    pub fn without_sites() -> Result<Self, GlobError> {
        Self::of(guest_kind::never_traced().chain(guest_kind::never_displaced()))
    }

    fn of(groups: impl Iterator<Item = &'static NeverTraced>) -> Result<Self, GlobError> {
        let mut builder = GlobSetBuilder::new();
        let mut entries = Vec::new();
        for group in groups {
            for glob in group.globs {
                builder.add(compile(glob)?);
                entries.push((*glob, group.why));
            }
        }
        let set = builder.build().map_err(|error| GlobError::Bad {
            glob: "built-in list".to_owned(),
            reason: error.kind().to_string(),
        })?;
        Ok(Self { set, entries })
    }

    /// The glob that forbids this name, and why.
    pub fn forbids(&self, name: &str) -> Option<(&'static str, &'static str)> {
        let first = self.set.matches(name).into_iter().next()?;
        self.entries.get(first).copied()
    }
}
