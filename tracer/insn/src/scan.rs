//! Direct calls in a stretch of code, found by decoding it from its start.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, OpKind, Register};
use terms::addr::Gva;

/// A `call rel32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectCall {
    /// Where the instruction begins.
    pub address: Gva,
    /// Its length: 5, or more with prefixes.
    pub length: usize,
    /// What it calls.
    pub target: Gva,
}

/// The direct calls in `code`, which lies at `start`. Bytes that are no instruction are skipped.
pub fn direct_calls(code: &[u8], start: Gva) -> impl Iterator<Item = DirectCall> + '_ {
    let mut decoder = Decoder::with_ip(64, code, start.0, DecoderOptions::NONE);
    std::iter::from_fn(move || {
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.code() == Code::Call_rel32_64 {
                return Some(DirectCall {
                    address: Gva(instruction.ip()),
                    length: instruction.len(),
                    target: Gva(instruction.near_branch_target()),
                });
            }
        }
        None
    })
}

/// The call that the code at `at` begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeadingCall {
    /// A `call rel32`.
    Direct(DirectCall),
    /// A call through memory, as position-independent code makes it.
    Indirect,
}

/// The call at the very beginning of `code`, if it begins with one.
#[must_use]
pub fn leading_call(code: &[u8], at: Gva) -> Option<LeadingCall> {
    let instruction = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE).decode();
    match instruction.code() {
        Code::Call_rel32_64 => Some(LeadingCall::Direct(DirectCall {
            address: at,
            length: instruction.len(),
            target: Gva(instruction.near_branch_target()),
        })),
        Code::Call_rm64 => Some(LeadingCall::Indirect),
        _ => None,
    }
}

/// What Linux makes of landing pads that nothing may land on (`gen_endbr_poison`): until 6.13, and since.
const SEALED: [[u8; 4]; 2] = [[0x66, 0x0f, 0x1f, 0x00], [0x0f, 0x1f, 0x40, 0xd6]];

/// The length of the `endbr64` that `code` begins with, or of what a kernel that runs has made of it; 0 if it begins
/// with none.
#[must_use]
pub fn landing_pad(code: &[u8]) -> u64 {
    if code.first_chunk().is_some_and(|pad| SEALED.contains(pad)) {
        return SEALED.first().map_or(0, |pad| pad.len() as u64);
    }
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    if instruction.code() == Code::Endbr64 {
        instruction.len() as u64
    } else {
        0
    }
}

/// The first return in `code`, which lies at `start`, that is not a plain `ret`.
#[must_use]
pub fn other_return(code: &[u8], start: Gva) -> Option<Gva> {
    Decoder::with_ip(64, code, start.0, DecoderOptions::NONE)
        .into_iter()
        .find(|one| one.flow_control() == FlowControl::Return && one.code() != Code::Retnq)
        .map(|one| Gva(one.ip()))
}

/// Whether `code` begins with `push rbp; mov rbp, rsp`, perhaps after a landing pad.
#[must_use]
pub fn begins_with_frame(code: &[u8]) -> bool {
    let pad = usize::try_from(landing_pad(code)).unwrap_or_default();
    let code = code.get(pad..).unwrap_or_default();
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let first = decoder.decode();
    let second = decoder.decode();
    let is_push = first.code() == Code::Push_r64 && first.op0_register() == Register::RBP;
    let is_move = matches!(second.code(), Code::Mov_rm64_r64 | Code::Mov_r64_rm64)
        && second.op0_register() == Register::RBP
        && second.op1_kind() == OpKind::Register
        && second.op1_register() == Register::RSP;
    is_push && is_move
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_at_instruction_boundaries_only() {
        let code = [
            0x55, // push rbp
            0x48, 0xb8, 0xe8, 0, 0, 0, 0, 0, 0, 0, // movabs rax, 0xe8
            0xe8, 0x10, 0, 0, 0, // call +0x10
            0x67, 0xe8, 0xf0, 0xff, 0xff, 0xff, // addr32 call -0x10
            0xff, 0xd0, // call rax
            0xc3, // ret
        ];
        let calls: Vec<DirectCall> = direct_calls(&code, Gva(0xffff_ffff_8000_0000)).collect();
        let call = |address, length, target| DirectCall {
            address: Gva(address),
            length,
            target: Gva(target),
        };
        assert_eq!(
            calls,
            [
                call(0xffff_ffff_8000_000b, 5, 0xffff_ffff_8000_0020),
                call(0xffff_ffff_8000_0010, 6, 0xffff_ffff_8000_0006),
            ]
        );
    }

    #[test]
    fn returns_that_are_none_of_a_function_are_found() {
        let at = Gva(0xffff_ffff_8000_0000);
        for (code, expected) in [
            (&[0x90, 0xc3][..], None),
            // repz ret, bnd ret
            (&[0xf3, 0xc3, 0xf2, 0xc3], None),
            // iretq, ret 16, lretq, sysretq
            (&[0xc3, 0x48, 0xcf], Some(1)),
            (&[0x90, 0xc2, 0x10, 0x00], Some(1)),
            (&[0x48, 0xcb], Some(0)),
            (&[0x48, 0x0f, 0x07], Some(0)),
            // movabs rax, with the bytes of iretq in it
            (&[0x48, 0xb8, 0x48, 0xcf, 0, 0, 0, 0, 0, 0, 0xc3], None),
            (&[0x48], None),
            (&[], None),
        ] {
            let expected = expected.map(|offset| at.wrapping_add(offset));
            assert_eq!(other_return(code, at), expected, "{code:x?}");
        }
    }

    #[test]
    fn frames_are_known_by_both_encodings_and_after_landing_pads() {
        assert!(begins_with_frame(&[0x55, 0x48, 0x89, 0xe5]));
        assert!(begins_with_frame(&[0x55, 0x48, 0x8b, 0xec]));
        assert!(begins_with_frame(&[
            0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5
        ]));
        for sealed in SEALED {
            let code = [&sealed[..], &[0x55, 0x48, 0x89, 0xe5]].concat();
            assert!(begins_with_frame(&code));
            assert_eq!(landing_pad(&code), 4);
        }
        // A nop is none.
        assert_eq!(landing_pad(&[0x0f, 0x1f, 0x40, 0x00, 0x55]), 0);
        // lea r10, [rsp + 8], as where the stack is aligned anew; push rbx; nothing.
        assert!(!begins_with_frame(&[0x4c, 0x8d, 0x54, 0x24, 0x08, 0x55]));
        assert!(!begins_with_frame(&[0x53, 0x48, 0x89, 0xe5]));
        assert!(!begins_with_frame(&[0x55]));
    }

    #[test]
    fn garbage_ends() {
        assert_eq!(direct_calls(&[0x06; 64], Gva(u64::MAX)).count(), 0);
        assert_eq!(direct_calls(&[0xe8, 0, 0], Gva(0)).count(), 0);
    }
}
