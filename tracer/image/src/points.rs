//! The records that an image keeps of places which are switched from outside: dynamic functions and
//! tracepoints. Each kind has a section of its own, of records of whole 64-bit words.

use terms::addr::Gva;
use terms::printable::is_printable;

use super::elf::Elf;

/// The longest name or list of types that is believed.
const TEXT_MAX: u64 = 1024;

/// What two functions have in common when one can stand for the other: equal for equal types of
/// parameters and result, and for nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature(pub [u64; 2]);

/// The records of `N` words in the sections called `name`, with their addresses. Remarks go to `notes`.
pub(super) fn records<const N: usize>(
    elf: &Elf<'_>,
    name: &str,
    notes: &mut Vec<String>,
) -> Vec<(Gva, [u64; N])> {
    let mut records = Vec::new();
    for (start, data) in elf.sections_named(name) {
        let (words, _) = data.as_chunks::<8>();
        let (whole, rest) = words.as_chunks::<N>();
        let addresses = (0..).map(|number: u64| start.wrapping_add(number * 8 * N as u64));
        let words = whole.iter().map(|record| record.map(u64::from_le_bytes));
        records.extend(addresses.zip(words));
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
    let plain = text.chars().all(is_printable);
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

/// Fields of one event, at most.
pub(super) const FIELDS_MAX: u64 = 16;

/// Where the value of a field is when an event happens. Registers go by the number that instructions
/// have for them: 0 is `rax`, 4 `rsp`, 15 `r15`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operand {
    /// In a register.
    Register(u8),
    /// In memory.
    Memory {
        /// The register that the address is relative to.
        base: u8,
        /// By how much.
        displacement: i32,
    },
    /// Always the same.
    Constant(i64),
}

/// Whether `name` can stand in a line and in every export without quotes.
pub(super) fn is_plain(name: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "_:.-".contains(char);
    !name.is_empty() && name.chars().all(is_plain)
}
