//! The record that a stub writes: one word of 64 bits, stored by one instruction, so that a reader
//! sees all of it or nothing.
//!
//! ```text
//!  63                            28 27              10 9         0
//! +--------------------------------+------------------+-----------+
//! |        time, low 36 bits       |     function     | lap mark  |
//! +--------------------------------+------------------+-----------+
//! ```
//!
//! *Time* is the low part of the clock; the reader knows the rest, because it looks at the clock
//! at least once while those bits go round ([`crate::ring::timeline`]). *Function* is a
//! [`FunctionId`]. The *lap mark* says in which lap of the ring the slot was reserved: that is how a
//! record of a writer that was preempted for whole laps, or a slot that was reserved and is not yet
//! written, is told from the record that belongs there. A writer that is late by a multiple of 1024
//! laps exactly cannot be told: its record then stands for another call, and no count is wrong.

use crate::event::FunctionId;

/// Bits of the time in a record.
pub const TIME_BITS: u32 = 36;
/// Bits of the function number in a record.
pub const FUNCTION_BITS: u32 = 18;
/// Bits of the lap mark in a record.
pub const MARK_BITS: u32 = 10;
/// Bytes of a record.
pub const RECORD_BYTES: u64 = 8;

const _: () = assert!(TIME_BITS + FUNCTION_BITS + MARK_BITS == u64::BITS);

/// How far the time is shifted up.
pub const TIME_SHIFT: u32 = FUNCTION_BITS + MARK_BITS;
/// How many functions can be told apart.
pub const FUNCTIONS_MAX: u32 = 1 << FUNCTION_BITS;
/// The bits of a lap mark.
pub const MARK_MASK: u64 = (1 << MARK_BITS) - 1;

/// A record as it was read: fields as the guest wrote them, nothing checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record(pub u64);

impl Record {
    /// A record of these fields; each is cut to its width.
    #[must_use]
    pub const fn new(time: u64, function: FunctionId, mark: u64) -> Self {
        let function = function.0 as u64 & (FUNCTIONS_MAX as u64 - 1);
        Self(time << TIME_SHIFT | function << MARK_BITS | mark & MARK_MASK)
    }

    /// The low [`TIME_BITS`] bits of the clock.
    #[must_use]
    pub const fn time(self) -> u64 {
        self.0 >> TIME_SHIFT
    }

    /// The function that was entered, if the guest did not write nonsense: callers check it against
    /// the number of functions.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "masked to fewer than 32 bits"
    )]
    pub const fn function(self) -> FunctionId {
        FunctionId((self.0 >> MARK_BITS & (FUNCTIONS_MAX as u64 - 1)) as u32)
    }

    /// The lap in which the slot was reserved, modulo 2^[`MARK_BITS`].
    #[must_use]
    pub const fn mark(self) -> u64 {
        self.0 & MARK_MASK
    }
}

/// The part of a record that is the same each time a function is entered, as the 32-bit displacement
/// that the stub adds.
#[must_use]
pub const fn function_word(function: FunctionId) -> i32 {
    const { assert!(TIME_SHIFT < 31) };
    ((function.0 & (FUNCTIONS_MAX - 1)) << MARK_BITS).cast_signed()
}
