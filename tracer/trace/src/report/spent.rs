//! Where time went: calls of one function, added up.

/// Calls of one function by one other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    pub calls: u64,
    pub total_ns: u64,
    pub waited_ns: u64,
    /// When the first was entered, and by which thread.
    pub entered_ns: u64,
    pub thread: u32,
}

impl Spent {
    pub const fn add(&mut self, more: Self) {
        if self.calls == 0 {
            (self.entered_ns, self.thread) = (more.entered_ns, more.thread);
        }
        self.calls = self.calls.saturating_add(more.calls);
        self.total_ns = self.total_ns.saturating_add(more.total_ns);
        self.waited_ns = self.waited_ns.saturating_add(more.waited_ns);
    }
}
