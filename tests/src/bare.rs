//! A machine of the `vmm` library whose kernel is nothing but a few instructions of ring 0, for what no kernel
//! with a purpose of its own does.

use insn::asm::{
    CodeAssembler, CodeLabel, IcedError, dword_ptr, ptr, qword_ptr, registers, word_ptr,
};
use terms::addr::Gva;
use vmm::devices::console::ConsoleWriter;
use vmm::layout;
use vmm::loader::KernelFile;
use vmm::machine::{Machine, MachineConfig};

use crate::elf::{Kernels, bare};

/// Where the code is, and where it runs: memory is mapped at its own address.
pub const CODE: u64 = 0x100_0000;
/// Where the code begins in the file.
pub const CODE_IN_FILE: u64 = 0x1000;
/// Memory of the code's own: some MiB from here on are zero.
pub const DATA: i32 = 0x20_0000;
/// The code is filled up to this size, so that a breakpoint can be armed where it never comes.
const CODE_BYTES: usize = 0x1000;
/// An address in the code at which nothing is.
pub const NOWHERE: Gva = Gva(0xffff_ffff_8100_0f00);
const NOWHERE_IN_CODE: usize = 0xf00;
/// Code segment of the boot protocol.
const CODE_SELECTOR: i32 = 0x10;

const STACK_TOP: u64 = 0x30_0000;
const IDT: i32 = 0x1f_0000;
const IDT_POINTER: i32 = 0x1e_f000;

/// A kernel that `write` writes, with a stack.
///
/// # Panics
/// When that is no code.
#[must_use]
pub fn kernel(write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> KernelFile {
    let code = assemble(write).expect("code");
    let folder = Kernels::new();
    let mut file = code;
    assert!(file.len() < NOWHERE_IN_CODE);
    file.resize(CODE_BYTES, 0xcc);
    let path = folder.write("bare.elf", &bare(&file));
    KernelFile::read(&path).expect("the kernel")
}

fn assemble(
    write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    a.mov(registers::gpr64::rsp, STACK_TOP)?;
    write(&mut a)?;
    a.assemble(CODE)
}

/// Makes `handler` what an exception leads to.
///
/// # Errors
/// What iced-x86 says.
pub fn handle(a: &mut CodeAssembler, vector: i32, handler: CodeLabel) -> Result<(), IcedError> {
    use registers::gpr16::ax;
    use registers::gpr32::eax;
    use registers::gpr64::{rax, rdi};
    let gate = IDT + 16 * vector;
    a.lea(rax, ptr(handler))?;
    a.mov(rdi, i64::from(gate))?;
    a.mov(word_ptr(rdi), ax)?;
    a.mov(word_ptr(rdi + 2), CODE_SELECTOR)?;
    a.mov(word_ptr(rdi + 4), 0x8e00_i32)?;
    a.shr(rax, 16)?;
    a.mov(word_ptr(rdi + 6), ax)?;
    a.shr(rax, 16)?;
    a.mov(dword_ptr(rdi + 8), eax)?;
    a.mov(rdi, i64::from(IDT_POINTER))?;
    a.mov(word_ptr(rdi), 0xfff_i32)?;
    a.mov(qword_ptr(rdi + 2), IDT)?;
    a.lidt(ptr(rdi))
}

/// Ends the guest with the low byte of `rax` as its status.
///
/// # Errors
/// What iced-x86 says.
pub fn end(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.out(i32::from(layout::EXIT_PORT), registers::gpr8::al)?;
    a.hlt()
}

/// A machine that runs `kernel`; not started yet.
///
/// # Panics
/// When it cannot be built.
#[must_use]
pub fn machine(kernel: &KernelFile, console: &ConsoleWriter) -> Machine {
    let config = MachineConfig {
        initrd: None,
        cmdline: String::new(),
        vcpus: 1,
        memory_mib: 64,
        window_bytes: layout::WINDOW_SIZE,
        nested: false,
        host_events: false,
    };
    Machine::build(&config, kernel, console.queue()).expect("the machine is built")
}
