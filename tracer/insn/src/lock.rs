//! The lock prefix of an instruction, and what replaces it where one vCPU runs alone.

use iced_x86::{Decoder, DecoderOptions};

/// `lock`.
pub const LOCK: u8 = 0xf0;
/// The DS segment prefix, which means nothing in 64-bit mode. Unlike a nop it belongs to the instruction:
/// no thread can be preempted between the two, and run the instruction without a lock later.
pub const DS: u8 = 0x3e;

/// Whether `code` begins with a locked instruction whose first byte is the lock prefix.
#[must_use]
pub fn is_locked(code: &[u8]) -> bool {
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    code.first() == Some(&LOCK) && !instruction.is_invalid() && instruction.has_lock_prefix()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_are_told_from_others() {
        // lock inc qword [rdi]; lock xadd [rip+1], edi
        for code in [
            &[0xf0, 0x48, 0xff, 0x07][..],
            &[0xf0, 0x0f, 0xc1, 0x3d, 1, 0, 0, 0],
        ] {
            assert!(is_locked(code), "{code:02x?}");
        }
        let others: [&[u8]; 6] = [
            &[],
            &[LOCK],
            // Without the prefix, with DS, with a prefix in front, and one that cannot be locked.
            &[0x48, 0xff, 0x07],
            &[DS, 0x48, 0xff, 0x07],
            &[0x66, LOCK, 0xff, 0x07],
            &[LOCK, 0x90],
        ];
        for code in others {
            assert!(!is_locked(code), "{code:02x?}");
        }
    }

    #[test]
    fn with_ds_it_is_the_same_instruction_without_the_lock() {
        let decode = |code: &[u8]| Decoder::new(64, code, DecoderOptions::NONE).decode();
        let locked = decode(&[LOCK, 0x48, 0x0f, 0xc1, 0x07]);
        let with_ds = decode(&[DS, 0x48, 0x0f, 0xc1, 0x07]);
        assert_eq!(locked.code(), with_ds.code());
        assert_eq!(locked.len(), with_ds.len());
        assert_eq!(locked.memory_base(), with_ds.memory_base());
        assert!(!with_ds.has_lock_prefix());
    }
}
