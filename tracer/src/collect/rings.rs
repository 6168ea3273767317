//! The host's side of the rings: guest memory, read and written one whole word at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use crate::record::{Format, RECORD_BYTES};
use crate::ring::geometry::Position;
use crate::ring::payload::PayloadMemory;
use crate::ring::reader::{CellWord, RingMemory};
use crate::session::{SessionEvents, SessionMemory};
use crate::stub::cell::{HEAD, LIMIT, LOST};
use crate::stub::halt::HALTS_MAX;
use terms::addr::Gpa;

use crate::guest::SharedMemory;

/// The rings of one session, in guest memory that stays mapped for as long as this lives.
#[derive(Debug, Clone)]
pub struct SharedRings {
    memory: Arc<dyn SharedMemory>,
    place: SessionMemory,
}

impl SharedRings {
    /// The rings at `place`, which the engine has put into the window region.
    #[must_use]
    pub fn new(memory: Arc<dyn SharedMemory>, place: SessionMemory) -> Self {
        Self { memory, place }
    }

    /// The memory of the guest that they lie in.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn SharedMemory> {
        &self.memory
    }

    /// How many rings there are.
    #[must_use]
    pub fn count(&self) -> u16 {
        u16::try_from(self.place.cells.len()).unwrap_or(u16::MAX)
    }

    /// Where the reader of a ring begins.
    #[must_use]
    pub fn first(&self, ring: u16) -> Position {
        let first = self.place.first.get(usize::from(ring)).copied();
        first.unwrap_or_else(|| self.place.geometry.first())
    }

    /// What records say.
    #[must_use]
    pub fn format(&self) -> Format {
        self.place.format
    }

    /// The words of the mirror's directory, where records have only a part of the stack slot.
    #[must_use]
    pub fn directory(&self) -> Vec<u64> {
        let Some((at, bytes)) = self.place.directory else {
            return Vec::new();
        };
        let mut words = vec![0; usize::try_from(bytes / RECORD_BYTES).unwrap_or_default()];
        self.copy_words(at, &mut words);
        words
    }

    /// Copies from the array of words that starts at `array`.
    fn copy_from(&self, array: Gpa, ring: u16, slot: u64, into: &mut [u64]) {
        let start = u64::from(ring) * self.place.geometry.bytes() + slot * RECORD_BYTES;
        self.copy_words(array.wrapping_add(start), into);
    }

    fn copy_words(&self, from: Gpa, into: &mut [u64]) {
        // Word by word: one that a stub is storing is seen whole or not at all.
        if self.memory.copy_words(from, into).is_err() {
            into.fill(0);
        }
    }

    /// How often a halt still does something, as far as the guest can be believed.
    #[must_use]
    pub fn halt_left(&self, number: usize) -> Option<u64> {
        let word = self.memory.load(self.halt(number)?).ok()?;
        Some(if word >> 63 == 0 { word } else { 0 })
    }

    /// It does something so often.
    pub fn set_halt_left(&self, number: usize, left: u64) {
        let at = self.halt(number);
        if let Some(Err(error)) = at.map(|at| self.memory.store(at, left)) {
            log::error!("a trigger cannot be set anew: {error}");
        }
    }

    fn halt(&self, number: usize) -> Option<Gpa> {
        let offset = number as u64 * RECORD_BYTES;
        Some(self.place.halts_left?.wrapping_add(offset))
    }

    fn word(&self, ring: u16, word: CellWord) -> Gpa {
        let offset = match word {
            CellWord::Head => HEAD,
            CellWord::Limit => LIMIT,
            CellWord::Lost => LOST,
        };
        let cell = self
            .place
            .cells
            .get(usize::from(ring))
            .copied()
            .unwrap_or(Gpa(u64::MAX));
        cell.wrapping_add(u64::from(offset.unsigned_abs()))
    }
}

/// The event rings of one session: records, and beside each its payload.
#[derive(Debug, Clone)]
pub struct EventRings {
    records: SharedRings,
    payload: Gpa,
    payload_log2: u32,
}

impl EventRings {
    /// The event rings at `place`, which the engine has put into the window region.
    #[must_use]
    pub fn new(memory: Arc<dyn SharedMemory>, place: &SessionEvents) -> Self {
        Self {
            records: SharedRings::new(memory, place.memory.clone()),
            payload: place.payload,
            payload_log2: place.recorder.payload_log2,
        }
    }

    /// The records.
    #[must_use]
    pub fn records(&self) -> &SharedRings {
        &self.records
    }

    /// Events that stubs have counted because the ring was full.
    #[must_use]
    pub fn discarded(&self, ring: u16) -> u64 {
        self.records.load(ring, CellWord::Lost)
    }
}

impl PayloadMemory for EventRings {
    fn copy_payload(&self, ring: u16, slot: u64, into: &mut [u64]) {
        let slots = self.records.place.geometry.slots();
        let place = (u64::from(ring) * slots + slot) << self.payload_log2;
        self.records
            .copy_words(self.payload.wrapping_add(place), into);
    }
}

impl RingMemory for SharedRings {
    fn load(&self, ring: u16, word: CellWord) -> u64 {
        // The cells lie in the window region, which is mapped whole: this cannot fail.
        let word = self.memory.load(self.word(ring, word));
        word.unwrap_or_default()
    }

    fn store(&self, ring: u16, word: CellWord, value: u64) {
        if let Err(error) = self.memory.store(self.word(ring, word), value) {
            log::error!("cannot write the {word:?} word of ring {ring}: {error}");
        }
    }

    fn copy(&self, ring: u16, slot: u64, into: &mut [u64]) {
        self.copy_from(self.place.rings, ring, slot, into);
    }

    fn halts_left(&self) -> Option<u64> {
        self.place.halts_left?;
        // A stub takes one before it writes limits; ours is to be there before we look.
        fence(SeqCst);
        let left = (0..HALTS_MAX).filter_map(|number| self.halt_left(number));
        Some(left.fold(0, u64::wrapping_add))
    }

    fn copy_details(&self, ring: u16, slot: u64, into: &mut [u64]) {
        match self.place.details {
            Some(details) => self.copy_from(details, ring, slot, into),
            None => into.fill(0),
        }
    }
}
