//! The routines that copy bytes and text into the words of a payload.

use insn::asm::AsmRegister64;

use super::{
    CodeLabel, Emitter, IcedError, bind, byte_ptr, dword_ptr, gpr8, gpr32, gpr64, ptr, qword_ptr,
};
use crate::ring::payload::TRUNCATED;

/// What the routines use, beside rax and rcx.
const SAVED: [AsmRegister64; 11] = [
    gpr64::rdx,
    gpr64::rsi,
    gpr64::rdi,
    gpr64::rbx,
    gpr64::rbp,
    gpr64::r8,
    gpr64::r9,
    gpr64::r12,
    gpr64::r13,
    gpr64::r14,
    gpr64::r15,
];
/// Bytes of the source that are left.
const LEFT: AsmRegister64 = gpr64::rbx;
/// The next one, where the guest has it.
const FROM: AsmRegister64 = gpr64::r9;
/// The next one, where the alias shows it.
const SHOWN: AsmRegister64 = gpr64::r13;
/// Bytes that are left on its page.
const ON_PAGE: AsmRegister64 = gpr64::r14;
/// The next word.
const TO: AsmRegister64 = gpr64::r12;
/// The bytes of a word that is put together one by one.
const WORD: AsmRegister64 = gpr64::rbp;
/// How many bits they are.
const BITS: AsmRegister64 = gpr64::r15;

/// What is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copied {
    /// So many bytes.
    Bytes,
    /// Up to a NUL.
    Text,
    /// So many bytes, but no more than there are.
    Mapped,
}

/// Where the parts of a copy lead.
#[derive(Clone, Copy)]
struct CopyLabels {
    /// The next word of four bytes.
    chunk: CodeLabel,
    /// The next word, byte by byte.
    bytes: CodeLabel,
    /// All that was wanted is copied.
    all: CodeLabel,
    /// The text has ended.
    end: CodeLabel,
    /// It cannot be read.
    fault: CodeLabel,
}

impl Emitter<'_> {
    /// The routine that copies.
    pub(super) fn emit_copy(&mut self, of: Copied) -> Result<CodeLabel, IcedError> {
        use gpr64::{r8, r11, rax, rcx};
        let is_text = of == Copied::Text;
        let mut entry = self.a.create_label();
        let [chunk, bytes, all, end, fault] = [(); 5].map(|()| self.a.create_label());
        let to = CopyLabels {
            chunk,
            bytes,
            all,
            end,
            fault,
        };
        self.a.set_label(&mut entry)?;
        self.emit_push(&SAVED)?;
        self.a.mov(FROM, rax)?;
        self.a.mov(LEFT, rcx)?;
        self.a.mov(r8, rcx)?;
        self.a.mov(TO, r11)?;
        self.a.xor(gpr32::r14d, gpr32::r14d)?;
        self.emit_copy_chunks(is_text, to)?;
        self.emit_copy_bytes(is_text, to)?;
        self.emit_copy_end(of, to)?;
        Ok(entry)
    }

    /// As many words of four bytes as there are on a page.
    fn emit_copy_chunks(&mut self, is_text: bool, to: CopyLabels) -> Result<(), IcedError> {
        bind(self.a, to.chunk)?;
        self.a.test(LEFT, LEFT)?;
        self.a.je(to.all)?;
        self.emit_need_page(to.fault)?;
        self.a.cmp(ON_PAGE, 4)?;
        self.a.jb(to.bytes)?;
        self.a.cmp(LEFT, 4)?;
        self.a.jb(to.bytes)?;
        self.a.mov(gpr32::edx, dword_ptr(SHOWN))?;
        self.emit_store(gpr64::rdx)?;
        if is_text {
            self.emit_find_nul(to.end)?;
        }
        self.a.add(SHOWN, 4)?;
        self.a.add(FROM, 4)?;
        self.a.sub(ON_PAGE, 4)?;
        self.a.sub(LEFT, 4)?;
        self.a.jmp(to.chunk)
    }

    /// A word that is not whole, or lies on two pages.
    fn emit_copy_bytes(&mut self, is_text: bool, to: CopyLabels) -> Result<(), IcedError> {
        use gpr64::{rax, rcx};
        let [next_byte, flush] = [(); 2].map(|()| self.a.create_label());
        bind(self.a, to.bytes)?;
        self.a.xor(gpr32::ebp, gpr32::ebp)?;
        self.a.xor(gpr32::r15d, gpr32::r15d)?;
        bind(self.a, next_byte)?;
        self.emit_need_page(to.fault)?;
        self.a.movzx(gpr32::eax, byte_ptr(SHOWN))?;
        if is_text {
            let more = self.a.create_label();
            self.a.test(gpr8::al, gpr8::al)?;
            self.a.jne(more)?;
            // There is room for the word: a byte was left.
            self.emit_store(WORD)?;
            self.a.jmp(to.end)?;
            bind(self.a, more)?;
        }
        self.a.mov(rcx, BITS)?;
        self.a.shl(rax, gpr8::cl)?;
        self.a.or(WORD, rax)?;
        self.a.add(BITS, 8)?;
        self.a.inc(SHOWN)?;
        self.a.inc(FROM)?;
        self.a.dec(ON_PAGE)?;
        self.a.dec(LEFT)?;
        self.a.je(flush)?;
        self.a.cmp(BITS, 32)?;
        self.a.jb(next_byte)?;
        bind(self.a, flush)?;
        self.emit_store(WORD)?;
        self.a.jmp(to.chunk)
    }

    /// What is said of it in the end.
    fn emit_copy_end(&mut self, of: Copied, to: CopyLabels) -> Result<(), IcedError> {
        let is_text = of == Copied::Text;
        bind(self.a, to.all)?;
        self.a.xor(gpr32::edx, gpr32::edx)?;
        if is_text {
            // There is more, unless the next byte is there and NUL.
            let more = self.a.create_label();
            let whole = self.a.create_label();
            self.emit_need_page(more)?;
            self.a.xor(gpr32::edx, gpr32::edx)?;
            self.a.cmp(byte_ptr(SHOWN), 0)?;
            self.a.je(whole)?;
            bind(self.a, more)?;
            self.a.mov(gpr32::edx, TRUNCATED)?;
            bind(self.a, whole)?;
            self.emit_result()?;
            bind(self.a, to.end)?;
            self.a.xor(gpr32::edx, gpr32::edx)?;
        }
        self.emit_result()?;
        bind(self.a, to.fault)?;
        if of == Copied::Mapped {
            // A word that is not whole was not stored.
            self.a.mov(gpr64::rax, gpr64::r8)?;
            self.a.sub(gpr64::rax, LEFT)?;
            self.a.and(gpr64::rax, -4)?;
            self.emit_pop(&SAVED)?;
            self.a.clc()?;
            return self.a.ret();
        }
        self.emit_pop(&SAVED)?;
        self.a.stc()?;
        self.a.ret()
    }

    /// Returns how many bytes were copied, with the bits of rdx.
    fn emit_result(&mut self) -> Result<(), IcedError> {
        use gpr64::{r8, rax, rdx};
        self.a.mov(rax, r8)?;
        self.a.sub(rax, LEFT)?;
        self.a.or(rax, rdx)?;
        self.emit_pop(&SAVED)?;
        self.a.clc()?;
        self.a.ret()
    }

    /// Finds out where the alias shows the next byte, if it is the first one on its page.
    fn emit_need_page(&mut self, fault: CodeLabel) -> Result<(), IcedError> {
        use gpr64::{rax, rcx};
        let known = self.a.create_label();
        self.a.test(ON_PAGE, ON_PAGE)?;
        self.a.jne(known)?;
        self.a.mov(rax, FROM)?;
        self.a.call(self.translate)?;
        self.a.jc(fault)?;
        self.a.mov(SHOWN, rcx)?;
        self.a.mov(gpr32::ecx, gpr32::r9d)?;
        self.a.and(gpr32::ecx, 0xfff)?;
        self.a.mov(gpr32::r14d, 0x1000)?;
        self.a.sub(ON_PAGE, rcx)?;
        bind(self.a, known)
    }

    /// Stores the low half of a register as the next word; changes rax.
    fn emit_store(&mut self, word: AsmRegister64) -> Result<(), IcedError> {
        use gpr64::{r10, rax};
        self.a.mov(rax, word)?;
        self.a.shl(rax, 32)?;
        self.a.or(rax, r10)?;
        self.a.mov(qword_ptr(TO), rax)?;
        self.a.lea(TO, ptr(TO + 8))
    }

    /// Goes to `end`, with the bytes before it taken off those that are left, if there is a NUL in edx; changes rax
    /// and rcx.
    fn emit_find_nul(&mut self, end: CodeLabel) -> Result<(), IcedError> {
        use gpr64::rax;
        let none = self.a.create_label();
        // The lowest bit that is set is that of the first byte which is 0.
        self.a.lea(gpr32::eax, ptr(gpr64::rdx - 0x0101_0101))?;
        self.a.mov(gpr32::ecx, gpr32::edx)?;
        self.a.not(gpr32::ecx)?;
        self.a.and(gpr32::eax, gpr32::ecx)?;
        self.a.and(gpr32::eax, 0x8080_8080u32)?;
        self.a.je(none)?;
        self.a.bsf(gpr32::eax, gpr32::eax)?;
        self.a.shr(gpr32::eax, 3)?;
        self.a.sub(LEFT, rax)?;
        self.a.jmp(end)?;
        bind(self.a, none)
    }
}
