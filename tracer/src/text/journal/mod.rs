//! The journal: in the window, for whoever finds it, which bytes of the guest's text are ours and what stood there.
//!
//! A tracer can be killed at any moment. What it has put into the guest's text stays, and its own memory of that is gone;
//! the guest's memory is not. So every place is written here before its text is, and crossed out after that has its old
//! bytes again. Whoever reads it restores a place only if what stands there is what the journal says that we put
//! there: an entry is there a moment too early and a moment too long, never too short.
//!
//! ```text
//!   0   "EXOTRACE"   8   version 2 (u32)   12   bytes of an entry, 64 (u32)
//!  16   entries that there is room for (u64)   24   entries that have ever been used: no more need be read (u64)
//!  64   entry 0   128   entry 1   ...
//!
//!  entry:  0   address, 0 when it is free (u64)      8   number of the function (u32)
//!         12   sessions, a bit each (u16)           14   how many bytes (u8)
//!         16   what stood there (20 bytes)          36   what we put there (20 bytes)
//!         56   how what we had put there before that begins (8 bytes): the same when it is the first
//! ```
//!
//! A word of the guest's data that leads to us is a place of 8 bytes, in no function.
//!
//! All numbers are little-endian. The header lies at the beginning of a page of the window's data.

use terms::addr::{Gpa, Gva};
use terms::function::FunctionId;
use terms::session_set::SessionSet;
use terms::site::SiteBytes;

use crate::record::FUNCTIONS_MAX;
use crate::target::{MemoryError, WindowMemory};

mod found;
#[cfg(feature = "foreign")]
mod left;

pub use found::Found;
#[cfg(feature = "foreign")]
pub use left::{forget, read};

const MAGIC: [u8; 8] = *b"EXOTRACE";
const VERSION: u32 = 2;
const HEADER_BYTES: u64 = 64;
/// Bytes of an entry.
const ENTRY: u32 = 64;
const ENTRY_BYTES: usize = ENTRY as usize;
/// Where a header says how many entries have ever been used.
const USED_AT: u64 = 24;
/// How many bytes are kept of what we had put there before: all that is ever changed of a longer place.
const BEFORE_MAX: usize = 8;
/// More entries than any guest has places: what a damaged header says beyond that is not believed.
const ENTRIES_MAX: u64 = 4 * FUNCTIONS_MAX as u64;

/// A place with bytes of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub at: Gva,
    /// The function that it is in, as its tracer numbered it.
    pub function: FunctionId,
    /// The sessions that it leads to.
    pub sessions: SessionSet,
    /// What stood there.
    pub original: SiteBytes,
    /// What we put there; as long as what stood there.
    pub ours: SiteBytes,
    /// What of ours stood there before: it can still do so, for an entry is written before the text is.
    pub before: SiteBytes,
}

/// Why the journal cannot be written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The guest's memory says no.
    #[error("the journal of changed text cannot be reached: {0}")]
    Memory(#[from] MemoryError),
    /// There are more places than it has room for.
    #[error(
        "the journal of changed text has room for {entries} places and is full: trace fewer functions, or set fewer probes"
    )]
    Full {
        /// How many places.
        entries: u64,
    },
    /// It is none, or one that we do not know.
    #[error("there is no journal at {at}: {why}")]
    None {
        /// Where it was looked for.
        at: Gpa,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// The number of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(u32);

/// The journal of a tracer that lives.
#[derive(Debug)]
pub(crate) struct Journal {
    at: Gpa,
    entries: u64,
    /// Entries that were crossed out, the last one first.
    free: Vec<Slot>,
    /// Entries that have ever been used.
    used: u32,
}

impl Journal {
    /// How many bytes of memory one takes that has room for so many places.
    #[must_use]
    pub const fn bytes(entries: u64) -> u64 {
        HEADER_BYTES + entries * ENTRY as u64
    }

    /// An empty one at `at`, where there is room for [`Self::bytes`].
    ///
    /// # Errors
    /// A [`JournalError`].
    pub fn begin(
        memory: &mut (impl WindowMemory + ?Sized),
        at: Gpa,
        entries: u64,
    ) -> Result<Self, JournalError> {
        let mut header = Vec::with_capacity(32);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend(ENTRY.to_le_bytes());
        header.extend(entries.to_le_bytes());
        header.extend(0u64.to_le_bytes());
        memory.write_window(at, &header)?;
        Ok(Self {
            at,
            entries,
            free: Vec::new(),
            used: 0,
        })
    }

    /// Where it is.
    #[must_use]
    pub const fn at(&self) -> Gpa {
        self.at
    }

    /// An entry for a place that has none.
    ///
    /// # Errors
    /// [`JournalError::Full`].
    pub fn slot(&mut self) -> Result<Slot, JournalError> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let entries = self.entries;
        if u64::from(self.used) >= entries.min(ENTRIES_MAX) {
            return Err(JournalError::Full { entries });
        }
        self.used += 1;
        Ok(Slot(self.used - 1))
    }

    /// Writes down what is about to stand in the text. To be called before it does.
    ///
    /// # Errors
    /// A [`JournalError`]; then the text must not be written.
    pub fn write(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        entries: Vec<(Slot, Entry)>,
    ) -> Result<(), JournalError> {
        if entries.is_empty() {
            return Ok(());
        }
        let entries = entries.iter();
        let entries = entries.map(|(slot, entry)| (*slot, bytes_of(entry)));
        // An entry beyond what is used is read by nobody: first the entries, then their number.
        self.write_runs(memory, entries.collect())?;
        let used = u64::from(self.used).to_le_bytes();
        Ok(memory.write_window(self.at.wrapping_add(USED_AT), &used)?)
    }

    /// Crosses places out. To be called after their old bytes stand there again, or their text is gone.
    ///
    /// # Errors
    /// A [`JournalError`].
    pub fn cross_out(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        slots: Vec<Slot>,
    ) -> Result<(), JournalError> {
        let empty = [0; ENTRY_BYTES];
        self.write_runs(memory, slots.iter().map(|slot| (*slot, empty)).collect())?;
        self.free.extend(slots.into_iter().rev());
        Ok(())
    }

    /// Writes entries, neighbours in one piece.
    fn write_runs(
        &self,
        memory: &mut (impl WindowMemory + ?Sized),
        mut entries: Vec<(Slot, [u8; ENTRY_BYTES])>,
    ) -> Result<(), JournalError> {
        entries.sort_unstable_by_key(|(slot, _)| *slot);
        let is_next = |one: &(Slot, _), next: &(Slot, _)| one.0.0 + 1 == next.0.0;
        for run in entries.chunk_by(is_next) {
            let Some((Slot(first), _)) = run.first() else {
                continue;
            };
            let at = HEADER_BYTES + u64::from(*first) * u64::from(ENTRY);
            let bytes: Vec<u8> = run.iter().flat_map(|(_, bytes)| *bytes).collect();
            memory.write_window(self.at.wrapping_add(at), &bytes)?;
        }
        Ok(())
    }
}

fn bytes_of(entry: &Entry) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    let (original, ours) = (entry.original.as_slice(), entry.ours.as_slice());
    let length = u8::try_from(original.len()).unwrap_or(0);
    let before = entry.before.as_slice();
    let before = before.get(..BEFORE_MAX).unwrap_or(before);
    let parts: [(usize, &[u8]); 7] = [
        (0, &entry.at.0.to_le_bytes()),
        (8, &entry.function.0.to_le_bytes()),
        (12, &entry.sessions.bits().to_le_bytes()),
        (14, &[length]),
        (16, original),
        (36, ours),
        (56, before),
    ];
    for (at, part) in parts {
        if let Some(there) = bytes.get_mut(at..at + part.len()) {
            there.copy_from_slice(part);
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
