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
//! (`gcc/toplev.cc`), LLVM has `-enable-ipra` off. Functions without a site (`--any`) may be of other code, also
//! by hand: their stubs keep all registers and the flags, at the entry and at the return. Linux' `this_cpu_cmpxchg16b_emu`
//! says by the zero flag whether it has exchanged anything, and its fastops (`arch/x86/kvm/emulate.c`) get flags and give them
//! back. What asks for another convention function by function (`preserve_most`, `no_caller_saved_registers`,
//! `interrupt`) is to be left out by `notrace`, as for Linux' own tracers.

use insn::asm::registers::{gpr8, gpr32, gpr64};
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

/// The registers that a function may change: kept where callers may know that it does not.
pub(super) const CALLERS: [AsmRegister64; 8] = [
    gpr64::rax,
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

/// What lies on the stack while code of a stub runs, and is given back after it.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    registers: Vec<AsmRegister64>,
    has_flags: bool,
}

impl Kept {
    /// These registers.
    pub(super) const fn of(registers: Vec<AsmRegister64>) -> Self {
        Self {
            registers,
            has_flags: false,
        }
    }

    /// These, of which rax is one, and the flags.
    pub(super) const fn with_flags(registers: Vec<AsmRegister64>) -> Self {
        Self {
            registers,
            has_flags: true,
        }
    }

    /// How many words they are.
    pub(super) fn words(&self) -> usize {
        self.registers.len() + usize::from(self.has_flags)
    }

    /// Saves them; rax is another one then if the flags are among them.
    pub(super) fn emit_save(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let mut registers = self.registers.iter();
        registers.try_for_each(|register| a.push(*register))?;
        if self.has_flags {
            emit_take_flags(a)?;
            a.push(gpr64::rax)?;
        }
        Ok(())
    }

    /// Gives them back.
    pub(super) fn emit_restore(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.has_flags {
            a.pop(gpr64::rax)?;
            emit_give_flags(a)?;
        }
        let mut registers = self.registers.iter().rev();
        registers.try_for_each(|register| a.pop(*register))
    }
}

/// The status flags into rax. `popf`, which would give all flags back, takes longer than a record.
pub(super) fn emit_take_flags(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.lahf()?;
    a.seto(gpr8::al)
}

/// The status flags as they are in rax, which is changed.
pub(super) fn emit_give_flags(a: &mut CodeAssembler) -> Result<(), IcedError> {
    // Overflows if the 1 of `seto` is there.
    a.add(gpr8::al, 0x7f)?;
    a.sahf()
}
