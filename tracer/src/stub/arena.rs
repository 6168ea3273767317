//! The memory that stubs are put into. It is handed out once and never again: a preempted thread can
//! be inside a stub for as long as it likes.

use terms::addr::{Gpa, Gva};

/// Stubs start at multiples of this many bytes, so that their first instructions share a line.
const ALIGNMENT: u64 = 32;

/// The arena is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the memory for stubs ({bytes} bytes at {start}) is used up; restart the guest to trace more functions"
)]
pub struct ArenaFull {
    /// Where the arena starts.
    pub start: Gva,
    /// Its size.
    pub bytes: u64,
}

/// A run of executable window memory.
#[derive(Debug, Clone, Copy)]
pub struct Arena {
    start: Gva,
    physical: Gpa,
    bytes: u64,
    used: u64,
}

impl Arena {
    /// An arena of the `bytes` at `start`, which lie at `physical`.
    #[must_use]
    pub const fn new(start: Gva, physical: Gpa, bytes: u64) -> Self {
        Self {
            start,
            physical,
            bytes,
            used: 0,
        }
    }

    /// Where the next stub will lie, if there is room for it.
    #[must_use]
    pub const fn next(&self) -> Gva {
        self.start.wrapping_add(self.used)
    }

    /// Room for a stub of `bytes`: at [`Self::next`].
    ///
    /// # Errors
    /// [`ArenaFull`].
    pub fn allocate(&mut self, bytes: u64) -> Result<(Gva, Gpa), ArenaFull> {
        let offset = self.used;
        let end = offset.saturating_add(bytes).next_multiple_of(ALIGNMENT);
        if end > self.bytes {
            return Err(ArenaFull {
                start: self.start,
                bytes: self.bytes,
            });
        }
        self.used = end;
        Ok((
            self.start.wrapping_add(offset),
            Gpa(self.physical.0.wrapping_add(offset)),
        ))
    }

    /// Where it starts.
    #[must_use]
    pub const fn start(&self) -> Gva {
        self.start
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes handed out.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Whether `address` lies in the arena: what runs there is a stub.
    #[must_use]
    pub const fn contains(&self, address: Gva) -> bool {
        address.0.wrapping_sub(self.start.0) < self.bytes
    }
}
