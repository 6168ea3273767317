//! The packed names, found from the end: the markers (where each 256th name begins) lie before the
//! token table, the names before the markers, and their number before the names.

use super::tokens::Tokens;
use super::{aligned, u32_at};

/// Names for each marker.
const STRIDE: usize = 256;
/// Bytes of a packed name with its length: at least a type and a character.
const ENTRY_MIN: usize = 2;
const ENTRY_MAX: usize = 1026;
/// Fewer symbols than that are no kernel's.
const COUNT_MIN: usize = 2 * STRIDE;
/// And more are none's: Debian's have 200,000.
const COUNT_MAX: usize = 2 << 20;
/// How far before the tokens the markers can begin: with the table by name, as many symbols.
const REACH: usize = 8 << 20;
/// Tables begin at multiples of at most this.
const ALIGN_MAX: usize = 8;
/// A name's sequence number in the table by name.
const SEQUENCE: usize = 3;

/// The packed names of all symbols.
#[derive(Debug, Clone)]
pub(super) struct Names<'a> {
    /// Offset of their number in the segment.
    pub header: usize,
    /// How many there are.
    pub count: usize,
    bytes: &'a [u8],
    lengths: Lengths,
}

/// How the length of a name is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lengths {
    /// Seven bits, and seven more where the first byte has its top bit set (since 6.1).
    Wide,
    /// One byte.
    Byte,
}

impl Lengths {
    /// Splits the first packed name off.
    fn split(self, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
        let (&first, rest) = bytes.split_first()?;
        match self {
            Self::Wide if first & 0x80 != 0 => {
                let (&second, rest) = rest.split_first()?;
                rest.split_at_checked(usize::from(first & 0x7f) | usize::from(second) << 7)
            }
            Self::Wide | Self::Byte => rest.split_at_checked(usize::from(first)),
        }
    }
}

/// The names that belong to `tokens`.
pub(super) fn find<'a>(bytes: &'a [u8], tokens: &Tokens<'_>) -> Option<Names<'a>> {
    let highest = tokens.start.checked_sub(4)? & !3;
    let lowest = tokens.start.saturating_sub(REACH);
    (lowest..=highest).rev().step_by(4).find_map(|start| {
        let markers = Markers::at(bytes, start, tokens.start)?;
        markers
            .counts(tokens.start)
            .into_iter()
            .find_map(|groups| markers.names(bytes, groups, tokens.start))
    })
}

/// Words that may be the markers: the first is 0, and they grow as far as they are looked at.
struct Markers {
    start: usize,
    values: Vec<usize>,
}

impl Markers {
    fn at(bytes: &[u8], start: usize, end: usize) -> Option<Self> {
        let mut values = Vec::new();
        for offset in (start..end).step_by(4) {
            let value = u32_at(bytes, offset)? as usize;
            let fits = match values.last() {
                None => value == 0,
                Some(&last) => {
                    (last + STRIDE * ENTRY_MIN..=last + STRIDE * ENTRY_MAX).contains(&value)
                }
            };
            if !fits {
                break;
            }
            values.push(value);
        }
        (values.len() > 1).then_some(Self { start, values })
    }

    /// How many of them can be markers, so that the tokens begin after them or after the table by
    /// name that is between.
    fn counts(&self, tokens: usize) -> Vec<usize> {
        let room = tokens - self.start;
        let group = 4 + SEQUENCE * STRIDE;
        let mut counts = vec![
            room / 4,
            (room / 4).saturating_sub(1),
            room.div_ceil(group),
            room / group,
        ];
        counts.retain(|&count| count > 1 && count <= self.values.len());
        counts.dedup();
        counts
    }

    /// The names before the markers, if there are `groups` of these.
    fn names<'a>(&self, bytes: &'a [u8], groups: usize, tokens: usize) -> Option<Names<'a>> {
        let last = *self.values.get(groups - 1)?;
        let nearest = self.start.checked_sub(last + ENTRY_MIN)? & !3;
        let farthest = nearest.saturating_sub(STRIDE * ENTRY_MAX);
        (farthest..=nearest).rev().step_by(4).find_map(|start| {
            [8, 4].into_iter().find_map(|back| {
                let header = start.checked_sub(back)?;
                let count = u32_at(bytes, header)? as usize;
                if count.div_ceil(STRIDE) != groups || !self.ends_at(tokens, groups, count) {
                    return None;
                }
                self.decode(bytes.get(start..self.start)?, header, count)
            })
        })
    }

    fn ends_at(&self, tokens: usize, groups: usize, count: usize) -> bool {
        let end = self.start + 4 * groups;
        let by_name = aligned(end, ALIGN_MAX) + SEQUENCE * count;
        let packed = end + SEQUENCE * count;
        (COUNT_MIN..=COUNT_MAX).contains(&count)
            && [end, by_name, packed]
                .into_iter()
                .any(|end| (end..end + ALIGN_MAX).contains(&tokens))
    }

    fn decode<'a>(&self, bytes: &'a [u8], header: usize, count: usize) -> Option<Names<'a>> {
        [Lengths::Wide, Lengths::Byte]
            .into_iter()
            .find_map(|lengths| {
                let names = Names {
                    header,
                    count,
                    bytes,
                    lengths,
                };
                self.agree(&names).then_some(names)
            })
    }

    /// Whether each 256th name begins where its marker says, and the last one ends before the
    /// markers.
    fn agree(&self, names: &Names<'_>) -> bool {
        let mut rest = names.bytes;
        for index in 0..names.count {
            if index % STRIDE == 0
                && self.values.get(index / STRIDE) != Some(&(names.bytes.len() - rest.len()))
            {
                return false;
            }
            match names.lengths.split(rest) {
                Some((name, after)) if name.len() >= ENTRY_MIN - 1 => rest = after,
                _ => return false,
            }
        }
        rest.len() < ALIGN_MAX && rest.iter().all(|byte| *byte == 0)
    }
}

impl<'a> Names<'a> {
    /// The packed names in order.
    pub fn entries(&self) -> impl Iterator<Item = &'a [u8]> {
        let (mut rest, lengths) = (self.bytes, self.lengths);
        let all = std::iter::from_fn(move || {
            let (name, after) = lengths.split(rest)?;
            rest = after;
            Some(name)
        });
        all.take(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_symbols_than_any_kernel_has_are_none() {
        let ends = |count: usize| {
            let groups = count.div_ceil(STRIDE);
            let markers = Markers {
                start: 0,
                values: Vec::new(),
            };
            markers.ends_at(4 * groups, groups, count)
        };
        assert!(ends(COUNT_MIN) && ends(COUNT_MAX));
        assert!(!ends(COUNT_MIN - 1) && !ends(COUNT_MAX + 1));
    }
}
