//! One change of one site, and what has to be true before it is made.

use terms::addr::Gva;

use super::poke::Poke;

/// A write of text, with what the commit has to find out first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The write.
    pub poke: Poke,
    /// Whether what stands there now is ours: if other bytes are found, something is badly wrong.
    pub is_ours: bool,
    /// Whether what stands there afterwards is ours.
    pub becomes_ours: bool,
    /// Whether the instructions that stand here begin to run in the window instead, or end to.
    pub displacement: Displacement,
    /// Where instructions begin, after the first, that do so no more afterwards: no thread may go on there.
    pub closes: Vec<Gva>,
    /// Where instructions begin afterwards that did not before: what taking this back closes.
    pub opens: Vec<Gva>,
}

/// What an edit does to the instructions that stand at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Displacement {
    /// There are none that do anything, or they stay as they are.
    #[default]
    None,
    /// They run in the window from now on: nobody else may have put something among them, and they must run in the ring
    /// that the window is for.
    Begins,
    /// They run here again.
    Ends,
}

impl Edit {
    /// One that becomes ours, is so already, or is given back; a single instruction before and after.
    #[must_use]
    pub const fn new(poke: Poke, is_ours: bool, becomes_ours: bool) -> Self {
        Self {
            poke,
            is_ours,
            becomes_ours,
            displacement: Displacement::None,
            closes: Vec::new(),
            opens: Vec::new(),
        }
    }

    /// One that begins to displace the instructions at its place, of which these come after the first.
    #[must_use]
    pub fn displacing(poke: Poke, inner: Vec<Gva>) -> Self {
        Self {
            displacement: Displacement::Begins,
            closes: inner,
            ..Self::new(poke, false, true)
        }
    }

    /// The edit that takes this one back.
    #[must_use]
    pub fn reverse(&self) -> Self {
        Self {
            displacement: match self.displacement {
                Displacement::None => Displacement::None,
                Displacement::Begins => Displacement::Ends,
                Displacement::Ends => Displacement::Begins,
            },
            closes: self.opens.clone(),
            opens: self.closes.clone(),
            ..Self::new(self.poke.reverse(), self.becomes_ours, self.is_ours)
        }
    }

    /// Whether several instructions become one: then all vCPUs must be stopped, and threads be looked for.
    #[must_use]
    pub fn joins_instructions(&self) -> bool {
        !self.closes.is_empty()
    }
}
