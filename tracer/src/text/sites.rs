//! The table of sites: every place of the text where bytes of ours stand, and what stood there.
//!
//! Only the commit writes to it, and with every write: so it is the answer to what would have to be put back if
//! everybody who wants something went at once.

use std::collections::BTreeMap;

use terms::addr::Gva;
use terms::function::FunctionId;
use terms::session_set::SessionSet;

use super::edit::Edit;
use super::journal::Entry;

/// All of them, by address.
#[derive(Debug, Default)]
pub struct Sites {
    ours: BTreeMap<Gva, Entry>,
}

impl Sites {
    /// What the journal has to say of a place when `edit` has been made, which then leads to `sessions`; nothing when
    /// it is no more ours.
    #[must_use]
    pub fn after(&self, edit: &Edit, sessions: SessionSet) -> Option<Entry> {
        let poke = edit.poke;
        let now = self.ours.get(&poke.at);
        edit.becomes_ours.then(|| Entry {
            at: poke.at,
            function: poke.function,
            sessions,
            original: now.map_or(poke.expected, |entry| entry.original),
            ours: poke.new,
            before: now.map_or(poke.new, |entry| entry.ours),
        })
    }

    /// Notes that `edit` has been made.
    pub fn edited(&mut self, edit: &Edit, sessions: SessionSet) {
        match self.after(edit, sessions) {
            Some(entry) => self.ours.insert(entry.at, entry),
            None => self.ours.remove(&edit.poke.at),
        };
    }

    /// Forgets the places in functions that are gone, with whatever stood there. Returns where they were.
    pub fn forget(&mut self, is_gone: impl Fn(FunctionId) -> bool) -> Vec<Gva> {
        let gone = self.ours.extract_if(.., |_, entry| is_gone(entry.function));
        gone.map(|(at, _)| at).collect()
    }

    /// The place at `at`, if what stands there is ours.
    #[must_use]
    pub fn get(&self, at: Gva) -> Option<&Entry> {
        self.ours.get(&at)
    }

    /// Every place, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.ours.values()
    }
}
