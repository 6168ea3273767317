//! The assembler of every template of injected code.

pub use iced_x86::IcedError;
pub use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister32, AsmRegister64, CodeAssembler, CodeLabel, byte_ptr, dword_ptr,
    ptr, qword_ptr, registers, word_ptr,
};
use iced_x86::{
    BlockEncoderOptions, Code, ConstantOffsets, Decoder, DecoderOptions, Instruction,
    MemoryOperand, OpKind, Register,
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
    /// The distance to the placeholder [`PLACE_ENTRY_CAPTURE`].
    EntryCapture,
    /// The distance to the placeholder [`PLACE_EXIT_CAPTURE`].
    ExitCapture,
    /// The placeholder value [`PLACE_VALUE`] itself.
    Value,
    /// The placeholder value [`PLACE_ENTRY`] itself.
    Entry,
}

/// Distance from the template's base of the address that stands for "where the function continues".
pub const PLACE_CONTINUE: u64 = 0x1234_5670;
/// Distance from the template's base of the address that stands for "what captures at the function's entry".
pub const PLACE_ENTRY_CAPTURE: u64 = 0x1334_5670;
/// Distance from the template's base of the address that stands for "what captures when the function returns".
pub const PLACE_EXIT_CAPTURE: u64 = 0x1434_5670;
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

/// Which of an instruction's constants a field is.
enum Part {
    Displacement,
    Immediate,
}

/// What of `instruction`, in code that lies from `base` to `end`, differs from stub to stub.
fn field_of(
    instruction: &Instruction,
    offsets: &ConstantOffsets,
    base: u64,
    end: u64,
) -> Option<(FieldKind, Part)> {
    let is_inside = |target| (base..=end).contains(&target);
    let value = PLACE_VALUE.cast_unsigned();
    let has_immediate = offsets.immediate_size() == 4;
    let immediate = |wanted| has_immediate && instruction.immediate32() == wanted;
    if instruction.is_ip_rel_memory_operand() {
        let outside = !is_inside(instruction.ip_rel_memory_address());
        outside.then_some((FieldKind::Fixed, Part::Displacement))
    } else if offsets.has_displacement() && instruction.memory_displacement32() == value {
        Some((FieldKind::Value, Part::Displacement))
    } else if immediate(value) {
        Some((FieldKind::Value, Part::Immediate))
    } else if immediate(PLACE_ENTRY.cast_unsigned()) {
        Some((FieldKind::Entry, Part::Immediate))
    } else if instruction.op0_kind() == OpKind::NearBranch64 {
        let to = instruction.near_branch64();
        let kind = match to.wrapping_sub(base) {
            PLACE_CONTINUE => FieldKind::Continue,
            PLACE_ENTRY_CAPTURE => FieldKind::EntryCapture,
            PLACE_EXIT_CAPTURE => FieldKind::ExitCapture,
            _ if is_inside(to) => return None,
            _ => FieldKind::Fixed,
        };
        Some((kind, Part::Immediate))
    } else {
        None
    }
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
        if let Some((kind, part)) = field_of(&instruction, &offsets, base, end) {
            let offset = start
                + match part {
                    Part::Displacement => offsets.displacement_offset(),
                    Part::Immediate => offsets.immediate_offset(),
                };
            fields.push(Field { offset, kind });
        }
    }
    Ok(Assembled {
        bytes,
        base,
        fields,
    })
}

/// Assembles what `assembler` holds for the address `base`: code that refers to nothing outside. Says where `labels` are.
///
/// # Errors
/// What iced-x86 says of an operand that cannot be encoded.
pub fn assemble_entries(
    assembler: &mut CodeAssembler,
    base: u64,
    labels: &[CodeLabel],
) -> Result<(Vec<u8>, Vec<u64>), IcedError> {
    let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let result = assembler.assemble_options(base, options)?;
    let places = labels.iter().map(|label| result.label_ip(label));
    let places = places.collect::<Result<_, _>>()?;
    Ok((result.inner.code_buffer, places))
}

/// The displacement that names `address` in any instruction, without a register: in the lowest and the
/// highest 2 GiB there is one.
#[must_use]
pub fn absolute(address: u64) -> Option<i32> {
    i32::try_from(address.cast_signed()).ok()
}

/// The word `index * scale` bytes after the fixed address `address`. `scratch` becomes the base register
/// where no displacement names the address.
///
/// # Errors
/// What iced-x86 says when the instruction cannot be encoded.
pub fn indexed(
    a: &mut CodeAssembler,
    address: u64,
    index: AsmRegister64,
    scale: i32,
    scratch: AsmRegister64,
) -> Result<AsmMemoryOperand, IcedError> {
    match absolute(address) {
        // As a base it makes the instruction shorter.
        Some(displacement) if scale == 1 => Ok(qword_ptr(index + displacement)),
        Some(displacement) => Ok(qword_ptr(index * scale + displacement)),
        None => {
            lea_fixed(a, scratch, address)?;
            Ok(qword_ptr(scratch + index * scale))
        }
    }
}

/// Appends `mov into, value`, also where a placeholder is the value.
///
/// # Errors
/// What iced-x86 says when the instruction cannot be encoded.
pub fn load_constant(
    a: &mut CodeAssembler,
    into: AsmRegister64,
    value: u64,
) -> Result<(), IcedError> {
    let is_place = |place: i32| value & 0xffff_ffff == u64::from(place.cast_unsigned());
    if is_place(PLACE_VALUE) || is_place(PLACE_ENTRY) {
        let load = Instruction::with2(Code::Mov_r64_imm64, Register::from(into), value)?;
        return a.add_instruction(load);
    }
    a.mov(into, value)
}

/// Binds `label` to this place, where others may be bound, too.
///
/// # Errors
/// What iced-x86 says of a label that is bound already.
pub fn bind(a: &mut CodeAssembler, mut label: CodeLabel) -> Result<(), IcedError> {
    a.set_label(&mut label)?;
    a.zero_bytes()
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

/// Appends `add to, [rip + …]` of the word at the fixed address `address`.
///
/// # Errors
/// What iced-x86 says when the instruction cannot be encoded.
pub fn add_fixed(a: &mut CodeAssembler, to: AsmRegister64, address: u64) -> Result<(), IcedError> {
    with_fixed(a, Code::Add_r64_rm64, to, address)
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
#[must_use]
pub fn first_jump(code: &[u8], at: u64) -> Option<u64> {
    Decoder::with_ip(64, code, at, DecoderOptions::NONE)
        .into_iter()
        .find(|one| one.mnemonic() == iced_x86::Mnemonic::Jmp)
        .map(|one| one.near_branch_target())
}
