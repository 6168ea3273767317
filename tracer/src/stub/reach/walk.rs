//! The walk of the guest's page tables in machine code.
//!
//! ```text
//!     address canonical?
//!     table = CR3 or a constant
//!     each level:  table in RAM?  entry = alias of table [index]   present?   large?
//!     byte in RAM?  its alias
//! ```
//!
//! Layout of the entries: AMD64 Architecture Programmer's Manual vol. 2, §5.3. Each level is code of its own, for its shifts
//! are constants then.

use insn::asm::AsmRegister64;
use insn::asm::registers::cr;

use super::{CodeLabel, Emitter, IcedError, bind, gpr32, gpr64, ptr, qword_ptr};
use crate::paging::{ADDRESS_MASK, bits};
use crate::window::shown::Root;

impl Emitter<'_> {
    /// The walk as a routine: rcx becomes where the alias shows the byte at rax, or carry is set. Changes rdx, rsi and
    /// rdi.
    pub(super) fn emit_translate(&mut self) -> Result<(), IcedError> {
        let fault = self.a.create_label();
        bind(self.a, self.translate)?;
        self.emit_walk(fault)?;
        self.a.clc()?;
        self.a.ret()?;
        bind(self.a, fault)?;
        self.a.stc()?;
        self.a.ret()
    }

    /// Leaves in rcx where the alias shows the byte at rax, or goes to `fault`. Changes rdx, rsi and rdi.
    pub(super) fn emit_walk(&mut self, fault: CodeLabel) -> Result<(), IcedError> {
        use gpr64::{rax, rcx, rdi, rdx, rsi};
        let levels = u32::from(self.memory.levels);
        let unused = 64 - (12 + 9 * levels);
        self.a.mov(rdx, rax)?;
        self.a.shl(rdx, unused)?;
        self.a.sar(rdx, unused)?;
        self.a.cmp(rdx, rax)?;
        self.a.jne(fault)?;
        match self.memory.root {
            Root::Cr3 => self.a.mov(rdx, cr::cr3)?,
            Root::Table(table) => self.a.mov(rdx, table.0)?,
        }
        let found = self.a.create_label();
        let large = [self.a.create_label(), self.a.create_label()];
        for level in (1..=levels).rev() {
            self.a.mov(rdi, ADDRESS_MASK)?;
            self.a.and(rdx, rdi)?;
            self.emit_alias(rdx, fault)?;
            self.a.mov(rsi, rax)?;
            self.a.shr(rsi, 12 + 9 * (level - 1))?;
            self.a.and(gpr32::esi, 0x1ff)?;
            self.a.mov(rdx, qword_ptr(rdx + rsi * 8))?;
            self.a.test(gpr32::edx, low(bits::PRESENT))?;
            self.a.je(fault)?;
            if level > 1 {
                self.a.test(gpr32::edx, low(bits::LARGE))?;
                let [of_2m, of_1g] = large;
                self.a.jne(match level {
                    2 => of_2m,
                    3 => of_1g,
                    _ => fault,
                })?;
            }
        }
        self.emit_byte(12)?;
        self.a.jmp(found)?;
        for (label, shift) in large.into_iter().zip([21, 30]) {
            bind(self.a, label)?;
            self.emit_byte(shift)?;
            if shift == 21 {
                self.a.jmp(found)?;
            }
        }
        bind(self.a, found)?;
        self.emit_alias(rcx, fault)
    }

    /// Leaves in rcx where the byte at rax lies, on the page of `1 << shift` bytes that the entry in rdx maps; changes
    /// rdx and rdi.
    fn emit_byte(&mut self, shift: u32) -> Result<(), IcedError> {
        use gpr64::{rax, rcx, rdi, rdx};
        let inside = (1u64 << shift) - 1;
        self.a.mov(rdi, ADDRESS_MASK & !inside)?;
        self.a.and(rdx, rdi)?;
        self.a.mov(rcx, rax)?;
        self.a.and(rcx, low(inside))?;
        self.a.or(rcx, rdx)
    }

    /// Changes a physical address to where the alias shows it, or goes to `fault` if it is not that of RAM. Changes rsi
    /// and rdi.
    fn emit_alias(&mut self, physical: AsmRegister64, fault: CodeLabel) -> Result<(), IcedError> {
        use gpr64::{rdi, rsi};
        let found = self.a.create_label();
        for shown in &self.memory.ram {
            let next = self.a.create_label();
            self.a.mov(rdi, physical)?;
            if shown.start.0 != 0 {
                self.a.mov(rsi, shown.start.0)?;
                self.a.sub(rdi, rsi)?;
            }
            self.a.mov(rsi, shown.bytes)?;
            self.a.cmp(rdi, rsi)?;
            self.a.jae(next)?;
            self.a.mov(rsi, shown.at.0)?;
            self.a.lea(physical, ptr(rdi + rsi))?;
            self.a.jmp(found)?;
            bind(self.a, next)?;
        }
        self.a.jmp(fault)?;
        bind(self.a, found)
    }
}

/// Bits below 31 as an operand.
fn low(bits: u64) -> i32 {
    i32::try_from(bits).unwrap_or(i32::MAX)
}
