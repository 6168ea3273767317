//! What is asked of a dump: where it goes, whether recording continues, and how far back it begins.

use std::path::Path;

/// A dump as it is wanted.
#[derive(Debug, Clone, Copy)]
pub struct WantedDump<'a> {
    /// The new trace directory.
    pub directory: &'a Path,
    /// Whether recording continues meanwhile.
    pub is_live: bool,
    /// Where it begins.
    pub begin: Begin,
}

/// Where a dump begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// With the oldest that is there.
    Oldest,
    /// So many nanoseconds ago.
    Ago(u64),
    /// At this time of the trace, in nanoseconds.
    At(u64),
}

impl<'a> WantedDump<'a> {
    /// All that is there.
    #[must_use]
    pub const fn whole(directory: &'a Path, is_live: bool) -> Self {
        Self {
            directory,
            is_live,
            begin: Begin::Oldest,
        }
    }
}

impl Begin {
    /// As a time of the trace, where all is recorded up to `until_ns`.
    pub(super) const fn time_ns(self, until_ns: u64) -> u64 {
        match self {
            Self::Oldest => 0,
            Self::Ago(ns) => until_ns.saturating_sub(ns),
            Self::At(ns) => ns,
        }
    }
}
