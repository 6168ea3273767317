//! What must never be patched, whatever the user asks for: what any kind of guest says of itself. A name here is harmless
//! in a guest that has no such function. Nearly all of these have no patch site in the first place: the list holds
//! where a build forgot to.

use globset::{GlobSet, GlobSetBuilder};
use image::Image;
use terms::function::Function;

use crate::guest_kind;
use crate::personality::{NeverChanged, NeverTraced};
use trace::glob::{GlobError, compile};

/// The list, ready to match.
#[derive(Debug)]
pub struct DenyList {
    set: GlobSet,
    /// The glob and the reason for each member of the set.
    entries: Vec<(&'static str, &'static str)>,
    /// What is forbidden by where it lies.
    text: Option<NeverChanged>,
}

impl DenyList {
    /// The list.
    ///
    /// # Errors
    /// [`GlobError::Bad`], which a test rules out.
    pub fn new() -> Result<Self, GlobError> {
        Self::of(guest_kind::never_traced())
    }

    /// That of functions of `image` without a patch site, which is longer.
    ///
    /// # Errors
    /// As of [`Self::new`].
    pub fn without_sites(image: &Image) -> Result<Self, GlobError> {
        let more = guest_kind::never_displaced().chain(guest_kind::before_gs());
        let list = Self::of(guest_kind::never_traced().chain(more))?;
        Ok(list.with_text(image))
    }

    /// That of instructions in functions of `image`.
    ///
    /// # Errors
    /// As of [`Self::new`].
    pub fn inside(image: &Image) -> Result<Self, GlobError> {
        let list = Self::of(guest_kind::never_traced().chain(guest_kind::before_gs()))?;
        Ok(list.with_text(image))
    }

    fn with_text(self, image: &Image) -> Self {
        let text = guest_kind::of(image).text_before_gs(image);
        Self { text, ..self }
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
        Ok(Self {
            set,
            entries,
            text: None,
        })
    }

    /// What forbids this function, a glob or the functions that it lies between, and why.
    pub fn forbids_function(&self, function: &Function) -> Option<(&'static str, &'static str)> {
        let by_name = function.names().find_map(|name| self.forbids(name));
        by_name.or_else(|| {
            let text = self
                .text
                .filter(|one| one.text.holds(function.address, 1))?;
            Some((text.between, text.why))
        })
    }

    /// The glob that forbids this name, and why.
    pub fn forbids(&self, name: &str) -> Option<(&'static str, &'static str)> {
        let first = self.set.matches(name).into_iter().next()?;
        self.entries.get(first).copied()
    }
}
