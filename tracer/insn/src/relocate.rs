//! Instructions moved to another address: what a detour consists of.
//!
//! ```text
//! from:  lea rax, [rip+x]      to:  lea rax, [rip+x']     the same x
//!        je  short far              je  near far          widened
//!        call f                     push from+…           the return address that it would push where it was,
//!                                   jmp f                 so the stack is as if nothing had been moved
//! end:                              jmp end
//! ```
//!
//! A call returns to where it was linked, not to the detour: the guest's unwinders, its `longjmp`, and whoever
//! else looks at the stack find what they would without us, and no thread is ever on its way back into the moved
//! bytes. The price is the processor's return predictor, which has not seen a call.
//!
//! What would notice that it lies elsewhere is refused ([`RelocateError::Immovable`]), as is code that goes
//! from one of the moved instructions into the middle of them. A branch to the *first* of them leads to
//! where it was, which is where the jump stands: a loop passes it in each round.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock, MemoryOperand, Mnemonic, OpKind, Register,
};
use terms::addr::Gva;

use crate::jump::jump;

/// Why instructions cannot be executed elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// There is nothing to move.
    #[error("there is no instruction at {at}")]
    Nothing {
        /// Where.
        at: Gva,
    },
    /// The bytes are no instruction, or end in the middle of one.
    #[error("the bytes at {at} are no whole instruction")]
    NoInstruction {
        /// Where.
        at: Gva,
    },
    /// It does something else where it does not lie where it was linked.
    #[error("the instruction at {at} ({text}) cannot be moved: {why}")]
    Immovable {
        /// Where it lies.
        at: Gva,
        /// How it reads.
        text: String,
        /// What would be different.
        why: &'static str,
    },
    /// It goes into the middle of what is moved with it.
    #[error("the instruction at {at} leads to {to}, in the middle of the instructions to be moved")]
    Inside {
        /// Where it lies.
        at: Gva,
        /// Where it leads.
        to: Gva,
    },
    /// Something that it refers to is too far away from the new place.
    #[error("the instruction at {at} cannot reach what it refers to from {to}: {why}")]
    OutOfReach {
        /// Where it lies.
        at: Gva,
        /// Where it was to lie.
        to: Gva,
        /// What the encoder says.
        why: String,
    },
}

/// The longest that a relocated instruction gets: the return address in two halves, and a jump.
const MOVED_MAX: usize = 5 + 8 + 6 + 5;

/// Why an instruction must stay where it is, if it must.
#[must_use]
pub fn immovable(one: &Instruction) -> Option<&'static str> {
    let is_near = one.op0_kind() == OpKind::NearBranch64;
    match one.flow_control() {
        FlowControl::Next => must_stay(one),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch if is_near => None,
        FlowControl::IndirectBranch if one.code() == Code::Jmp_rm64 => None,
        FlowControl::Call if one.code() == Code::Call_rel32_64 => None,
        FlowControl::IndirectCall if one.code() == Code::Call_rm64 => indirect_call(one),
        FlowControl::Return if one.code() == Code::Retnq || one.code() == Code::Retnq_imm16 => None,
        FlowControl::Return => Some("it is no return to a caller"),
        FlowControl::Interrupt | FlowControl::Exception => {
            Some("it raises an exception, whose handler may look at where")
        }
        FlowControl::XbeginXabortXend => Some("it is part of a transaction"),
        _ => Some("it keeps its address in a register, or leads to another segment"),
    }
    .or_else(|| {
        let is_narrow = one.is_ip_rel_memory_operand() && one.memory_base() == Register::EIP;
        is_narrow.then_some("it refers to what is near its lower 32 address bits")
    })
}

/// What of an instruction that is followed by the next one depends on where that is.
fn must_stay(one: &Instruction) -> Option<&'static str> {
    let names_ss = one.op0_kind() == OpKind::Register && one.op0_register() == Register::SS;
    match one.mnemonic() {
        Mnemonic::Sti => Some("interrupts stay off for the instruction after it"),
        _ if names_ss => Some("interrupts stay off for the instruction after it"),
        Mnemonic::Hlt | Mnemonic::Mwait | Mnemonic::Mwaitx => {
            Some("it must follow what enables interrupts")
        }
        Mnemonic::Endbr64 | Mnemonic::Endbr32 => {
            Some("it marks where indirect branches may lead: put the probe after it")
        }
        Mnemonic::Swapgs => Some("it is entry code"),
        Mnemonic::Mov if one.op0_kind() == OpKind::Register && one.op0_register().is_cr() => {
            Some("it can change what is mapped")
        }
        Mnemonic::Vmlaunch
        | Mnemonic::Vmresume
        | Mnemonic::Vmrun
        | Mnemonic::Vmcall
        | Mnemonic::Vmmcall => Some("it leaves for another world"),
        _ => None,
    }
}

fn indirect_call(one: &Instruction) -> Option<&'static str> {
    let through_register = one.op0_kind() == OpKind::Register;
    let uses_narrow = one.op0_kind() == OpKind::Memory
        && !matches!(one.memory_base(), Register::None | Register::RIP)
        && !one.memory_base().is_gpr64();
    if through_register && one.op0_register() == Register::RSP || uses_narrow {
        return Some("it calls what it computes of the stack pointer, or of half a register");
    }
    let below = one.memory_displacement64().cast_signed() < 0;
    let is_indexed = one.memory_index() != Register::None;
    if one.memory_base() == Register::RSP && (below || is_indexed) {
        return Some("it may call what lies where its return address goes");
    }
    None
}

/// The instructions that `code`, which lies at `from`, is made of.
///
/// # Errors
/// [`RelocateError::Nothing`] and [`RelocateError::NoInstruction`].
pub fn decode(code: &[u8], from: Gva) -> Result<Vec<Instruction>, RelocateError> {
    if code.is_empty() {
        return Err(RelocateError::Nothing { at: from });
    }
    // With a prefix 66 a branch is another one on processors of AMD than on those of Intel: as AMD's it is refused.
    let mut decoder = Decoder::with_ip(64, code, from.0, DecoderOptions::AMD);
    let mut all = Vec::new();
    while decoder.can_decode() {
        let one = decoder.decode();
        if one.is_invalid() {
            return Err(RelocateError::NoInstruction { at: Gva(one.ip()) });
        }
        all.push(one);
    }
    Ok(all)
}

/// The code at `to` that does what `code`, whole instructions that lie at `from`, does there, and continues
/// after them. `code` ends where the last instruction does.
///
/// # Errors
/// A [`RelocateError`].
pub fn relocate(code: &[u8], from: Gva, to: Gva) -> Result<Vec<u8>, RelocateError> {
    let instructions = decode(code, from)?;
    let end = from.wrapping_add(code.len() as u64);
    let mut moved = Vec::with_capacity(instructions.len() * MOVED_MAX);
    let mut goes_on = true;
    for one in &instructions {
        check(one, from, end)?;
        let here = to.wrapping_add(moved.len() as u64);
        let start = one.ip().wrapping_sub(from.0);
        let bytes = usize::try_from(start)
            .ok()
            .and_then(|start| code.get(start..)?.get(..one.len()))
            .unwrap_or_default();
        moved.extend(moved_one(one, bytes, here)?);
        goes_on = matches!(
            one.flow_control(),
            FlowControl::Next | FlowControl::ConditionalBranch
        );
    }
    if goes_on {
        let here = to.wrapping_add(moved.len() as u64);
        let back = jump(here, end).ok_or_else(|| RelocateError::OutOfReach {
            at: from,
            to: here,
            why: "the way back is more than 2 GiB".to_owned(),
        })?;
        moved.extend(back);
    }
    Ok(moved)
}

/// Whether an instruction can be moved with all that lies from `from` to `end`.
fn check(one: &Instruction, from: Gva, end: Gva) -> Result<(), RelocateError> {
    let at = Gva(one.ip());
    if let Some(why) = immovable(one) {
        let text = format!("{one}");
        return Err(RelocateError::Immovable { at, text, why });
    }
    let is_inside = |to: &u64| *to > from.0 && *to < end.0;
    let is_call = matches!(
        one.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    );
    let returns_to = is_call.then_some(one.next_ip());
    let leads_to = (one.op0_kind() == OpKind::NearBranch64).then(|| one.near_branch_target());
    // A jump to itself would be a jump to its copy: nobody would ever come by again.
    let to_itself = leads_to.filter(|to| *to == one.ip());
    match [leads_to, returns_to]
        .into_iter()
        .flatten()
        .find(is_inside)
        .or(to_itself)
    {
        Some(to) => Err(RelocateError::Inside { at, to: Gva(to) }),
        None => Ok(()),
    }
}

/// One instruction, whose bytes are these, at `here`.
fn moved_one(one: &Instruction, bytes: &[u8], here: Gva) -> Result<Vec<u8>, RelocateError> {
    let out_of_reach = |why: String| RelocateError::OutOfReach {
        at: Gva(one.ip()),
        to: here,
        why,
    };
    let is_branch = one.op0_kind() == OpKind::NearBranch64;
    let sequence = match one.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall => called(one),
        _ if is_branch || one.is_ip_rel_memory_operand() => Ok(vec![*one]),
        _ => return Ok(bytes.to_vec()),
    };
    let sequence = sequence.map_err(|error| out_of_reach(error.to_string()))?;
    if is_branch {
        // Farther away, the encoder would jump through a word that it puts after the code.
        let distance = one.near_branch_target().wrapping_sub(here.0).cast_signed();
        let slack = i64::try_from(MOVED_MAX).unwrap_or(i64::MAX);
        if i32::try_from(distance.saturating_sub(slack)).is_err()
            || i32::try_from(distance).is_err()
        {
            return Err(out_of_reach("it is more than 2 GiB away".to_owned()));
        }
    }
    let sequence = nowhere(sequence);
    let block = InstructionBlock::new(&sequence, here.0);
    let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE)
        .map_err(|error| out_of_reach(error.to_string()))?;
    Ok(encoded.code_buffer)
}

/// The same instructions at addresses to which none of them refers. The encoder takes what refers to an instruction that
/// it encodes as referring to the new one: what names its own address would name its copy's.
fn nowhere(mut sequence: Vec<Instruction>) -> Vec<Instruction> {
    let to = |one: &Instruction| match one.op0_kind() {
        OpKind::NearBranch64 => one.near_branch_target(),
        _ => one.ip_rel_memory_address(),
    };
    // Only the last one refers to anything.
    let to = sequence.last().map_or(0, to);
    for (one, after) in sequence.iter_mut().zip(1..) {
        one.set_ip(to.wrapping_add(after));
    }
    sequence
}

/// A call as the push of the return address that it has where it was linked, and a jump.
fn called(one: &Instruction) -> Result<Vec<Instruction>, iced_x86::IcedError> {
    let returns_to = one.next_ip();
    let [low, high] = [returns_to, returns_to >> 32]
        .map(|half| u32::try_from(half & u64::from(u32::MAX)).unwrap_or_default());
    let low = low.cast_signed();
    let mut sequence = vec![Instruction::with1(Code::Pushq_imm32, low)?];
    if i64::from(low).cast_unsigned() != returns_to {
        let upper = MemoryOperand::with_base_displ(Register::RSP, 4);
        sequence.push(Instruction::with2(Code::Mov_rm32_imm32, upper, high)?);
    }
    if one.code() == Code::Call_rel32_64 {
        let to = one.near_branch_target();
        sequence.push(Instruction::with_branch(Code::Jmp_rel32_64, to)?);
        return Ok(sequence);
    }
    let mut jump = *one;
    jump.set_code(Code::Jmp_rm64);
    if jump.op0_kind() == OpKind::Memory && jump.memory_base() == Register::RSP {
        // The return address lies on top already.
        jump.set_memory_displacement64(jump.memory_displacement64().wrapping_add(8));
        jump.set_memory_displ_size(8);
    }
    sequence.push(jump);
    Ok(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Gva = Gva(0xffff_ffff_8100_0000);
    const TO: Gva = Gva(0xffff_ffff_a000_0040);

    fn text(code: &[u8], at: Gva) -> Vec<String> {
        let all = decode(code, at).unwrap();
        all.iter().map(ToString::to_string).collect()
    }

    fn moved(code: &[u8]) -> Vec<String> {
        text(&relocate(code, FROM, TO).unwrap(), TO)
    }

    #[test]
    fn what_knows_its_address_is_rewritten_and_the_rest_copied() {
        // push rbx with a useless REX prefix, which the encoder would drop.
        let code = [0x40, 0x53, 0x48, 0x8d, 0x05, 0, 1, 0, 0];
        let made = relocate(&code, FROM, TO).unwrap();
        assert_eq!(made[..2], code[..2]);
        assert_eq!(
            text(&made, TO),
            [
                "push rbx",
                "lea rax,[0FFFFFFFF81000109h]",
                "jmp 0FFFFFFFF81000009h"
            ]
        );
    }

    /// It would have been read, or named, where the copy lies.
    #[test]
    fn what_refers_to_itself_refers_to_where_it_was() {
        // lea rax, [rip-7]; mov rax, [rip-7]; call [rip-6]
        for (code, made) in [
            (
                [0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff].as_slice(),
                "lea rax,[0FFFFFFFF81000000h]",
            ),
            (
                &[0x48, 0x8b, 0x05, 0xf9, 0xff, 0xff, 0xff],
                "mov rax,[0FFFFFFFF81000000h]",
            ),
            (
                &[0xff, 0x15, 0xfa, 0xff, 0xff, 0xff],
                "jmp qword ptr [0FFFFFFFF81000000h]",
            ),
        ] {
            assert!(moved(code).iter().any(|one| one == made), "{code:02x?}");
        }
        // mov rax, gs:[rip+x] of what lies at 0, where data of each processor begins.
        let distance = 0_u32.wrapping_sub(0x8100_0008).to_le_bytes();
        let code = [&[0x65, 0x48, 0x8b, 0x05], &distance[..]].concat();
        assert_eq!(moved(&code)[0], "mov rax,gs:[0]");
    }

    /// The return address would be what it calls.
    #[test]
    fn a_call_through_what_may_lie_below_the_stack_is_refused() {
        // call [rsp-8]; call [rsp-0x100]; call [rsp+rax*8+8]
        let others: [&[u8]; 3] = [
            &[0xff, 0x54, 0x24, 0xf8],
            &[0xff, 0x94, 0x24, 0, 0xff, 0xff, 0xff],
            &[0xff, 0x54, 0xc4, 8],
        ];
        for code in others {
            let error = relocate(code, FROM, TO).unwrap_err();
            assert!(
                matches!(error, RelocateError::Immovable { at: FROM, .. }),
                "{code:02x?}: {error}"
            );
        }
        // call [rbx-8]; call [rbx+rax*8]: not of the stack.
        let indirect = |code: &[u8]| moved(code).pop().unwrap();
        assert_eq!(indirect(&[0xff, 0x53, 0xf8]), "jmp qword ptr [rbx-8]");
        assert_eq!(indirect(&[0xff, 0x14, 0xc3]), "jmp qword ptr [rbx+rax*8]");
    }

    #[test]
    fn short_branches_are_widened_and_loops_go_around() {
        assert_eq!(
            moved(&[0x74, 0x20]),
            ["je 0FFFFFFFF81000022h", "jmp 0FFFFFFFF81000002h"]
        );
        // jrcxz: there is no wide one.
        let made = moved(&[0xe3, 0x20]);
        assert_eq!(made.len(), 4, "{made:?}");
        assert!(made[0].starts_with("jrcxz"), "{made:?}");
        assert_eq!(made[2], "jmp 0FFFFFFFF81000022h");
        assert_eq!(made[3], "jmp 0FFFFFFFF81000002h");
        // Nothing continues after these.
        assert_eq!(moved(&[0xeb, 0x20]), ["jmp 0FFFFFFFF81000022h"]);
        assert_eq!(moved(&[0x31, 0xc0, 0xc3]), ["xor eax,eax", "ret"]);
    }

    #[test]
    fn calls_leave_the_return_address_that_they_had() {
        assert_eq!(
            moved(&[0x53, 0xe8, 0x10, 0, 0, 0]),
            [
                "push rbx",
                "push 0FFFFFFFF81000006h",
                "jmp 0FFFFFFFF81000016h"
            ]
        );
        // call [rsp+8], call rax, call [rsp]
        let indirect = |code: &[u8]| moved(code).pop().unwrap();
        assert_eq!(indirect(&[0xff, 0x54, 0x24, 8]), "jmp qword ptr [rsp+10h]");
        assert_eq!(indirect(&[0xff, 0x14, 0x24]), "jmp qword ptr [rsp+8]");
        assert_eq!(indirect(&[0xff, 0xd0]), "jmp rax");
        let (from, to) = (Gva(0x12_8000_0000), Gva(0x12_9000_0000));
        let made = relocate(&[0xe8, 0x10, 0, 0, 0], from, to).unwrap();
        assert_eq!(
            text(&made, to),
            [
                "push 0FFFFFFFF80000005h",
                "mov dword ptr [rsp+4],12h",
                "jmp 0000001280000015h"
            ]
        );
    }

    #[test]
    fn what_would_notice_is_refused() {
        let others: [&[u8]; 13] = [
            // data16 jmp: of 16 bits, or of 64
            &[0x66, 0xeb, 0x10],
            &[0xcc],
            &[0x0f, 0x0b],
            &[0x0f, 0x05],
            &[0xfb],
            &[0xf4],
            &[0x8e, 0xd0],
            &[0xf3, 0x0f, 0x1e, 0xfa],
            &[0x0f, 0x22, 0xd8],
            &[0x48, 0xcf],
            &[0x0f, 0x01, 0xf8],
            // call rsp; lea eax, [eip+1]
            &[0xff, 0xd4],
            &[0x67, 0x8d, 0x05, 1, 0, 0, 0],
        ];
        for code in others {
            let error = relocate(code, FROM, TO).unwrap_err();
            assert!(
                matches!(error, RelocateError::Immovable { at: FROM, .. }),
                "{code:02x?}: {error}"
            );
        }
        assert_eq!(
            relocate(&[0xfb], FROM, TO).unwrap_err().to_string(),
            "the instruction at 0xffffffff81000000 (sti) cannot be moved: \
             interrupts stay off for the instruction after it"
        );
    }

    #[test]
    fn what_leads_into_the_moved_bytes_is_refused() {
        // jmp to the second instruction; a call with something after it; a jump to itself
        let others: [&[u8]; 3] = [
            &[0x90, 0x90, 0xeb, 0xfd],
            &[0xe8, 0, 1, 0, 0, 0x90],
            &[0xeb, 0xfe],
        ];
        for code in others {
            let error = relocate(code, FROM, TO).unwrap_err();
            assert!(matches!(error, RelocateError::Inside { .. }), "{error}");
        }
        // To the first is a round of a loop.
        assert_eq!(
            moved(&[0x90, 0xeb, 0xfd]),
            ["nop", "jmp 0FFFFFFFF81000000h"]
        );
    }

    #[test]
    fn what_is_too_far_is_refused() {
        let far = Gva(FROM.0 - (1 << 31) - 0x1000);
        for code in [
            &[0x48, 0x8d, 0x05, 0, 0, 0, 0][..],
            &[0x74, 0x00],
            &[0xe8, 0, 0, 0, 0],
            &[0x53],
        ] {
            let error = relocate(code, FROM, far).unwrap_err();
            assert!(matches!(error, RelocateError::OutOfReach { .. }), "{error}");
        }
    }

    #[test]
    fn half_an_instruction_is_none() {
        let error = |code| relocate(code, FROM, TO).unwrap_err();
        assert_eq!(error(&[]), RelocateError::Nothing { at: FROM });
        assert_eq!(
            error(&[0x90, 0xe8, 0]),
            RelocateError::NoInstruction {
                at: FROM.wrapping_add(1)
            }
        );
    }
}
