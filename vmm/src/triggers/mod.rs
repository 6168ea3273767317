//! Triggers of a run: what is done when something happens in the guest.
//!
//! Whatever is done, the thread that reads the rings sees what happened some milliseconds after it has, and it is carried
//! out on the main thread, like everything that is done to a run. Where recording is to end, the guest's own stub has
//! ended it *at once* ([`OneSession::halt_at`](tracer::tracing::OneSession::halt_at)), so that the rings still hold what
//! came before.

mod action;
mod armed;
mod starter;

use terms::quantity::plain;
use tracer::tracing::options::DEFAULT_SESSION;
use tracer::tracing::{OneSession, Tracing, TracingError};

use crate::bell::Bell;
use crate::control::protocol::RpcError;
use crate::control::status::TriggerStatus;
use crate::failure::Failure;
use crate::options::trigger::Trigger;
use crate::provider::Provider;
use armed::Armed;
pub use starter::{Starter, Starters};

/// Occasions of one trigger that are seen to at a time: in between it is the turn of everything else.
const AT_A_TIME: usize = 16;

/// Those of all sessions: each keeps what it has seen and not done yet.
const TRIGGERS_MAX: usize = 256;

/// Why triggers do not wait.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// The limit.
    #[error(
        "{wanted} cannot wait beside the {there} that do: at most {TRIGGERS_MAX} of all sessions can, delete a session whose triggers are not needed or name fewer"
    )]
    TooMany {
        /// How many were asked for.
        wanted: String,
        /// How many there are, those that have fired for the last time too.
        there: usize,
    },
    /// There can be no occasion for one.
    #[error(transparent)]
    Tracing(#[from] TracingError),
}

impl From<ArmError> for RpcError {
    fn from(error: ArmError) -> Self {
        match error {
            ArmError::Tracing(error) => error.into(),
            error @ ArmError::TooMany { .. } => Self::failed(error),
        }
    }
}

impl From<ArmError> for Failure {
    fn from(error: ArmError) -> Self {
        match error {
            ArmError::Tracing(error) => error.into(),
            error @ ArmError::TooMany { .. } => Self::bad_input(error),
        }
    }
}

/// Those of a run.
#[derive(Debug)]
pub struct Triggers {
    bell: Bell,
    starters: Starters,
    armed: Vec<Armed>,
}

impl Triggers {
    /// Has these wait in the session that a run begins with.
    ///
    /// # Errors
    /// [`ArmError`].
    pub fn begin(
        list: &[Trigger],
        (bell, starters): (Bell, Starters),
        tracing: &mut Tracing,
    ) -> Result<Self, ArmError> {
        let mut triggers = Self {
            bell,
            starters,
            armed: Vec::new(),
        };
        let starter = triggers.starters.named.clone();
        triggers.wait_in(DEFAULT_SESSION, list, &starter, tracing)?;
        Ok(triggers)
    }

    /// Has these, which a client wants, wait in a session.
    ///
    /// # Errors
    /// As of [`Self::begin`]; those before the one that it is about wait.
    pub fn arm(
        &mut self,
        session: &str,
        list: &[Trigger],
        tracing: &mut Tracing,
    ) -> Result<(), ArmError> {
        let starter = self.starters.asked.clone();
        self.wait_in(session, list, &starter, tracing)
    }

    fn wait_in(
        &mut self,
        session: &str,
        list: &[Trigger],
        starter: &Starter,
        tracing: &mut Tracing,
    ) -> Result<(), ArmError> {
        check_room(self.armed.len(), list.len())?;
        for trigger in list {
            let armed = Armed::new(session, trigger, (&self.bell, starter), tracing)?;
            self.armed.push(armed);
        }
        Ok(())
    }

    /// A session has gone: says how its triggers were, and forgets them.
    pub fn disarm(&mut self, session: &str) {
        let gone = self.armed.extract_if(.., |one| one.session == session);
        gone.for_each(|mut one| one.end());
    }

    /// What rings when there is something to see to.
    #[must_use]
    pub const fn bell(&self) -> &Bell {
        &self.bell
    }

    /// How they are.
    #[must_use]
    pub fn status(&self) -> Vec<TriggerStatus> {
        self.armed.iter().map(Armed::status).collect()
    }

    /// Does what is to be done by now.
    pub fn see_to(&mut self, guest: &impl Provider, tracing: &mut Tracing) {
        for one in &mut self.armed {
            one.see_to(AT_A_TIME, guest, tracing);
            if one.has_any() {
                self.bell.ring();
            }
        }
    }

    /// Does it also where the guest has ended recording and nobody has read why.
    pub fn look(&mut self, guest: &impl Provider, tracing: &mut Tracing) {
        for one in &mut self.armed {
            one.look(guest, tracing);
        }
    }

    /// The guest does nothing more: does what is to be done for all that it has recorded.
    pub fn see_to_last(&mut self, guest: &impl Provider, tracing: &mut Tracing) {
        let waiting = self.armed.iter().filter(|one| one.is_waiting());
        // Each of them once, and all together: that can take seconds.
        let sessions = waiting.map(|one| one.session.as_str());
        let unread = OneSession::read_now(tracing, &sessions.collect());
        for one in self.armed.iter_mut().filter(|one| one.is_waiting()) {
            one.see_to_last(!unread.contains(&one.session), guest, tracing);
        }
    }

    /// The run is over. What was seen at its end can only have commands run; says what has not fired.
    pub fn end(&mut self) {
        self.armed.iter_mut().for_each(Armed::end);
    }
}

/// Whether so many more can wait beside those that do.
///
/// # Errors
/// [`ArmError::TooMany`].
pub fn check_room(there: usize, more: usize) -> Result<(), ArmError> {
    if there + more <= TRIGGERS_MAX {
        return Ok(());
    }
    Err(ArmError::TooMany {
        wanted: plain(more as u64, "trigger"),
        there,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_triggers_wait_and_no_more() {
        check_room(0, TRIGGERS_MAX).unwrap();
        check_room(TRIGGERS_MAX, 0).unwrap();
        let refused = check_room(250, 7).unwrap_err().to_string();
        assert!(refused.starts_with("7 triggers cannot wait beside the 250 that do: at most 256"));
    }
}
