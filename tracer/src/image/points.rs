//! The records that an image keeps of places which are switched from outside: dynamic functions and
//! tracepoints. Each kind has a section of its own, of records of whole 64-bit words.

use std::sync::Arc;

use super::elf::Elf;
use crate::addr::Gva;

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
        // Sections that lie over each other could hold far more than the file.
        if (records.len() * N + data.len() / 8) > elf.bytes.len() / 8 {
            notes.push(format!("{name}: more records than the file has bytes for"));
            break;
        }
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

/// What a field of an event holds: an integer of 1, 2, 4 or 8 bytes, or a truth value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FieldType {
    bytes: u8,
    kind: FieldKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum FieldKind {
    Unsigned,
    Signed,
    Bool,
}

impl FieldType {
    /// The type that Rust calls so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (kind, bytes) = match name {
            "bool" => (FieldKind::Bool, 1),
            "u8" => (FieldKind::Unsigned, 1),
            "u16" => (FieldKind::Unsigned, 2),
            "u32" => (FieldKind::Unsigned, 4),
            "u64" | "usize" => (FieldKind::Unsigned, 8),
            "i8" => (FieldKind::Signed, 1),
            "i16" => (FieldKind::Signed, 2),
            "i32" => (FieldKind::Signed, 4),
            "i64" | "isize" => (FieldKind::Signed, 8),
            _ => return None,
        };
        Some(Self { bytes, kind })
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.kind, self.bytes) {
            (FieldKind::Bool, _) => "bool",
            (FieldKind::Unsigned, 1) => "u8",
            (FieldKind::Unsigned, 2) => "u16",
            (FieldKind::Unsigned, 4) => "u32",
            (FieldKind::Unsigned, _) => "u64",
            (FieldKind::Signed, 1) => "i8",
            (FieldKind::Signed, 2) => "i16",
            (FieldKind::Signed, 4) => "i32",
            (FieldKind::Signed, _) => "i64",
        }
    }

    /// Its size.
    #[must_use]
    pub const fn bytes(self) -> u8 {
        self.bytes
    }

    /// Whether its top bit is a sign.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self.kind, FieldKind::Signed)
    }

    /// Words of a payload that it takes: each carries 32 bits.
    #[must_use]
    pub const fn words(self) -> usize {
        if self.bytes > 4 { 2 } else { 1 }
    }

    /// The value of these bits.
    #[must_use]
    pub const fn value(self, bits: u64) -> FieldValue {
        let unused = 64 - 8 * self.bytes as u32;
        let bits = bits << unused;
        match self.kind {
            FieldKind::Bool => FieldValue::Bool(bits != 0),
            FieldKind::Unsigned => FieldValue::Unsigned(bits >> unused),
            FieldKind::Signed => FieldValue::Signed(bits.cast_signed() >> unused),
        }
    }
}

/// What a field held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum FieldValue {
    /// A truth value.
    Bool(bool),
    /// A number without sign.
    Unsigned(u64),
    /// A number with sign.
    Signed(i64),
}

impl std::fmt::Display for FieldValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Unsigned(value) => value.fmt(f),
            Self::Signed(value) => value.fmt(f),
        }
    }
}

/// A field of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// What it is called.
    pub name: Arc<str>,
    /// What it holds.
    pub kind: FieldType,
}

/// What an event says when it happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventFormat {
    /// Its name.
    pub name: Arc<str>,
    /// Its fields.
    pub fields: Vec<Field>,
}

/// Fields of one event, at most.
pub(super) const FIELDS_MAX: u64 = 16;

impl EventFormat {
    /// Words of its payload.
    #[must_use]
    pub fn words(&self) -> usize {
        self.fields.iter().map(|field| field.kind.words()).sum()
    }
}

/// The number of an event of an image: its tracepoints come first, then its markers, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u32);

impl EventId {
    /// Its place.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

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
