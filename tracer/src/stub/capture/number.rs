//! Expressions as code.

use insn::asm::load_constant;
use insn::asm::qword_ptr;
use insn::asm::registers::gpr8;
use insn::operand::extend;
use terms::expression::{Expression, Operator};

use super::frame::{self, Frame};
use super::{AsmRegister64, CaptureCode, FieldType, IcedError, bind, gpr32, gpr64};

/// The part of `value` that makes a difference where only the bytes of `kind` are kept.
pub(super) fn needed<'a>(value: &'a Expression, kind: &FieldType) -> &'a Expression {
    match value {
        Expression::Extend { value, bits, .. } if u16::from(*bits) >= 8 * kind.bytes() => {
            needed(value, kind)
        }
        _ => value,
    }
}

impl CaptureCode<'_> {
    /// Computes into rax; changes rcx. Numbers on the way are kept from `level` on.
    pub(super) fn emit_number(&mut self, value: &Expression, level: i32) -> Result<(), IcedError> {
        match value {
            Expression::Constant(_) | Expression::Register(_) | Expression::Own(_) => {
                self.emit_simple(gpr64::rax, value)
            }
            Expression::Load {
                address,
                bytes,
                signed,
            } => {
                self.emit_number(address, level)?;
                self.emit_load(*bytes, *signed)
            }
            Expression::Extend {
                value,
                bits,
                signed,
            } => {
                self.emit_number(value, level)?;
                self.emit_extend(*bits, *signed)
            }
            Expression::Apply(operator, left, right) => {
                self.emit_operands(left, right, level)?;
                self.emit_apply(*operator)
            }
        }
    }

    /// Loads what needs no computing.
    fn emit_simple(&mut self, into: AsmRegister64, value: &Expression) -> Result<(), IcedError> {
        match value {
            Expression::Constant(value) => load_constant(self.a, into, *value),
            Expression::Register(number) => self.frame.emit_load(self.a, into, *number),
            Expression::Own(distance) => self.a.mov(into, qword_ptr(*distance).gs()),
            Expression::Load { .. } | Expression::Extend { .. } | Expression::Apply(..) => Ok(()),
        }
    }

    /// Computes the left number into rax and the right one into rcx.
    pub(super) fn emit_operands(
        &mut self,
        left: &Expression,
        right: &Expression,
        level: i32,
    ) -> Result<(), IcedError> {
        use gpr64::{rax, rcx};
        if is_simple(right) {
            self.emit_number(left, level)?;
            return self.emit_simple(rcx, right);
        }
        if is_simple(left) {
            self.emit_number(right, level)?;
            self.a.mov(rcx, rax)?;
            return self.emit_simple(rax, left);
        }
        self.emit_number(left, level)?;
        self.a.mov(Frame::number(level).place(), rax)?;
        self.emit_number(right, level.saturating_add(1))?;
        self.a.mov(rcx, rax)?;
        self.a.mov(rax, Frame::number(level).place())
    }

    /// Changes the address in rax to what lies there.
    fn emit_load(&mut self, bytes: u8, signed: bool) -> Result<(), IcedError> {
        let Some(reach) = self.reach else {
            return self.a.jmp(self.fault);
        };
        self.a.call(reach.read(bytes).0)?;
        self.a.jc(self.fault)?;
        if signed {
            extend(self.a, bytes, true)?;
        }
        Ok(())
    }

    fn emit_extend(&mut self, bits: u8, signed: bool) -> Result<(), IcedError> {
        use gpr64::rax;
        match (bits, signed) {
            (8 | 16 | 32, _) => extend(self.a, bits / 8, signed),
            (1..64, _) => {
                let unused = 64 - u32::from(bits);
                self.a.shl(rax, unused)?;
                if signed {
                    self.a.sar(rax, unused)
                } else {
                    self.a.shr(rax, unused)
                }
            }
            _ => Ok(()),
        }
    }

    /// Joins rax and rcx.
    fn emit_apply(&mut self, operator: Operator) -> Result<(), IcedError> {
        use gpr64::{rax, rcx};
        let a = &mut *self.a;
        match operator {
            Operator::Add => a.add(rax, rcx),
            Operator::Subtract => a.sub(rax, rcx),
            Operator::Multiply => a.imul_2(rax, rcx),
            Operator::Divide => self.emit_divide(false, false),
            Operator::DivideSigned => self.emit_divide(true, false),
            Operator::Remainder => self.emit_divide(false, true),
            Operator::RemainderSigned => self.emit_divide(true, true),
            Operator::And => a.and(rax, rcx),
            Operator::Or => a.or(rax, rcx),
            Operator::Xor => a.xor(rax, rcx),
            Operator::ShiftLeft | Operator::ShiftRight => {
                if operator == Operator::ShiftLeft {
                    a.shl(rax, gpr8::cl)?;
                } else {
                    a.shr(rax, gpr8::cl)?;
                }
                // All ones if the distance is below 64.
                a.cmp(rcx, 64)?;
                a.sbb(rcx, rcx)?;
                a.and(rax, rcx)
            }
            Operator::ShiftRightSigned => {
                let near = a.create_label();
                a.cmp(rcx, 63)?;
                a.jbe(near)?;
                a.mov(gpr32::ecx, 63)?;
                bind(a, near)?;
                a.sar(rax, gpr8::cl)
            }
            Operator::Equal
            | Operator::NotEqual
            | Operator::Less
            | Operator::LessOrEqual
            | Operator::LessSigned
            | Operator::LessOrEqualSigned => {
                a.cmp(rax, rcx)?;
                match operator {
                    Operator::Equal => a.sete(gpr8::al)?,
                    Operator::NotEqual => a.setne(gpr8::al)?,
                    Operator::Less => a.setb(gpr8::al)?,
                    Operator::LessOrEqual => a.setbe(gpr8::al)?,
                    Operator::LessSigned => a.setl(gpr8::al)?,
                    _ => a.setle(gpr8::al)?,
                }
                a.movzx(gpr32::eax, gpr8::al)
            }
        }
    }

    fn emit_divide(&mut self, signed: bool, remainder: bool) -> Result<(), IcedError> {
        use gpr64::{rax, rcx, rdx};
        let a = &mut *self.a;
        a.test(rcx, rcx)?;
        a.je(self.fault)?;
        if signed {
            // The smallest number, the only one of which 1 can be taken with an overflow, by -1.
            let fits = a.create_label();
            a.cmp(rcx, -1)?;
            a.jne(fits)?;
            a.cmp(rax, 1)?;
            a.jo(self.fault)?;
            bind(a, fits)?;
        }
        a.mov(frame::KEPT.place(), rdx)?;
        if signed {
            a.cqo()?;
            a.idiv(rcx)?;
        } else {
            a.xor(gpr32::edx, gpr32::edx)?;
            a.div(rcx)?;
        }
        if remainder {
            a.mov(rax, rdx)?;
        }
        a.mov(rdx, frame::KEPT.place())
    }
}

/// Whether it can be loaded at once.
fn is_simple(value: &Expression) -> bool {
    matches!(
        value,
        Expression::Constant(_) | Expression::Register(_) | Expression::Own(_)
    )
}
