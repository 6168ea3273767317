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

use crate::paging::{PAGE_4K, is_same_entry};
use crate::target::{MemoryError, PhysicalMemory, TextMemory, WindowMemory};

/// Bytes of it.
pub(super) const BYTES: u64 = 4 * PAGE_4K;
const MAGIC: [u8; 8] = *b"EXOTITLE";
const VERSION: u32 = 1;
/// Where it says how many entries there are.
const COUNT_AT: u64 = 12;
const TEXT_AT: u64 = 16;
const STUBS_AT: u64 = 24;
const JOURNAL_AT: u64 = 40;
const MIRROR_AT: u64 = 48;
const HEADER: [u8; 128] = [0; 128];
const ENTRIES_AT: u64 = HEADER.len() as u64;
const ENTRY_BYTES: u64 = 24;
/// Entries that there is room for.
const ENTRIES_MAX: u64 = (BYTES - ENTRIES_AT) / ENTRY_BYTES;
/// More pages of a mirror than any has: what a damaged title says beyond that is not believed.
const MIRROR_MAX: u64 = 1 << 20;

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
    count: u32,
}

const fn place(region: Region) -> Gpa {
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

/// Nothing of what the title of the window in `region` says is so any more.
///
/// # Errors
/// [`TitleError::Memory`].
pub fn forget(memory: &mut (impl WindowMemory + ?Sized), region: Region) -> Result<(), TitleError> {
    Ok(memory.write_window(place(region), &HEADER)?)
}

/// What the title of a window says that somebody has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Where the traced text begins.
    pub text: Gva,
    /// Where the stubs lie.
    pub stubs: Gva,
    /// How many bytes of them there can be.
    pub stub_bytes: u64,
    /// The journal.
    pub journal: Option<Gpa>,
    /// The mirror.
    pub mirror: Option<MirrorMemory>,
    /// Entries of page tables, what was put there, and what they held.
    entries: Vec<(Gpa, u64, u64)>,
}

impl Told {
    /// Reads the title of the window in `region`; none when nothing of it has been shown yet, or is shown any more.
    ///
    /// # Errors
    /// A [`TitleError`].
    pub fn read(
        memory: &(impl PhysicalMemory + ?Sized),
        region: Region,
    ) -> Result<Option<Self>, TitleError> {
        let at = place(region);
        let none = |why| TitleError::None { at, why };
        let mut bytes = vec![0; usize::try_from(BYTES).unwrap_or_default()];
        memory.read_physical(at, &mut bytes)?;
        let word = |offset: u64| {
            let from = usize::try_from(offset).ok()?;
            bytes
                .get(from..)?
                .first_chunk()
                .copied()
                .map(u64::from_le_bytes)
        };
        let known = |offset| word(offset).unwrap_or_default();
        if known(0) == 0 {
            return Ok(None);
        }
        if bytes.first_chunk() != Some(&MAGIC) {
            return Err(none("it does not begin with EXOTITLE"));
        }
        let (version, count) = (known(8) & 0xffff_ffff, known(8) >> 32);
        if version != u64::from(VERSION) {
            return Err(none("it is of another version"));
        }
        if count > ENTRIES_MAX {
            return Err(none(
                "it says that it has more entries than there is room for",
            ));
        }
        let entries = (0..count).map(|entry| ENTRIES_AT + entry * ENTRY_BYTES);
        let mirror = MirrorMemory {
            directory: Gpa(known(MIRROR_AT)),
            pages: Gpa(known(MIRROR_AT + 8)),
            count: known(MIRROR_AT + 16),
        };
        Ok(Some(Self {
            text: Gva(known(TEXT_AT)),
            stubs: Gva(known(STUBS_AT)),
            stub_bytes: known(STUBS_AT + 8),
            journal: Some(Gpa(known(JOURNAL_AT))).filter(|at| at.0 != 0),
            mirror: (mirror.directory.0 != 0 && mirror.count <= MIRROR_MAX).then_some(mirror),
            entries: entries
                .map(|at| (Gpa(known(at)), known(at + 8), known(at + 16)))
                .collect(),
        }))
    }

    /// Gives the entries that hold what was put there what they held. Returns how many.
    ///
    /// # Errors
    /// [`TitleError::Memory`]: some may be left.
    pub fn take_back(&self, memory: &mut (impl TextMemory + ?Sized)) -> Result<u64, TitleError> {
        let mut cleared = 0;
        for (at, put, held) in &self.entries {
            let mut bytes = [0; 8];
            memory.read_physical(*at, &mut bytes)?;
            if *put != 0 && is_same_entry(u64::from_le_bytes(bytes), *put) {
                memory.write_physical(*at, &held.to_le_bytes())?;
                cleared += 1;
            }
        }
        Ok(cleared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::MockTarget;
    use crate::paging::PAGE_2M;
    use crate::window::{Window, WindowError};

    /// The guest can write there: nothing that it says is believed beyond what there is room for.
    #[test]
    fn a_title_that_makes_no_sense_is_refused() {
        let mut target = MockTarget::new(1, 16 * PAGE_2M);
        let region = target.region();
        let mut title = Title::begin(&mut target, region, Gva(7)).unwrap();
        let told = Told::read(&target, region).unwrap().unwrap();
        assert_eq!((told.text, told.journal, told.mirror), (Gva(7), None, None));
        let at = place(region);
        for (offset, word, why) in [
            (COUNT_AT, ENTRIES_MAX + 1, "more entries"),
            (8, 9, "another version"),
            (0, 9, "does not begin"),
        ] {
            let before = target.clone();
            target
                .write_window(at.wrapping_add(offset), &word.to_le_bytes()[..4])
                .unwrap();
            let error = Told::read(&target, region).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            target = before;
        }
        target
            .write_window(at.wrapping_add(MIRROR_AT + 16), &u64::MAX.to_le_bytes())
            .unwrap();
        target
            .write_window(at.wrapping_add(MIRROR_AT), &[1; 8])
            .unwrap();
        let told = Told::read(&target, region).unwrap().unwrap();
        assert_eq!(told.mirror, None);
        // An entry that led to no memory leads there again; one that is somebody else's stays.
        let entry = |number: u64, holds| (Gpa(0x100_0000 + 8 * number), 0x83, holds);
        let put = [entry(0, 0), entry(1, 0xe3), entry(2, 0)];
        title.note(&mut target, &put).unwrap();
        for ((at, _, _), holds) in put.iter().zip([0x83u64 | 0x20, 0x83, 0x7]) {
            target.write_physical(*at, &holds.to_le_bytes()).unwrap();
        }
        let told = Told::read(&target, region).unwrap().unwrap();
        assert_eq!(told.take_back(&mut target), Ok(2));
        let after = put.map(|(at, _, _)| target.read_word(at).unwrap());
        assert_eq!(after, [0, 0xe3, 0x7]);
        title.count = u32::MAX;
        let full = title.note(&mut target, &[]).unwrap_err();
        assert!(matches!(full, TitleError::Full { .. }), "{full}");
        forget(&mut target, region).unwrap();
        assert_eq!(Told::read(&target, region), Ok(None));
        let small = Region {
            bytes: PAGE_2M - 1,
            ..region
        };
        let refused = Window::open(
            &mut target,
            small,
            image::TextRange {
                start: Gva(0),
                end: Gva(1),
            },
        );
        assert!(
            !matches!(refused, Err(WindowError::Title(_)) | Ok(_)),
            "{refused:?}"
        );
    }
}
