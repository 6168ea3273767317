//! Looks at the heads of rings that do not wait for the reader of these rings.
//!
//! A reader looks before it reads; but reading a large ring, and writing what was read, can take longer than the
//! time in a record takes to go round (26 s at 2.6 GHz). So somebody who does nothing else looks a few
//! times a second, and the reader takes its looks over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::ring::geometry::{Geometry, Position};
use crate::ring::reader::{CellWord, RingMemory};
use crate::ring::timeline::Timeline;

use super::ring_clock::RingClock;
use super::rings::SharedRings;

/// Some rings, and the looks at them that their reader has not taken over yet.
#[derive(Debug)]
pub struct Looks {
    rings: SharedRings,
    geometry: Geometry,
    clock: RingClock,
    fresh: Vec<Mutex<Timeline>>,
}

impl Looks {
    /// Of rings into which nothing has been written yet.
    #[must_use]
    pub fn new(rings: SharedRings, geometry: Geometry, clock: &RingClock) -> Self {
        let clock = clock.in_rings(rings.count());
        let begun = |ring| Mutex::new(Timeline::begun(clock.read(ring).moment));
        Self {
            fresh: (0..rings.count()).map(begun).collect(),
            rings,
            geometry,
            clock,
        }
    }

    /// What times the rings.
    #[must_use]
    pub const fn clock(&self) -> &RingClock {
        &self.clock
    }

    /// Looks at every ring.
    pub fn make(&self) {
        for (ring, fresh) in (0..).zip(&self.fresh) {
            let mut fresh = lock(fresh);
            let word = self.rings.load(ring, CellWord::Head);
            // A head that is none is for the reader to count.
            if let Some(head) = Position::of_word(word, ring) {
                let moment = self.clock.read(ring).moment;
                fresh.look(head, moment, oldest(head, self.geometry));
            }
        }
    }

    /// Adds the looks of one ring to what its reader knows.
    pub fn take(&self, ring: u16, timeline: &mut Timeline) {
        if let Some(fresh) = self.fresh.get(usize::from(ring)) {
            let fresh = lock(fresh).take();
            timeline.add(&fresh);
        }
    }
}

/// The oldest record that a ring can still hold.
pub(super) fn oldest(head: Position, geometry: Geometry) -> Position {
    Position(head.0.saturating_sub(geometry.slots()))
}

/// What is under a lock, also after a thread failed that had it: looks are whole at any moment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, if nobody has it just now.
pub(super) fn lock_free<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(free) => Some(free),
        Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The looks at all rings of a session, for whoever makes them.
#[derive(Debug, Clone)]
pub struct AllLooks(Arc<Mutex<Vec<Arc<Looks>>>>);

impl AllLooks {
    /// At these rings, and those that come to them.
    pub(super) fn new(first: Arc<Looks>) -> Self {
        Self(Arc::new(Mutex::new(vec![first])))
    }

    /// Looks at every ring.
    pub fn make(&self) {
        // Who adds rings waits for no look.
        let all = lock(&self.0).clone();
        all.iter().for_each(|looks| looks.make());
    }

    pub(super) fn add(&self, looks: &Arc<Looks>) {
        lock(&self.0).push(Arc::clone(looks));
    }
}
