//! The end of a compact trace: where there is no room to say what is missing, its last records give theirs.

use super::described::Described;
use super::kept::Kept;
use super::unsaid::{Ring, Unsaid};

/// The last block that has records of the guest, and what was written after it.
#[derive(Debug)]
pub(super) struct Tail {
    /// Where it begins.
    pub at: u64,
    /// What is in these blocks.
    pub has: Kept,
    /// What is missing without them.
    pub missing: Unsaid,
    /// Blocks after it that describe the trace: they are to be there without it, too.
    pub described: Described,
}

impl Tail {
    /// Nothing but what begins there.
    pub fn at(at: u64) -> Self {
        Self {
            at,
            has: Kept::default(),
            missing: Unsaid::default(),
            described: Described::default(),
        }
    }

    /// Such a block of a ring is in it, whose records begin at this time.
    pub fn add(&mut self, ring: Ring, since_ns: u64, has: &Kept) {
        self.has.add(has);
        self.missing.note(ring, since_ns, has.missing());
    }
}
