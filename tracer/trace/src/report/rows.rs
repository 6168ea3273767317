//! Which rows of a table are shown.

use std::io::{self, Write};

use crate::glob::Pattern;

/// The rows that are wanted; without anything all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// Those of functions whose names match one of these, or of all.
    pub functions: Vec<Pattern>,
    /// So many at most, the first ones.
    pub most: Option<usize>,
}

impl Rows {
    /// Whether all are wanted.
    #[must_use]
    pub const fn are_all(&self) -> bool {
        self.functions.is_empty() && self.most.is_none()
    }

    /// Whether those of this function are wanted.
    pub(super) fn have(&self, name: &str) -> bool {
        let mut functions = self.functions.iter();
        self.functions.is_empty() || functions.any(|pattern| pattern.matches_name(name))
    }

    /// How many at most.
    pub(super) fn most(&self) -> usize {
        self.most.unwrap_or(usize::MAX)
    }

    /// Says how many are not shown of the `chosen` ones, and of `all`.
    pub(super) fn print_left_out(
        &self,
        chosen: usize,
        all: usize,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let shown = chosen.min(self.most());
        match shown < all {
            true => writeln!(out, "# {shown} of {all} rows are shown"),
            false => Ok(()),
        }
    }
}
