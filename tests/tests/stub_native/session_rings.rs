//! The rings of one session of a ground, as a reader has them.

use std::sync::atomic::{AtomicU64, Ordering};

use tracer::ring::geometry::Geometry;
use tracer::ring::reader::{CellWord, RingMemory};
use tracer::stub::cell::{HEAD, LIMIT, LOST};

use crate::ground::Ground;

/// See [`Ground::session`].
#[derive(Debug, Clone, Copy)]
pub struct SessionRings<'a> {
    ground: &'a Ground,
    session: u64,
    geometry: Geometry,
}

impl<'a> SessionRings<'a> {
    pub fn new(ground: &'a Ground, session: u64) -> Self {
        Self {
            ground,
            session,
            geometry: ground.recorders[0].geometry,
        }
    }

    fn cell_word(&self, ring: u16, word: CellWord) -> &AtomicU64 {
        let offset = match word {
            CellWord::Head => HEAD,
            CellWord::Limit => LIMIT,
            CellWord::Lost => LOST,
        };
        let cell = self.ground.cell(self.session, ring);
        self.ground
            .word(cell.wrapping_add_signed(i64::from(offset)))
    }
}

impl RingMemory for SessionRings<'_> {
    fn load(&self, ring: u16, word: CellWord) -> u64 {
        self.cell_word(ring, word).load(Ordering::SeqCst)
    }

    fn store(&self, ring: u16, word: CellWord, value: u64) {
        self.cell_word(ring, word).store(value, Ordering::SeqCst);
    }

    fn copy(&self, ring: u16, slot: u64, into: &mut [u64]) {
        assert!(slot + into.len() as u64 <= self.geometry.slots());
        let start = self.ground.rings(self.session) + u64::from(ring) * self.geometry.bytes();
        for (word, number) in into.iter_mut().zip(slot..) {
            *word = self.ground.word(start + 8 * number).load(Ordering::SeqCst);
        }
    }

    fn copy_details(&self, ring: u16, slot: u64, into: &mut [u64]) {
        assert!(slot + into.len() as u64 <= self.geometry.slots());
        let start = self.ground.details(self.session) + u64::from(ring) * self.geometry.bytes();
        for (word, number) in into.iter_mut().zip(slot..) {
            *word = self.ground.word(start + 8 * number).load(Ordering::SeqCst);
        }
    }
}
