//! Modules that have come, and those of them that are still to be traced.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::transient::Transient;

/// A module that has come.
#[derive(Debug, Clone)]
pub(super) struct Came {
    pub module: Arc<str>,
    /// When none of its functions had run; none where nobody knows.
    pub since: Option<Duration>,
    /// Whether they may run before they are traced.
    pub may_run: bool,
}

impl Came {
    /// For how long at most its functions have been called and were not traced; none where they were not, or nobody knows.
    pub fn late(&self, now: Duration) -> Option<Duration> {
        let since = self.since.filter(|_| self.may_run);
        since.map(|since| now.saturating_sub(since))
    }
}

/// Modules that have come and could not be traced, as the guest was changing its own text. No module is there twice, and none that
/// is there no more.
#[derive(Debug, Default)]
pub(super) struct Untraced(Vec<Came>);

impl Untraced {
    /// These, and what has come since, which takes the place of one of its name.
    pub fn with(self, came: &[Came], on: &Transient) -> Vec<Came> {
        let is_as_it_was = |one: &Came| {
            on.knows(&one.module) && !came.iter().any(|other| other.module == one.module)
        };
        let before = self.0.into_iter().filter(is_as_it_was);
        before.chain(came.iter().cloned()).collect()
    }

    /// Those, from now on.
    pub fn are(&mut self, mut came: Vec<Came>) {
        came.iter_mut().for_each(|came| came.may_run = true);
        self.0 = came;
    }
}
