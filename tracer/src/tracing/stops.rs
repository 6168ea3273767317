//! What an operation has cost the guest: each of its pauses, whatever it was for.

use std::time::Duration;

use crate::guest::{Guest, StopError};
use status::{Changed, microseconds};

/// How often an operation has stopped the guest, and for how long at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stops {
    pub count: u64,
    /// The longest of them. Where text is changed live, the most that one vCPU lost, if that is more.
    pub longest: Duration,
    /// How long it was waited for a guest that was changing its own text; that was in no pause.
    pub rested: Duration,
}

impl Stops {
    /// Does `what` while the guest is stopped.
    ///
    /// # Errors
    /// Why the guest did not stop.
    pub fn during<G: Guest, T>(
        &mut self,
        guest: &G,
        what: impl FnOnce(&mut G::Stopped<'_>) -> T,
    ) -> Result<T, StopError> {
        let mut stopped = guest.stop()?;
        let done = what(&mut stopped);
        drop(stopped);
        self.count += 1;
        self.lost(guest.last_pause());
        Ok(done)
    }

    /// A vCPU was held for so long.
    pub fn lost(&mut self, time: Duration) {
        self.longest = self.longest.max(time);
    }

    /// These and others.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self {
            count: self.count.saturating_add(others.count),
            longest: self.longest.max(others.longest),
            rested: self.rested.saturating_add(others.rested),
        }
    }

    /// How many pauses there were altogether, also in what has changed before, and how many microseconds the longest took.
    pub fn after(self, before: Option<&Changed>) -> (u64, f64) {
        let (pauses, pause_us) = before.map_or((0, 0.0), |told| (told.pauses, told.pause_us));
        let longest = microseconds(self.longest);
        (self.count.saturating_add(pauses), longest.max(pause_us))
    }

    /// What has changed, with what it has cost altogether.
    pub fn told(self, changed: Changed) -> Changed {
        Changed {
            pauses: self.count,
            pause_us: microseconds(self.longest),
            ..changed
        }
    }
}
