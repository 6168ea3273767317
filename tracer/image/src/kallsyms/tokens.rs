//! The token table: 256 strings, each ended by a zero, and an index of where each begins. Characters
//! that occur in names stand for themselves, so the ten digits are ten tokens in a row.

use super::aligned;

const TOKENS: usize = 256;
/// `"0\01\02\0…9\0"`.
const DIGITS: [u8; 20] = *b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
const FIRST_DIGIT: usize = b'0' as usize;
/// The kernel's limit is 512 with type letter and zero; a little room for later ones.
const NAME_MAX: usize = 1024;

/// A token table that agrees with its index.
#[derive(Debug, Clone)]
pub(super) struct Tokens<'a> {
    /// Offset of the table in its segment.
    pub start: usize,
    /// Offset of the end of the index.
    pub end: usize,
    table: [&'a [u8]; TOKENS],
}

/// All token tables in `bytes`; there is one in a kernel.
pub(super) fn find(bytes: &[u8]) -> impl Iterator<Item = Tokens<'_>> {
    memchr::memmem::find_iter(bytes, &DIGITS).filter_map(|digits| around(bytes, digits))
}

/// The table whose digits are at `digits`: its end is 246 strings further, the index after it says
/// where it begins.
fn around(bytes: &[u8], digits: usize) -> Option<Tokens<'_>> {
    let mut ends = memchr::memchr_iter(0, bytes.get(digits..)?);
    let end = digits + ends.nth(TOKENS - FIRST_DIGIT - 1)? + 1;
    // The index is of two-byte words, aligned like all tables.
    [8, 4, 2]
        .into_iter()
        .find_map(|align| indexed(bytes, digits, aligned(end, align)))
}

fn indexed(bytes: &[u8], digits: usize, index: usize) -> Option<Tokens<'_>> {
    let end = index + 2 * TOKENS;
    let (words, _) = bytes.get(index..end)?.as_chunks::<2>();
    let begin = |token: usize| {
        words
            .get(token)
            .map(|word| usize::from(u16::from_le_bytes(*word)))
    };
    if begin(0)? != 0 {
        return None;
    }
    let start = digits.checked_sub(begin(FIRST_DIGIT)?)?;
    let mut table = [&[][..]; TOKENS];
    for (token, slot) in table.iter_mut().enumerate() {
        let string = bytes.get(start + begin(token)?..index)?;
        let length = memchr::memchr(0, string)?;
        let next = begin(token + 1).unwrap_or(begin(token)? + length + 1);
        if next != begin(token)? + length + 1 {
            return None;
        }
        *slot = string.get(..length)?;
    }
    Some(Tokens { start, end, table })
}

impl Tokens<'_> {
    /// The type letter and the name that these tokens make; nothing when they are too long, or make
    /// no name.
    pub fn expand(&self, packed: &[u8]) -> Option<(u8, String)> {
        let mut name = Vec::new();
        for &token in packed {
            name.extend_from_slice(self.table.get(usize::from(token))?);
            if name.len() > NAME_MAX {
                return None;
            }
        }
        let (&letter, name) = name.split_first()?;
        let known = letter.is_ascii_alphabetic() || letter == b'?';
        (known && !name.is_empty()).then(|| (letter, String::from_utf8_lossy(name).into_owned()))
    }
}
