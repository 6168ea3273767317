//! Ranges of addresses: what is loaded, and what of it can be executed.

use terms::addr::{Gpa, Gva};

/// One load segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where it is linked.
    pub vaddr: Gva,
    /// Where it is loaded.
    pub paddr: Gpa,
    /// Bytes that the file holds.
    pub filesz: u64,
    /// Bytes in memory; those past `filesz` are zero.
    pub memsz: u64,
    /// Whether it can be read.
    pub read: bool,
    /// Whether it can be written.
    pub write: bool,
    /// Whether it can be executed.
    pub execute: bool,
}

impl Segment {
    /// Where `at` lies, and how many bytes of the segment follow it there.
    #[must_use]
    pub fn locate(&self, at: Gva) -> Option<(Gpa, u64)> {
        let into = at.0.checked_sub(self.vaddr.0)?;
        let left = self.memsz.checked_sub(into).filter(|left| *left > 0)?;
        Some((Gpa(self.paddr.0.checked_add(into)?), left))
    }
}

/// A run of executable bytes, as far as the file holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextRange {
    /// First address.
    pub start: Gva,
    /// First address past it.
    pub end: Gva,
}

impl TextRange {
    /// What it has in common with another.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end);
        (start < end).then_some(Self { start, end })
    }

    /// Whether the range holds all of `address..address+length`.
    #[must_use]
    pub fn holds(&self, address: Gva, length: u64) -> bool {
        address >= self.start
            && address
                .checked_add(length)
                .is_some_and(|end| end <= self.end)
    }
}

/// The one of `ranges`, sorted and without overlap, that holds `address`.
pub(super) fn text_range(ranges: &[TextRange], address: Gva) -> Option<&TextRange> {
    let end = ranges.partition_point(|range| range.start <= address);
    let range = ranges.get(end.checked_sub(1)?)?;
    range.holds(address, 1).then_some(range)
}
