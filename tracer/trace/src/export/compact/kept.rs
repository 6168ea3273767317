//! What a compact trace has come to.

/// What a compact trace has come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Records of the guest that are in it.
    pub records: u64,
    /// Records that are known to be missing.
    pub lost: u64,
    /// Records whose times may be wrong.
    pub doubts: u64,
    /// How often a vCPU waited for the reader.
    pub waits: u64,
    /// All waits together, in nanoseconds.
    pub waited_ns: u64,
    /// Its size.
    pub bytes: u64,
}

impl Kept {
    /// Records that would be missing with this.
    pub(super) const fn missing(&self) -> u64 {
        self.records.saturating_add(self.lost)
    }

    /// So much more is in it.
    pub(super) const fn add(&mut self, more: &Self) {
        self.records = self.records.saturating_add(more.records);
        self.lost = self.lost.saturating_add(more.lost);
        self.waits = self.waits.saturating_add(more.waits);
        self.waited_ns = self.waited_ns.saturating_add(more.waited_ns);
    }

    /// So much of it is cut off: its records are lost, as those are that its losses said.
    pub(super) const fn cut(&mut self, off: &Self) {
        self.records = self.records.saturating_sub(off.records);
        self.lost = self.lost.saturating_add(off.records);
        self.waits = self.waits.saturating_sub(off.waits);
        self.waited_ns = self.waited_ns.saturating_sub(off.waited_ns);
    }
}
