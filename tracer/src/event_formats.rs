//! What each event of a guest says, by its number: those that the image declares come first, then probes in the
//! order in which they were added. A number is never used again, so what was recorded under it can be read for
//! as long as it lies in a ring.
//!
//! The values of calls are numbered from the other end: two numbers for each function, one for its entry and one
//! for its return.

use std::collections::BTreeMap;
use std::sync::Arc;

use image::Image;
use terms::event_format::{EventFormat, EventId};
use terms::field::Field;
use terms::function::FunctionId;

use crate::record::FUNCTIONS_MAX;
use crate::stack::StackReader;
use trace::event::Moment;

/// The formats of all events so far. It only grows; who reads records keeps a copy, and gets another one
/// before the first record of a new number can be written.
#[derive(Debug, Clone, Default)]
pub struct EventFormats {
    formats: Vec<Arc<EventFormat>>,
    declared: usize,
    /// Of the values of calls.
    calls: BTreeMap<u32, Arc<EventFormat>>,
    /// What makes values of stacks, once somebody copies some.
    stacks: Option<StackReader>,
}

impl EventFormats {
    /// Those that the image declares.
    #[must_use]
    pub fn of(image: &Image) -> Self {
        let events = image.events();
        let formats: Vec<_> = events.map(|(_, format)| Arc::new(format.clone())).collect();
        let declared = formats.len();
        let calls = BTreeMap::new();
        Self {
            formats,
            declared,
            calls,
            stacks: None,
        }
    }

    /// Adds one; none when there is no number left.
    pub fn add(&mut self, format: Arc<EventFormat>) -> Option<EventId> {
        let number = u32::try_from(self.formats.len()).ok();
        let first_call = self.calls.keys().next().copied().unwrap_or(FUNCTIONS_MAX);
        let event = EventId(number.filter(|number| *number < first_call)?);
        self.formats.push(format);
        Some(event)
    }

    /// What this event says.
    #[must_use]
    pub fn get(&self, event: EventId) -> Option<&EventFormat> {
        let format = self.formats.get(event.index());
        format
            .or_else(|| self.calls.get(&event.0))
            .map(|format| &**format)
    }

    /// What makes values of stacks.
    #[must_use]
    pub const fn stacks(&self) -> Option<&StackReader> {
        self.stacks.as_ref()
    }

    /// Has values of stacks made by this from now on.
    pub fn read_stacks_by(&mut self, stacks: StackReader) {
        self.stacks = Some(stacks);
    }

    /// All that are no values of calls, by number.
    #[must_use]
    pub fn points(&self) -> &[Arc<EventFormat>] {
        &self.formats
    }

    /// Adds what is captured of the calls of a function: first the address of the return address, then the values. None
    /// when there is no number for it.
    pub fn add_call(
        &mut self,
        function: FunctionId,
        moment: Moment,
        format: EventFormat,
    ) -> Option<EventId> {
        let event = call_event(function, moment)?;
        (event.index() > self.formats.len()).then(|| {
            self.calls.insert(event.0, Arc::new(format));
            event
        })
    }

    /// Whose call an event has the values of.
    #[must_use]
    pub fn call(&self, event: EventId) -> Option<(FunctionId, Moment)> {
        self.calls.contains_key(&event.0).then(|| {
            let number = FUNCTIONS_MAX - 1 - event.0;
            let moment = match number % 2 {
                0 => Moment::Entry,
                _ => Moment::Exit,
            };
            (FunctionId(number / 2), moment)
        })
    }

    /// The fields that are captured of a function's calls, if any are.
    #[must_use]
    pub fn fields_of(&self, function: FunctionId, moment: Moment) -> Option<&[Field]> {
        let event = call_event(function, moment)?;
        self.calls.get(&event.0)?.fields.get(1..)
    }

    /// Every function's fields, by function.
    pub fn calls(&self) -> impl Iterator<Item = (FunctionId, Moment, &[Field])> {
        self.calls.keys().rev().filter_map(|number| {
            let (function, moment) = self.call(EventId(*number))?;
            Some((function, moment, self.fields_of(function, moment)?))
        })
    }

    /// How many there are: the first number that no record can have.
    #[must_use]
    pub fn count(&self) -> u32 {
        match self.calls.is_empty() {
            true => u32::try_from(self.formats.len()).unwrap_or(u32::MAX),
            false => FUNCTIONS_MAX,
        }
    }

    /// How many of them the image declares; the number of the first probe.
    #[must_use]
    pub const fn declared(&self) -> usize {
        self.declared
    }
}

/// The number of the values of a function's calls.
fn call_event(function: FunctionId, moment: Moment) -> Option<EventId> {
    let number = function.0.checked_mul(2)?.checked_add(moment as u32)?;
    FUNCTIONS_MAX
        .checked_sub(1)?
        .checked_sub(number)
        .map(EventId)
}
