//! The records that an image keeps of places which are switched from outside: dynamic functions and
//! tracepoints. Each kind has a section of its own, of records of whole 64-bit words.

use super::elf::Elf;
use crate::addr::Gva;

/// The longest name or list of types that is believed.
const TEXT_MAX: u64 = 1024;

/// What two functions have in common when one can stand for the other: equal for equal types of
/// parameters and result, and for nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature(pub [u64; 2]);

/// The records of `N` words in the sections called `name`. Remarks go to `notes`.
pub(super) fn records<const N: usize>(
    elf: &Elf<'_>,
    name: &str,
    notes: &mut Vec<String>,
) -> Vec<[u64; N]> {
    let mut records = Vec::new();
    for (_, data) in elf.sections_named(name) {
        // Sections that lie over each other could hold far more than the file.
        if (records.len() * N + data.len() / 8) > elf.bytes.len() / 8 {
            notes.push(format!("{name}: more records than the file has bytes for"));
            break;
        }
        let (words, _) = data.as_chunks::<8>();
        let (whole, rest) = words.as_chunks::<N>();
        records.extend(whole.iter().map(|record| record.map(u64::from_le_bytes)));
        if !rest.is_empty() || !data.len().is_multiple_of(8) {
            notes.push(format!("{name}: its size is not that of whole records"));
        }
    }
    records
}

/// The text of `length` bytes at `address`, if it is there and can be shown in one line.
pub(super) fn text(elf: &Elf<'_>, address: u64, length: u64) -> Option<String> {
    if length == 0 || length > TEXT_MAX {
        return None;
    }
    let bytes = elf.bytes_at(Gva(address), length);
    let whole = bytes.len() as u64 == length;
    let text = std::str::from_utf8(bytes).ok().filter(|_| whole)?;
    let plain = !text.chars().any(char::is_control);
    plain.then(|| text.to_owned())
}

/// The `count` words at `address`, at most `max` of them, if they are there.
pub(super) fn words(elf: &Elf<'_>, address: u64, count: u64, max: u64) -> Option<Vec<u64>> {
    if count > max {
        return None;
    }
    let bytes = elf.bytes_at(Gva(address), count * 8);
    let (words, _) = bytes.as_chunks::<8>();
    let whole = words.len() as u64 == count;
    whole.then(|| words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}
