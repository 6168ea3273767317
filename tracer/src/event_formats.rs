//! What each event of a guest says, by its number: those that the image declares come first, then probes in the
//! order in which they were added. A number is never used again, so what was recorded under it can be read for
//! as long as it lies in a ring.

use std::sync::Arc;

use crate::image::Image;
use crate::image::points::{EventFormat, EventId};

/// The formats of all events so far. It only grows; who reads records keeps a copy, and gets another one
/// before the first record of a new number can be written.
#[derive(Debug, Clone, Default)]
pub struct EventFormats {
    formats: Vec<Arc<EventFormat>>,
    declared: usize,
}

impl EventFormats {
    /// Those that the image declares.
    #[must_use]
    pub fn of(image: &Image) -> Self {
        let events = image.events();
        let formats: Vec<_> = events.map(|(_, format)| Arc::new(format.clone())).collect();
        let declared = formats.len();
        Self { formats, declared }
    }

    /// Adds one; none when there is no number left.
    pub fn add(&mut self, format: Arc<EventFormat>) -> Option<EventId> {
        let number = u32::try_from(self.formats.len()).ok();
        let event = EventId(number.filter(|number| *number < crate::record::FUNCTIONS_MAX)?);
        self.formats.push(format);
        Some(event)
    }

    /// What this event says.
    #[must_use]
    pub fn get(&self, event: EventId) -> Option<&EventFormat> {
        self.formats.get(event.index()).map(|format| &**format)
    }

    /// How many there are: the first number that no record can have.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.formats.len()).unwrap_or(u32::MAX)
    }

    /// How many of them the image declares; the number of the first probe.
    #[must_use]
    pub const fn declared(&self) -> usize {
        self.declared
    }
}
