//! How code reads the guest's memory without a fault, whatever is mapped there: routines that stubs call.
//!
//! They never use the guest's own mapping of an address, which can be taken away at any time. They walk the guest's page
//! tables (`walk`), and read tables and data through the [alias](crate::window::alias), which nobody takes away. What
//! they find there may be old; where they look is always memory.
//!
//! One exception makes locals cheap: what lies on the page of the stack pointer is there, because the code has
//! just stored something on it.

mod copy;
mod walk;

use copy::Copied;
use insn::asm::registers::{gpr8, gpr32, gpr64};
use insn::asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, CodeLabel, IcedError, assemble_entries, bind,
    byte_ptr, dword_ptr, ptr, qword_ptr, word_ptr,
};
use terms::addr::Gva;

use super::template::StubError;
use crate::paging::PAGE_4K;
use crate::window::shown::GuestMemory;

/// Where the routines are that stubs call to read the guest's memory. All of them leave every register alone but
/// those that they are said to change, and the flags; carry says that there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reach {
    /// For 1, 2, 4 and 8 bytes: changes the address in rax to the number that lies there, without sign; changes
    /// rcx.
    read: [Gva; 4],
    /// Copies the rcx bytes at rax into the words from r11 on, four into the upper half of each; the lower half
    /// becomes r10. Leaves in rax how many those were; changes rcx.
    pub copy: Gva,
    /// The same up to a NUL, which is not copied: rcx is the most that are. [`TRUNCATED`](crate::ring::payload::TRUNCATED) is
    /// set in rax when there is more.
    pub copy_text: Gva,
    /// As `copy`, up to where nothing is mapped: that is no fault.
    pub copy_mapped: Gva,
    /// Puts return addresses in the place of those of our hooks in what was copied ([`Mirror`](super::mirror::Mirror)), once somebody copies stacks.
    pub own_returns: Option<Gva>,
}

impl Reach {
    /// The routine that reads so many bytes.
    #[must_use]
    pub const fn read(&self, bytes: u8) -> Gva {
        let [one, two, four, eight] = self.read;
        match bytes {
            1 => one,
            2 => two,
            4 => four,
            _ => eight,
        }
    }
}

/// The code of the routines; it can lie anywhere.
#[derive(Debug, Clone)]
pub struct Routines {
    /// The code.
    pub bytes: Vec<u8>,
    /// Where each begins, in the order of [`Reach`].
    entries: Vec<u64>,
}

/// Where the routines are assembled to: they refer to nothing outside.
const BASE: u64 = 0x1_0000;

impl Routines {
    /// The routines for this guest.
    ///
    /// # Errors
    /// [`StubError::Assemble`].
    pub fn new(memory: &GuestMemory) -> Result<Self, StubError> {
        let mut a = CodeAssembler::new(64)?;
        let mut routines = Emitter {
            translate: a.create_label(),
            a: &mut a,
            memory,
        };
        let mut labels = Vec::new();
        for bytes in [1, 2, 4, 8] {
            labels.push(routines.emit_read(bytes)?);
        }
        for of in [Copied::Bytes, Copied::Text, Copied::Mapped] {
            labels.push(routines.emit_copy(of)?);
        }
        routines.emit_translate()?;
        let (bytes, entries) = assemble_entries(&mut a, BASE, &labels)?;
        Ok(Self { bytes, entries })
    }

    /// Where stubs find them when they lie at `at`.
    #[must_use]
    pub fn at(&self, at: Gva) -> Reach {
        let entry = |number: usize| {
            let entry = self.entries.get(number).copied().unwrap_or(BASE);
            at.wrapping_add(entry.wrapping_sub(BASE))
        };
        Reach {
            read: [entry(0), entry(1), entry(2), entry(3)],
            copy: entry(4),
            copy_text: entry(5),
            copy_mapped: entry(6),
            own_returns: None,
        }
    }
}

/// The routines while they are written.
struct Emitter<'a> {
    a: &'a mut CodeAssembler,
    memory: &'a GuestMemory,
    /// A walk that is called.
    translate: CodeLabel,
}

impl Emitter<'_> {
    /// The routine that reads `bytes`.
    fn emit_read(&mut self, bytes: u8) -> Result<CodeLabel, IcedError> {
        use gpr64::{rax, rcx, rdi, rdx, rsi, rsp};
        let mut entry = self.a.create_label();
        let walk = self.a.create_label();
        let crossing = self.a.create_label();
        let fault = self.a.create_label();
        // The last place on a page at which so much can lie.
        let last = i32::try_from(PAGE_4K - u64::from(bytes)).unwrap_or_default();
        self.a.set_label(&mut entry)?;
        self.a.mov(gpr32::ecx, gpr32::eax)?;
        self.a.and(gpr32::ecx, 0xfff)?;
        self.a.cmp(gpr32::ecx, last)?;
        self.a.ja(crossing)?;
        self.a.mov(rcx, rax)?;
        self.a.xor(rcx, rsp)?;
        self.a.cmp(rcx, 0xfff)?;
        self.a.ja(walk)?;
        self.emit_number(ptr(rax), bytes)?;
        self.a.clc()?;
        self.a.ret()?;

        bind(self.a, walk)?;
        self.emit_push(&[rdx, rsi, rdi])?;
        self.emit_walk(fault)?;
        self.emit_number(ptr(rcx), bytes)?;
        self.emit_pop(&[rdx, rsi, rdi])?;
        self.a.clc()?;
        self.a.ret()?;
        bind(self.a, fault)?;
        self.emit_pop(&[rdx, rsi, rdi])?;
        self.a.stc()?;
        self.a.ret()?;

        bind(self.a, crossing)?;
        self.emit_read_crossing(bytes)?;
        Ok(entry)
    }

    /// Reads a number that lies on two pages, byte by byte from the last one on.
    fn emit_read_crossing(&mut self, bytes: u8) -> Result<(), IcedError> {
        use gpr64::{r8, r9, r12, rax, rcx, rdi, rdx, rsi};
        let saved = [rdx, rsi, rdi, r8, r9, r12];
        let next = self.a.create_label();
        let fault = self.a.create_label();
        self.emit_push(&saved)?;
        self.a.mov(r12, rax)?;
        self.a.mov(gpr32::r9d, i32::from(bytes) - 1)?;
        self.a.xor(gpr32::r8d, gpr32::r8d)?;
        bind(self.a, next)?;
        self.a.lea(rax, ptr(r12 + r9))?;
        self.a.call(self.translate)?;
        self.a.jc(fault)?;
        self.a.movzx(gpr32::ecx, byte_ptr(rcx))?;
        self.a.shl(r8, 8)?;
        self.a.or(r8, rcx)?;
        self.a.dec(r9)?;
        self.a.jns(next)?;
        self.a.mov(rax, r8)?;
        self.emit_pop(&saved)?;
        self.a.clc()?;
        self.a.ret()?;
        bind(self.a, fault)?;
        self.emit_pop(&saved)?;
        self.a.stc()?;
        self.a.ret()
    }

    /// Loads `bytes` into rax.
    fn emit_number(&mut self, from: AsmMemoryOperand, bytes: u8) -> Result<(), IcedError> {
        match bytes {
            1 => self.a.movzx(gpr32::eax, byte_ptr(from)),
            2 => self.a.movzx(gpr32::eax, word_ptr(from)),
            4 => self.a.mov(gpr32::eax, dword_ptr(from)),
            _ => self.a.mov(gpr64::rax, qword_ptr(from)),
        }
    }

    fn emit_push(&mut self, registers: &[AsmRegister64]) -> Result<(), IcedError> {
        registers
            .iter()
            .try_for_each(|register| self.a.push(*register))
    }

    /// Takes them back; leaves the flags alone.
    fn emit_pop(&mut self, registers: &[AsmRegister64]) -> Result<(), IcedError> {
        registers
            .iter()
            .rev()
            .try_for_each(|register| self.a.pop(*register))
    }
}
