//! A guest is given back what tracers that are dead have changed in it.

use std::time::Duration;

use image::Image;

use super::TracingError;
use super::leave::until_nobody;
use crate::engine::{self, Restored};
use crate::guest::Guest;
use crate::guest_kind;

/// Gives a guest back what tracers that are dead have changed in it, whose window is the guest's. `rest` lets it run between
/// two looks. With the image of the kernel that runs, as its memory has it once all text is its own again, the kernel can be
/// asked what may still lead to the window; without it, everything that looks so may.
///
/// # Errors
/// A [`TracingError`]; what has been given back by then stays so, and the rest can be tried again.
pub fn restore(
    guest: &impl Guest,
    image: Option<&Image>,
    rest: fn(Duration),
) -> Result<Restored, TracingError> {
    let kernel = image.and_then(|image| guest_kind::of(image).introspection(image));
    let mut all = Restored::default();
    all.inside = until_nobody(rest, |leaving| {
        let stopped = &mut guest.stop()?;
        let more = engine::restore(stopped, guest.window(), kernel.as_deref(), leaving)?;
        all.places += more.places;
        all.others += more.others;
        Ok(more.inside)
    })?;
    Ok(all)
}
