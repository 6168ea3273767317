//! Registers by number, and loads that widen what they load.

use iced_x86::code_asm::registers::{gpr8, gpr16, gpr32, gpr64};
use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, byte_ptr, dword_ptr, qword_ptr, word_ptr,
};
use iced_x86::{IcedError, Register};

/// The general registers, by the number that instructions have for them.
const REGISTERS: [AsmRegister64; 16] = [
    gpr64::rax,
    gpr64::rcx,
    gpr64::rdx,
    gpr64::rbx,
    gpr64::rsp,
    gpr64::rbp,
    gpr64::rsi,
    gpr64::rdi,
    gpr64::r8,
    gpr64::r9,
    gpr64::r10,
    gpr64::r11,
    gpr64::r12,
    gpr64::r13,
    gpr64::r14,
    gpr64::r15,
];

/// The register with the low four bits of `number`.
#[must_use]
pub fn register(number: u8) -> AsmRegister64 {
    let found = REGISTERS.get(usize::from(number & 15));
    found.copied().unwrap_or(gpr64::rax)
}

/// The number of a register.
#[must_use]
pub fn register_number(register: AsmRegister64) -> u8 {
    let number = Register::from(register).number();
    u8::try_from(number).unwrap_or_default()
}

/// The number of the register called `name`, with or without `%`, and how many bytes of it that is: `rdi`
/// and 8, `r9d` and 4. The second bytes of registers (`ah`) are none.
#[must_use]
pub fn register_named(name: &str) -> Option<(u8, u8)> {
    let name = name.strip_prefix('%').unwrap_or(name);
    // Intel's documents call the low byte of r8 to r15 so, assemblers and compilers the other way.
    let low_byte = name.strip_suffix('b').filter(|name| {
        name.strip_prefix('r')
            .is_some_and(|rest| rest.starts_with(|char: char| char.is_ascii_digit()))
    });
    let name = low_byte.map_or_else(|| name.to_owned(), |name| format!("{name}l"));
    let full = |register: &Register| register.full_register() != *register || register.is_gpr64();
    let found = Register::values()
        .filter(|register| register.is_gpr())
        .filter(full)
        .find(|register| format!("{register:?}").eq_ignore_ascii_case(&name))?;
    let is_high = matches!(
        found,
        Register::AH | Register::BH | Register::CH | Register::DH
    );
    let number = u8::try_from(found.full_register().number()).ok()?;
    let bytes = u8::try_from(found.size()).ok()?;
    (!is_high).then_some((number, bytes))
}

/// Appends the widening of the low `bytes` (1, 2, 4 or 8) of rax to all of it.
///
/// # Errors
/// What iced-x86 says when the instruction cannot be encoded.
pub fn extend(a: &mut CodeAssembler, bytes: u8, signed: bool) -> Result<(), IcedError> {
    use gpr64::rax;
    match (bytes, signed) {
        (1, false) => a.movzx(gpr32::eax, gpr8::al),
        (1, true) => a.movsx(rax, gpr8::al),
        (2, false) => a.movzx(gpr32::eax, gpr16::ax),
        (2, true) => a.movsx(rax, gpr16::ax),
        (4, false) => a.mov(gpr32::eax, gpr32::eax),
        (4, true) => a.movsxd(rax, gpr32::eax),
        _ => Ok(()),
    }
}

/// Appends a load of `bytes` (1, 2, 4 or 8) at `place` into rax, widened to all of it; no other byte is
/// read.
///
/// # Errors
/// What iced-x86 says when the instruction cannot be encoded.
pub fn load_extended(
    a: &mut CodeAssembler,
    place: AsmMemoryOperand,
    bytes: u8,
    signed: bool,
) -> Result<(), IcedError> {
    use gpr64::rax;
    match (bytes, signed) {
        (1, false) => a.movzx(gpr32::eax, byte_ptr(place)),
        (1, true) => a.movsx(rax, byte_ptr(place)),
        (2, false) => a.movzx(gpr32::eax, word_ptr(place)),
        (2, true) => a.movsx(rax, word_ptr(place)),
        (4, false) => a.mov(gpr32::eax, dword_ptr(place)),
        (4, true) => a.movsxd(rax, dword_ptr(place)),
        _ => a.mov(rax, qword_ptr(place)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_names_and_numbers() {
        for (name, number, bytes) in [
            ("rax", 0, 8),
            ("%al", 0, 1),
            ("%ax", 0, 2),
            ("%ebp", 5, 4),
            ("%sil", 6, 1),
            ("rsp", 4, 8),
            ("r8d", 8, 4),
            ("%r15", 15, 8),
            ("%r12b", 12, 1),
        ] {
            assert_eq!(register_named(name), Some((number, bytes)), "{name}");
            assert_eq!(register_number(register(number)), number);
        }
        for bad in ["", "%", "rip", "xmm0", "ah", "r16"] {
            assert_eq!(register_named(bad), None, "{bad}");
        }
    }
}
