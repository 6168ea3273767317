//! Where all parked vCPU threads of a machine wait.
//!
//! There is one for all of them, so that one system call wakes them all. Woken one by one, the first
//! could take the controller's CPU for a whole time slice, while the others stay paused.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::brief;

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Gate;

    #[test]
    fn a_change_before_the_wait_is_not_missed() {
        let gate = Arc::new(Gate::default());
        let seen = gate.changes();
        gate.open();
        gate.wait(seen);
        let seen = gate.changes();
        let theirs = Arc::clone(&gate);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let theirs = Arc::clone(&theirs);
                std::thread::spawn(move || theirs.wait(seen))
            })
            .collect();
        gate.open();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
