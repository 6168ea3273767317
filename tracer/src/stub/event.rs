//! Recorders of events: one record, as a function has it, and a *payload*, which `capture` fills.
//!
//! Beside the ring there are as many bytes for each slot as the longest payload needs, a power of two. Each
//! word carries the lap mark of its record, so a payload that another lap has begun to write over is
//! told from one that is whole, word by word.

use image::points::Operand;
use insn::asm::registers::gpr64;
use insn::asm::{CodeAssembler, IcedError, lea_fixed, qword_ptr};
use terms::addr::Gva;

use super::recorder::{Recorder, Unforeseen};
use super::registers::{ENTRY, Scratch};
use crate::record::{MARK_MASK, RECORD_BYTES};

/// All are saved: r11 too, for this code also stands in the middle of functions.
pub(super) const SCRATCH: Scratch = Scratch {
    base: gpr64::rcx,
    ..ENTRY
};
/// The number of `rsp`.
pub(super) const STACK_POINTER: u8 = 4;
/// Where the arguments of a function are, System V x86-64 ABI §3.2.3: in these registers, then on the
/// stack after the return address.
const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];
/// What lies below the stack pointer of a function that calls nobody, §3.2.2.
pub(super) const RED_ZONE: i32 = 128;

/// One session's recorder of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventRecorder {
    /// Its cells and its records; `details` is none.
    pub recorder: Recorder,
    /// Where the payload of the first slot of ring 0 begins; the others follow slot by slot, ring by ring.
    pub payload: Gva,
    /// Bytes of payload that each slot has room for, as a power of two: at least [`PAYLOAD_LOG2_MIN`].
    pub payload_log2: u32,
}

/// What no payload's room is smaller than: 64 bytes, a cache line.
pub const PAYLOAD_LOG2_MIN: u32 = 6;

impl EventRecorder {
    /// Takes the time and a slot. Leaves the record in rdx, the lap mark in r10, and in r11 the distance of the slot
    /// from the first one of ring 0; changes rax. What is returned stands out of the way.
    pub(super) fn emit_slot(
        &self,
        a: &mut CodeAssembler,
        value: i32,
    ) -> Result<Option<Unforeseen>, IcedError> {
        use gpr64::{r10, r11, rax};
        let recorder = &self.recorder;
        recorder.emit_time(a, &SCRATCH)?;
        let unforeseen = recorder.emit_reserve(a, &SCRATCH)?;
        recorder.emit_mark(a, &SCRATCH, value)?;
        a.mov(r10, rax)?;
        a.and(r10, i32::try_from(MARK_MASK).unwrap_or(i32::MAX))?;
        recorder.emit_place(a, &SCRATCH)?;
        a.add(r11, rax)?;
        Ok(unforeseen)
    }

    /// Changes the distance of a slot in r11 to the address of its payload; changes rax.
    pub(super) fn emit_payload_address(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r11, rax};
        a.shl(r11, self.payload_log2.saturating_sub(RECORD_BYTES.ilog2()))?;
        lea_fixed(a, rax, self.payload.0)?;
        a.add(r11, rax)
    }

    /// Stores the record in rdx into the slot whose distance is in rax; changes r10.
    pub(super) fn emit_publish(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r10, rax, rdx};
        lea_fixed(a, r10, self.recorder.rings.0)?;
        a.mov(qword_ptr(r10 + rax), rdx)
    }
}

/// What the code continues with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tail {
    /// It was called: it returns.
    Return,
    /// A jump leads to it from the middle of a function, whose red zone it leaves alone; it continues
    /// after that jump.
    Continue,
}

/// Where the arguments of a callback with these fields are when it is entered.
#[must_use]
pub fn arguments<T>(fields: impl IntoIterator<Item = T>) -> Vec<(T, Operand)> {
    let on_stack = (1i32..).map(|place| Operand::Memory {
        base: STACK_POINTER,
        displacement: 8 * place,
    });
    let places = ARGUMENTS.into_iter().map(Operand::Register).chain(on_stack);
    fields.into_iter().zip(places).collect()
}
