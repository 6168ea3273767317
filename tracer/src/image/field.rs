//! What the fields of events hold: types, and values.

use std::sync::Arc;

use crate::addr::Gva;

/// What a field of an event holds: an integer of 1, 2, 4 or 8 bytes, a truth value, or an address.
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
    Pointer,
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
            pointer if is_pointer(pointer) => (FieldKind::Pointer, 8),
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
            (FieldKind::Pointer, _) => "pointer",
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
            FieldKind::Pointer => FieldValue::Pointer(Gva(bits >> unused)),
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
    /// An address of the guest: in JSON, as everywhere, hexadecimal.
    #[serde(with = "hexadecimal")]
    Pointer(Gva),
}

impl std::fmt::Display for FieldValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Unsigned(value) => value.fmt(f),
            Self::Signed(value) => value.fmt(f),
            Self::Pointer(value) => value.fmt(f),
        }
    }
}

/// Whether Rust calls a pointer so, to whatever it leads; of one to something unsized there are two words.
fn is_pointer(name: &str) -> bool {
    let to = ["*const ", "*mut "].into_iter();
    let to = to.filter_map(|start| name.strip_prefix(start)).next();
    let is_slice = |to: &str| to.starts_with('[') && !to.contains(';');
    to.is_some_and(|to| to != "str" && !to.starts_with("dyn ") && !is_slice(to))
}

/// Addresses as JSON text.
mod hexadecimal {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    use crate::addr::Gva;

    pub(super) fn serialize<S: Serializer>(value: &Gva, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Gva, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.strip_prefix("0x");
        let value = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        value.map(Gva).ok_or_else(|| D::Error::custom("no address"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_addresses_and_text_in_json() {
        for name in ["*const u8", "*mut Message", "*const ()", "*const [u8; 4]"] {
            let kind = FieldType::named(name).unwrap();
            assert_eq!((kind.name(), kind.bytes(), kind.words()), ("pointer", 8, 2));
            let value = kind.value(0xffff_ffff_8140_0010);
            assert_eq!(value.to_string(), "0xffffffff81400010");
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(json, "\"0xffffffff81400010\"");
            assert_eq!(serde_json::from_str::<FieldValue>(&json).unwrap(), value);
        }
        for name in [
            "*const str",
            "*const [u8]",
            "*mut dyn Send",
            "&u8",
            "*u8",
            "",
        ] {
            assert_eq!(FieldType::named(name), None, "{name}");
        }
        for json in ["\"ffff\"", "\"0x\"", "\"0x10000000000000000\"", "[]"] {
            assert!(serde_json::from_str::<FieldValue>(json).is_err(), "{json}");
        }
    }
}
