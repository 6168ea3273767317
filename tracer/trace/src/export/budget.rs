//! How many bytes traces may take. A guest that calls all the time would fill any disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use terms::quantity::grouped;

/// What all that share it may still write. The default has no end.
#[derive(Debug, Clone, Default)]
pub struct Budget(Option<Arc<Limited>>);

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
        Self(Some(Arc::new(Limited {
            left: AtomicU64::new(bytes),
            of: bytes,
        })))
    }

    /// Takes so many bytes, before they are written.
    ///
    /// # Errors
    /// [`Spent`] when there are not so many; none is taken then.
    pub fn take(&self, bytes: u64) -> Result<(), Spent> {
        let Some(limited) = &self.0 else {
            return Ok(());
        };
        let less = |left: u64| left.checked_sub(bytes);
        let taken = limited.left.fetch_update(Relaxed, Relaxed, less);
        taken.map(|_| ()).map_err(|_| Spent { of: limited.of })
    }

    /// Gives back what was taken and not written, or is there no more.
    pub fn give_back(&self, bytes: u64) {
        if let Some(limited) = &self.0 {
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
}
