//! Words of the guest's data that change together with its text: those that point at its lists.
//!
//! Each is written by one store, so the guest may run: whoever reads it finds the list before or the one after.

use std::sync::Arc;

use terms::addr::Gva;

use crate::target::{MemoryError, TargetMemory, TextMemory};

/// A word that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordWrite {
    /// What it leads to, for messages.
    pub what: Arc<str>,
    /// Where.
    pub at: Gva,
    /// What must be there.
    pub old: u64,
    /// What will be there.
    pub new: u64,
}

impl WordWrite {
    /// The write that takes this one back.
    #[must_use]
    pub fn reverse(&self) -> Self {
        Self {
            what: Arc::clone(&self.what),
            at: self.at,
            old: self.new,
            new: self.old,
        }
    }
}

/// Why a word was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// It cannot be read or written.
    #[error("{what} at {at} cannot be reached: {source}")]
    Memory {
        /// What it leads to.
        what: Arc<str>,
        /// The word.
        at: Gva,
        /// Why not.
        source: MemoryError,
    },
    /// It is written only while the guest is stopped, or patched live.
    #[error("{what} at {at} is not written while every vCPU runs")]
    NeedsStop {
        /// What it leads to.
        what: Arc<str>,
        /// The word.
        at: Gva,
    },
    /// It was written, and could not be changed back when something else failed.
    #[error("{what} at {at} is {now:#x}, and what it was before could not be put back")]
    Stuck {
        /// What it leads to.
        what: Arc<str>,
        /// The word.
        at: Gva,
        /// What it holds.
        now: u64,
    },
    /// The guest has written to it.
    #[error("{what} at {at} is {found:#x}, expected {expected:#x}: the guest has changed it")]
    Unexpected {
        /// What it leads to.
        what: Arc<str>,
        /// The word.
        at: Gva,
        /// What it holds.
        found: u64,
        /// What it must hold.
        expected: u64,
    },
}

/// They must be what we know, before anything is written.
///
/// # Errors
/// A [`WordError`] about the first that is not.
pub fn check<'a>(
    target: &(impl TargetMemory + ?Sized),
    words: impl IntoIterator<Item = &'a WordWrite>,
) -> Result<(), WordError> {
    for WordWrite { what, at, old, .. } in words {
        let (at, mut bytes) = (*at, [0; 8]);
        target
            .read(at, &mut bytes)
            .map_err(|source| WordError::Memory {
                what: Arc::clone(what),
                at,
                source,
            })?;
        let found = u64::from_le_bytes(bytes);
        if found != *old {
            return Err(WordError::Unexpected {
                what: Arc::clone(what),
                at,
                found,
                expected: *old,
            });
        }
    }
    Ok(())
}

/// Writes them; when one cannot be written, those before it get back what they held, where that can be written.
///
/// # Errors
/// A [`WordError`] about the one that could not be written.
pub fn write<'a>(
    target: &mut (impl TextMemory + ?Sized),
    words: impl IntoIterator<Item = &'a WordWrite, IntoIter: Clone>,
) -> Result<(), WordError> {
    let words = words.into_iter();
    for (done, word) in words.clone().enumerate() {
        if let Err(source) = target.write(word.at, &word.new.to_le_bytes()) {
            for before in words.clone().take(done) {
                // It could be written just now. If it cannot be any more, who asked finds that.
                let _ = target.write(before.at, &before.old.to_le_bytes());
            }
            return Err(WordError::Memory {
                what: Arc::clone(&word.what),
                at: word.at,
                source,
            });
        }
    }
    Ok(())
}
