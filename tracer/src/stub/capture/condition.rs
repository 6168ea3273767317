//! Conditions as code.

use terms::expression::{Expression, Operator};

use super::{CaptureCode, CodeLabel, IcedError, bind, gpr64};
use crate::capture::Condition;

impl CaptureCode<'_> {
    /// Goes to `skip` unless the condition holds; changes rax and rcx.
    pub(super) fn emit_unless(
        &mut self,
        condition: &Condition,
        skip: CodeLabel,
    ) -> Result<(), IcedError> {
        self.emit_branch(condition, skip, false)
    }

    /// Goes to `to` if the condition is `wanted`, and on if not.
    fn emit_branch(
        &mut self,
        condition: &Condition,
        to: CodeLabel,
        wanted: bool,
    ) -> Result<(), IcedError> {
        match condition {
            Condition::NonZero(value) => self.emit_branch_number(value, to, wanted),
            Condition::TextIs(text, bytes) => self.emit_branch_text(text, bytes, to, wanted),
            Condition::Not(inner) => self.emit_branch(inner, to, !wanted),
            Condition::All(parts) => self.emit_branch_first(parts, to, wanted, false),
            Condition::Any(parts) => self.emit_branch_first(parts, to, wanted, true),
        }
    }

    /// Looks at the parts up to the first that is `deciding`: then the whole is, and else it is not.
    fn emit_branch_first(
        &mut self,
        parts: &[Condition],
        to: CodeLabel,
        wanted: bool,
        deciding: bool,
    ) -> Result<(), IcedError> {
        if wanted == deciding {
            return parts
                .iter()
                .try_for_each(|part| self.emit_branch(part, to, deciding));
        }
        let decided = self.a.create_label();
        for part in parts {
            self.emit_branch(part, decided, deciding)?;
        }
        self.a.jmp(to)?;
        bind(self.a, decided)
    }

    fn emit_branch_number(
        &mut self,
        value: &Expression,
        to: CodeLabel,
        wanted: bool,
    ) -> Result<(), IcedError> {
        use Operator::{Equal, Less, LessOrEqual, LessOrEqualSigned, LessSigned, NotEqual};
        use gpr64::{rax, rcx};
        if let Expression::Apply(
            operator @ (Equal | NotEqual | Less | LessOrEqual | LessSigned | LessOrEqualSigned),
            left,
            right,
        ) = value
        {
            self.emit_operands(left, right, 0)?;
            self.a.cmp(rax, rcx)?;
            return match (operator, wanted) {
                (Equal, true) | (NotEqual, false) => self.a.je(to),
                (Equal, false) | (NotEqual, true) => self.a.jne(to),
                (Less, true) => self.a.jb(to),
                (Less, false) => self.a.jae(to),
                (LessOrEqual, true) => self.a.jbe(to),
                (LessOrEqual, false) => self.a.ja(to),
                (LessSigned, true) => self.a.jl(to),
                (LessSigned, false) => self.a.jge(to),
                (_, true) => self.a.jle(to),
                (_, false) => self.a.jg(to),
            };
        }
        self.emit_number(value, 0)?;
        self.a.test(rax, rax)?;
        if wanted {
            self.a.jne(to)
        } else {
            self.a.je(to)
        }
    }
}
