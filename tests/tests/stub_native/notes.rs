//! A routine that stands for one that captures: it notes what it finds, in the order in which it is called.

use insn::asm::registers::gpr64;
use insn::asm::{CodeAssembler, assemble, lea_fixed, qword_ptr};

/// Bytes of a note.
pub const NOTE_BYTES: u64 = 32;

/// What a routine that captures has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    pub function: u32,
    pub is_exit: bool,
    /// The stack pointer when the routine was entered.
    pub rsp: u64,
    pub rax: u64,
    pub rdx: u64,
}

/// A routine at `at` that adds a note to those at `notes`, and changes no register and no flag.
pub fn noting(at: u64, notes: u64, which: u32) -> Vec<u8> {
    use gpr64::{rax, rcx, rdx, rsp};
    let mut a = CodeAssembler::new(64).unwrap();
    let mut add = || {
        a.pushfq()?;
        a.push(rax)?;
        a.push(rcx)?;
        lea_fixed(&mut a, rax, notes)?;
        a.mov(rcx, NOTE_BYTES)?;
        a.lock().xadd(qword_ptr(rax), rcx)?;
        a.lea(rcx, qword_ptr(rax + rcx + NOTE_BYTES))?;
        a.mov(qword_ptr(rcx), which.cast_signed())?;
        a.lea(rax, qword_ptr(rsp + 24))?;
        a.mov(qword_ptr(rcx + 8), rax)?;
        a.mov(rax, qword_ptr(rsp + 8))?;
        a.mov(qword_ptr(rcx + 16), rax)?;
        a.mov(qword_ptr(rcx + 24), rdx)?;
        a.pop(rcx)?;
        a.pop(rax)?;
        a.popfq()?;
        a.ret()
    };
    add().unwrap();
    assemble(&mut a, at).unwrap().bytes
}
