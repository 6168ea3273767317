//! Where a guest is on its way through its start, and what cannot be done there.

use image::Image;
use terms::addr::Gva;

use crate::filter::Filter;
use crate::guest_kind;
use crate::personality::Border;
use crate::tracing::error::TracingError;

/// What a guest is trapped for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    /// It is about to run this function.
    Enters(&'static Border),
    /// It has run it.
    Leaves(&'static Border),
}

/// Where a guest is on its way through its start.
#[derive(Debug, Default)]
pub(in crate::tracing) struct Phases {
    /// Whether it is trapped, so that it can be followed from here on.
    pub(super) is_trapped: bool,
    /// What it is trapped for next, and where; nothing before the attach point, and after the last border.
    pub(super) next: Option<(Stage, Gva)>,
    /// The function in which it rewrites its sites now.
    pub(super) rewriting: Option<&'static str>,
    /// The sessions that are started again when it has.
    pub(super) resting: Vec<(String, Filter)>,
    /// What was said of each change at the attach point: nobody needs it twice.
    pub(super) said: Vec<String>,
}

impl Phases {
    /// Whether tracing can begin in a guest that is still in front of its borders.
    ///
    /// # Errors
    /// [`TracingError::TooEarly`], [`TracingError::NoBorder`].
    pub fn check_start(&self, image: &Image) -> Result<(), TracingError> {
        check_borders(image)?;
        match self.is_trapped {
            true => Ok(()),
            false => Err(TracingError::TooEarly),
        }
    }

    /// A session is gone: nobody starts it again, nor one that has its name later.
    pub fn forget(&mut self, session: &str) {
        self.resting.retain(|(name, _)| name != session);
    }

    /// Whether the guest's text may be changed now.
    ///
    /// # Errors
    /// [`TracingError::Rewriting`].
    pub fn check_text(&self) -> Result<(), TracingError> {
        match self.rewriting {
            None => Ok(()),
            Some(function) => Err(TracingError::Rewriting { function }),
        }
    }
}

/// Whether the functions are known in which a kernel changes what tracing rests on.
///
/// # Errors
/// [`TracingError::NoBorder`].
pub(in crate::tracing) fn check_borders(image: &Image) -> Result<(), TracingError> {
    let mut borders = guest_kind::of(image).borders().iter();
    let unknown = borders.find(|border| image.symbols.address_of(border.function).is_none());
    unknown.map_or(Ok(()), |border| {
        let function = border.function;
        Err(TracingError::NoBorder { function })
    })
}
