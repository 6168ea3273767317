//! Which kind of guest an image is of: the one place that knows which there are.

use image::Image;

use crate::linux::personality::Linux;
use crate::personality::{Announcing, Personality};

/// The kind of guest that an image is of.
#[must_use]
pub fn of(image: &Image) -> &'static dyn Personality {
    match image.linux {
        Some(_) => &Linux,
        None => &Announcing,
    }
}
