//! The addresses of the symbols: an offset for each, and the base that they count from. Both lie
//! before the number of names, or after the index of the tokens; there, kernels since 7.0 have offsets that each
//! count from where they lie themselves, and no base. Kernels up to 6.14 can have whole addresses before the
//! number of names instead (`KALLSYMS_BASE_RELATIVE` off).

use terms::addr::Gva;

use super::names::Names;
use super::tokens::Tokens;
use super::unread::{IN_TEXT, UnreadSymbols};
use super::{aligned, u32_at};
use crate::range::{TextRange, text_range};

/// The kernel's half of the address space.
const KERNEL: u64 = 1 << 63;

/// What an offset means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// Negative ones count from the base, others are addresses of their own: those of the per-CPU
    /// section, which is linked at 0 (`KALLSYMS_ABSOLUTE_PERCPU`).
    AbsolutePercpu,
    /// All count from the base.
    Relative,
}

impl Encoding {
    fn address(self, base: u64, offset: u32) -> Gva {
        let signed = i64::from(offset.cast_signed());
        Gva(match self {
            Self::AbsolutePercpu if signed < 0 => {
                base.wrapping_sub(1).wrapping_add(signed.unsigned_abs())
            }
            Self::AbsolutePercpu => u64::from(offset),
            Self::Relative => base.wrapping_add(u64::from(offset)),
        })
    }
}

/// A place where the offsets and the base may be.
struct Place {
    offsets: usize,
    base: usize,
}

/// The address of each symbol in `names`, in the segment `bytes` at `start`: of all places and encodings the one
/// with which symbols of code lie in what claims to be `code`.
///
/// # Errors
/// [`UnreadSymbols::Addresses`] with how many lie there in the best case.
pub(super) fn find(
    (start, bytes): (Gva, &[u8]),
    tokens: &Tokens<'_>,
    names: &Names<'_>,
    code: &[TextRange],
) -> Result<Vec<Gva>, UnreadSymbols> {
    let is_code: Vec<bool> = names
        .entries()
        .map(|packed| matches!(tokens.expand(packed), Some((b't' | b'T', _))))
        .collect();
    let relative = places(tokens, names).into_iter().flat_map(|place| {
        [Encoding::AbsolutePercpu, Encoding::Relative]
            .into_iter()
            .filter_map(move |encoding| place.read(bytes, names.count, encoding))
    });
    let from_themselves = std::iter::once_with(|| {
        let offsets = first_distance(bytes, tokens.end)?;
        self_relative(bytes, start, offsets, names.count)
    });
    let from_themselves = from_themselves.flatten();
    let whole = std::iter::once_with(|| whole_addresses(bytes, names)).flatten();
    let of_code = is_code.iter().filter(|is_code| **is_code).count();
    let mut most = 0;
    for addresses in relative.chain(from_themselves).chain(whole) {
        let inside = inside(code, &addresses, &is_code);
        if of_code > 0 && inside * 100 >= of_code * IN_TEXT {
            return Ok(addresses);
        }
        most = most.max(inside);
    }
    Err(UnreadSymbols::Addresses {
        names: names.count,
        code: of_code,
        inside: most,
    })
}

/// Where distances begin after the tokens: at the next multiple of four, or of eight after a word of padding. No
/// symbol lies at its own distance, so a word of 0 is padding. A word too late, every name has its neighbour's address.
fn first_distance(bytes: &[u8], tokens_end: usize) -> Option<usize> {
    let first = aligned(tokens_end, 4);
    let is_padding = u32_at(bytes, first)? == 0;
    Some(aligned(first, if is_padding { 8 } else { 4 }))
}

/// Words at `offsets` in the segment at `start`, each of which says how far from itself its symbol is.
fn self_relative(bytes: &[u8], start: Gva, offsets: usize, count: usize) -> Option<Vec<Gva>> {
    (0..count)
        .map(|index| {
            let at = offsets.checked_add(4 * index)?;
            let distance = i64::from(u32_at(bytes, at)?.cast_signed());
            let here = start.wrapping_add(at as u64);
            Some(Gva(here.0.wrapping_add_signed(distance)))
        })
        .collect()
}

/// The words right before the number of names.
fn whole_addresses(bytes: &[u8], names: &Names<'_>) -> Option<Vec<Gva>> {
    let end = names.header & !7;
    let start = end.checked_sub(names.count.checked_mul(8)?)?;
    let (words, _) = bytes.get(start..end)?.as_chunks::<8>();
    Some(
        words
            .iter()
            .map(|word| Gva(u64::from_le_bytes(*word)))
            .collect(),
    )
}

fn places(tokens: &Tokens<'_>, names: &Names<'_>) -> Vec<Place> {
    let bytes = 4 * names.count;
    let mut places = Vec::new();
    for align in [8, 4] {
        let base = (names.header & !(align - 1)).saturating_sub(8);
        places.push(Place {
            offsets: base.saturating_sub(aligned(bytes, align)),
            base,
        });
        let offsets = aligned(tokens.end, align);
        places.push(Place {
            offsets,
            base: aligned(offsets + bytes, 8),
        });
    }
    places
}

impl Place {
    fn read(&self, bytes: &[u8], count: usize, encoding: Encoding) -> Option<Vec<Gva>> {
        let base = bytes.get(self.base..)?.first_chunk()?;
        let base = u64::from_le_bytes(*base);
        if base < KERNEL {
            return None;
        }
        (0..count)
            .map(|index| {
                let offset = u32_at(bytes, self.offsets.checked_add(4 * index)?)?;
                Some(encoding.address(base, offset))
            })
            .collect()
    }
}

/// How many symbols of code lie in `code` with these addresses.
fn inside(ranges: &[TextRange], addresses: &[Gva], is_code: &[bool]) -> usize {
    let code = addresses.iter().zip(is_code).filter(|(_, code)| **code);
    code.filter(|(address, _)| text_range(ranges, **address).is_some())
        .count()
}
