//! The host's side of the rings: guest memory, read and written one whole word at a time.

use std::sync::atomic::Ordering;

use terms::addr::Gpa;
use tracer::record::{Format, RECORD_BYTES};
use tracer::ring::geometry::Position;
use tracer::ring::payload::PayloadMemory;
use tracer::ring::reader::{CellWord, RingMemory};
use tracer::session::{SessionEvents, SessionMemory};
use tracer::stub::cell::{HEAD, LIMIT, LOST};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, VolatileMemory};

use crate::memory::Memory;

/// The rings of one session, in guest memory that stays mapped for as long as this lives.
#[derive(Debug, Clone)]
pub struct SharedRings {
    memory: Memory,
    place: SessionMemory,
}

impl SharedRings {
    /// The rings at `place`, which the engine has put into the window region.
    #[must_use]
    pub fn new(memory: Memory, place: SessionMemory) -> Self {
        Self { memory, place }
    }

    /// The memory of the guest that they lie in.
    #[must_use]
    pub fn memory(&self) -> &Memory {
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
        let at = GuestAddress(from.0);
        let length = std::mem::size_of_val(into);
        let Ok(slice) = self.memory.map().get_slice(at, length) else {
            into.fill(0);
            return;
        };
        // Word by word, volatile: a word that a stub is storing is seen whole or not at all.
        match slice.get_array_ref::<u64>(0, into.len()) {
            Ok(words) => _ = words.copy_to(into),
            Err(_) => into.fill(0),
        }
    }

    fn word(&self, ring: u16, word: CellWord) -> GuestAddress {
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
        GuestAddress(cell.0.wrapping_add(u64::from(offset.unsigned_abs())))
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
    pub fn new(memory: Memory, place: &SessionEvents) -> Self {
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
        self.memory
            .map()
            .load(self.word(ring, word), Ordering::Acquire)
            .unwrap_or_default()
    }

    fn store(&self, ring: u16, word: CellWord, value: u64) {
        let stored = self
            .memory
            .map()
            .store(value, self.word(ring, word), Ordering::Release);
        if let Err(error) = stored {
            log::error!("cannot write the {word:?} word of ring {ring}: {error}");
        }
    }

    fn copy(&self, ring: u16, slot: u64, into: &mut [u64]) {
        self.copy_from(self.place.rings, ring, slot, into);
    }

    fn copy_details(&self, ring: u16, slot: u64, into: &mut [u64]) {
        match self.place.details {
            Some(details) => self.copy_from(details, ring, slot, into),
            None => into.fill(0),
        }
    }
}
