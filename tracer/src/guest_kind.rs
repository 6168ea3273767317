//! Which kind of guest an image is of: the one place that knows which there are.

use image::Image;

use crate::linux::personality::Linux;
use crate::personality::{Announcing, NeverTraced, PanicMarks, Personality};

/// Those that there are.
const KINDS: [&dyn Personality; 2] = [&Announcing, &Linux];

/// The kind of guest that an image is of.
#[must_use]
pub fn of(image: &Image) -> &'static dyn Personality {
    match image.linux {
        Some(_) => &Linux,
        None => &Announcing,
    }
}

/// Whether functions can come to a guest of this image that are in no image: those of modules that can be traced.
pub fn has_modules(image: &Image) -> bool {
    let inside = of(image).introspection(image);
    inside.is_some_and(|inside| inside.has_modules())
}

/// Whether of one that runs its memory says which functions can be traced, and its file may not.
pub fn has_sites_in_memory(image: &Image) -> bool {
    image.linux.is_some()
}

/// Where guests of any kind can be traced from: [`Personality::attach_points`].
pub fn attach_points() -> impl Iterator<Item = &'static str> {
    let of = |kind: &&dyn Personality| kind.attach_points();
    KINDS.iter().flat_map(of).copied()
}

/// What must never be patched of guests of any kind.
pub fn never_traced() -> impl Iterator<Item = &'static NeverTraced> {
    KINDS.iter().flat_map(|kind| kind.never_traced())
}

/// What must not be patched besides, where it has no patch site.
pub fn never_displaced() -> impl Iterator<Item = &'static NeverTraced> {
    KINDS.iter().flat_map(|kind| kind.never_displaced())
}

/// What must not be patched outside of patch sites, as it runs too early.
pub fn before_gs() -> impl Iterator<Item = &'static NeverTraced> {
    KINDS.iter().flat_map(|kind| kind.before_gs())
}

/// Leaves the returns of those functions of an image alone of which its kind says so.
pub fn leave_returns(image: &mut Image) {
    for group in of(image).never_hooked() {
        image.leave_returns(group.names, group.why);
    }
}

impl PanicMarks {
    /// How a guest of this image says that it dies.
    #[must_use]
    pub fn of(image: &Image) -> Option<Self> {
        of(image).panic_marks()
    }

    /// How guests of any kind say that they die.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().filter_map(|kind| kind.panic_marks())
    }
}
