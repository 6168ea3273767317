//! The globs of one side of a filter, in their order: each puts functions in, or, as `!GLOB`, takes them out of what those
//! before it have put in. So the last one that matches a function decides, as with what is written to ftrace's filters one
//! after the other.

use terms::function::Function;
use trace::glob::GlobError;

use super::selector::Selector;
use super::sources::Files;

/// What a glob begins with that takes out.
const OUT: char = '!';

/// A glob, and what it does with what it matches.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    selector: Selector,
    takes_out: bool,
    /// As it was given.
    text: String,
}

impl Entry {
    fn new(glob: &str) -> Result<Self, GlobError> {
        let out = glob.strip_prefix(OUT);
        Ok(Self {
            selector: Selector::new(out.unwrap_or(glob))?,
            takes_out: out.is_some(),
            text: glob.to_owned(),
        })
    }

    fn is_opposite(&self, other: &Self) -> bool {
        self.selector == other.selector && self.takes_out != other.takes_out
    }
}

/// What becomes of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision<'a> {
    /// It is put in, or nothing is and nothing takes it out.
    In,
    /// It is none of those that are put in.
    Out,
    /// It would be in, but for this glob.
    TakenOut(&'a str),
}

/// The globs of one side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ordered(Vec<Entry>);

impl Ordered {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The globs as they were given.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|entry| entry.text.as_str())
    }

    /// Everything that puts in or takes out.
    pub fn selectors(&self) -> impl Iterator<Item = &Selector> {
        self.0.iter().map(|entry| &entry.selector)
    }

    /// What puts in.
    pub fn put_in(&self) -> impl Iterator<Item = &Selector> {
        let entries = self.0.iter().filter(|entry| !entry.takes_out);
        entries.map(|entry| &entry.selector)
    }

    /// Has this glob decide after all that are there. One that decides already changes nothing; one whose opposite it is takes
    /// that one's place.
    ///
    /// # Errors
    /// [`GlobError`].
    pub fn add(&mut self, glob: &str) -> Result<(), GlobError> {
        let entry = Entry::new(glob)?;
        let there = self.0.iter().position(|one| *one == entry);
        if let Some(index) = there {
            let mut later = self.0.iter().skip(index);
            if !later.any(|one| one.takes_out != entry.takes_out) {
                return Ok(());
            }
            self.0.remove(index);
        }
        let is_opposite = |one: &Entry| one.is_opposite(&entry);
        // Without the last that puts in, everything would be in.
        let stays = |one: &Entry| !one.takes_out && !is_opposite(one);
        if !entry.takes_out || self.0.iter().any(stays) {
            self.0.retain(|one| !is_opposite(one));
        }
        self.0.push(entry);
        Ok(())
    }

    /// Removes the glob of this text. Returns whether it was there.
    pub fn remove(&mut self, glob: &str) -> bool {
        let there = self.0.iter().position(|entry| entry.text == glob);
        if let Some(index) = there {
            self.0.remove(index);
        }
        there.is_some()
    }

    /// What becomes of a function. Where nothing puts any in, all are.
    pub fn decide(&self, function: &Function, files: &Files) -> Decision<'_> {
        let mut last_first = self.0.iter().rev();
        let matches = |entry: &Entry| entry.selector.matches(function, files);
        let last = last_first.find(|entry| matches(entry));
        let all_are_in = || self.put_in().next().is_none();
        match last {
            Some(entry) if !entry.takes_out => Decision::In,
            Some(entry) if all_are_in() || last_first.any(|one| !one.takes_out && matches(one)) => {
                Decision::TakenOut(&entry.text)
            }
            None if all_are_in() => Decision::In,
            _ => Decision::Out,
        }
    }

    /// The glob that puts it in, if that is what becomes of it.
    pub fn puts_in(&self, function: &Function, files: &Files) -> Option<&str> {
        let mut last_first = self.0.iter().rev();
        let last = last_first.find(|entry| entry.selector.matches(function, files))?;
        (!last.takes_out).then_some(&last.text)
    }
}
