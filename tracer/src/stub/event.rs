//! The code that writes an event with its fields: one record, as a function has it, and a *payload*.
//!
//! ```text
//!     head >= limit?  ──────────── yes ──> lost += 1 unless off
//!     time, xadd head, 8           as for functions
//!     payload of the slot:
//!       [+0] = 32 bits of the first field << 32 | lap mark
//!       [+8] = …                   a field of 64 bits takes two words
//!     [slot] = record              last: who sees the record finds the payload
//! ```
//!
//! Beside the ring there are as many bytes for each slot as the longest payload needs, a power of two. Each
//! word carries the lap mark of its record, so a payload that another lap has begun to write over is
//! told from one that is whole, word by word.
//!
//! The code preserves every register but the flags, for it also stands in the middle of functions.

use image::points::Operand;
use insn::asm::registers::gpr64;
use insn::asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, IcedError, PLACE_CONTINUE, PLACE_VALUE,
    assemble, lea_fixed, load_constant, ptr, qword_ptr,
};
use insn::operand::{extend, load_extended, register, register_number};
use terms::addr::Gva;
use terms::field::FieldType;

use super::recorder::{Full, Recorder};
use super::registers::{self, ENTRY, Scratch};
use super::template::{StubError, Template};
use crate::record::{MARK_MASK, RECORD_BYTES};
use crate::ring::payload::PAYLOAD_SHIFT;

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
    /// from the first one of ring 0; changes rax.
    pub(super) fn emit_slot(&self, a: &mut CodeAssembler, value: i32) -> Result<(), IcedError> {
        use gpr64::{r10, r11, rax};
        let recorder = &self.recorder;
        recorder.emit_time(a, &SCRATCH)?;
        recorder.emit_reserve(a, &SCRATCH)?;
        recorder.emit_mark(a, &SCRATCH, value)?;
        a.mov(r10, rax)?;
        a.and(r10, i32::try_from(MARK_MASK).unwrap_or(i32::MAX))?;
        recorder.emit_place(a, &SCRATCH)?;
        a.add(r11, rax)
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

/// A stub that writes an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventStub {
    /// The recorder of each session.
    pub recorders: Vec<EventRecorder>,
    /// What each field is, and where.
    pub fields: Vec<(FieldType, Operand)>,
    /// What comes after.
    pub tail: Tail,
}

/// Where the arguments of a callback with these fields are when it is entered.
#[must_use]
pub fn arguments(fields: impl IntoIterator<Item = FieldType>) -> Vec<(FieldType, Operand)> {
    let on_stack = (1i32..).map(|place| Operand::Memory {
        base: STACK_POINTER,
        displacement: 8 * place,
    });
    let places = ARGUMENTS.into_iter().map(Operand::Register).chain(on_stack);
    fields.into_iter().zip(places).collect()
}

impl EventStub {
    /// The code, for stubs near `near`; what [`Template::new`] says of `near` holds here, too.
    ///
    /// # Errors
    /// [`StubError::Assemble`].
    pub fn template(&self, near: Gva) -> Result<Template, StubError> {
        let mut a = CodeAssembler::new(64)?;
        a.set_prefer_short_branch(false);
        let skipped = match self.tail {
            Tail::Return => 0,
            Tail::Continue => RED_ZONE,
        };
        if skipped > 0 {
            a.lea(gpr64::rsp, ptr(gpr64::rsp - skipped))?;
        }
        let mut full = Vec::new();
        for recorder in &self.recorders {
            full.push(self.emit(&mut a, recorder, skipped)?);
        }
        match self.tail {
            Tail::Return => a.ret()?,
            Tail::Continue => {
                a.lea(gpr64::rsp, ptr(gpr64::rsp + skipped))?;
                a.jmp(near.wrapping_add(PLACE_CONTINUE).0)?;
            }
        }
        full.into_iter().try_for_each(|part| part.emit(&mut a))?;
        Ok(Template::of_code(assemble(&mut a, near.0)?))
    }

    /// Appends the code of one session; `skipped` bytes lie between the stack pointer and what it was.
    fn emit(
        &self,
        a: &mut CodeAssembler,
        event: &EventRecorder,
        skipped: i32,
    ) -> Result<Full, IcedError> {
        use gpr64::{r10, r11, rax, rdx};
        let recorder = &event.recorder;
        let access = recorder.access(&SCRATCH);
        let full = a.create_label();
        let mut done = a.create_label();
        let mut frame = Frame::new(skipped);

        frame.push(a, registers::HEAD)?;
        if !access.is_direct() {
            frame.push(a, SCRATCH.base)?;
        }
        let room = recorder.emit_check(a, &SCRATCH, full)?;
        for scratch in [rax, rdx, r10] {
            frame.push(a, scratch)?;
        }
        event.emit_slot(a, PLACE_VALUE)?;
        // Not a register that an operand could name.
        a.push(r11)?;
        frame.depth += 8;
        event.emit_payload_address(a)?;
        self.emit_payload(a, &frame)?;
        a.pop(rax)?;
        event.emit_publish(a)?;
        for scratch in [r10, rdx, rax] {
            a.pop(scratch)?;
        }
        a.set_label(&mut done)?;
        if !access.is_direct() {
            a.pop(SCRATCH.base)?;
        }
        a.pop(registers::HEAD)?;
        Ok(Full::new(full, room, done, access))
    }

    /// Stores the payload to where r11 says, with the lap mark in r10; changes rax.
    fn emit_payload(&self, a: &mut CodeAssembler, frame: &Frame) -> Result<(), IcedError> {
        use gpr64::{r10, r11, rax};
        let mut place = 0i32;
        for (kind, operand) in &self.fields {
            for half in 0..kind.words() {
                frame.load(a, kind, *operand)?;
                if half > 0 {
                    a.shr(rax, PAYLOAD_SHIFT)?;
                }
                a.shl(rax, PAYLOAD_SHIFT)?;
                a.or(rax, r10)?;
                a.mov(qword_ptr(r11 + place), rax)?;
                place = place.wrapping_add(8);
            }
        }
        Ok(())
    }
}

/// What has been pushed, so that operands are found where they are now.
#[derive(Debug)]
struct Frame {
    /// Bytes between the stack pointer and what it was when the event happened.
    depth: i32,
    /// Saved registers, and the depth at which each lies.
    saved: Vec<(u8, i32)>,
}

impl Frame {
    fn new(depth: i32) -> Self {
        Self {
            depth,
            saved: Vec::new(),
        }
    }

    fn push(&mut self, a: &mut CodeAssembler, register: AsmRegister64) -> Result<(), IcedError> {
        self.depth += 8;
        self.saved.push((register_number(register), self.depth));
        a.push(register)
    }

    /// Where `number` was saved, if it was.
    fn slot(&self, number: u8) -> Option<AsmMemoryOperand> {
        let (_, depth) = self.saved.iter().find(|(saved, _)| *saved == number)?;
        Some(qword_ptr(gpr64::rsp + (self.depth - depth)))
    }

    /// Loads an operand into rax, as 64 bits of its value.
    fn load(
        &self,
        a: &mut CodeAssembler,
        kind: &FieldType,
        operand: Operand,
    ) -> Result<(), IcedError> {
        use gpr64::{rax, rsp};
        let bytes = u8::try_from(kind.bytes()).unwrap_or(8);
        let signed = kind.is_signed();
        match operand {
            Operand::Constant(value) => load_constant(a, rax, value.cast_unsigned()),
            Operand::Register(STACK_POINTER) => a.lea(rax, ptr(rsp + self.depth)),
            Operand::Register(number) => {
                match self.slot(number) {
                    Some(slot) => a.mov(rax, slot)?,
                    None => a.mov(rax, register(number))?,
                }
                extend(a, bytes, signed)
            }
            Operand::Memory {
                base: STACK_POINTER,
                displacement,
            } => {
                let place = rsp + displacement.wrapping_add(self.depth);
                load_extended(a, place, bytes, signed)
            }
            Operand::Memory { base, displacement } => {
                let base = match self.slot(base) {
                    Some(slot) => {
                        a.mov(rax, slot)?;
                        rax
                    }
                    None => register(base),
                };
                load_extended(a, base + displacement, bytes, signed)
            }
        }
    }
}
