//! Positions, slots and laps: the arithmetic that stubs and readers share.

use crate::record::{MARK_MASK, RECORD_BYTES, Record};

/// Bit of the head word from which on it holds the number of the ring.
pub const RING_SHIFT: u32 = 54;
/// How many rings one session can have: what fits above [`RING_SHIFT`].
pub const RINGS_MAX: u16 = 1 << (64 - RING_SHIFT);
/// Smallest and largest size of a ring, as powers of two: 4 KiB and 256 MiB. Rings of
/// more would leave no room for anything else near the text.
pub const RING_BYTES_LOG2: std::ops::RangeInclusive<u32> = 12..=28;
/// The limit that no head reaches (overwrite mode).
pub const LIMIT_NONE: u64 = u64::MAX;
/// The limit that stands for *tracing off*.
pub const LIMIT_OFF: u64 = 0;

/// The limit that every head has reached: nothing is recorded, and each call is counted as lost.
pub const LIMIT_HOLD: u64 = 1;

const COUNT_MASK: u64 = (1 << RING_SHIFT) - 1;

/// Why a ring cannot be of the size asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a ring of {bytes} bytes is not possible: give a power of two from 4 KiB to 256 MiB")]
pub struct RingSizeError {
    /// The size asked for.
    pub bytes: u64,
}

/// The size of a ring; a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Geometry {
    bytes_log2: u32,
}

impl Geometry {
    /// Rings of `bytes` each.
    ///
    /// # Errors
    /// [`RingSizeError`] when that is not a power of two from 4 KiB to 256 MiB.
    pub fn with_bytes(bytes: u64) -> Result<Self, RingSizeError> {
        let bytes_log2 = bytes.trailing_zeros();
        if bytes.is_power_of_two() && RING_BYTES_LOG2.contains(&bytes_log2) {
            Ok(Self { bytes_log2 })
        } else {
            Err(RingSizeError { bytes })
        }
    }

    /// So small that every way in which somebody can write and read it can be tried.
    #[cfg(test)]
    pub(super) const fn of_slots_log2(slots_log2: u32) -> Self {
        Self {
            bytes_log2: slots_log2 + RECORD_BYTES.trailing_zeros(),
        }
    }

    /// Bytes of one ring.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.bytes_log2
    }

    /// The exponent of [`Self::bytes`].
    #[must_use]
    pub const fn bytes_log2(self) -> u32 {
        self.bytes_log2
    }

    /// Records that one ring holds.
    #[must_use]
    pub const fn slots(self) -> u64 {
        self.bytes() / RECORD_BYTES
    }

    /// The position of the first record ever: lap 1, so that a slot of zeros is an earlier lap.
    #[must_use]
    pub const fn first(self) -> Position {
        Position(self.slots())
    }

    /// The slot that the record at `position` goes to, below [`Self::slots`].
    #[must_use]
    pub const fn slot(self, position: Position) -> u64 {
        position.0 & (self.slots() - 1)
    }

    /// What a stub that was given this head word adds to its record beside the lap mark.
    #[must_use]
    pub const fn spill(self, word: u64) -> u64 {
        word >> self.bytes_log2 & !MARK_MASK
    }

    /// The lap mark of the record of `position`.
    #[must_use]
    pub const fn mark(self, position: Position) -> u64 {
        (position.0 / self.slots()) & MARK_MASK
    }

    /// How the lap of the record in a slot relates to the lap of `position`.
    #[must_use]
    pub const fn compare(self, record: Record, position: Position) -> Lap {
        let expected = position.0 / self.slots();
        let ahead = record.mark().wrapping_sub(expected) & MARK_MASK;
        if ahead == 0 {
            Lap::This
        } else if ahead <= MARK_MASK / 2 {
            Lap::Later
        } else {
            Lap::Earlier
        }
    }
}

/// The lap of the record found in a slot, seen from the position that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lap {
    /// It is the record of this position.
    This,
    /// The slot has been written over since.
    Later,
    /// The slot has not been written in this lap yet.
    Earlier,
}

/// The number of a record in its ring, counted from the first one ([`Geometry::first`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// The head or limit word of ring `ring` that stands for this position.
    #[must_use]
    pub const fn word(self, ring: u16) -> u64 {
        (ring as u64) << RING_SHIFT | self.0.wrapping_mul(RECORD_BYTES) & COUNT_MASK
    }

    /// The position that a head word of ring `ring` stands for; `None` when the word is not one that
    /// the stubs of that ring could have left (another ring's number, or between two records).
    #[must_use]
    pub const fn of_word(word: u64, ring: u16) -> Option<Self> {
        let count = word & COUNT_MASK;
        if word >> RING_SHIFT != ring as u64 || !count.is_multiple_of(RECORD_BYTES) {
            return None;
        }
        Some(Self(count / RECORD_BYTES))
    }

    /// Records from `earlier` to here; 0 when it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The position `records` further on.
    #[must_use]
    pub const fn after(self, records: u64) -> Self {
        Self(self.0.saturating_add(records))
    }
}
