//! What the code of a probe keeps on the stack: registers that it changes, and numbers on the way.

use insn::asm::AsmMemoryOperand;
use insn::operand::register;
use terms::expression::Expression;

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
/// What is saved at once.
const FIRST: [(AsmRegister64, Word); 2] = [(gpr64::rax, Word(4)), (gpr64::rcx, Word(5))];
/// What is saved when there is something to record.
const SECOND: [(AsmRegister64, Word); 3] = [
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
    /// Whether [`SECOND`] are saved now.
    is_second_saved: bool,
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
            is_second_saved: false,
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

    /// Appends the saving of what every part of the code changes.
    pub(super) fn emit_save_first(a: &mut CodeAssembler) -> Result<(), IcedError> {
        FIRST
            .iter()
            .try_for_each(|(register, word)| a.mov(word.place(), *register))
    }

    /// Appends the restoring of it.
    pub(super) fn emit_restore_first(a: &mut CodeAssembler) -> Result<(), IcedError> {
        FIRST
            .iter()
            .try_for_each(|(register, word)| a.mov(*register, word.place()))
    }

    /// Appends the saving of what a record changes.
    pub(super) fn emit_save_second(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        self.is_second_saved = true;
        SECOND
            .iter()
            .try_for_each(|(register, word)| a.mov(word.place(), *register))
    }

    /// Appends the restoring of it.
    pub(super) fn emit_restore_second(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        self.is_second_saved = false;
        SECOND
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
        let second: &[_] = if self.is_second_saved { &SECOND } else { &[] };
        let mut saved = FIRST.iter().chain(second);
        match saved.find(|(saved, _)| register_number(*saved) == number) {
            Some((_, word)) => a.mov(into, word.place()),
            None => a.mov(into, register(number)),
        }
    }
}

/// How many numbers are on the way at once, at most.
fn numbers(capture: &Capture) -> i32 {
    let of_value = |source: &Source| match source {
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
        Expression::Constant(_) | Expression::Register(_) => 0,
        Expression::Load { address, .. } => numbers_of(address),
        Expression::Extend { value, .. } => numbers_of(value),
        Expression::Apply(_, left, right) => numbers_of(left).max(1 + numbers_of(right)),
    }
}
