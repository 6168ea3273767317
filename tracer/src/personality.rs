//! What is asked of a kind of guest that no image says in the same way for all: where its processors are known by,
//! where a window may be in its address space, how far its text can reach.

use std::fmt::Debug;

use image::{Image, TextRange};
use terms::addr::Gva;

/// Ranges of an address space that a guest never uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spare {
    /// For entries of 2 MiB near the text, the best first.
    pub pages: Vec<TextRange>,
    /// For entries of 1 GiB.
    pub giants: Vec<TextRange>,
}

/// A kind of guest.
pub trait Personality: Debug + Sync {
    /// The symbol of the list that it has of the GS bases of its processors: 64 bits for each, in the order of their
    /// numbers.
    fn gs_bases(&self) -> &'static str;

    /// Whether an entry of that list has been filled in.
    fn is_gs_base(&self, base: Gva) -> bool;

    /// What it never uses of its address space, whatever it loads or maps later; `None` where no more is known than what
    /// its image takes up.
    fn spare(&self, image: &Image) -> Option<Spare>;

    /// The first address after text that it can load later; `None` where all its text is in its image.
    fn text_limit(&self) -> Option<Gva>;

    /// The function that it calls for each module, when all of it is in its place and nothing of it has run.
    fn called_for_modules(&self) -> Option<&'static str>;
}

/// A guest that announces what there is to know, as the bundled one does; so may any other.
#[derive(Debug, Clone, Copy)]
pub struct Announcing;

impl Personality for Announcing {
    fn gs_bases(&self) -> &'static str {
        "vcpu_gs_bases"
    }

    fn is_gs_base(&self, _: Gva) -> bool {
        true
    }

    fn spare(&self, _: &Image) -> Option<Spare> {
        None
    }

    fn text_limit(&self) -> Option<Gva> {
        None
    }

    fn called_for_modules(&self) -> Option<&'static str> {
        None
    }
}
