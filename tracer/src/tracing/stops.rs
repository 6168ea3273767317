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

    /// What has changed, with what it has cost altogether.
    pub fn told(self, changed: Changed) -> Changed {
        Changed {
            pauses: self.count,
            pause_us: microseconds(self.longest),
            ..changed
        }
    }
}
