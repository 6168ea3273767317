//! The five-byte jump that stands at a patched site.

use crate::addr::Gva;
use crate::image::SITE_LENGTH;

const JMP_REL32: u8 = 0xe9;

/// `jmp to` at `from`, or `None` when that is more than 2 GiB away.
#[must_use]
pub fn jump(from: Gva, to: Gva) -> Option<[u8; SITE_LENGTH]> {
    let next = from.0.wrapping_add(SITE_LENGTH as u64);
    let distance = i32::try_from(to.0.wrapping_sub(next).cast_signed()).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([JMP_REL32, a, b, c, d])
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
}
