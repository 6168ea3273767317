//! Nops as compilers leave them at function entries.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use terms::site::SITE_LENGTH;

/// The one nop that every site becomes: `nop dword [rax+rax+0]`.
pub const NOP5: [u8; SITE_LENGTH] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// How the nops of a patch site are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NopRun {
    /// One instruction takes all the bytes.
    One,
    /// Several do: a thread can be preempted between two of them.
    Several,
}

/// Whether `bytes` are nops and nothing else, up to the last byte; `None` if not.
///
/// Any valid encoding is taken: `0f 1f 44 00 00` (Linux, gcc), `0f 1f 44 00 08` (LLVM),
/// `66 66 66 66 90`, five times `90`. `pause` and `endbr64` look alike but do something.
#[must_use]
pub fn nop_run(bytes: &[u8]) -> Option<NopRun> {
    let mut count = 0usize;
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() || instruction.mnemonic() != Mnemonic::Nop {
            return None;
        }
        count += 1;
    }
    match count {
        0 => None,
        1 => Some(NopRun::One),
        _ => Some(NopRun::Several),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_five_byte_nop_is_one() {
        let nops: [[u8; 5]; 6] = [
            [0x0f, 0x1f, 0x44, 0x00, 0x00],
            [0x0f, 0x1f, 0x44, 0x00, 0x08],
            [0x66, 0x66, 0x66, 0x66, 0x90],
            [0x66, 0x66, 0x0f, 0x1f, 0x00],
            [0x3e, 0x66, 0x66, 0x66, 0x90],
            [0x66, 0x0f, 0x1f, 0x40, 0x00],
        ];
        for nop in nops {
            assert_eq!(nop_run(&nop), Some(NopRun::One), "{nop:02x?}");
        }
    }

    #[test]
    fn several_nops_are_told_from_one() {
        for nops in [
            [0x90; 5],
            [0x66, 0x90, 0x0f, 0x1f, 0x00],
            [0x0f, 0x1f, 0x40, 0x00, 0x90],
        ] {
            assert_eq!(nop_run(&nops), Some(NopRun::Several), "{nops:02x?}");
        }
    }

    #[test]
    fn what_does_something_is_no_nop() {
        let others: [&[u8]; 7] = [
            &[],
            &[0xe8, 0, 0, 0, 0],
            &[0xf3, 0x90, 0x90, 0x90, 0x90],
            &[0xf3, 0x0f, 0x1e, 0xfa, 0x90],
            &[0x90, 0x90, 0x90, 0x90, 0xc3],
            &[0x41, 0x90, 0x90, 0x90, 0x90],
            // The last nop is cut off.
            &[0x90, 0x0f, 0x1f, 0x44, 0x00],
        ];
        for bytes in others {
            assert_eq!(nop_run(bytes), None, "{bytes:02x?}");
        }
    }
}
