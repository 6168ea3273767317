//! Where instructions begin, found by decoding from a place where one does.

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use terms::addr::Gva;

/// What begins at an address, or lies over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boundary {
    /// An instruction begins there.
    Here,
    /// It is inside this one.
    Inside {
        /// Where it begins.
        start: Gva,
        /// Where the next one does.
        end: Gva,
        /// As text.
        instruction: String,
    },
    /// Before it, at this address, is no instruction.
    Unknown(Gva),
}

/// What is at `at` in `code`, which lies at `start`, where an instruction begins.
#[must_use]
pub fn boundary(code: &[u8], start: Gva, at: Gva) -> Boundary {
    let mut decoder = Decoder::with_ip(64, code, start.0, DecoderOptions::NONE);
    while decoder.ip() < at.0 {
        let before = Gva(decoder.ip());
        if !decoder.can_decode() {
            return Boundary::Unknown(before);
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Boundary::Unknown(before);
        }
        if instruction.next_ip() > at.0 {
            let mut text = String::new();
            IntelFormatter::new().format(&instruction, &mut text);
            return Boundary::Inside {
                start: before,
                end: Gva(instruction.next_ip()),
                instruction: text,
            };
        }
    }
    Boundary::Here
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_told_from_their_insides() {
        let code = [0x55, 0x48, 0x89, 0xe5, 0xc3, 0x06];
        let start = Gva(0xffff_ffff_8000_0000);
        let at = |offset| boundary(&code, start, start.wrapping_add(offset));
        for offset in [0, 1, 4, 5] {
            assert_eq!(at(offset), Boundary::Here, "{offset}");
        }
        let inside = Boundary::Inside {
            start: start.wrapping_add(1),
            end: start.wrapping_add(4),
            instruction: "mov rbp,rsp".to_owned(),
        };
        assert_eq!((at(2), at(3)), (inside.clone(), inside));
        assert_eq!(at(6), Boundary::Unknown(start.wrapping_add(5)));
        assert_eq!(
            boundary(&[], start, start.wrapping_add(1)),
            Boundary::Unknown(start)
        );
    }
}
