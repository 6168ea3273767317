//! A guest that has debug exceptions of its own while our breakpoint is armed.

use insn::asm::registers::dr::dr6;
use insn::asm::registers::gpr32::{eax, r12d};
use insn::asm::registers::gpr64::{r12, r13, rax, rsp};
use insn::asm::{CodeAssembler, IcedError, qword_ptr};
use tests::bare::{self, NOWHERE};
use tests::patience;
use tests::stepped::next_event;
use vmm::devices::console::ConsoleWriter;
use vmm::loader::KernelFile;
use vmm::vcpu::VcpuEventKind;

const VECTOR_DEBUG: i32 = 1;
const TRAP_FLAG: i32 = 0x100;
/// DR6: a single step.
const SINGLE_STEP: i32 = 1 << 14;

/// How often the guest steps.
const STEPS: u8 = 3;

/// Steps over an instruction of its own, several times, and ends with the number of exceptions that it had, and 16 if
/// they were said to be steps. (`int1` would do, but the emulations that the tests run on cannot execute it.)
fn kernel() -> KernelFile {
    bare::kernel(|a: &mut CodeAssembler| -> Result<(), IcedError> {
        let (mut handler, mut begin) = (a.create_label(), a.create_label());
        a.jmp(begin)?;
        a.set_label(&mut handler)?;
        a.inc(r12)?;
        a.mov(rax, dr6)?;
        a.or(r13, rax)?;
        a.and(qword_ptr(rsp + 16), !TRAP_FLAG)?;
        a.iretq()?;
        a.set_label(&mut begin)?;
        bare::handle(a, VECTOR_DEBUG, handler)?;
        a.xor(r12, r12)?;
        a.xor(r13, r13)?;
        for _ in 0..STEPS {
            a.pushfq()?;
            a.or(qword_ptr(rsp), TRAP_FLAG)?;
            a.popfq()?;
            a.nop()?;
        }
        a.mov(rax, r13)?;
        a.shr(eax, SINGLE_STEP.trailing_zeros() - 4)?;
        a.and(eax, 16)?;
        a.or(eax, r12d)?;
        bare::end(a)
    })
}

#[test]
fn debug_exceptions_of_the_guest_s_own_are_its_own() {
    let kernel = kernel();
    for armed in [None, Some(NOWHERE)] {
        let console = ConsoleWriter::start(std::io::sink()).unwrap();
        let mut machine = bare::machine(&kernel, &console);
        machine.set_breakpoint(armed).unwrap();
        machine.start().unwrap();
        assert_eq!(
            next_event(&machine),
            VcpuEventKind::GuestExit(16 | STEPS),
            "armed: {armed:?}"
        );
        drop(machine);
        console.finish(patience()).unwrap();
    }
}
