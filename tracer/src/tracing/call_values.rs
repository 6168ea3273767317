//! Arguments and return values of the calls that a graph session records.

use crate::capture::{Capture, Captured};
use crate::engine::Foothold;
use crate::engine::call_values::CallValuesError;
use crate::filter::Selection;
use crate::probe::{parameters, return_value};
use crate::session::SessionId;
use log::Level;
use terms::function::FunctionId;
use trace::event::Moment;
use trace::export::call_formats::has_type;

use super::TracingError;
use super::attachment::Attachment;
use super::remarks::Remarks;
use super::session::Shared;
use super::stops::Stops;
use crate::guest::Guest;

/// What could not be captured.
#[derive(Debug, Clone, Copy, Default)]
struct Missing {
    /// Functions of which nothing is known.
    untyped: usize,
    /// Functions whose return cannot be hooked.
    unreturning: usize,
}

impl Missing {
    /// Says what is missing of so many functions.
    fn say(self, of: usize, remarks: &mut Remarks) {
        for (count, why) in [
            (self.untyped, "their types are not known"),
            (self.unreturning, "their returns cannot be hooked"),
        ] {
            if count > 0 {
                let remark = format!("{count} of {of} functions are traced without values: {why}");
                remarks.say(Level::Info, remark);
            }
        }
    }
}

impl Attachment {
    /// Has the values of the calls of these functions captured for a session that was made for that: of those that are
    /// not captured yet.
    ///
    /// # Errors
    /// [`TracingError::NoTypes`], or about the event rings.
    pub fn capture_calls(
        &mut self,
        guest: &impl Guest,
        index: usize,
        id: SessionId,
        selection: &Selection,
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let moments = self.sessions.at(index)?.options.captures();
        if moments.is_empty() || selection.selected.is_empty() {
            return Ok(());
        }
        let mut missing = Missing::default();
        let room = self.sessions.at(index)?.bytes_of_values();
        let has_memory = self.reach_for_calls(guest, stops)?;
        for function in &selection.selected {
            match captures_of(&self.shared, *function) {
                None => missing.untyped += 1,
                Some((args, retval)) => {
                    let retval = retval.into_iter().collect();
                    let captures = [(Moment::Entry, args), (Moment::Exit, retval)];
                    let captures =
                        captures.map(|(at, values)| (at, fitting(values, room, has_memory)));
                    self.add_call_capture(*function, captures, moments.exit, &mut missing)?;
                }
            }
        }
        if missing.untyped == selection.selected.len() {
            let functions = missing.untyped;
            return Err(TracingError::NoTypes { functions });
        }
        self.engine.sessions_mut().capture_calls(id, moments)?;
        let needed = self.engine.points().calls().bytes(moments);
        let session = self.sessions.at(index)?;
        let bytes = match session.options.probe.is_empty() {
            true => session.options.record_bytes.unwrap_or(needed),
            false => session.payload_bytes(Some(needed)),
        };
        self.open_events(guest, index, id, bytes, stops)?;
        let formats = self.engine.points().formats();
        self.sessions.know_events(formats);
        missing.say(selection.selected.len(), &mut self.remarks);
        Ok(())
    }

    /// Whether arguments in memory can be captured: text, and what is on the stack.
    fn reach_for_calls(
        &mut self,
        guest: &impl Guest,
        stops: &mut Stops,
    ) -> Result<bool, TracingError> {
        if self.engine.foothold().and_then(Foothold::reach).is_none() {
            let foothold = self.engine.foothold_mut()?;
            if let Err(error) = stops.during(guest, |stopped| foothold.make_reach(stopped))? {
                let remark = format!("arguments in memory are left out: {error}");
                self.remarks.say(Level::Info, remark);
            }
        }
        Ok(self.engine.foothold().and_then(Foothold::reach).is_some())
    }

    fn add_call_capture(
        &mut self,
        function: FunctionId,
        captures: [(Moment, Capture); 2],
        wants_retval: bool,
        missing: &mut Missing,
    ) -> Result<(), TracingError> {
        for (moment, capture) in captures {
            if capture.values.is_empty() {
                continue;
            }
            match self.engine.add_call_capture(function, moment, capture) {
                Ok(()) => {}
                Err(CallValuesError::NoReturn) => missing.unreturning += usize::from(wants_retval),
                Err(error @ CallValuesError::TooMany) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// What can be captured of a function's calls: its parameters, and what it returns.
pub(super) fn captures_of(
    shared: &Shared,
    function: FunctionId,
) -> Option<(Vec<Captured>, Option<Captured>)> {
    let (image, debug) = (&shared.image, shared.debug.as_deref()?);
    let parameters = parameters(image, debug, function)?;
    Some((parameters, return_value(image, debug, function)))
}

/// As many of these values as have room in so many bytes; those in memory only where that can be reached.
fn fitting(values: Vec<Captured>, bytes: u64, has_memory: bool) -> Capture {
    let mut capture = Capture::default();
    // The slot takes two words, and a status one.
    let mut room = usize::try_from(bytes / 8).map_or(0, |words| words.saturating_sub(3));
    for value in values.into_iter().filter(|value| has_type(&value.kind)) {
        let alone = Capture {
            values: vec![value.clone()],
            condition: None,
        };
        if value.kind.words() <= room && (has_memory || !alone.needs_memory()) {
            room -= value.kind.words();
            capture.values.push(value);
        }
    }
    capture
}
