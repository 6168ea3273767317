//! The rings of calls of one session, each with a lock of its own. Who reads one comes to its lock under that of the session's
//! reader; so who has that has each ring to itself once it has come to it.

use std::sync::{Arc, Mutex, MutexGuard};

use super::backlog::Backlog;
use super::call_ring::{CallRing, SharedCallRing};
use super::looks::{lock, lock_free};
use super::rooms::Rooms;
use crate::ring::reader::{Patience, Progress, RingReader};

/// All rings of calls.
#[derive(Debug)]
pub(super) struct CallRings {
    rings: Vec<SharedCallRing>,
    /// Room for records.
    pub rooms: Rooms,
}

impl CallRings {
    /// These, which take room for records from there.
    pub fn new(rings: impl Iterator<Item = CallRing>, rooms: Rooms) -> Self {
        let shared = |ring| Arc::new(Mutex::new(ring));
        Self {
            rings: rings.map(shared).collect(),
            rooms,
        }
    }

    /// Each, for who reads it.
    pub fn shared(&self) -> &[SharedCallRing] {
        &self.rings
    }

    /// One, when nobody reads it.
    pub fn ring(&self, index: usize) -> Option<MutexGuard<'_, CallRing>> {
        self.rings.get(index).map(|ring| lock(ring))
    }

    /// Each in turn, when nobody reads it.
    pub fn each(&self) -> impl Iterator<Item = MutexGuard<'_, CallRing>> {
        self.rings.iter().map(|ring| lock(ring))
    }

    /// Nobody reads a ring when this returns.
    pub fn still(&mut self) {
        self.each().for_each(drop);
    }

    /// Whether that is so of the reader of each.
    pub fn all(&self, is_so: impl Fn(&RingReader) -> bool) -> bool {
        self.each().all(|ring| is_so(&ring.source.reader))
    }

    /// Takes out all of a ring. Returns how far it was read.
    pub fn read(&mut self, ring: u16, patience: Patience) -> Option<Progress> {
        let mut ring = self.ring(ring.into())?;
        ring.read(patience);
        Some(ring.progress())
    }

    /// What was taken out and nobody has written yet, in records.
    pub fn waiting(&self) -> usize {
        self.each().map(|ring| ring.waiting()).sum()
    }

    /// Gives all that was taken out of those that nobody reads just now to who writes it.
    pub fn hand_over(&mut self, to: &mut Backlog) {
        let free = self.rings.iter().filter_map(|ring| lock_free(ring));
        free.for_each(|mut ring| ring.hand_over(to));
    }
}
