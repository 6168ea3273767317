//! The title: at the end of the window's memory, what somebody who finds it has to know to give the guest back what is its own.
//!
//! A tracer can be killed at any moment. The journal says which text is ours; the title says where the journal is, which
//! entries of page tables are ours, which addresses lead to stubs, and where open calls have their own return addresses. Each
//! thing is written here before it is done. The guest can write here, as everywhere in the window: what it says of itself
//! is used on nobody else.
//!
//! ```text
//!    0   "EXOTITLE"   8   version 1 (u32)   12   entries of page tables (u32)
//!   16   the beginning of the traced text (u64)
//!   24   where stubs begin (u64)            32   bytes of stubs (u64)
//!   40   the journal, 0 without one (u64)
//!   48   the mirror's directory, 0 without one (u64)   56   its pages (u64)   64   how many (u64)
//!  128   entry 0: where it is (u64), what we put there (u64), what it held (u64)      152   entry 1   ...
//! ```

use terms::addr::{Gpa, Gva};
use terms::region::Region;

use crate::paging::PAGE_4K;
use crate::target::{MemoryError, WindowMemory};

/// Bytes of it.
pub(super) const BYTES: u64 = 4 * PAGE_4K;
pub(super) const MAGIC: [u8; 8] = *b"EXOTITLE";
pub(super) const VERSION: u32 = 1;
/// Where it says how many entries there are.
pub(super) const COUNT_AT: u64 = 12;
pub(super) const TEXT_AT: u64 = 16;
pub(super) const STUBS_AT: u64 = 24;
pub(super) const JOURNAL_AT: u64 = 40;
pub(super) const MIRROR_AT: u64 = 48;
pub(super) const HEADER: [u8; 128] = [0; 128];
pub(super) const ENTRIES_AT: u64 = HEADER.len() as u64;
pub(super) const ENTRY_BYTES: u64 = 24;
/// Entries that there is room for.
pub(super) const ENTRIES_MAX: u64 = (BYTES - ENTRIES_AT) / ENTRY_BYTES;

/// Pages of stack that the mirror has room for, as a power of two: 32 MiB of stacks in use. A title that says more is damaged.
pub const MIRROR_PAGES_LOG2: u32 = 13;

/// Where the host finds a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MirrorMemory {
    /// The directory: a word for each page.
    pub directory: Gpa,
    /// The pages, in the order of the directory.
    pub pages: Gpa,
    /// How many.
    pub count: u64,
}

/// Why what a title says cannot be written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TitleError {
    /// The guest's memory says no.
    #[error("what is said of the tracing memory cannot be reached: {0}")]
    Memory(#[from] MemoryError),
    /// There is none, or one that we do not know.
    #[error("there is nothing said of tracing memory at {at}: {why}")]
    None {
        /// Where it was looked for.
        at: Gpa,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There are more entries than it has room for.
    #[error("{entries} entries of page tables are more than can be noted ({ENTRIES_MAX})")]
    Full {
        /// How many.
        entries: u64,
    },
}

/// The title of a tracer that lives.
#[derive(Debug)]
pub(super) struct Title {
    at: Gpa,
    pub(super) count: u32,
}

pub(super) const fn place(region: Region) -> Gpa {
    Gpa(region.start.0 + region.bytes.saturating_sub(BYTES))
}

impl Title {
    /// An empty one, of a window in `region` that leads to `text`.
    ///
    /// # Errors
    /// [`TitleError::Memory`].
    pub fn begin(
        memory: &mut (impl WindowMemory + ?Sized),
        region: Region,
        text: Gva,
    ) -> Result<Self, TitleError> {
        let title = Self {
            at: place(region),
            count: 0,
        };
        memory.write_window(title.at, &HEADER)?;
        title.put(memory, TEXT_AT, &[text.0])?;
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        memory.write_window(title.at, &header)?;
        Ok(title)
    }

    /// The stubs will lie there.
    ///
    /// # Errors
    /// [`TitleError::Memory`].
    pub fn stubs(
        &self,
        memory: &mut (impl WindowMemory + ?Sized),
        at: Gva,
        bytes: u64,
    ) -> Result<(), TitleError> {
        self.put(memory, STUBS_AT, &[at.0, bytes])
    }

    /// The journal is there.
    ///
    /// # Errors
    /// [`TitleError::Memory`].
    pub fn journal(
        &self,
        memory: &mut (impl WindowMemory + ?Sized),
        at: Gpa,
    ) -> Result<(), TitleError> {
        self.put(memory, JOURNAL_AT, &[at.0])
    }

    /// The mirror is there.
    ///
    /// # Errors
    /// [`TitleError::Memory`].
    pub fn mirror(
        &self,
        memory: &mut (impl WindowMemory + ?Sized),
        mirror: MirrorMemory,
    ) -> Result<(), TitleError> {
        let MirrorMemory {
            directory,
            pages,
            count,
        } = mirror;
        self.put(memory, MIRROR_AT, &[directory.0, pages.0, count])
    }

    /// These entries are about to be put into the guest's tables: where each is, what is put there, and what it holds.
    ///
    /// # Errors
    /// A [`TitleError`]; then they must not be.
    pub fn note(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        put: &[(Gpa, u64, u64)],
    ) -> Result<(), TitleError> {
        let before = u64::from(self.count);
        let entries = before.saturating_add(put.len() as u64);
        let count = u32::try_from(entries).unwrap_or(u32::MAX);
        if entries > ENTRIES_MAX {
            return Err(TitleError::Full { entries });
        }
        let words = put.iter().flat_map(|(at, put, held)| [at.0, *put, *held]);
        let words: Vec<u64> = words.collect();
        // An entry beyond the number is read by nobody.
        self.put(memory, ENTRIES_AT + before * ENTRY_BYTES, &words)?;
        memory.write_window(self.at.wrapping_add(COUNT_AT), &count.to_le_bytes())?;
        self.count = count;
        Ok(())
    }

    fn put(
        &self,
        memory: &mut (impl WindowMemory + ?Sized),
        at: u64,
        words: &[u64],
    ) -> Result<(), TitleError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(memory.write_window(self.at.wrapping_add(at), &bytes)?)
    }
}
