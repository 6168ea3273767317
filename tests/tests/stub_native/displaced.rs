//! Instructions executed where they were linked, and displaced into a detour: registers, flags and memory are the same
//! afterwards. The instructions are those of this program, of the system's C library, and random ones.
//!
//! What refers to other memory or other code is led to memory of the test first, for both runs; what could not be run
//! at all with any registers (system calls, divisions, …) is left out.

use std::collections::HashSet;

use iced_x86::{
    Code, CpuidFeature, Decoder, DecoderOptions, EncodingKind, FlowControl, Instruction,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use image::Image;
use insn::jump::jump;
use insn::relocate::relocate;
use terms::addr::Gva;

use crate::cpu::{self, Registers};
use crate::random::Random;

const BYTES: usize = 1 << 20;
const CODE: u64 = 0x1000;
/// Where branches out of the displaced instructions lead, within reach of a short one.
const LANDING: u64 = CODE + 0x60;
const DETOUR: u64 = 0x8000;
const MARKER: u64 = 0x3000;
const DATA: u64 = 0x1_0000;
const DATA_BYTES: u64 = 0x4_0000;
/// Where all pointers lead, more or less.
const MIDDLE: u64 = DATA + 0x2_0000;
/// Displacements and stack frames are no larger.
const FAR: u64 = 0x4000;

/// Readable, writable and executable memory in the low 2 GiB, so that a pointer of 32 bits is one.
struct Memory(u64);

/// What a run left behind.
#[derive(PartialEq, Eq)]
struct After {
    registers: Registers,
    /// Which way out was taken.
    marker: u32,
    data: Vec<u8>,
}

impl Memory {
    fn new() -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        // SAFETY: a new anonymous mapping takes no memory that is in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "mmap of executable memory");
        Self(base as u64)
    }

    fn at(&self, offset: u64) -> u64 {
        self.0 + offset
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= BYTES as u64);
        // SAFETY: the range lies in the mapping, which nothing else refers to.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset) as *mut u8, bytes.len());
        }
    }

    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.at(offset) as *const u8, length as usize) }
            .to_vec()
    }

    /// A way out at `offset`: leaves `number` in the marker, and every register and flag alone.
    fn write_way_out(&mut self, offset: u64, number: u32) {
        // mov dword [rip+marker], number; jmp [rip+0]
        let distance = MARKER.wrapping_sub(offset + 10) as i32;
        let mut code = vec![0xc7, 0x05];
        code.extend(distance.to_le_bytes());
        code.extend(number.to_le_bytes());
        code.extend([0xff, 0x25, 0, 0, 0, 0]);
        code.extend(cpu::return_address().to_le_bytes());
        self.write(offset, &code);
    }

    /// Executes what stands at [`CODE`], and continues `length` bytes after it or at the landing.
    fn run(&mut self, length: u64, registers: &Registers) -> After {
        self.write_way_out(CODE + length, 1);
        self.write_way_out(LANDING, 2);
        self.write(MARKER, &[0; 8]);
        let pointer = self.at(MIDDLE).to_le_bytes();
        self.write(DATA, &pointer.repeat(DATA_BYTES as usize / 8));
        // SAFETY: what stands there was looked at: it stays in this memory and comes to a way out, which goes
        // where a return would.
        let registers = unsafe { cpu::call(self.at(CODE), registers) };
        let marker = self.read(MARKER, 4);
        After {
            registers,
            marker: u32::from_le_bytes(marker.try_into().unwrap()),
            data: self.read(DATA, DATA_BYTES),
        }
    }
}

/// The registers that an instruction may change, whole.
fn changed_registers(one: &Instruction) -> impl Iterator<Item = Register> + use<> {
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(one).used_registers().to_vec();
    used.into_iter()
        .filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead))
        .map(|used| used.register().full_register())
}

/// Whether an instruction can be executed with registers that are pointers, those in `written` aside.
fn is_harmless(one: &Instruction, written: &HashSet<Register>) -> bool {
    use CpuidFeature::*;
    let known = [
        INTEL8086,
        INTEL186,
        INTEL286,
        INTEL386,
        INTEL486,
        X64,
        CMOV,
        SSE,
        SSE2,
        MULTIBYTENOP,
    ];
    let is_branch = one.op0_kind() == OpKind::NearBranch64;
    let flows = match one.flow_control() {
        FlowControl::Next => true,
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => is_branch,
        FlowControl::Call => one.code() == Code::Call_rel32_64,
        _ => false,
    };
    let never = [
        Mnemonic::Div,
        Mnemonic::Idiv,
        Mnemonic::Enter,
        Mnemonic::Popf,
        Mnemonic::Popfq,
        Mnemonic::Std,
        Mnemonic::Ldmxcsr,
        Mnemonic::Xlatb,
        Mnemonic::Reservednop,
        Mnemonic::Lss,
        Mnemonic::Lfs,
        Mnemonic::Lgs,
        Mnemonic::In,
        Mnemonic::Out,
        Mnemonic::Cli,
        Mnemonic::Sti,
        Mnemonic::Bt,
        Mnemonic::Bts,
        Mnemonic::Btr,
        Mnemonic::Btc,
    ];
    let mut registers = (0..one.op_count())
        .filter(|index| one.op_kind(*index) == OpKind::Register)
        .map(|index| one.op_register(index));
    let is_plain = |register: Register| register.is_gpr() || register.is_xmm();
    if !flows
        || never.contains(&one.mnemonic())
        || one.encoding() != EncodingKind::Legacy
        || one.cpuid_features().iter().any(|one| !known.contains(one))
        || one.is_privileged()
        || one.is_string_instruction()
        || one.has_rep_prefix()
        || one.has_repne_prefix()
        || !registers.all(is_plain)
    {
        return false;
    }
    let moves_rsp = matches!(one.mnemonic(), Mnemonic::Sub | Mnemonic::Add)
        && one.op0_register() == Register::RSP
        && one.op1_kind() != OpKind::Register
        && one.op1_kind() != OpKind::Memory
        && one.immediate(1) <= FAR;
    // An exchange writes each of its operands: what is written is asked of the decoder, not taken from where it stands.
    let sets_rsp = !one.is_stack_instruction()
        && changed_registers(one).any(|register| register == Register::RSP);
    let pops_rsp = one.mnemonic() == Mnemonic::Pop
        && one.op0_kind() == OpKind::Register
        && one.op0_register().full_register() == Register::RSP;
    if sets_rsp && !moves_rsp || pops_rsp || one.mnemonic() == Mnemonic::Leave {
        return false;
    }
    let has_memory = (0..one.op_count()).any(|index| one.op_kind(index) == OpKind::Memory);
    let is_access = has_memory && !matches!(one.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
    let base = one.memory_base();
    let distance = one.memory_displacement64().cast_signed().unsigned_abs();
    let is_near = base == Register::RIP || base.is_gpr64() && distance <= FAR;
    !is_access
        || one.memory_index() == Register::None
            && one.segment_prefix() == Register::None
            && one.memory_size().size() <= 8
            && is_near
            && !written.contains(&base)
}

/// The first instructions of `code`, at least five bytes of them, led to the test's memory; none when they are
/// not to be run.
fn sample(code: &[u8], memory: &Memory) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut written = HashSet::new();
    let mut decoder = Decoder::with_ip(64, code, memory.at(CODE), DecoderOptions::NONE);
    while bytes.len() < 5 {
        let start = decoder.position();
        let one = decoder.decode();
        if one.is_invalid() || !is_harmless(&one, &written) {
            return None;
        }
        let mut own = code.get(start..start + one.len())?.to_vec();
        let offsets = decoder.get_constant_offsets(&one);
        if one.is_ip_rel_memory_operand() {
            let distance = memory.at(MIDDLE).wrapping_sub(one.next_ip()) as i32;
            let at = offsets.displacement_offset();
            own.get_mut(at..at + 4)?
                .copy_from_slice(&distance.to_le_bytes());
        } else if one.op0_kind() == OpKind::NearBranch64 {
            let distance = memory.at(LANDING).wrapping_sub(one.next_ip()) as i32;
            let (at, size) = (offsets.immediate_offset(), offsets.immediate_size());
            let field = distance.to_le_bytes();
            own.get_mut(at..at + size)?.copy_from_slice(&field[..size]);
        }
        written.extend(changed_registers(&one).filter(|register| *register != Register::RSP));
        bytes.extend(own);
    }
    Some(bytes)
}

/// Runs `code` where it is and displaced. Whether it could be displaced.
fn assert_same(memory: &mut Memory, code: &[u8], random: &mut Random) -> bool {
    let (from, to) = (Gva(memory.at(CODE)), Gva(memory.at(DETOUR)));
    let Ok(detour) = relocate(code, from, to) else {
        return false;
    };
    let pointer = |number: u64| memory.at(MIDDLE) + number * 64;
    let mut registers = Registers {
        rsp: memory.at(MIDDLE) + 0x1_0008,
        mxcsr: 0x1f80,
        flags: random.next() & cpu::STATUS_FLAGS,
        ..Registers::default()
    };
    for (number, register) in (0..).zip(&mut registers.general) {
        *register = pointer(number);
    }
    for register in &mut registers.xmm {
        *register = [random.next(), random.next()];
    }
    memory.write(CODE, code);
    let in_place = memory.run(code.len() as u64, &registers);
    memory.write(CODE, &jump(from, to).unwrap());
    memory.write(DETOUR, &detour);
    let displaced = memory.run(code.len() as u64, &registers);
    assert_eq!(in_place.registers, displaced.registers, "{code:02x?}");
    assert_eq!(in_place.marker, displaced.marker, "{code:02x?}");
    assert!(in_place.marker != 0, "{code:02x?} did not come out");
    assert!(in_place.data == displaced.data, "memory of {code:02x?}");
    true
}

/// Where sequences begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Starts {
    /// At every function.
    Functions,
    /// At every instruction.
    Instructions,
}

/// The instructions at all these starts, each sequence once: how many ran.
fn run_all(bytes: &[u8], starts: Starts, random: &mut Random, most: usize) -> usize {
    let image = Image::parse(bytes).unwrap();
    let mut memory = Memory::new();
    let mut seen = HashSet::new();
    let mut ran = 0;
    let starts: Vec<Gva> = if starts == Starts::Functions {
        image.functions.iter().map(|one| one.address).collect()
    } else {
        let code = image.text.iter().map(|range| {
            let code = image
                .loaded
                .bytes_at(range.start, range.end.0 - range.start.0);
            Decoder::with_ip(64, code, range.start.0, DecoderOptions::NONE)
        });
        let mut all = Vec::new();
        for decoder in code {
            all.extend(decoder.into_iter().map(|one| Gva(one.ip())));
        }
        all
    };
    for start in starts {
        let code = image.loaded.bytes_at(start, 64);
        let Some(code) = sample(code, &memory).filter(|code| seen.insert(code.clone())) else {
            continue;
        };
        ran += usize::from(assert_same(&mut memory, &code, random));
        if ran >= most {
            break;
        }
    }
    ran
}

/// The file that a function of the C library was loaded from.
fn c_library() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let names = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let mut libraries = names.filter(|name| name.contains("/libc.so") || name.contains("/libc-"));
    libraries
        .next()
        .expect("this program uses the C library")
        .to_owned()
}

#[test]
fn the_entries_of_this_program_do_the_same_displaced() {
    let mut random = Random::new("displaced entries");
    let own = std::fs::read("/proc/self/exe").unwrap();
    let ran = run_all(&own, Starts::Functions, &mut random, 4000);
    println!("{ran} different beginnings of functions");
    assert!(ran > 500, "{ran}");
}

#[test]
fn the_instructions_of_this_program_do_the_same_displaced() {
    let mut random = Random::new("displaced program");
    let own = std::fs::read("/proc/self/exe").unwrap();
    let ran = run_all(&own, Starts::Instructions, &mut random, 12_000);
    println!("{ran} different sequences");
    assert!(ran > 2000, "{ran}");
}

#[test]
fn the_instructions_of_the_c_library_do_the_same_displaced() {
    let mut random = Random::new("displaced library");
    let library = std::fs::read(c_library()).unwrap();
    let ran = run_all(&library, Starts::Instructions, &mut random, 12_000);
    println!("{ran} different sequences");
    assert!(ran > 500, "{ran}");
}

#[test]
fn what_sets_the_stack_pointer_is_not_run() {
    let memory = Memory::new();
    let is_run = |code: &[u8]| {
        let padded = [code, &[0x90; 8]].concat();
        sample(&padded, &memory).is_some()
    };
    // xchg [rcx+0x29], rsp; xadd [rcx], rsp; xchg rsp, rax; cmovz rsp, [rcx]; pop rsp; mov spl, al
    for code in [
        &[0x48, 0x87, 0x61, 0x29][..],
        &[0x48, 0x0f, 0xc1, 0x21],
        &[0x48, 0x94],
        &[0x48, 0x0f, 0x44, 0x21],
        &[0x5c],
        &[0x40, 0x88, 0xc4],
    ] {
        assert!(!is_run(code), "{code:02x?}");
    }
    // push rsp; mov rax, rsp; cmp rsp, rax; sub rsp, 0x10; pop rax
    for code in [
        &[0x54][..],
        &[0x48, 0x89, 0xe0],
        &[0x48, 0x39, 0xc4],
        &[0x48, 0x83, 0xec, 0x10],
        &[0x58],
    ] {
        assert!(is_run(code), "{code:02x?}");
    }
}

#[test]
fn random_instructions_do_the_same_displaced() {
    let mut random = Random::new("displaced at random");
    let mut memory = Memory::new();
    // Real instructions are rare among random bytes: those that branch get help.
    let opcodes = [
        0x70, 0x74, 0xe3, 0xe2, 0xe8, 0xe9, 0xeb, 0x0f, 0x48, 0x8b, 0x8d, 0x50, 0x83,
    ];
    let mut ran = 0;
    for _ in 0..400_000 {
        let mut code: Vec<u8> = (0..8).flat_map(|_| random.next().to_le_bytes()).collect();
        code[0] = opcodes[random.below(opcodes.len() as u32) as usize];
        if let Some(code) = sample(&code, &memory) {
            ran += usize::from(assert_same(&mut memory, &code, &mut random));
        }
        if ran >= 4000 {
            break;
        }
    }
    println!("{ran} random sequences");
    assert!(ran > 1000, "{ran}");
}
