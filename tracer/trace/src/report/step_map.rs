//! Maps that are asked at each step of a trace.

use std::collections::HashMap;

/// The standard's map by another hash: its own was a fifth of the time of a report. This one is seeded anew in each process,
/// so whoever wrote a trace cannot choose addresses and threads of which many have the same.
pub(super) type StepMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
