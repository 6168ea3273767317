//! What is wrong with an expression, and where in it.

use super::BadProbe;

/// What is wrong with an expression, and at which byte of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Misfit {
    pub at: usize,
    pub why: BadProbe,
}

impl Misfit {
    /// Of an expression that begins at this byte of the whole `text`.
    pub fn within(self, text: &str, start: usize) -> BadProbe {
        self.why.at(text, start + self.at)
    }
}
