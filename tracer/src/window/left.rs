//! The title of a window that a dead tracer has left is read. The guest can have written there.

use terms::addr::{Gpa, Gva};
use terms::region::Region;

use super::title::{
    BYTES, ENTRIES_AT, ENTRIES_MAX, ENTRY_BYTES, HEADER, JOURNAL_AT, MAGIC, MIRROR_AT,
    MIRROR_PAGES_LOG2, MirrorMemory, STUBS_AT, TEXT_AT, TitleError, VERSION, place,
};
use crate::paging::is_same_entry;
use crate::target::{PhysicalMemory, TextMemory, WindowMemory};

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
            mirror: (mirror.directory.0 != 0 && mirror.count <= 1 << MIRROR_PAGES_LOG2)
                .then_some(mirror),
            entries: entries
                .map(|at| (Gpa(known(at)), known(at + 8), known(at + 16)))
                .collect(),
        }))
    }

    /// Whether any of the entries holds what was put there.
    ///
    /// # Errors
    /// [`TitleError::Memory`].
    pub fn is_shown(&self, memory: &(impl TextMemory + ?Sized)) -> Result<bool, TitleError> {
        for (at, put, _) in &self.entries {
            if holds(memory, *at, *put)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives the entries that hold what was put there what they held. Returns how many.
    ///
    /// # Errors
    /// [`TitleError::Memory`]: some may be left.
    pub fn take_back(&self, memory: &mut (impl TextMemory + ?Sized)) -> Result<u64, TitleError> {
        let mut cleared = 0;
        for (at, put, held) in &self.entries {
            if holds(memory, *at, *put)? {
                memory.write_physical(*at, &held.to_le_bytes())?;
                cleared += 1;
            }
        }
        Ok(cleared)
    }
}

/// Whether an entry of a page table holds what was put there.
fn holds(memory: &(impl TextMemory + ?Sized), at: Gpa, put: u64) -> Result<bool, TitleError> {
    let mut bytes = [0; 8];
    memory.read_physical(at, &mut bytes)?;
    Ok(put != 0 && is_same_entry(u64::from_le_bytes(bytes), put))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::MockTarget;
    use crate::paging::PAGE_2M;
    use crate::window::title::{COUNT_AT, Title};
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
