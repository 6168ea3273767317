//! Calls a function with every register set, and sees every register that comes back.

use std::arch::global_asm;
use std::sync::Mutex;

use crate::bound::Bound;

/// The registers that a stub must leave alone.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    /// rax, rbx, rcx, rdx, rsi, rdi, rbp, r8 … r15.
    pub general: [u64; 15],
    /// Stack pointer.
    pub rsp: u64,
    /// xmm0 … xmm15.
    pub xmm: [[u64; 2]; 16],
    /// Floating-point modes.
    pub mxcsr: u64,
    /// The status flags, [`STATUS_FLAGS`].
    pub flags: u64,
}

/// Carry, parity, adjust, zero, sign, overflow.
pub const STATUS_FLAGS: u64 = 0x8d5;

global_asm!(
    ".pushsection .bss",
    ".balign 64",
    "exotrace_in: .skip 448",
    "exotrace_out: .skip 448",
    "exotrace_own_rsp: .skip 8",
    "exotrace_target: .skip 8",
    "exotrace_own_mxcsr: .skip 8",
    ".globl exotrace_in, exotrace_out, exotrace_target",
    ".popsection",
    ".globl exotrace_call",
    "exotrace_call:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "stmxcsr [rip + exotrace_own_mxcsr]",
    "mov [rip + exotrace_own_rsp], rsp",
    "ldmxcsr [rip + exotrace_in + 384]",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movdqu xmm\\n, [rip + exotrace_in + 128 + 16 * \\n]",
    ".endr",
    "push [rip + exotrace_in + 392]",
    "popfq",
    "mov rax, [rip + exotrace_in]",
    "mov rbx, [rip + exotrace_in + 8]",
    "mov rcx, [rip + exotrace_in + 16]",
    "mov rdx, [rip + exotrace_in + 24]",
    "mov rsi, [rip + exotrace_in + 32]",
    "mov rdi, [rip + exotrace_in + 40]",
    "mov rbp, [rip + exotrace_in + 48]",
    ".irp n, 8, 9, 10, 11, 12, 13, 14, 15",
    "mov r\\n, [rip + exotrace_in + 56 + 8 * (\\n - 8)]",
    ".endr",
    "mov rsp, [rip + exotrace_in + 120]",
    "jmp [rip + exotrace_target]",
    // The return address on the stack of the function leads here.
    ".globl exotrace_returned",
    "exotrace_returned:",
    "mov [rip + exotrace_out], rax",
    "mov [rip + exotrace_out + 8], rbx",
    "mov [rip + exotrace_out + 16], rcx",
    "mov [rip + exotrace_out + 24], rdx",
    "mov [rip + exotrace_out + 32], rsi",
    "mov [rip + exotrace_out + 40], rdi",
    "mov [rip + exotrace_out + 48], rbp",
    ".irp n, 8, 9, 10, 11, 12, 13, 14, 15",
    "mov [rip + exotrace_out + 56 + 8 * (\\n - 8)], r\\n",
    ".endr",
    "mov [rip + exotrace_out + 120], rsp",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movdqu [rip + exotrace_out + 128 + 16 * \\n], xmm\\n",
    ".endr",
    "stmxcsr [rip + exotrace_out + 384]",
    "mov rsp, [rip + exotrace_own_rsp]",
    "pushfq",
    "pop rax",
    "and eax, 0x8d5",
    "mov [rip + exotrace_out + 392], rax",
    "ldmxcsr [rip + exotrace_own_mxcsr]",
    "cld",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
);

unsafe extern "C" {
    static mut exotrace_in: Registers;
    static mut exotrace_out: Registers;
    static mut exotrace_target: u64;
    fn exotrace_call();
    fn exotrace_returned();
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The address that must be on top of the stack of the function that is called.
pub fn return_address() -> u64 {
    exotrace_returned as *const () as u64
}

/// Calls `target` with these registers; the registers as they are when it has returned.
///
/// # Safety
/// `target` must be code that returns to what is on top of the stack, and `registers.rsp` must point
/// to [`return_address`] in writable memory with room below.
pub unsafe fn call(target: u64, registers: &Registers) -> Registers {
    let _guard = ONE_AT_A_TIME.lock().unwrap();
    let (to, target_word, from) = (
        &raw mut exotrace_in,
        &raw mut exotrace_target,
        &raw const exotrace_out,
    );
    let flags = registers.flags & STATUS_FLAGS;
    let registers = Registers {
        flags,
        ..*registers
    };
    // SAFETY: the guard makes this thread the only user of the statics.
    unsafe { to.write(registers) };
    // SAFETY: as above.
    unsafe { target_word.write(target) };
    let bound = Bound::begin();
    // SAFETY: the caller vouches for target and stack; the assembler keeps the C calling convention.
    unsafe { exotrace_call() };
    drop(bound);
    // SAFETY: the guard makes this thread the only user of the statics.
    unsafe { from.read() }
}
