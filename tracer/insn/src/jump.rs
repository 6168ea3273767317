//! The five-byte jump that stands at a patched site.

use terms::addr::Gva;
use terms::site::SITE_LENGTH;

/// The breakpoint instruction of one byte.
pub const INT3: u8 = 0xcc;
const JMP_REL32: u8 = 0xe9;
const JMP_REL8: u8 = 0xeb;

/// `jmp to` at `from`, or `None` when that is more than 2 GiB away.
#[must_use]
pub fn jump(from: Gva, to: Gva) -> Option<[u8; SITE_LENGTH]> {
    let next = from.0.wrapping_add(SITE_LENGTH as u64);
    let distance = i32::try_from(to.0.wrapping_sub(next).cast_signed()).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([JMP_REL32, a, b, c, d])
}

/// `jmp short to` at `from`, or `None` when that is out of its reach.
#[must_use]
pub fn short_jump(from: Gva, to: Gva) -> Option<[u8; 2]> {
    let distance = to.0.wrapping_sub(from.0.wrapping_add(2)).cast_signed();
    let [byte] = i8::try_from(distance).ok()?.to_le_bytes();
    Some([JMP_REL8, byte])
}

/// Where `jump`, which lies at `from`, leads; `None` when it is no such jump.
#[must_use]
pub fn jump_target(from: Gva, jump: [u8; SITE_LENGTH]) -> Option<Gva> {
    let [JMP_REL32, a, b, c, d] = jump else {
        return None;
    };
    let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
    let next = from.0.wrapping_add(SITE_LENGTH as u64);
    Some(Gva(next.wrapping_add_signed(distance)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_both_directions_and_refuses_what_is_too_far() {
        assert_eq!(jump(Gva(0x1000), Gva(0x1005)), Some([0xe9, 0, 0, 0, 0]));
        assert_eq!(
            jump(Gva(0x1000), Gva(0x1000)),
            Some([0xe9, 0xfb, 0xff, 0xff, 0xff])
        );
        assert_eq!(jump(Gva(0x1000), Gva(0x1005 + (1 << 31))), None);
        assert_eq!(
            jump(Gva(0x1000), Gva(0x1004 + (1 << 31))),
            Some([0xe9, 0xff, 0xff, 0xff, 0x7f])
        );
    }

    #[test]
    fn a_short_jump_reaches_126_back_and_129_ahead() {
        let at = Gva(0xffff_ffff_8000_0000);
        let to = |distance| short_jump(at, Gva(at.0.wrapping_add_signed(distance)));
        assert_eq!(to(2), Some([0xeb, 0]));
        assert_eq!(to(-126), Some([0xeb, 0x80]));
        assert_eq!(to(129), Some([0xeb, 0x7f]));
        assert_eq!(to(-127), None);
        assert_eq!(to(130), None);
    }

    #[test]
    fn a_jump_leads_where_it_was_made_to() {
        for (from, to) in [
            (0x1000, 0x1005),
            (0x1000, 0),
            (0xffff_ffff_8000_0000, 7 << 28),
        ] {
            let made = jump(Gva(from), Gva(to));
            assert_eq!(
                made.and_then(|bytes| jump_target(Gva(from), bytes)),
                made.map(|_| Gva(to))
            );
        }
        assert_eq!(jump_target(Gva(0), [0xe8, 0, 0, 0, 0]), None);
    }
}
