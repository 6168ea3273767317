//! The host's side of the rings: guest memory, read and written one whole word at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::record::{Format, RECORD_BYTES};
use crate::ring::geometry::{LIMIT_OFF, Position};
use crate::ring::payload::PayloadMemory;
use crate::ring::reader::{CellWord, RingMemory};
use crate::session::{SessionEvents, SessionMemory};
use crate::stub::cell::{HEAD, LIMIT, LOST};
use terms::addr::Gpa;

use crate::guest::SharedMemory;
use crate::target::MemoryError;

/// The rings of one session, in guest memory that stays mapped for as long as this lives.
#[derive(Debug, Clone)]
pub struct SharedRings {
    memory: Arc<dyn SharedMemory>,
    place: SessionMemory,
    /// Where the cells are now.
    cells: Arc<[AtomicU64]>,
    /// They are somebody else's: nothing is written there any more.
    is_left: Arc<AtomicBool>,
}

impl SharedRings {
    /// The rings at `place`, which the engine has put into the window region.
    #[must_use]
    pub fn new(memory: Arc<dyn SharedMemory>, place: SessionMemory) -> Self {
        let cells = place.cells.iter().map(|cell| AtomicU64::new(cell.0));
        Self {
            cells: cells.collect(),
            memory,
            place,
            is_left: Arc::default(),
        }
    }

    /// They may be somebody else's from now on: nothing is written there any more, by all who have these rings.
    pub fn leave(&self) {
        self.is_left.store(true, Relaxed);
    }

    fn is_left(&self) -> bool {
        self.is_left.load(Relaxed)
    }

    /// Writes a word that is the session's.
    fn put(&self, at: Gpa, word: u64) -> Result<(), MemoryError> {
        match self.is_left() {
            true => Ok(()),
            false => self.memory.store(at, word),
        }
    }

    /// The cells are here from now on, for all who have these rings: what the old ones held is in the new ones, and stubs
    /// that still have the old ones record nothing. No stub may run meanwhile.
    ///
    /// # Errors
    /// [`MemoryError`] when one of them is not in the window.
    pub fn move_cells(&self, to: &[Gpa]) -> Result<(), MemoryError> {
        for (ring, (cell, to)) in (0..).zip(self.cells.iter().zip(to)) {
            for word in [CellWord::Head, CellWord::Limit, CellWord::Lost] {
                let held = self.memory.load(self.word(ring, word))?;
                self.put(in_cell(*to, word), held)?;
            }
            self.put(self.word(ring, CellWord::Limit), LIMIT_OFF)?;
            // Somebody may look at the head now: it is in both.
            cell.store(to.0, Relaxed);
        }
        Ok(())
    }

    /// The memory of the guest that they lie in.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn SharedMemory> {
        &self.memory
    }

    /// How many rings there are.
    #[must_use]
    pub fn count(&self) -> u16 {
        u16::try_from(self.cells.len()).unwrap_or(u16::MAX)
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

    /// Has stubs that find a ring full, of calls or of events, wait for its reader, or not.
    pub fn set_awaited(&self, is_awaited: bool) {
        let word = self.place.awaited;
        if let Some(Err(error)) = word.map(|word| self.put(word, is_awaited.into())) {
            log::error!("cannot say whether rings are read: {error}");
        }
    }

    /// It does something so often.
    pub fn set_halt_left(&self, number: usize, left: u64) {
        let at = self.halt(number);
        if let Some(Err(error)) = at.map(|at| self.put(at, left)) {
            log::error!("a trigger cannot be set anew: {error}");
        }
    }

    fn halt(&self, number: usize) -> Option<Gpa> {
        let offset = number as u64 * RECORD_BYTES;
        Some(self.place.halts_left?.wrapping_add(offset))
    }

    fn word(&self, ring: u16, word: CellWord) -> Gpa {
        let cell = self.cells.get(usize::from(ring));
        in_cell(Gpa(cell.map_or(u64::MAX, |cell| cell.load(Relaxed))), word)
    }
}

/// Where a word of the cell at `cell` is.
fn in_cell(cell: Gpa, word: CellWord) -> Gpa {
    let offset = match word {
        CellWord::Head => HEAD,
        CellWord::Limit => LIMIT,
        CellWord::Lost => LOST,
    };
    cell.wrapping_add(u64::from(offset.unsigned_abs()))
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

    /// Bytes that each record has for its values.
    #[must_use]
    pub(super) const fn payload_bytes(&self) -> u64 {
        1 << self.payload_log2
    }

    /// The records.
    #[must_use]
    pub fn records(&self) -> &SharedRings {
        &self.records
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
        if let Err(error) = self.put(self.word(ring, word), value) {
            log::error!("cannot write the {word:?} word of ring {ring}: {error}");
        }
    }

    fn copy(&self, ring: u16, slot: u64, into: &mut [u64]) {
        self.copy_from(self.place.rings, ring, slot, into);
    }

    fn can_halt(&self) -> bool {
        self.place.halts_left.is_some()
    }

    fn exchange(&self, ring: u16, word: CellWord, old: u64, new: u64) {
        if self.is_left() {
            return;
        }
        if let Err(error) = self.memory.exchange(self.word(ring, word), old, new) {
            log::error!("cannot write the {word:?} word of ring {ring}: {error}");
        }
    }

    fn copy_details(&self, ring: u16, slot: u64, into: &mut [u64]) {
        match self.place.details {
            Some(details) => self.copy_from(details, ring, slot, into),
            None => into.fill(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Guest;
    use crate::mock::{MockGuest, MockTarget, REGION_START};
    use crate::ring::geometry::Geometry;

    #[test]
    fn cells_that_move_keep_their_words_and_leave_old_ones_that_record_nothing() {
        let geometry = Geometry::with_bytes(4096).unwrap();
        let guest = MockGuest::new(MockTarget::new(1, 1 << 21));
        let at = |offset: u64| REGION_START.wrapping_add(offset);
        let place = SessionMemory {
            cells: vec![at(0), at(64)],
            rings: at(4096),
            format: Format::Calls,
            details: None,
            directory: None,
            room: 8192,
            geometry,
            first: vec![geometry.first(); 2],
            halts_left: None,
            awaited: None,
        };
        let rings = SharedRings::new(Arc::new(guest.memory().clone()), place);
        // Who looks has the same rings.
        let looks = rings.clone();
        for (ring, base) in [(0, 100), (1, 200)] {
            rings.store(ring, CellWord::Head, base);
            rings.store(ring, CellWord::Limit, base + 1);
            rings.store(ring, CellWord::Lost, base + 2);
        }
        let moved = [at(0x1000), at(0x2000)];
        rings.move_cells(&moved).unwrap();
        for (ring, base) in [(0, 100), (1, 200)] {
            let words = [CellWord::Head, CellWord::Limit, CellWord::Lost];
            let found = words.map(|word| looks.load(ring, word));
            assert_eq!(found, [base, base + 1, base + 2]);
            let old = in_cell(at(64 * u64::from(ring)), CellWord::Limit);
            assert_eq!(rings.memory().load(old).unwrap(), LIMIT_OFF);
        }
        looks.store(1, CellWord::Lost, 7);
        let word = in_cell(moved[1], CellWord::Lost);
        assert_eq!(rings.memory().load(word).unwrap(), 7);
        assert!(
            rings.move_cells(&[Gpa(8), Gpa(16)]).is_err(),
            "not in the window"
        );
    }
}
