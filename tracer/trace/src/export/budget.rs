//! How many bytes traces may take, for a guest that calls all the time would fill any disk; and whether what writes them
//! moves, for a disk that hangs says nothing.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use terms::quantity::grouped;

use super::whole::Cut;

/// What all that share it may still write. The default has no end.
#[derive(Debug, Clone, Default)]
pub struct Budget {
    limited: Option<Arc<Limited>>,
    steps: Steps,
}

/// How often one trace has come to write something: of one that moves, however slowly, this grows.
#[derive(Debug, Clone, Default)]
pub struct Steps(Arc<AtomicU64>);

impl Steps {
    /// The next part is about to be written.
    pub fn step(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Counts what is written to a file.
    pub(super) fn of<W>(&self, file: W) -> Stepping<W> {
        Stepping {
            file,
            steps: self.clone(),
        }
    }
}

/// A file, what is written to which is counted.
#[derive(Debug)]
pub(super) struct Stepping<W> {
    file: W,
    steps: Steps,
}

impl<W: Write> Write for Stepping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.steps.step();
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<W: Cut> Cut for Stepping<W> {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.cut(length)
    }
}

#[derive(Debug)]
struct Limited {
    left: AtomicU64,
    of: u64,
}

/// It may not be written: less is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not enough is left of the {} bytes that traces may take", grouped(*.of))]
pub struct Spent {
    /// How many there were.
    pub of: u64,
}

impl From<Spent> for io::Error {
    fn from(spent: Spent) -> Self {
        Self::new(io::ErrorKind::QuotaExceeded, spent)
    }
}

impl Budget {
    /// So many bytes.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        Self {
            limited: Some(Arc::new(Limited {
                left: AtomicU64::new(bytes),
                of: bytes,
            })),
            steps: Steps::default(),
        }
    }

    /// The same bytes, for a trace whose steps are counted by themselves.
    #[must_use]
    pub fn for_one(&self) -> Self {
        Self {
            limited: self.limited.clone(),
            steps: Steps::default(),
        }
    }

    /// The same trace, for what has to be written in any case.
    #[must_use]
    pub fn without_end(&self) -> Self {
        Self {
            limited: None,
            steps: self.steps.clone(),
        }
    }

    /// The steps of who writes.
    #[must_use]
    pub const fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Takes so many bytes, before they are written: a step.
    ///
    /// # Errors
    /// [`Spent`] when there are not so many; none is taken then.
    pub fn take(&self, bytes: u64) -> Result<(), Spent> {
        self.steps.step();
        let Some(limited) = &self.limited else {
            return Ok(());
        };
        let less = |left: u64| left.checked_sub(bytes);
        let taken = limited.left.fetch_update(Relaxed, Relaxed, less);
        taken.map(|_| ()).map_err(|_| Spent { of: limited.of })
    }

    /// Gives back what was taken and not written, or is there no more.
    pub fn give_back(&self, bytes: u64) {
        if let Some(limited) = &self.limited {
            let more = |left: u64| Some(left.saturating_add(bytes).min(limited.of));
            // It cannot be refused.
            let _ = limited.left.fetch_update(Relaxed, Relaxed, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_shared_and_never_more_than_there_was() {
        let budget = Budget::of(1000);
        let other = budget.clone();
        budget.take(600).unwrap();
        assert_eq!(other.take(401), Err(Spent { of: 1000 }));
        other.take(400).unwrap();
        let error = io::Error::from(budget.take(1).unwrap_err());
        assert!(
            error.to_string().contains("left of the 1,000 bytes"),
            "{error}"
        );
        other.give_back(5);
        budget.take(5).unwrap();
        budget.give_back(u64::MAX);
        assert_eq!(budget.take(1001), Err(Spent { of: 1000 }));
        budget.take(1000).unwrap();
        Budget::default().take(u64::MAX).unwrap();
    }

    #[test]
    fn who_shares_a_budget_has_steps_of_its_own() {
        let budget = Budget::of(10);
        let [one, other] = [(); 2].map(|()| budget.for_one());
        one.take(4).unwrap();
        one.clone().take(7).unwrap_err();
        one.without_end().take(7).unwrap();
        other.take(6).unwrap();
        let mut file = one.steps().of(Vec::new());
        file.write_all(b"all of it").unwrap();
        let counts = [&one, &other, &budget].map(|budget| budget.steps().count());
        assert_eq!((counts, &*file.file), ([4, 1, 0], &b"all of it"[..]));
        assert_eq!(budget.take(1), Err(Spent { of: 10 }));
    }
}
