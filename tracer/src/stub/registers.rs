//! Which registers stubs use, and which of them they give back.
//!
//! *At a site* r11 and the flags are nobody's: the calling convention leaves them to whatever
//! stands between call and function (System V x86-64 ABI §3.2.3, §5.2), as it does in Linux' own
//! `ftrace_caller` and in glibc's `mcount`. All others are the function's, rax (how many vector
//! registers hold variable arguments) and r10 (the static chain) included.
//!
//! *At a return* the caller wants rax and rdx, rcx where LLVM returns three words, and what every
//! function keeps. r8 to r11, rsi and rdi are free, as in Linux' `return_to_handler`.
//!
//! Both hold as long as callers know nothing of a function but its type. Code with patch sites is
//! compiled so: gcc turns `-fipa-ra` off for `-pg` and for `-fpatchable-function-entry`
//! (`gcc/toplev.cc`), LLVM has `-enable-ipra` off. Functions without a site (`--any`) may be of other code: their
//! stubs keep all registers, at the entry and at the return, and only the flags are nobody's. What asks for another convention function by
//! function (`preserve_most`, `no_caller_saved_registers`, `interrupt`) is to be left out by
//! `notrace`, as for Linux' own tracers.

use insn::asm::registers::{gpr32, gpr64};
use insn::asm::{AsmRegister32, AsmRegister64, CodeAssembler, IcedError};

/// Nobody's, at a site as at a return: here it is the head word, then a part of the record's place.
pub(super) const HEAD: AsmRegister64 = gpr64::r11;
/// The lower half of [`HEAD`].
pub(super) const HEAD_LOW: AsmRegister32 = gpr32::r11d;

/// Other registers that the code of a record may change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scratch {
    /// The lap mark, then the other part.
    pub(super) mark: AsmRegister64,
    /// The time, then the record.
    pub(super) record: AsmRegister64,
    /// The stack slot's address, then the detail.
    pub(super) detail: AsmRegister64,
    /// Reaches the cell where no displacement does.
    pub(super) base: AsmRegister64,
    /// Keep rax and rdx while `rdtsc` changes them, where those are not free.
    pub(super) kept: Option<[AsmRegister64; 2]>,
}

/// At a site, where they have to be saved.
pub(super) const ENTRY: Scratch = Scratch {
    mark: gpr64::rax,
    record: gpr64::rdx,
    detail: gpr64::rcx,
    base: gpr64::r10,
    kept: None,
};

/// At a return.
pub(super) const EXIT: Scratch = Scratch {
    mark: gpr64::r8,
    record: gpr64::r10,
    detail: gpr64::r9,
    base: gpr64::rdi,
    kept: Some([gpr64::rsi, gpr64::r8]),
};

/// The registers that a function may change and that return nothing: kept where callers may know that it does not.
pub(super) const CALLERS: [AsmRegister64; 7] = [
    gpr64::rcx,
    gpr64::rsi,
    gpr64::rdi,
    gpr64::r8,
    gpr64::r9,
    gpr64::r10,
    gpr64::r11,
];

/// What a record of a function session uses of them.
pub(super) const RECORDING: [AsmRegister64; 2] = [ENTRY.mark, ENTRY.record];

/// Pushes `registers`.
pub(super) fn emit_save(
    a: &mut CodeAssembler,
    registers: &[AsmRegister64],
) -> Result<(), IcedError> {
    registers.iter().try_for_each(|register| a.push(*register))
}

/// Gives `registers` back.
pub(super) fn emit_restore(
    a: &mut CodeAssembler,
    registers: &[AsmRegister64],
) -> Result<(), IcedError> {
    registers
        .iter()
        .rev()
        .try_for_each(|register| a.pop(*register))
}
