//! What the journal is told of the table: before a change that it may be made, afterwards what has become of it. Both while
//! the guest runs, for an entry may be there too early and too late.

use terms::session_set::SessionSet;
use terms::site::SiteBytes;

use super::Sites;
use crate::target::WindowMemory;
use crate::text::edit::{Edit, SiteId};
use crate::text::journal::{Entry, Journal, JournalError, Slot};
use crate::text::word::WordWrite;

/// What of the journal may not be as the table is.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// Sites, and what was noted of what will be there if the change is made.
    sites: Vec<(SiteId, Option<(SiteBytes, SessionSet)>)>,
    /// Entries whose text is gone.
    gone: Vec<Slot>,
}

impl Noted {
    /// The table says something else of a site than before, which nothing was noted of.
    pub fn has_changed(&mut self, site: SiteId) {
        self.sites.push((site, None));
    }

    /// The text of this entry is gone.
    pub fn is_gone(&mut self, slot: Option<Slot>) {
        self.gone.extend(slot);
    }
}

impl Sites {
    /// Begins the journal with what is ours already.
    ///
    /// # Errors
    /// A [`JournalError`].
    pub(crate) fn begin(
        &mut self,
        journal: &mut Journal,
        memory: &mut (impl WindowMemory + ?Sized),
    ) -> Result<(), JournalError> {
        let mut entries = Vec::new();
        for site in &mut self.all {
            if let Some(entry) = site.entry() {
                entries.push((*site.slot.insert(journal.slot()?), entry));
            }
        }
        journal.write(memory, entries)
    }

    /// Notes what is about to be written. To be called before it is, and [`Self::settle`] afterwards, whatever became of it.
    ///
    /// # Errors
    /// A [`JournalError`]; then the text must not be written.
    pub(crate) fn note<'e>(
        &mut self,
        journal: &mut Journal,
        memory: &mut (impl WindowMemory + ?Sized),
        edits: impl Iterator<Item = &'e Edit>,
    ) -> Result<(), JournalError> {
        let mut entries = Vec::with_capacity(edits.size_hint().0);
        for edit in edits {
            // A plan that is old is not carried out.
            if !self.is_current(edit) {
                continue;
            }
            let after = edit.after.map(|lead| (edit.poke.new, lead.sessions()));
            self.noted.sites.push((edit.site, after));
            let site = self.all.get_mut(edit.site.index());
            if let (Some(site), Some((ours, sessions))) = (site, after) {
                let slot = match site.slot {
                    Some(slot) => slot,
                    None => *site.slot.insert(journal.slot()?),
                };
                let entry = Entry {
                    at: site.at,
                    function: site.function,
                    sessions,
                    original: site.original,
                    ours,
                    before: match edit.before {
                        Some(_) => site.now,
                        None => ours,
                    },
                };
                entries.push((slot, entry));
            }
        }
        journal.write(memory, entries)
    }

    /// The same of words.
    ///
    /// # Errors
    /// A [`JournalError`]; then they must not be written.
    pub(crate) fn note_words<'w>(
        &mut self,
        journal: &mut Journal,
        memory: &mut (impl WindowMemory + ?Sized),
        writes: impl Iterator<Item = &'w WordWrite>,
    ) -> Result<(), JournalError> {
        // A plan that is old is not carried out.
        let current: Vec<_> = writes.filter(|write| self.is_word_current(write)).collect();
        self.words.note(journal, memory, current.into_iter())
    }

    /// Has the journal say what the table says. What cannot be written there now is an entry too many: whoever reads it
    /// finds other bytes in its place, and leaves them.
    pub(crate) fn settle(
        &mut self,
        journal: &mut Journal,
        memory: &mut (impl WindowMemory + ?Sized),
    ) {
        let mut gone = std::mem::take(&mut self.noted.gone);
        let mut entries = Vec::new();
        for (id, noted) in std::mem::take(&mut self.noted.sites) {
            let Some(site) = self.all.get_mut(id.index()) else {
                continue;
            };
            match (site.entry(), site.slot) {
                (Some(entry), _) if noted == Some((entry.ours, entry.sessions)) => {}
                (Some(entry), Some(slot)) => entries.push((slot, entry)),
                (None, slot) => {
                    gone.extend(slot);
                    site.slot = None;
                }
                (Some(_), None) => {}
            }
        }
        let _ = journal.write(memory, entries);
        let _ = journal.cross_out(memory, gone);
        self.words.settle(journal, memory);
    }
}
