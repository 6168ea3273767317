//! What a change leaves that has failed and could not be taken back: bytes of ours may stand where nobody wants them. The
//! table, and the journal with it, holds such a place for ours as long as they may, so that what they lead to stays. Once
//! somebody has looked into it they are taken away.

use super::{Site, Sites, State};
use crate::target::TargetMemory;
use crate::text::edit::{Edit, SiteId};
use crate::text::word::{WordError, WordWrite};

/// The changes that are neither made nor taken back.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    edits: Vec<Edit>,
    words: Vec<WordWrite>,
}

impl Stuck {
    /// A site is what somebody wants it to be, or is gone.
    pub fn is_over(&mut self, site: SiteId) {
        self.edits.retain(|edit| edit.site != site);
    }

    /// The same of a word.
    pub fn is_over_of(&mut self, word: &WordWrite) {
        self.words.retain(|one| one.at != word.at);
    }
}

/// What stands at a place whose change has failed.
enum Found {
    /// What stood there before.
    Before,
    /// What the change writes, all of it or a part.
    Written,
    /// Somebody else's bytes, which may have ours below them, or what cannot be read.
    Other,
}

impl Sites {
    /// A change of this site was not taken back, as far as is known: what stands there now is what is held for ours.
    pub(crate) fn was_not_taken_back(
        &mut self,
        memory: &(impl TargetMemory + ?Sized),
        edit: &Edit,
    ) {
        let Some(site) = self.all.get_mut(edit.site.index()) else {
            return;
        };
        let is_as_before = matches!(site.look(memory, edit), Found::Before);
        // What the guest has again is its own.
        let is_of_guest = site.state.lead().is_none();
        // Of one whose taking back has failed it is known what stood there first.
        let is_known = self.stuck.edits.iter().any(|one| one.site == edit.site);
        if !is_as_before && !is_of_guest && !is_known {
            self.stuck.edits.push(edit.clone());
        }
    }

    /// The same of a word. Says what is wrong with it, if it was not taken back.
    pub(crate) fn word_was_not_taken_back(
        &mut self,
        memory: &(impl TargetMemory + ?Sized),
        write: &WordWrite,
    ) -> Option<WordError> {
        if !may_hold(memory, write, write.new) {
            return None;
        }
        self.words.made(write);
        let is_known = self.stuck.words.iter().any(|one| one.at == write.at);
        if !is_known {
            self.stuck.words.push(write.clone());
        }
        Some(WordError::Stuck {
            what: write.what.clone(),
            at: write.at,
            now: write.new,
        })
    }

    /// Looks at all that was not taken back. Returns the changes that do it now, where what we have written stands.
    pub(crate) fn taking_back(
        &mut self,
        memory: &(impl TargetMemory + ?Sized),
    ) -> (Vec<Edit>, Vec<WordWrite>) {
        let (mut edits, mut words) = (Vec::new(), Vec::new());
        let (all, noted) = (&mut self.all, &mut self.noted);
        self.stuck.edits.retain(|edit| {
            let Some(site) = all.get_mut(edit.site.index()) else {
                return false;
            };
            noted.has_changed(edit.site);
            match site.look(memory, edit) {
                Found::Before => return false,
                Found::Written => edits.push(site.back(edit)),
                Found::Other => {}
            }
            true
        });
        let known = &mut self.words;
        self.stuck.words.retain(|write| {
            let back = write.reverse();
            let is_as_before = holds(memory, write, write.old);
            if is_as_before {
                known.was_taken_back(&back);
            } else if holds(memory, write, write.new) {
                words.push(back);
            }
            !is_as_before
        });
        (edits, words)
    }
}

impl Site {
    /// Looks what stands here after a change that has failed, and takes that for what is here.
    fn look(&mut self, memory: &(impl TargetMemory + ?Sized), edit: &Edit) -> Found {
        let (old, new) = (edit.poke.expected, edit.poke.new);
        let read = new.like(|bytes| memory.read(edit.poke.at, bytes));
        let is_part = |bytes: &[u8]| {
            let mut known = bytes.iter().zip(old.as_slice().iter().zip(new.as_slice()));
            known.all(|(byte, (old, new))| [old, new].contains(&byte))
        };
        let (found, now, lead) = match (read, edit.after) {
            (Ok(found), _) if found == old => (Found::Before, old, edit.before),
            (Ok(found), after) if found == new => (Found::Written, new, after),
            (Ok(found), after) if is_part(found.as_slice()) => {
                (Found::Written, found, after.or(edit.before))
            }
            (_, Some(after)) => (Found::Other, new, Some(after)),
            (_, None) => (Found::Other, old, edit.before),
        };
        self.now = now;
        self.state = lead.map_or(State::Original, State::Ours);
        found
    }

    /// The change that takes back what of `edit` stands here.
    fn back(&self, edit: &Edit) -> Edit {
        let mut back = edit.reverse();
        back.poke.expected = self.now;
        back.before = self.state.lead().copied();
        back
    }
}

/// Whether a word holds this.
fn holds(memory: &(impl TargetMemory + ?Sized), word: &WordWrite, value: u64) -> bool {
    let mut bytes = [0; 8];
    memory.read(word.at, &mut bytes).is_ok() && u64::from_le_bytes(bytes) == value
}

/// Whether it may: it does, or cannot be read.
fn may_hold(memory: &(impl TargetMemory + ?Sized), word: &WordWrite, value: u64) -> bool {
    let mut bytes = [0; 8];
    memory.read(word.at, &mut bytes).is_err() || u64::from_le_bytes(bytes) == value
}
