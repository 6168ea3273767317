//! The words of the guest's data that lead to us: what each held before we came, what it holds, and where the journal has it.

use std::collections::BTreeMap;

use terms::addr::Gva;
use terms::function::FunctionId;
use terms::session_set::SessionSet;
use terms::site::SiteBytes;

use crate::target::{TargetMemory, WindowMemory};
use crate::text::journal::{Entry, Journal, JournalError, Slot};
use crate::text::word::WordWrite;

/// Words are in no function.
const NO_FUNCTION: FunctionId = FunctionId(u32::MAX);

#[derive(Debug)]
struct Word {
    /// What it held before we wrote to it.
    original: u64,
    now: u64,
    slot: Option<Slot>,
}

impl Word {
    /// What the journal is to say of it, `ours` being what is put there.
    fn entry(&self, at: Gva, ours: u64) -> Option<Entry> {
        let before = match self.now == self.original {
            true => ours,
            false => self.now,
        };
        Some(Entry {
            at,
            function: NO_FUNCTION,
            sessions: SessionSet::default(),
            original: bytes_of(self.original)?,
            ours: bytes_of(ours)?,
            before: bytes_of(before)?,
        })
    }
}

fn bytes_of(word: u64) -> Option<SiteBytes> {
    SiteBytes::of(&word.to_le_bytes())
}

/// All that were written, or are about to be.
#[derive(Debug, Default)]
pub(super) struct Words {
    all: BTreeMap<Gva, Word>,
    /// Those of which the journal may say too much.
    noted: Vec<Gva>,
}

impl Words {
    /// What one holds, if we have written to it.
    pub fn now(&self, at: Gva) -> Option<u64> {
        self.all.get(&at).map(|word| word.now)
    }

    /// Those that hold what we have written. What cannot be read holds nothing.
    pub fn leading(&self, memory: &(impl TargetMemory + ?Sized)) -> impl Iterator<Item = Gva> {
        let ours = self
            .all
            .iter()
            .filter(|(_, word)| word.now != word.original);
        let leading = ours.filter(|(at, word)| {
            let mut found = [0; 8];
            memory.read(**at, &mut found).is_ok() && u64::from_le_bytes(found) == word.now
        });
        leading.map(|(at, _)| *at)
    }

    /// It has been written.
    pub fn made(&mut self, write: &WordWrite) {
        self.known(write).now = write.new;
    }

    /// What was written before was taken back, which the journal does not say yet.
    pub fn was_taken_back(&mut self, back: &WordWrite) {
        self.made(back);
        self.noted.push(back.at);
    }

    fn known(&mut self, write: &WordWrite) -> &mut Word {
        self.all.entry(write.at).or_insert(Word {
            original: write.old,
            now: write.old,
            slot: None,
        })
    }

    /// Has the journal say what is about to be written.
    pub fn note<'w>(
        &mut self,
        journal: &mut Journal,
        memory: &mut (impl WindowMemory + ?Sized),
        writes: impl Iterator<Item = &'w WordWrite>,
    ) -> Result<(), JournalError> {
        let mut entries = Vec::new();
        for write in writes {
            self.noted.push(write.at);
            let word = self.known(write);
            if write.new == word.original {
                continue;
            }
            let slot = match word.slot {
                Some(slot) => slot,
                None => *word.slot.insert(journal.slot()?),
            };
            entries.extend(word.entry(write.at, write.new).map(|entry| (slot, entry)));
        }
        journal.write(memory, entries)
    }

    /// Has the journal say what they hold.
    pub fn settle(&mut self, journal: &mut Journal, memory: &mut (impl WindowMemory + ?Sized)) {
        let (mut entries, mut gone) = (Vec::new(), Vec::new());
        for at in std::mem::take(&mut self.noted) {
            let Some(word) = self.all.get_mut(&at) else {
                continue;
            };
            match (word.now == word.original, word.slot) {
                (true, slot) => {
                    gone.extend(slot);
                    word.slot = None;
                }
                (false, Some(slot)) => {
                    let entry = word.entry(at, word.now);
                    entries.extend(entry.map(|entry| (slot, entry)));
                }
                (false, None) => {}
            }
        }
        let _ = journal.write(memory, entries);
        let _ = journal.cross_out(memory, gone);
    }
}
