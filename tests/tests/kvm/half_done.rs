//! Pauses in the middle of accesses that take the host several steps: string I/O, and MMIO over two pages. A
//! vCPU parks between two instructions, and what arrives on either side is what was sent.
//!
//! Drives the `vmm` library with kernels of a few instructions, which do nothing else.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use insn::asm::registers::{gpr8, gpr16, gpr32, gpr64};
use insn::asm::{AsmRegister64, CodeAssembler, IcedError, byte_ptr, dword_ptr, qword_ptr};
use terms::addr::Gpa;
use tests::bare::{self, CODE, DATA};
use tests::{Random, patience, scaled};
use tracer::target::PhysicalMemory;
use tracer::target::TextMemory;
use vmm::devices::console::ConsoleWriter;
use vmm::layout::{MIB, SERIAL_PORT};
use vmm::loader::KernelFile;
use vmm::machine::Machine;
use vmm::vcpu::{FullRegisters, VcpuEventKind};

/// The end of the memory of `bare::machine`: what lies there is half memory, half nothing.
const EDGE: u64 = 64 * MIB;

/// Keeps what the guest prints.
#[derive(Debug, Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Pauses the machine again and again, at random moments, until its guest has ended; `look` sees the
/// registers in each pause. How many pauses there were, and the guest's status.
fn pause_until_it_ends(machine: &Machine, mut look: impl FnMut(&FullRegisters)) -> (u32, u8) {
    let mut random = Random::new();
    let mut pauses = 0;
    loop {
        match machine.events().next().map(|event| event.kind) {
            Some(VcpuEventKind::GuestExit(status)) => return (pauses, status),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        let quiesced = machine.quiesce(patience()).unwrap();
        look(&quiesced.full_registers()[0]);
        drop(quiesced);
        pauses += 1;
        for _ in 0..random.next_u64() % 20_000 {
            std::hint::spin_loop();
        }
    }
}

/// Runs a kernel with these bytes of input, of which each pause sees how many are left; its memory at the end,
/// what it has printed, and its status.
fn run(
    kernel: &KernelFile,
    data: &[u8],
    input: &[u8],
    mut look: impl FnMut(&FullRegisters, usize),
) -> (Vec<u8>, Vec<u8>, u8) {
    let printed = Printed::default();
    let console = ConsoleWriter::start(printed.clone()).unwrap();
    let mut machine = bare::machine(kernel, &console);
    let memory = machine.memory().clone();
    let at = Gpa(u64::try_from(DATA).unwrap());
    let mut unstarted = machine.before_start().unwrap();
    unstarted.write_physical(at, data).unwrap();
    machine.ports().console_input(input);
    machine.start().unwrap();
    let ports = machine.ports();
    let (pauses, status) =
        pause_until_it_ends(&machine, |registers| look(registers, ports.unread_input()));
    println!("{pauses} pauses");
    let mut left = vec![0; input.len().max(1)];
    memory.read_physical(at, &mut left).unwrap();
    drop(machine);
    console.finish(patience()).unwrap();
    let text = printed.0.lock().unwrap().clone();
    (left, text, status)
}

/// Bytes of which none is like its neighbours.
fn pattern(length: usize) -> Vec<u8> {
    let mut random = Random::new();
    (0..length)
        .map(|_| random.next_u64().to_le_bytes()[0])
        .collect()
}

/// rcx bytes at the start of the data come next.
fn at_data(a: &mut CodeAssembler, register: AsmRegister64, count: usize) -> Result<(), IcedError> {
    a.cld()?;
    a.mov(register, i64::from(DATA))?;
    a.mov(gpr64::rcx, count as u64)?;
    a.mov(gpr16::dx, u32::from(SERIAL_PORT))
}

#[test]
fn what_a_string_output_prints_arrives_once_and_in_order() {
    const BYTES: usize = 40_000;
    let rounds = scaled(20).max(2);
    let data = pattern(BYTES);
    let start = u64::try_from(DATA).unwrap();
    let kernel = bare::kernel(|a| {
        let mut again = a.create_label();
        a.mov(gpr64::rbx, u64::from(rounds))?;
        a.set_label(&mut again)?;
        at_data(a, gpr64::rsi, BYTES)?;
        a.rep().outsb()?;
        a.dec(gpr64::rbx)?;
        a.jne(again)?;
        a.xor(gpr32::eax, gpr32::eax)?;
        bare::end(a)
    });
    let (_, printed, status) = run(&kernel, &data, &[], |vcpu, _| {
        let (at, left) = (vcpu.general.rsi, vcpu.general.rcx);
        // Where the string instruction has begun, its two counters agree.
        if at > start && left > 0 {
            assert_eq!(at - start + left, BYTES as u64);
        }
    });
    assert_eq!(status, 0);
    assert!(
        printed == data.repeat(usize::try_from(rounds).unwrap()),
        "{} bytes",
        printed.len()
    );
}

/// How the input is read: in so many pieces of so many bytes.
const PIECES: usize = 7500;
const PIECE: usize = 8;
/// Pauses in the middle that are enough, and runs that are made for them at most.
const ENOUGH: u32 = 30;
const RUNS: u32 = 40;

/// A kernel that reads so many bytes of input into its data, by string instructions or byte by byte.
fn reading(is_string: bool, length: usize) -> KernelFile {
    bare::kernel(|a| {
        let mut again = a.create_label();
        at_data(a, gpr64::rdi, length)?;
        if is_string {
            a.mov(gpr32::ebx, u32::try_from(PIECES).unwrap_or_default())?;
            a.set_label(&mut again)?;
            a.mov(gpr32::ecx, u32::try_from(PIECE).unwrap_or_default())?;
            a.rep().insb()?;
            a.dec(gpr32::ebx)?;
            a.jne(again)?;
        } else {
            a.set_label(&mut again)?;
            a.in_(gpr8::al, gpr16::dx)?;
            a.mov(byte_ptr(gpr64::rdi), gpr8::al)?;
            a.inc(gpr64::rdi)?;
            a.loop_(again)?;
        }
        a.xor(gpr32::eax, gpr32::eax)?;
        bare::end(a)
    })
}

/// Where the kernel has `in al, dx; mov [rdi], al`.
fn input_instruction(kernel: &KernelFile) -> Option<u64> {
    let mut bytes = kernel.bytes().windows(3);
    let at = bytes.position(|bytes| bytes == [0xec, 0x88, 0x07])?;
    Some(CODE + (at as u64 - bare::CODE_IN_FILE))
}

/// What the guest has taken from the port is in its registers and memory at once: nothing is on the way.
#[test]
fn what_a_string_input_reads_arrives_once_and_nobody_parks_with_it_on_the_way() {
    let input = pattern(PIECES * PIECE);
    let start = u64::try_from(DATA).unwrap();
    for is_string in [true, false] {
        let kernel = reading(is_string, input.len());
        let input_at = input_instruction(&kernel);
        assert_eq!(input_at.is_none(), is_string);
        let mut between = 0_u32;
        for _ in 0..RUNS {
            let look = |vcpu: &FullRegisters, left: usize| {
                let (at, rip) = (vcpu.general.rdi, vcpu.general.rip);
                if !(start..start + (64 << 10)).contains(&at) || rip < CODE {
                    return;
                }
                let taken = usize::try_from(at - start).unwrap();
                let read = input.len() - left;
                // After the input instruction one byte is in al.
                let in_register = usize::from(input_at.is_some_and(|at| at < rip) && read > taken);
                assert_eq!(read, taken + in_register, "at {rip:#x}");
                between += u32::from(left > 0 && read > 0);
            };
            let (arrived, _, status) = run(&kernel, &[], &input, look);
            assert_eq!(status, 0);
            assert!(arrived == input, "a string instruction: {is_string}");
            if between >= ENOUGH {
                break;
            }
        }
        assert!(between >= ENOUGH, "{between} pauses in the middle");
    }
}

/// Eight bytes, of which the first four are the last ones of memory and the others nobody's.
#[test]
fn an_access_over_the_edge_of_memory_has_both_halves() {
    let rounds = scaled(20_000);
    let edge = i32::try_from(EDGE - 4).unwrap();
    let kernel = bare::kernel(|a| {
        let (mut again, mut wrong, mut done) =
            (a.create_label(), a.create_label(), a.create_label());
        a.mov(gpr64::rbx, i64::from(edge))?;
        a.mov(gpr32::ecx, rounds)?;
        a.set_label(&mut again)?;
        a.mov(dword_ptr(gpr64::rbx), gpr32::ecx)?;
        a.mov(gpr64::rax, qword_ptr(gpr64::rbx))?;
        a.mov(gpr32::edx, gpr32::eax)?;
        a.cmp(gpr32::edx, gpr32::ecx)?;
        a.jne(wrong)?;
        a.shr(gpr64::rax, 32)?;
        a.cmp(gpr32::eax, -1)?;
        a.jne(wrong)?;
        // Written the same way.
        a.lea(gpr64::rdx, qword_ptr(gpr64::rcx + 0x1234_5678))?;
        a.mov(qword_ptr(gpr64::rbx), gpr64::rdx)?;
        a.mov(gpr32::eax, dword_ptr(gpr64::rbx))?;
        a.cmp(gpr32::eax, gpr32::edx)?;
        a.jne(wrong)?;
        a.dec(gpr32::ecx)?;
        a.jne(again)?;
        a.xor(gpr32::eax, gpr32::eax)?;
        a.jmp(done)?;
        a.set_label(&mut wrong)?;
        a.mov(gpr32::eax, 1)?;
        a.set_label(&mut done)?;
        bare::end(a)
    });
    let (_, _, status) = run(&kernel, &[], &[], |_, _| {});
    assert_eq!(status, 0, "the guest saw another value");
}
