//! The code that writes one record for one session.
//!
//! ```text
//!     head >= limit?  ──────────── yes ──> lost += 1 unless off
//!     time
//!     xadd head, 8                 one instruction: no interrupt, no migration can tear it
//!     slot = f(what xadd returned) the ring's number is in it: never through gs again
//!     [slot] = record              one store
//! ```
//!
//! The time is read before the slot is reserved, so that every record before a head that the reader
//! sees is older than the reader's look at the clock.

use super::access::CellAccess;
use crate::addr::Gva;
use crate::insn::asm::registers::{gpr32, gpr64};
use crate::insn::asm::{
    CodeAssembler, CodeLabel, IcedError, PLACE_VALUE, lea_fixed, load_fixed, ptr, qword_ptr,
};
use crate::record::{MARK_MASK, RECORD_BYTES, TIME_SHIFT};
use crate::ring::geometry::{Geometry, RING_SHIFT};
use crate::stub::cell::{CellPlace, HEAD, LIMIT, LOST};

/// What a record's time is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Clock {
    /// `rdtsc` in each record.
    Tsc,
    /// The word at this address, the start of a [clock page](crate::stub::clock_page), which the
    /// host keeps.
    Page(Gva),
    /// Records without a time.
    None,
}

/// One session, as a stub sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorder {
    /// Where its cells are.
    pub cell: CellPlace,
    /// Where its ring 0 begins; the others follow at the distance of a ring's size.
    pub rings: Gva,
    /// Where the second words of its records begin, in the order of the rings; none in a function
    /// session.
    pub details: Option<Gva>,
    /// The size of its rings.
    pub geometry: Geometry,
    /// Where the time comes from.
    pub clock: Clock,
}

impl Recorder {
    /// Appends the code to `a`. It preserves all registers but the flags; the record's function word
    /// is the placeholder [`PLACE_VALUE`]. What runs when the ring is full is left to be emitted out
    /// of the way, behind the end of the stub.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn emit(&self, a: &mut CodeAssembler) -> Result<Full, IcedError> {
        use gpr64::{r11, rax, rdx};
        let access = CellAccess::new(self.cell, gpr64::rcx);
        let full = a.create_label();
        let mut done = a.create_label();

        a.push(r11)?;
        access.enter(a)?;
        a.mov(r11, access.word(HEAD))?;
        a.cmp(r11, access.word(LIMIT))?;
        a.jae(full)?;
        a.push(rax)?;
        a.push(rdx)?;
        self.emit_time(a)?;
        self.emit_reserve(a, access)?;
        self.emit_store(a)?;
        a.pop(rdx)?;
        a.pop(rax)?;
        a.set_label(&mut done)?;
        access.leave(a)?;
        a.pop(r11)?;
        Ok(Full::new(full, done, access))
    }

    /// Leaves the time of the record in rdx, if it has one; changes rax.
    pub(super) fn emit_time(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{rax, rdx};
        match self.clock {
            Clock::Tsc => {
                a.rdtsc()?;
                a.shl(rdx, 32 + TIME_SHIFT)?;
                a.shl(rax, TIME_SHIFT)?;
                a.or(rdx, rax)
            }
            Clock::Page(page) => load_fixed(a, rdx, page.0),
            Clock::None => Ok(()),
        }
    }

    /// Leaves the old head word in r11.
    pub(super) fn emit_reserve(
        &self,
        a: &mut CodeAssembler,
        access: CellAccess,
    ) -> Result<(), IcedError> {
        let step = u32::try_from(RECORD_BYTES).unwrap_or_default();
        a.mov(gpr32::r11d, step)?;
        if access.is_shared() {
            a.lock().xadd(access.word(HEAD), gpr64::r11)
        } else {
            a.xadd(access.word(HEAD), gpr64::r11)
        }
    }

    /// Completes the record in rdx with the mark and stores it where the head word in r11 says;
    /// changes rax and r11.
    fn emit_store(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r11, rax, rdx};
        self.emit_mark(a)?;
        self.emit_offset(a)?;
        lea_fixed(a, rax, self.rings.0)?;
        a.mov(qword_ptr(rax + r11), rdx)
    }

    /// Completes the record in rdx with its function and the lap mark of the head word in r11, and
    /// leaves the mark in rax.
    pub(super) fn emit_mark(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r11, rax, rdx};
        a.mov(rax, r11)?;
        a.shr(rax, self.geometry.bytes_log2())?;
        a.and(gpr32::eax, u32::try_from(MARK_MASK).unwrap_or(u32::MAX))?;
        match self.clock {
            Clock::Tsc | Clock::Page(_) => a.lea(rdx, ptr(rdx + rax) + PLACE_VALUE),
            Clock::None => a.lea(rdx, ptr(rax) + PLACE_VALUE),
        }
    }

    /// Turns the head word in r11 into the record's offset from ring 0; changes rax.
    pub(super) fn emit_offset(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr32::{eax, r11d};
        use gpr64::{r11, rax};
        let offset_mask = u32::try_from(self.geometry.bytes() - 1).unwrap_or(u32::MAX);
        a.mov(eax, r11d)?;
        a.and(eax, offset_mask)?;
        a.shr(r11, RING_SHIFT)?;
        a.shl(r11, self.geometry.bytes_log2())?;
        a.add(r11, rax)
    }
}

/// The part of a recorder that runs when head has reached the limit.
#[derive(Debug)]
pub struct Full {
    label: CodeLabel,
    back: CodeLabel,
    access: CellAccess,
}

impl Full {
    /// What is at `label` and goes on at `back`.
    pub(super) const fn new(label: CodeLabel, back: CodeLabel, access: CellAccess) -> Self {
        Self {
            label,
            back,
            access,
        }
    }

    /// Appends the code: counts the call as lost, unless tracing is off. This is where a slow path
    /// that leaves the guest would begin.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn emit(mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.set_label(&mut self.label)?;
        a.cmp(self.access.word(LIMIT), 0)?;
        a.je(self.back)?;
        if self.access.is_shared() {
            a.lock().inc(self.access.word(LOST))?;
        } else {
            a.inc(self.access.word(LOST))?;
        }
        a.jmp(self.back)
    }
}
