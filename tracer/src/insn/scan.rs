//! Direct calls in a stretch of code, found by decoding it from its start.

use iced_x86::{Code, Decoder, DecoderOptions};

use crate::addr::Gva;

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

/// The length of the `endbr64` that `code` begins with, 0 if it begins with none.
#[must_use]
pub fn landing_pad(code: &[u8]) -> u64 {
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    if instruction.code() == Code::Endbr64 {
        instruction.len() as u64
    } else {
        0
    }
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
    fn garbage_ends() {
        assert_eq!(direct_calls(&[0x06; 64], Gva(u64::MAX)).count(), 0);
        assert_eq!(direct_calls(&[0xe8, 0, 0], Gva(0)).count(), 0);
    }
}
