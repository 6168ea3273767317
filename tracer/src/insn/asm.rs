//! The assembler behind every template of injected code.

pub use iced_x86::IcedError;
pub use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, CodeLabel, ptr, qword_ptr, registers,
};
use iced_x86::{
    BlockEncoderOptions, Code, Decoder, DecoderOptions, Instruction, MemoryOperand, OpKind,
    Register,
};

/// A field of assembled code that differs from stub to stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Byte offset in the code; the field is 32 bits, little endian.
    pub offset: usize,
    /// What stands there.
    pub kind: FieldKind,
}

/// What a [`Field`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// The distance from the end of an instruction to a fixed address outside: a data operand or a
    /// call or jump that is the same for every stub of the template.
    Fixed,
    /// The distance to the placeholder [`PLACE_CONTINUE`].
    Continue,
    /// The placeholder value [`PLACE_VALUE`] itself.
    Value,
    /// The placeholder value [`PLACE_ENTRY`] itself.
    Entry,
}

/// Distance from the template's base of the address that stands for "where the function goes on".
pub const PLACE_CONTINUE: u64 = 0x1234_5670;
/// The value that stands for the 32-bit value of one stub.
pub const PLACE_VALUE: i32 = 0x0e5a_a5e1;

/// The value that stands for where the counters of one function are.
pub const PLACE_ENTRY: i32 = 0x0e5a_a5e2;

/// Assembled code with the places where stubs of the same template differ.
#[derive(Debug, Clone)]
pub struct Assembled {
    /// The code, as it would lie at `base`.
    pub bytes: Vec<u8>,
    /// Where it was assembled to.
    pub base: u64,
    /// The fields to rewrite when it is put elsewhere or made for another function.
    pub fields: Vec<Field>,
}

/// Assembles what `assembler` holds for the address `base` and finds its fields.
///
/// # Errors
/// What iced-x86 says of an operand that cannot be encoded, such as one out of reach.
pub fn assemble(assembler: &mut CodeAssembler, base: u64) -> Result<Assembled, IcedError> {
    let result = assembler.assemble_options(base, BlockEncoderOptions::DONT_FIX_BRANCHES)?;
    let bytes = result.inner.code_buffer;
    let end = base.wrapping_add(bytes.len() as u64);
    let mut fields = Vec::new();
    let mut decoder = Decoder::with_ip(64, &bytes, base, DecoderOptions::NONE);
    while decoder.can_decode() {
        let start = decoder.position();
        let instruction = decoder.decode();
        let offsets = decoder.get_constant_offsets(&instruction);
        let displacement = start + offsets.displacement_offset();
        let immediate = start + offsets.immediate_offset();
        let value = PLACE_VALUE.cast_unsigned();
        let is_inside = |target| (base..=end).contains(&target);
        if instruction.is_ip_rel_memory_operand() {
            if is_inside(instruction.ip_rel_memory_address()) {
                continue;
            }
            fields.push(Field {
                offset: displacement,
                kind: FieldKind::Fixed,
            });
        } else if offsets.has_displacement() && instruction.memory_displacement32() == value {
            fields.push(Field {
                offset: displacement,
                kind: FieldKind::Value,
            });
        } else if offsets.immediate_size() == 4 && instruction.immediate32() == value {
            fields.push(Field {
                offset: immediate,
                kind: FieldKind::Value,
            });
        } else if offsets.immediate_size() == 4
            && instruction.immediate32() == PLACE_ENTRY.cast_unsigned()
        {
            fields.push(Field {
                offset: immediate,
                kind: FieldKind::Entry,
            });
        } else if instruction.op0_kind() == OpKind::NearBranch64 {
            let to = instruction.near_branch64();
            if to == base.wrapping_add(PLACE_CONTINUE) {
                fields.push(Field {
                    offset: immediate,
                    kind: FieldKind::Continue,
                });
            } else if !is_inside(to) {
                fields.push(Field {
                    offset: immediate,
                    kind: FieldKind::Fixed,
                });
            }
        }
    }
    Ok(Assembled {
        bytes,
        base,
        fields,
    })
}

/// Appends `lea into, [rip + …]` of the fixed address `address`.
///
/// # Errors
/// What iced-x86 says when the instruction cannot be encoded.
pub fn lea_fixed(
    a: &mut CodeAssembler,
    into: AsmRegister64,
    address: u64,
) -> Result<(), IcedError> {
    with_fixed(a, Code::Lea_r64_m, into, address)
}

/// Appends `mov into, [rip + …]` of the word at the fixed address `address`.
///
/// # Errors
/// What iced-x86 says when the instruction cannot be encoded.
pub fn load_fixed(
    a: &mut CodeAssembler,
    into: AsmRegister64,
    address: u64,
) -> Result<(), IcedError> {
    with_fixed(a, Code::Mov_r64_rm64, into, address)
}

/// The instruction `code` with a register and what is at `address`, relative to RIP. iced's own
/// operands of that kind name labels inside the code only.
fn with_fixed(
    a: &mut CodeAssembler,
    code: Code,
    into: AsmRegister64,
    address: u64,
) -> Result<(), IcedError> {
    let operand = MemoryOperand::with_base_displ(Register::RIP, address.cast_signed());
    a.add_instruction(Instruction::with2(code, Register::from(into), operand)?)
}

/// Where the first unconditional jump of `code`, as it lies at `at`, leads.
#[cfg(test)]
pub(crate) fn first_jump(code: &[u8], at: u64) -> Option<u64> {
    Decoder::with_ip(64, code, at, DecoderOptions::NONE)
        .into_iter()
        .find(|one| one.mnemonic() == iced_x86::Mnemonic::Jmp)
        .map(|one| one.near_branch_target())
}
