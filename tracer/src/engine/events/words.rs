//! The words of the guest that point at its lists of callbacks.
//!
//! Each is written by one store, so the guest may run: whoever reads it finds the list before or the one after.

use terms::addr::Gva;
use terms::event_format::EventId;

use crate::patch::events::{TracepointChange, WordWrite};
use crate::target::{MemoryError, TargetMemory};

/// Why the word of a tracepoint that points at its callbacks was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// It cannot be read or written.
    #[error("the list of callbacks of {event} at {at} cannot be reached: {source}")]
    Memory {
        /// The tracepoint.
        event: String,
        /// The word.
        at: Gva,
        /// Why not.
        source: MemoryError,
    },
    /// The guest has written to it.
    #[error(
        "the list of callbacks of {event} at {at} is {found:#x}, expected {expected:#x}: the guest has changed it"
    )]
    Unexpected {
        /// The tracepoint.
        event: String,
        /// The word.
        at: Gva,
        /// What it holds.
        found: u64,
        /// What it must hold.
        expected: u64,
    },
}

/// They must be what we know, before anything is written.
pub(super) fn check(
    target: &(impl TargetMemory + ?Sized),
    plan: &[TracepointChange],
    name: impl Fn(EventId) -> String,
) -> Result<(), ListError> {
    for change in plan {
        let Some(WordWrite { at, old, .. }) = change.word else {
            continue;
        };
        let mut bytes = [0; 8];
        target
            .read(at, &mut bytes)
            .map_err(|source| ListError::Memory {
                event: name(change.event),
                at,
                source,
            })?;
        let found = u64::from_le_bytes(bytes);
        if found != old {
            return Err(ListError::Unexpected {
                event: name(change.event),
                at,
                found,
                expected: old,
            });
        }
    }
    Ok(())
}

/// Writes them; when one cannot be written, those before it get back what they held.
pub(super) fn write(
    target: &mut (impl TargetMemory + ?Sized),
    plan: &[TracepointChange],
    name: impl Fn(EventId) -> String,
) -> Result<(), ListError> {
    let words = || {
        plan.iter()
            .filter_map(|change| Some((change.event, change.word?)))
    };
    for (done, (event, word)) in words().enumerate() {
        if let Err(source) = target.write(word.at, &word.new.to_le_bytes()) {
            for (_, word) in words().take(done) {
                // It could be written just now.
                let _ = target.write(word.at, &word.old.to_le_bytes());
            }
            return Err(ListError::Memory {
                event: name(event),
                at: word.at,
                source,
            });
        }
    }
    Ok(())
}
