//! What the code of a probe keeps on the stack: registers that it changes, and numbers on the way.

use image::points::Operand;
use insn::asm::AsmMemoryOperand;
use insn::asm::load_constant;
use insn::operand::{extend, load_extended, register};
use terms::expression::Expression;
use terms::field::FieldType;

use super::{
    AsmRegister64, Capture, CodeAssembler, IcedError, STACK_POINTER, dword_ptr, gpr64, ptr,
    qword_ptr, register_number,
};
use crate::capture::{Condition, Source, Text};

/// A word on the stack, by its number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word(i32);

impl Word {
    /// All 64 bits of it.
    pub(super) fn place(self) -> AsmMemoryOperand {
        qword_ptr(gpr64::rsp + 8 * self.0)
    }

    /// Its lower half.
    pub(super) fn low_dword(self) -> AsmMemoryOperand {
        dword_ptr(gpr64::rsp + 8 * self.0)
    }

    /// Its upper half.
    pub(super) fn high_dword(self) -> AsmMemoryOperand {
        dword_ptr(gpr64::rsp + (8 * self.0 + 4))
    }
}

/// The flags, as `lahf` and `seto` leave them.
pub(super) const FLAGS: Word = Word(0);
/// Which values are faults.
pub(super) const STATUS: Word = Word(1);
/// The distance of the record's slot.
pub(super) const SLOT: Word = Word(2);
/// rdx during a division.
pub(super) const KEPT: Word = Word(3);
/// Where each register is saved that the code changes.
const SAVED: [(AsmRegister64, Word); 5] = [
    (gpr64::rax, Word(4)),
    (gpr64::rcx, Word(5)),
    (gpr64::rdx, Word(6)),
    (gpr64::r10, Word(7)),
    (gpr64::r11, Word(8)),
];
/// From here on numbers on the way, then the text that a condition compares.
const FREE: i32 = 9;

/// The stack of the code while it runs.
#[derive(Debug)]
pub(super) struct Frame {
    /// Its size.
    pub(super) bytes: i32,
    /// Bytes between the stack pointer and what it was at the probe.
    depth: i32,
    /// The first word of the copy of a text.
    text: Option<Word>,
    /// What is saved where the code now is.
    saved: Vec<(AsmRegister64, Word)>,
}

impl Frame {
    /// What these captures need, if the stack pointer is `above` bytes lower than at the probe before that.
    pub(super) fn new<'a>(captures: impl Iterator<Item = &'a Capture> + Clone, above: i32) -> Self {
        let numbers = captures.clone().map(numbers).max().unwrap_or(0);
        let conditions = captures.filter_map(|capture| capture.condition.as_ref());
        let compared = conditions.filter_map(Condition::compared).max();
        let text = compared.map(|_| Word(FREE.saturating_add(numbers)));
        let text_words = compared.map_or(0, |bytes| i32::try_from(bytes.div_ceil(4)).unwrap_or(0));
        let bytes = 8 * (FREE.saturating_add(numbers).saturating_add(text_words));
        Self {
            bytes,
            depth: above.saturating_add(bytes),
            text,
            saved: Vec::new(),
        }
    }

    /// Whether a condition compares text.
    pub(super) const fn compares_text(&self) -> bool {
        self.text.is_some()
    }

    /// A number on the way, at one of the levels that [`numbers_of`] counts.
    pub(super) const fn number(level: i32) -> Word {
        Word(FREE.saturating_add(level))
    }

    /// The word `number` of the copy of a text.
    pub(super) fn text(&self, number: i32) -> Word {
        Word(
            self.text
                .map_or(FREE, |Word(first)| first.saturating_add(number)),
        )
    }

    /// Appends the saving of those of these registers that are not saved yet: which those are.
    pub(super) fn emit_save(
        &mut self,
        a: &mut CodeAssembler,
        registers: &[AsmRegister64],
    ) -> Result<Vec<AsmRegister64>, IcedError> {
        let mut new = Vec::new();
        for (register, word) in SAVED {
            let is_new = self.saved.iter().all(|(saved, _)| *saved != register);
            if is_new && registers.contains(&register) {
                a.mov(word.place(), register)?;
                self.saved.push((register, word));
                new.push(register);
            }
        }
        Ok(new)
    }

    /// Appends the restoring of these registers.
    pub(super) fn emit_restore(
        &mut self,
        a: &mut CodeAssembler,
        registers: &[AsmRegister64],
    ) -> Result<(), IcedError> {
        let is_one = |(saved, _): &mut (AsmRegister64, Word)| registers.contains(saved);
        let restored: Vec<_> = self.saved.extract_if(.., is_one).collect();
        restored
            .iter()
            .try_for_each(|(register, word)| a.mov(*register, word.place()))
    }

    /// Loads what a register was at the probe.
    pub(super) fn emit_load(
        &self,
        a: &mut CodeAssembler,
        into: AsmRegister64,
        number: u8,
    ) -> Result<(), IcedError> {
        if number == STACK_POINTER {
            return a.lea(into, ptr(gpr64::rsp + self.depth));
        }
        match self.slot(number) {
            Some(slot) => a.mov(into, slot),
            None => a.mov(into, register(number)),
        }
    }

    /// Where a register was saved, if it was.
    fn slot(&self, number: u8) -> Option<AsmMemoryOperand> {
        let mut saved = self.saved.iter();
        let (_, word) = saved.find(|(saved, _)| register_number(*saved) == number)?;
        Some(word.place())
    }

    /// Loads an operand into rax, as 64 bits of its value.
    pub(super) fn emit_load_operand(
        &self,
        a: &mut CodeAssembler,
        operand: Operand,
        kind: &FieldType,
    ) -> Result<(), IcedError> {
        use gpr64::{rax, rsp};
        let bytes = u8::try_from(kind.bytes()).unwrap_or(8);
        let signed = kind.is_signed();
        let (base, displacement) = match operand {
            Operand::Constant(value) => return load_constant(a, rax, value.cast_unsigned()),
            Operand::Register(STACK_POINTER) => return self.emit_load(a, rax, STACK_POINTER),
            Operand::Register(number) => {
                self.emit_load(a, rax, number)?;
                return extend(a, bytes, signed);
            }
            Operand::Memory { base, displacement } => (base, displacement),
        };
        let place = match (base, self.slot(base)) {
            (STACK_POINTER, _) => rsp + displacement.wrapping_add(self.depth),
            (_, Some(slot)) => {
                a.mov(rax, slot)?;
                rax + displacement
            }
            (_, None) => register(base) + displacement,
        };
        load_extended(a, place, bytes, signed)
    }
}

/// How many numbers are on the way at once, at most.
fn numbers(capture: &Capture) -> i32 {
    let of_value = |source: &Source| match source {
        Source::Operand(_) | Source::Stack { .. } => 0,
        Source::Number(value) => numbers_of(value),
        Source::Bytes { address, .. } => numbers_of(address),
        Source::Text { text, .. } => numbers_of_text(text),
    };
    let values = capture.values.iter().map(|value| of_value(&value.source));
    let condition = capture.condition.iter().map(numbers_of_condition);
    values.chain(condition).max().unwrap_or(0)
}

fn numbers_of_text(text: &Text) -> i32 {
    let length = text.length.as_ref().map_or(0, numbers_of);
    length.max(1 + numbers_of(&text.address))
}

fn numbers_of_condition(condition: &Condition) -> i32 {
    match condition {
        Condition::NonZero(value) => numbers_of(value),
        Condition::TextIs(text, _) => numbers_of_text(text),
        Condition::Not(inner) => numbers_of_condition(inner),
        Condition::All(parts) | Condition::Any(parts) => {
            parts.iter().map(numbers_of_condition).max().unwrap_or(0)
        }
    }
}

/// How many numbers are on the way at once while this is computed.
fn numbers_of(value: &Expression) -> i32 {
    match value {
        Expression::Constant(_) | Expression::Register(_) | Expression::Own(_) => 0,
        Expression::Load { address, .. } => numbers_of(address),
        Expression::Extend { value, .. } => numbers_of(value),
        Expression::Apply(_, left, right) => numbers_of(left).max(1 + numbers_of(right)),
    }
}
