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
//!
//! A stub adds the whole word that the mark is the low part of, because cutting it costs time: ring and
//! higher bits of the lap spill over into function and time. The reader knows both, and takes them off
//! ([`crate::ring::geometry::Geometry::spill`]). The fields here are those of a record without them.

use terms::function::FunctionId;
use trace::event::Step;

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

    /// The record without what has spilled over from the lap mark.
    #[must_use]
    pub const fn without(self, spill: u64) -> Self {
        Self(self.0.wrapping_sub(spill))
    }

    /// The record as a stub writes it.
    #[must_use]
    pub const fn with(self, spill: u64) -> Self {
        Self(self.0.wrapping_add(spill))
    }

    /// The step and the low [`SLOT_BITS`] bits of the stack slot, in a record that has them in place of
    /// the time; no step when the guest wrote nonsense.
    #[must_use]
    pub const fn untimed(self) -> (Option<Step>, u64) {
        let (step, slot) = self.untimed_bits();
        (Step::of(step), slot)
    }

    /// The same with the number of the step: less than [`STEPS`] unless the guest wrote nonsense.
    #[must_use]
    pub const fn untimed_bits(self) -> (u64, u64) {
        let slot = self.0 >> UNTIMED_SLOT_SHIFT & ((1 << SLOT_BITS) - 1) & !7;
        (self.0 >> UNTIMED_STEP_SHIFT & STEP_MASK, slot)
    }
}

/// What the records of a session say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// Time and function.
    #[default]
    Calls,
    /// The return address, too, in a second word ([`Detail`]).
    Callers,
    /// Step and stack slot, too, in a second word ([`Detail`]).
    Graph,
    /// Step and stack slot in place of the time: the graph of a session without a clock.
    ///
    /// ```text
    ///  63                     31 30  28 27              10 9         0
    /// +-------------------------+------+------------------+-----------+
    /// |  stack slot, bits 35..3 | step |     function     | lap mark  |
    /// +-------------------------+------+------------------+-----------+
    /// ```
    GraphUntimed,
}

impl Format {
    /// Whether records have a second word.
    #[must_use]
    pub const fn has_details(self) -> bool {
        matches!(self, Self::Graph | Self::Callers)
    }

    /// Whether records say a step and a stack slot.
    #[must_use]
    pub const fn is_graph(self) -> bool {
        matches!(self, Self::Graph | Self::GraphUntimed)
    }
}

/// Bits of the stack slot's address in a record without a time.
pub const SLOT_BITS: u32 = 36;
/// How far the stack slot's address is shifted up there.
pub const UNTIMED_SLOT_SHIFT: u32 = u64::BITS - SLOT_BITS;
/// Where the step stands there: at the slot's low bits, which are zero.
pub const UNTIMED_STEP_SHIFT: u32 = UNTIMED_SLOT_SHIFT;

const _: () = assert!(UNTIMED_SLOT_SHIFT == TIME_SHIFT);

/// What a record says beside time and function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Beside {
    /// Nothing.
    #[default]
    Nothing,
    /// What a graph session says: the step and the stack slot, of which a session without a clock has the low
    /// [`SLOT_BITS`] bits.
    Step(Step, u64),
    /// The return address: where the call was made.
    Caller(u64),
}

impl Beside {
    /// The step of a graph and its stack slot.
    #[must_use]
    pub const fn step(self) -> Option<(Step, u64)> {
        match self {
            Self::Step(step, slot) => Some((step, slot)),
            Self::Nothing | Self::Caller(_) => None,
        }
    }
}

/// The part of a record that is the same each time a function is entered, as the 32-bit displacement
/// that the stub adds.
#[must_use]
pub const fn function_word(function: FunctionId) -> i32 {
    const { assert!(TIME_SHIFT < 31) };
    ((function.0 & (FUNCTIONS_MAX - 1)) << MARK_BITS).cast_signed()
}

/// What a record says beside time and function: a second word, at the same slot of a second array, with the same
/// lap mark.
///
/// ```text
///  63                               19 18   13 12  10 9         0
/// +-----------------------------------+-------+------+-----------+
/// |  stack slot, bits 47..3           |   0   | step | lap mark  |  of a graph
/// +-----------------------------------+-------+------+-----------+
/// |  return address, bits 47..0             |   0    | lap mark  |  of calls with their callers
/// +-----------------------------------------+--------+-----------+
///  63                                     16 15    10 9         0
/// ```
///
/// The *stack slot* is the address at which the function's return address lies: no two calls that
/// are open at the same time have the same one, whatever threads they run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detail(pub u64);

/// How far the stack slot's address is shifted up, or the return address.
pub const SLOT_SHIFT: u32 = 16;
/// Where the step stands.
pub const STEP_SHIFT: u32 = MARK_BITS;
const STEP_MASK: u64 = 7;
/// How many steps there are ([`Step`]): a power of two.
pub const STEPS: u64 = 4;

impl Detail {
    /// A detail word of these fields; each is cut to its width.
    #[cfg(any(test, feature = "internals", feature = "mock"))]
    #[must_use]
    pub const fn new(slot: u64, step: Step, mark: u64) -> Self {
        Self((slot & !7) << SLOT_SHIFT | (step as u64) << STEP_SHIFT | mark & MARK_MASK)
    }

    /// The stack slot, sign-extended from 48 bits; a multiple of 8.
    #[must_use]
    pub const fn slot(self) -> u64 {
        (self.0.cast_signed() >> SLOT_SHIFT).cast_unsigned() & !7
    }

    /// The return address, sign-extended from 48 bits.
    #[must_use]
    pub const fn caller(self) -> u64 {
        (self.0.cast_signed() >> SLOT_SHIFT).cast_unsigned()
    }

    /// What the record stands for; `None` when the guest wrote nonsense.
    #[must_use]
    pub const fn step(self) -> Option<Step> {
        Step::of(self.step_bits())
    }

    /// Its number: less than [`STEPS`] unless the guest wrote nonsense.
    #[must_use]
    pub const fn step_bits(self) -> u64 {
        self.0 >> STEP_SHIFT & STEP_MASK
    }

    /// The word without what has spilled over from the lap mark.
    #[must_use]
    pub const fn without(self, spill: u64) -> Self {
        Self(self.0.wrapping_sub(spill))
    }

    /// The lap in which the slot was reserved, as in [`Record::mark`].
    #[must_use]
    pub const fn mark(self) -> u64 {
        self.0 & MARK_MASK
    }
}
