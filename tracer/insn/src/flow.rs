//! Where a stretch of code can lead: what its instructions refer to, and whether that is all.
//!
//! Code is decoded from its beginning, one instruction after the other, as compilers lay it out. What is
//! collected errs on one side: an immediate that looks like an address counts as a place that can be
//! jumped to. Assumed is that
//!
//! * a function begins with an instruction, and what is not decodable in it is data: then nothing is
//!   certain about it ([`Flow::is_whole`]);
//! * whoever jumps to a computed address has taken it from an instruction's operand or from a word in memory, as
//!   all compilers do, or has added a word of a table to the table's own address
//!   ([`Flow::tables`], [`Flow::is_provable`]).

pub use iced_x86::Instruction;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind};
use terms::addr::Gva;

use crate::jump::INT3;
use crate::nop::nop_run;

/// What a stretch of code says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flow {
    /// Addresses that it names: targets of branches, operands relative to RIP, constants.
    pub refers: Vec<u64>,
    /// Addresses of what may be tables of distances to places in it; each distance is from the table's
    /// beginning.
    pub tables: Vec<u64>,
    /// Whether every byte belongs to an instruction.
    pub is_whole: bool,
    /// Whether all that it jumps to indirectly is among [`Self::refers`], in the words of memory, or in
    /// [`Self::tables`].
    pub is_provable: bool,
}

/// Follows `code`, which lies at `start`.
#[must_use]
pub fn follow(code: &[u8], start: Gva) -> Flow {
    let mut flow = Flow {
        is_whole: true,
        ..Flow::default()
    };
    let mut named = Vec::new();
    let (mut jumps, mut adds_distances) = (false, false);
    let mut decoder = Decoder::with_ip(64, code, start.0, DecoderOptions::NONE);
    let mut one = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut one);
        if one.is_invalid() {
            flow.is_whole = false;
            continue;
        }
        jumps |= one.flow_control() == FlowControl::IndirectBranch;
        adds_distances |= loads_distance(&one);
        refer(&one, &mut flow.refers);
        if one.mnemonic() == Mnemonic::Lea || one.mnemonic() == Mnemonic::Mov {
            refer(&one, &mut named);
        }
    }
    if jumps && adds_distances {
        flow.is_provable = !named.is_empty();
        flow.tables = named;
    } else {
        flow.is_provable = true;
    }
    flow
}

/// Whether it loads a distance of 32 bits out of a table.
fn loads_distance(one: &Instruction) -> bool {
    one.mnemonic() == Mnemonic::Movsxd && one.op1_kind() == OpKind::Memory
}

/// Appends the addresses that an instruction names.
fn refer(one: &Instruction, into: &mut Vec<u64>) {
    if one.op0_kind() == OpKind::NearBranch64 {
        into.push(one.near_branch_target());
        return;
    }
    for operand in 0..one.op_count() {
        match one.op_kind(operand) {
            OpKind::Memory => into.push(one.memory_displacement64()),
            OpKind::Immediate64 => into.push(one.immediate64()),
            OpKind::Immediate32to64 => into.push(one.immediate32to64().cast_unsigned()),
            OpKind::Immediate32 => into.push(u64::from(one.immediate32())),
            _ => {}
        }
    }
}

/// Where every byte of `code` that looks like a near branch or call with 32 bits would lead, whether an
/// instruction begins there or not. So a branch is found also where decoding went astray.
pub fn far_branches(code: &[u8], start: Gva) -> impl Iterator<Item = u64> + '_ {
    let at = move |offset: usize| start.0.wrapping_add(offset as u64);
    memchr::memchr2_iter(0xe8, 0xe9, code)
        .chain(memchr::memchr_iter(0x0f, code).filter_map(|offset| {
            let second = code.get(offset + 1)?;
            (0x80..=0x8f).contains(second).then_some(offset + 1)
        }))
        .filter_map(move |opcode| {
            let field = code.get(opcode + 1..)?.first_chunk()?;
            let distance = i64::from(i32::from_le_bytes(*field));
            Some(at(opcode + 5).wrapping_add_signed(distance))
        })
}

/// The whole instructions of `code`, which lies at `start`, from the one at `at` on that take up at least `least`
/// bytes: their number of bytes, and where each begins.
///
/// # Errors
/// Where the instruction begins that `at` lies in, if it begins before; none when decoding ends first.
pub fn whole_instructions(
    code: &[u8],
    start: Gva,
    at: Gva,
    least: usize,
) -> Result<Vec<Instruction>, Option<Gva>> {
    let end = at.0.wrapping_add(least as u64);
    let mut found = Vec::new();
    for one in Decoder::with_ip(64, code, start.0, DecoderOptions::NONE) {
        if one.is_invalid() {
            return Err(None);
        }
        if one.next_ip() <= at.0 {
            continue;
        }
        if one.ip() < at.0 {
            return Err(Some(Gva(one.ip())));
        }
        found.push(one);
        if one.next_ip() >= end {
            return Ok(found);
        }
    }
    Err(None)
}

/// How many bytes the first instruction of `code` has; none when it cannot be decoded.
#[must_use]
pub fn first_length(code: &[u8]) -> Option<usize> {
    let one = Decoder::new(64, code, DecoderOptions::NONE).decode();
    (!one.is_invalid()).then_some(one.len())
}

/// The first branch in `code`, which lies at `start`, that leads to `to`; calls are none.
#[must_use]
pub fn branches_to(code: &[u8], start: Gva, to: Gva) -> Option<Gva> {
    let is_branch = |one: &Instruction| {
        one.op0_kind() == OpKind::NearBranch64
            && one.flow_control() != FlowControl::Call
            && one.near_branch_target() == to.0
    };
    let mut all = Decoder::with_ip(64, code, start.0, DecoderOptions::NONE).into_iter();
    all.find(is_branch).map(|one| Gva(one.ip()))
}

/// The first instruction in `code`, which lies at `start`, that only code between ring 0 and another has.
#[must_use]
pub fn leaves_kernel(code: &[u8], start: Gva) -> Option<Gva> {
    let is_entry_code = |one: &Instruction| {
        matches!(
            one.mnemonic(),
            Mnemonic::Iretq
                | Mnemonic::Iretd
                | Mnemonic::Iret
                | Mnemonic::Sysretq
                | Mnemonic::Sysret
                | Mnemonic::Sysexit
                | Mnemonic::Sysexitq
                | Mnemonic::Swapgs
                | Mnemonic::Retf
        )
    };
    let mut all = Decoder::with_ip(64, code, start.0, DecoderOptions::NONE).into_iter();
    all.find(is_entry_code).map(|one| Gva(one.ip()))
}

/// Whether nobody executes `bytes` as anything but filling: nops and breakpoints.
#[must_use]
pub fn is_padding(bytes: &[u8]) -> bool {
    // After the breakpoints of one compiler may come the nops of an assembler.
    let rest = bytes.iter().position(|byte| *byte != INT3);
    let rest = rest.and_then(|from| bytes.get(from..)).unwrap_or_default();
    !bytes.is_empty() && (rest.is_empty() || nop_run(rest).is_some())
}

/// How many bytes at the end of a function are padding: after its last instruction, which leads away.
#[must_use]
pub fn trailing_padding(code: &[u8], start: Gva) -> usize {
    let mut last = 0;
    let mut padding = 0;
    let mut leads_away = false;
    let mut decoder = Decoder::with_ip(64, code, start.0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let one = decoder.decode();
        let is_filling = one.mnemonic() == Mnemonic::Nop || one.code() == Code::Int3;
        if is_filling && (leads_away || padding > 0) {
            padding = decoder.position() - last;
            continue;
        }
        (last, padding) = (decoder.position(), 0);
        leads_away = matches!(
            one.flow_control(),
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return
        );
    }
    padding
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Gva = Gva(0xffff_ffff_8100_0000);

    #[test]
    fn what_code_names_is_collected() {
        let code = [
            0x74, 0x02, // je +2
            0xeb, 0xfc, // jmp -4
            0x48, 0x8d, 0x05, 0, 1, 0, 0, // lea rax, [rip+0x100]
            0x48, 0xc7, 0xc7, 0x10, 0, 0, 0x81, // mov rdi, 0xffffffff81000010
            0xc3,
        ];
        let flow = follow(&code, AT);
        let names = |offset: u64| flow.refers.contains(&(AT.0 + offset));
        assert!(flow.is_whole && flow.is_provable);
        assert!(names(4) && names(0) && names(0x10b) && names(0x10));
    }

    #[test]
    fn a_jump_by_a_table_of_distances_needs_a_table() {
        // lea rcx, [rip+0x100]; movsxd rax, [rcx+rax*4]; add rax, rcx; jmp rax
        let with = [
            0x48, 0x8d, 0x0d, 0, 1, 0, 0, 0x48, 0x63, 0x04, 0x81, 0x48, 0x01, 0xc8, 0xff, 0xe0,
        ];
        let flow = follow(&with, AT);
        assert_eq!(flow.tables, [AT.0 + 0x107]);
        assert!(flow.is_provable);
        assert!(!follow(&with[7..], AT).is_provable);
        // jmp rax: a tail call.
        assert!(follow(&with[14..], AT).is_provable);
    }

    #[test]
    fn what_is_no_instruction_is_noticed() {
        assert!(!follow(&[0x90, 0x06, 0xc3], AT).is_whole);
        assert!(!follow(&[0x90, 0xe8], AT).is_whole);
        assert!(follow(&[], AT).is_whole);
    }

    #[test]
    fn branches_are_found_at_any_byte() {
        // movabs rax, with a call in it
        let code = [0x48, 0xb8, 0xe8, 0x10, 0, 0, 0, 0x0f, 0x85, 1, 0, 0, 0];
        let found: Vec<u64> = far_branches(&code, AT).collect();
        assert_eq!(found, [AT.0 + 0x17, AT.0 + 0xe]);
        assert_eq!(far_branches(&[0xe8, 0, 0], AT).count(), 0);
    }

    #[test]
    fn instructions_are_whole_from_where_one_begins() {
        let code = [0x53, 0x48, 0x89, 0xe5, 0x31, 0xc0, 0xc3];
        let lengths = |from: u64, least| {
            let found = whole_instructions(&code, AT, AT.wrapping_add(from), least);
            found.map(|all| all.iter().map(Instruction::len).collect::<Vec<_>>())
        };
        assert_eq!(lengths(0, 5).unwrap(), [1, 3, 2]);
        assert_eq!(lengths(1, 5).unwrap(), [3, 2]);
        assert_eq!(lengths(2, 5).unwrap_err(), Some(AT.wrapping_add(1)));
        assert_eq!(lengths(6, 5).unwrap_err(), None);
        assert_eq!(lengths(7, 1).unwrap_err(), None);
    }

    #[test]
    fn padding_is_nops_and_breakpoints() {
        assert!(is_padding(&[INT3; 7]));
        assert!(is_padding(&[INT3, 0x66, 0x90, 0x90]));
        assert!(!is_padding(&[]));
        assert!(!is_padding(&[INT3, 0xc3]));
        assert!(!is_padding(&[0; 8]));
        assert_eq!(trailing_padding(&[0xc3, INT3, 0x90, 0x66, 0x90], AT), 4);
        assert_eq!(trailing_padding(&[0x90, 0x90], AT), 0);
        assert_eq!(trailing_padding(&[0x31, 0xc0, 0x90], AT), 0);
        assert_eq!(trailing_padding(&[0xc3, 0x90, 0xc3], AT), 0);
    }
}
