//! The number of a probe.

/// A probe, by the order in which they were added, from 1 on. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub u32);
