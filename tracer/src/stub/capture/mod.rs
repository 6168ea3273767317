//! The code that writes an event, of the guest's own, of a probe, or of a call: a condition, one record, and the
//! captured values as its payload.
//!
//! ```text
//!     condition does not hold? ─── yes ──> nothing
//!     head >= limit?  ──────────── yes ──> lost += 1 unless off
//!     time, xadd head, 8           as for functions
//!     payload of the slot:
//!       [+0] = status << 32 | lap mark     bit i: value i is a fault; only where one can be
//!       [+8] = 32 bits of the first value << 32 | lap mark
//!       [+16] = …                          64 bits take two words
//!     [slot] = record                      last: who sees the record finds the payload
//! ```
//!
//! The code preserves every register, and of the flags and the red zone what the place needs ([`Standing`]). The flags
//! are kept by `lahf` and `seto`: `popf` takes longer than everything else together. A register is saved when it is
//! first changed: what is full, or off, costs no more than looking.

mod condition;
mod frame;
mod number;
mod stack;
mod text;

use std::sync::Arc;

use frame::Frame;
use image::points::Operand;
use insn::asm::registers::{gpr32, gpr64};
use insn::asm::{
    AsmRegister64, CodeAssembler, CodeLabel, IcedError, PLACE_CONTINUE, assemble, bind, dword_ptr,
    ptr, qword_ptr,
};
use insn::operand::register_number;
use terms::addr::Gva;
use terms::event_format::EventId;
use terms::field::FieldType;
use terms::function::FunctionId;

use super::event::{EventRecorder, RED_ZONE, SCRATCH, STACK_POINTER, Tail};
use super::reach::Reach;
use super::recorder::{Full, Unforeseen};
use super::registers;
use super::template::{StubError, TEMPLATE_MAX, Template};
use crate::capture::{Capture, CaptureError, Captured, Source};
use crate::record::function_word;
use crate::ring::payload::PAYLOAD_SHIFT;

/// What one probe of one session captures at a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CapturePart {
    /// Where the session's events go.
    pub recorder: EventRecorder,
    /// The number of the probe's event.
    pub event: EventId,
    /// What is captured.
    pub capture: Arc<Capture>,
}

/// Where code stands: which of the flags and the red zone are somebody's there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Anywhere in a function: both are.
    Inside,
    /// At a marker, of which the compiler knows that the flags are not the same after it: the red zone is.
    Marker,
    /// Between two functions, at an entry or after a return: neither is, for there the flags are nobody's, and nothing
    /// lies below the stack pointer (System V x86-64 ABI §3.2).
    Between,
}

/// A stub that writes all events at one place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CaptureStub {
    /// The events, in the order in which they are recorded.
    pub parts: Vec<CapturePart>,
    /// What comes after.
    pub tail: Tail,
    /// By how many bytes the stack pointer is lower when the code is entered than it was at the probe:
    /// 0 where a jump leads to it, at least 8 where it was called.
    pub lowered: u32,
    /// What is somebody's at the place.
    pub standing: Standing,
    /// Where memory is read; without it all that lies in memory is a fault.
    pub reach: Option<Reach>,
}

impl CaptureStub {
    /// The code, for stubs near `near`; what [`Template::new`] says of `near` holds here, too. The numbers of
    /// the events are in it already: whatever it is stamped with changes nothing.
    ///
    /// # Errors
    /// [`StubError::Capture`] for what cannot be captured, [`StubError::Assemble`].
    pub fn template(&self, near: Gva) -> Result<Template, StubError> {
        for part in &self.parts {
            part.check()?;
        }
        let mut a = CodeAssembler::new(64)?;
        a.set_prefer_short_branch(false);
        let skipped = match self.tail {
            Tail::Continue if self.standing != Standing::Between => RED_ZONE,
            Tail::Continue | Tail::Return => 0,
        };
        let above = skipped.saturating_add_unsigned(self.lowered);
        let frame = Frame::new(self.parts.iter().map(|part| &*part.capture), above);
        self.emit(&mut a, frame, skipped, near)?;
        let assembled = assemble(&mut a, near.0)?;
        let bytes = assembled.bytes.len();
        if bytes as u64 > TEMPLATE_MAX {
            let most = TEMPLATE_MAX;
            return Err(CaptureError::TooLong { bytes, most }.into());
        }
        Ok(Template::of_code(assembled))
    }

    /// What every part of the code changes before it knows whether it records.
    fn changed(&self, frame: &Frame) -> Vec<AsmRegister64> {
        use gpr64::{r10, r11, rax, rcx, rdx};
        let mut changed = Vec::new();
        if self.standing == Standing::Inside {
            changed.push(rax);
        }
        let mut captures = self.parts.iter().map(|part| &part.capture);
        if captures.any(|capture| capture.condition.is_some()) {
            changed.extend([rax, rcx]);
        }
        // Text is copied for a condition by a routine that wants them all.
        if frame.compares_text() {
            changed.extend([rdx, r10, r11]);
        }
        changed
    }

    fn emit(
        &self,
        a: &mut CodeAssembler,
        frame: Frame,
        skipped: i32,
        near: Gva,
    ) -> Result<(), IcedError> {
        use gpr64::{rax, rsp};
        let lowered = skipped.saturating_add(frame.bytes);
        a.lea(rsp, ptr(rsp - lowered))?;
        let mut code = CaptureCode {
            fault: a.create_label(),
            frame,
            reach: self.reach,
            a,
        };
        let keeps_flags = self.standing == Standing::Inside;
        let first = code.frame.emit_save(code.a, &self.changed(&code.frame))?;
        if keeps_flags {
            registers::emit_take_flags(code.a)?;
            code.a.mov(frame::FLAGS.place(), rax)?;
        }
        let mut rest = Vec::new();
        for part in &self.parts {
            rest.push(code.emit_part(part)?);
        }
        if keeps_flags {
            code.a.mov(rax, frame::FLAGS.place())?;
            registers::emit_give_flags(code.a)?;
        }
        code.frame.emit_restore(code.a, &first)?;
        let a = code.a;
        a.lea(rsp, ptr(rsp + lowered))?;
        match self.tail {
            Tail::Return => a.ret()?,
            Tail::Continue => a.jmp(near.wrapping_add(PLACE_CONTINUE).0)?,
        }
        for seldom in rest {
            if let Some(unforeseen) = seldom.unforeseen {
                unforeseen.emit(a)?;
            }
            seldom.full.emit(a)?;
            for fault in seldom.faults {
                bind(a, fault.label)?;
                a.or(frame::STATUS.low_dword(), 1u32 << fault.number)?;
                a.xor(gpr32::eax, gpr32::eax)?;
                a.jmp(fault.back)?;
            }
        }
        Ok(())
    }
}

impl CapturePart {
    /// Whether values are computed, which needs a register for operands.
    fn computes(&self) -> bool {
        let values = self.capture.values.iter();
        values
            .into_iter()
            .any(|value| !matches!(value.source, Source::Operand(_)))
    }

    fn check(&self) -> Result<(), CaptureError> {
        self.capture.check()?;
        let needed = self.capture.payload_bytes();
        let room = 1u64.checked_shl(self.recorder.payload_log2).unwrap_or(0);
        if needed > room {
            return Err(CaptureError::Room { needed, room });
        }
        Ok(())
    }
}

/// Where the code of a value goes when it is a fault, and where that continues.
#[derive(Debug)]
struct Fault {
    number: u32,
    label: CodeLabel,
    back: CodeLabel,
}

/// What of the code of an event stands out of the way.
#[derive(Debug)]
struct Seldom {
    unforeseen: Option<Unforeseen>,
    full: Full,
    faults: Vec<Fault>,
}

/// Code that is being written. rax holds what has been computed last, rcx is free for operands. In a payload rdx is
/// the record, r10 the lap mark and r11 the payload's address.
struct CaptureCode<'a> {
    a: &'a mut CodeAssembler,
    frame: Frame,
    reach: Option<Reach>,
    /// Where it goes when there is a fault.
    fault: CodeLabel,
}

impl CaptureCode<'_> {
    /// Appends the code of one event, up to what stands out of the way.
    fn emit_part(&mut self, part: &CapturePart) -> Result<Seldom, IcedError> {
        use gpr64::{r10, r11, rax, rcx, rdx};
        let EventRecorder { recorder, .. } = part.recorder;
        let access = recorder.access(&SCRATCH);
        let skip = self.a.create_label();
        if let Some(condition) = &part.capture.condition {
            self.fault = skip;
            self.emit_unless(condition, skip)?;
        }
        let full = self.a.create_label();
        let done = self.a.create_label();
        let base = (!access.is_direct()).then_some(SCRATCH.base);
        let looking: Vec<_> = [registers::HEAD].into_iter().chain(base).collect();
        let looking = self.frame.emit_save(self.a, &looking)?;
        recorder.emit_task_check(self.a, done)?;
        let room = recorder.emit_check(self.a, &SCRATCH, full)?;
        let computing = part.computes().then_some(rcx);
        let recording: Vec<_> = [rax, rdx, r10].into_iter().chain(computing).collect();
        let recording = self.frame.emit_save(self.a, &recording)?;
        let event = function_word(FunctionId(part.event.0));
        let unforeseen = part.recorder.emit_slot(self.a, event)?;
        self.a.mov(frame::SLOT.place(), r11)?;
        if !part.capture.values.is_empty() {
            part.recorder.emit_payload_address(self.a)?;
        }
        let faults = self.emit_payload(&part.capture)?;
        self.a.mov(rax, frame::SLOT.place())?;
        part.recorder.emit_publish(self.a)?;
        recorder.halts.emit_passed(self.a)?;
        self.frame.emit_restore(self.a, &recording)?;
        bind(self.a, done)?;
        self.frame.emit_restore(self.a, &looking)?;
        bind(self.a, skip)?;
        let full = Full::new(full, room, done, (&recorder, &SCRATCH));
        Ok(Seldom {
            unforeseen,
            full,
            faults,
        })
    }

    /// Appends the stores of all values.
    fn emit_payload(&mut self, capture: &Capture) -> Result<Vec<Fault>, IcedError> {
        use gpr64::rax;
        let has_status = capture.format("".into()).has_status;
        let mut place = 0;
        if has_status {
            self.a.mov(frame::STATUS.low_dword(), 0)?;
            place = 8;
        }
        let mut faults = Vec::new();
        for (value, number) in capture.values.iter().zip(0..) {
            let back = self.a.create_label();
            self.fault = self.a.create_label();
            self.emit_value(value, place, back)?;
            if !matches!(value.source, Source::Operand(_)) {
                faults.push(Fault {
                    number,
                    label: self.fault,
                    back,
                });
            }
            let words = i32::try_from(value.kind.words()).unwrap_or(i32::MAX);
            place = place.saturating_add(words.saturating_mul(8));
        }
        if has_status {
            self.a.mov(gpr32::eax, frame::STATUS.low_dword())?;
            self.emit_word(rax, 0)?;
        }
        Ok(if has_status { faults } else { Vec::new() })
    }

    /// Appends what stores a value from `place` of the payload on. A fault comes back at `back`, with 0 in rax.
    fn emit_value(
        &mut self,
        value: &Captured,
        place: i32,
        back: CodeLabel,
    ) -> Result<(), IcedError> {
        use gpr64::rax;
        match &value.source {
            Source::Operand(operand) => self.emit_operand(*operand, &value.kind, place),
            Source::Number(number) => {
                self.emit_number(number::needed(number, &value.kind), 0)?;
                bind(self.a, back)?;
                self.emit_number_words(&value.kind, place)
            }
            Source::Bytes { address, length } => {
                self.emit_bytes(address, *length, place)?;
                bind(self.a, back)
            }
            Source::Stack { at, max } => {
                self.emit_stack(*at, *max, place)?;
                bind(self.a, back)?;
                self.emit_word(rax, place)
            }
            Source::Text { text, max } => {
                self.emit_text(text, *max, place.saturating_add(8))?;
                bind(self.a, back)?;
                self.emit_word(rax, place)
            }
        }
    }

    /// Stores what the code at this place has as an operand; changes rax.
    fn emit_operand(
        &mut self,
        operand: Operand,
        kind: &FieldType,
        place: i32,
    ) -> Result<(), IcedError> {
        use gpr64::rax;
        for (half, place) in (0..kind.words()).zip((place..).step_by(8)) {
            self.frame.emit_load_operand(self.a, operand, kind)?;
            if half > 0 {
                self.a.shr(rax, PAYLOAD_SHIFT)?;
            }
            self.emit_word(rax, place)?;
        }
        Ok(())
    }

    /// Stores the number in rax; changes rcx.
    fn emit_number_words(&mut self, kind: &FieldType, place: i32) -> Result<(), IcedError> {
        use gpr64::{rax, rcx};
        if kind.words() == 1 {
            return self.emit_word(rax, place);
        }
        self.a.mov(rcx, rax)?;
        self.emit_word(rcx, place)?;
        self.a.shr(rax, PAYLOAD_SHIFT)?;
        self.emit_word(rax, place.saturating_add(8))
    }

    /// Stores the lower half of a register with the lap mark; changes the register.
    fn emit_word(&mut self, value: AsmRegister64, place: i32) -> Result<(), IcedError> {
        self.a.shl(value, PAYLOAD_SHIFT)?;
        self.a.or(value, gpr64::r10)?;
        self.a.mov(qword_ptr(gpr64::r11 + place), value)
    }
}
