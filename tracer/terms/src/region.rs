//! Stretches of guest physical memory.

use crate::addr::Gpa;

/// A stretch of guest physical memory, for the window or of the guest's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Where it starts; a window's at a multiple of 2 MiB.
    pub start: Gpa,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Region {
    /// The first physical address after it.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start.0.saturating_add(self.bytes)
    }

    /// Whether all of `bytes` at `at` lie in it.
    #[must_use]
    pub fn holds(self, at: Gpa, bytes: u64) -> bool {
        let end = at.0.checked_add(bytes);
        at >= self.start && end.is_some_and(|end| end <= self.end())
    }
}
