//! Where all parked vCPU threads of a machine wait.
//!
//! There is one for all of them, so that one system call wakes them all. Woken one by one, the first
//! could take the controller's CPU for a whole time slice, while the others stay paused.

use std::sync::PoisonError;

use super::brief;
use super::sync::{Condvar, Mutex, MutexGuard};

/// Counts the changes that waiting threads must look at.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    changes: Mutex<u64>,
    changed: Condvar,
}

impl Gate {
    /// How many changes there have been. A thread asks this *before* it looks for work, and then
    /// waits for more than that: so it misses none.
    pub(super) fn changes(&self) -> u64 {
        *self.lock()
    }

    /// Waits until there have been more than `seen` changes.
    pub(super) fn wait(&self, seen: u64) {
        brief::wait(|| self.changes() != seen);
        let mut changes = self.lock();
        while *changes == seen {
            changes = self
                .changed
                .wait(changes)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Something has changed: every waiting thread looks.
    pub(crate) fn open(&self) {
        *self.lock() += 1;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
