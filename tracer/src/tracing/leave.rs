//! Leaving a guest that goes on without us.

use std::time::Duration;

use super::{Tracing, TracingError};
use crate::engine::Inside;
use crate::guest::Guest;

/// How often it is looked whether the guest has left the stubs, each look through all of its memory.
const LOOKS: u32 = 5;
/// Between two looks.
const REST: Duration = Duration::from_millis(20);

impl Tracing {
    /// Stops every session, and takes the window out of the guest when nothing in it leads there any more. Returns what
    /// does: then the window is still there, and has to stay.
    ///
    /// # Errors
    /// A [`TracingError`] when text could not be given back, or the guest's memory not be looked through.
    pub fn leave(&mut self, guest: &impl Guest) -> Result<Inside, TracingError> {
        let sessions = self.attachment.sessions.iter();
        let started = sessions.filter(|session| session.started);
        let names: Vec<String> = started.map(|session| session.name.clone()).collect();
        for name in names {
            self.stop(guest, &name)?;
        }
        let rest = self.attachment.shared.host.rest;
        let engine = &mut self.attachment.engine;
        let mut inside = engine.leave(&mut guest.stop()?)?;
        for _ in 1..LOOKS {
            if inside.is_nobody() {
                break;
            }
            rest(REST);
            inside = engine.leave(&mut guest.stop()?)?;
        }
        Ok(inside)
    }
}
