//! Records that are not in the file, and of which nothing in it says so yet.

use std::collections::BTreeMap;

/// The number of a ring's kind, and its vCPU.
pub(super) type Ring = (u8, u16);

/// Of each ring: since when, and how many.
#[derive(Debug, Default)]
pub(super) struct Unsaid(BTreeMap<Ring, (u64, u64)>);

impl Unsaid {
    /// So many more of a ring, since then. A loss of nothing is none: calls around it would not be certain any more.
    pub fn note(&mut self, ring: Ring, since_ns: u64, count: u64) {
        if count == 0 {
            return;
        }
        let (since, before) = self.0.entry(ring).or_insert((since_ns, 0));
        (*since, *before) = (since_ns.min(*since), before.saturating_add(count));
    }

    /// All of these, too.
    pub fn note_all(&mut self, more: Self) {
        for (ring, (since_ns, count)) in more.0 {
            self.note(ring, since_ns, count);
        }
    }

    /// Those of a ring, for who says them.
    pub fn take(&mut self, ring: Ring) -> Option<(u64, u64)> {
        self.0.remove(&ring)
    }

    /// Which rings there are, and since when of each.
    pub fn rings(&self) -> Vec<(Ring, u64)> {
        let rings = self.0.iter();
        rings
            .map(|(ring, (since_ns, _))| (*ring, *since_ns))
            .collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
