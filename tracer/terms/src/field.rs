//! What the fields of events hold: types, and values.

use std::sync::Arc;

use crate::addr::Gva;
use crate::printable::masked;

/// What a field of an event holds. Events that the guest declares hold numbers, truth values and addresses;
/// what a probe captures can also be text, bytes, and numbers with names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldType {
    bytes: u16,
    kind: FieldKind,
}

/// How the bits of a field are to be shown.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FieldKind {
    Unsigned,
    Signed,
    Bool,
    Pointer,
    Hexadecimal,
    Character,
    Enumeration(Arc<Enumeration>),
    Text,
    Bytes,
    Stack,
}

/// Numbers that have names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Enumeration {
    /// What the type is called.
    pub name: Arc<str>,
    /// Each number, with its sign extended if it has one, and its name.
    pub names: Vec<(i64, Arc<str>)>,
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
            "x8" => (FieldKind::Hexadecimal, 1),
            "x16" => (FieldKind::Hexadecimal, 2),
            "x32" => (FieldKind::Hexadecimal, 4),
            "x64" => (FieldKind::Hexadecimal, 8),
            "char" => (FieldKind::Character, 1),
            "pointer" => (FieldKind::Pointer, 8),
            pointer if is_pointer(pointer) => (FieldKind::Pointer, 8),
            _ => return None,
        };
        Some(Self { bytes, kind })
    }

    /// A number of `bytes` (1, 2, 4 or 8) that may have a name.
    #[must_use]
    pub const fn enumeration(bytes: u8, names: Arc<Enumeration>) -> Self {
        Self {
            bytes: bytes as u16,
            kind: FieldKind::Enumeration(names),
        }
    }

    /// Text of at most `max` bytes.
    #[must_use]
    pub const fn text(max: u16) -> Self {
        Self {
            bytes: max,
            kind: FieldKind::Text,
        }
    }

    /// So many bytes.
    #[must_use]
    pub const fn raw(bytes: u16) -> Self {
        Self {
            bytes,
            kind: FieldKind::Bytes,
        }
    }

    /// A stack, of which at most so many bytes are kept.
    #[must_use]
    pub const fn stack(max: u16) -> Self {
        Self {
            bytes: max,
            kind: FieldKind::Stack,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match (&self.kind, self.bytes) {
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
            (FieldKind::Hexadecimal, 1) => "x8",
            (FieldKind::Hexadecimal, 2) => "x16",
            (FieldKind::Hexadecimal, 4) => "x32",
            (FieldKind::Hexadecimal, _) => "x64",
            (FieldKind::Character, _) => "char",
            (FieldKind::Enumeration(names), _) => &names.name,
            (FieldKind::Text, _) => "string",
            (FieldKind::Bytes, _) => "bytes",
            (FieldKind::Stack, _) => "stack",
        }
    }

    /// Its size; of text and stacks the most that is kept.
    #[must_use]
    pub const fn bytes(&self) -> u16 {
        self.bytes
    }

    /// Whether its top bit is a sign.
    #[must_use]
    pub const fn is_signed(&self) -> bool {
        matches!(self.kind, FieldKind::Signed)
    }

    /// The names of its numbers, if they have such.
    #[must_use]
    pub fn names(&self) -> Option<&Enumeration> {
        match &self.kind {
            FieldKind::Enumeration(names) => Some(names),
            _ => None,
        }
    }

    /// Whether it is a number, and not text or bytes.
    #[must_use]
    pub const fn is_number(&self) -> bool {
        !matches!(
            self.kind,
            FieldKind::Text | FieldKind::Bytes | FieldKind::Stack
        )
    }

    /// Whether it is text.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        matches!(self.kind, FieldKind::Text)
    }

    /// Whether it is a stack.
    #[must_use]
    pub const fn is_stack(&self) -> bool {
        matches!(self.kind, FieldKind::Stack)
    }

    /// Words of a payload that it takes: each carries 32 bits. Text has one more, for its length; a stack has six more, for three
    /// registers.
    #[must_use]
    pub const fn words(&self) -> usize {
        let whole = (self.bytes as usize).div_ceil(4);
        match self.kind {
            FieldKind::Text => 1 + whole,
            FieldKind::Bytes => whole,
            FieldKind::Stack => 7 + whole,
            _ if self.bytes > 4 => 2,
            _ => 1,
        }
    }

    /// The value of these bits, if it is a number; text and bytes are not made of bits.
    #[must_use]
    pub fn value(&self, bits: u64) -> FieldValue {
        let unused = 64 - 8 * u32::from(self.bytes.clamp(1, 8));
        let bits = bits << unused;
        let signed = bits.cast_signed() >> unused;
        match &self.kind {
            FieldKind::Bool => FieldValue::Bool(bits != 0),
            FieldKind::Unsigned => FieldValue::Unsigned(bits >> unused),
            FieldKind::Signed => FieldValue::Signed(signed),
            FieldKind::Pointer | FieldKind::Hexadecimal => FieldValue::Pointer(Gva(bits >> unused)),
            FieldKind::Character => FieldValue::Character {
                char: char::from((bits >> unused).to_le_bytes()[0]),
            },
            FieldKind::Enumeration(names) => {
                let zero_extended = (bits >> unused).cast_signed();
                let is_it =
                    |(value, _): &&(i64, Arc<str>)| *value == signed || *value == zero_extended;
                let found = names.names.iter().find(is_it);
                found.map_or(FieldValue::Signed(signed), |(_, name)| {
                    FieldValue::Enumerator {
                        name: (**name).into(),
                    }
                })
            }
            FieldKind::Text | FieldKind::Bytes | FieldKind::Stack => FieldValue::Fault,
        }
    }
}

/// What a field held.
///
/// In JSON numbers and truth values are what they are, addresses hexadecimal text, what could not be read is
/// null, and everything else is an object whose key says what it is: `{"text":"eth0"}`,
/// `{"text":"/usr/li","truncated":true}`, `{"char":"x"}`, `{"enum":"RUNNING"}`, `{"bytes":"00ff"}`,
/// `{"stack":["vfs_read","ksys_read+0x6f"]}`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum FieldValue {
    /// A truth value.
    Bool(bool),
    /// A number without sign.
    Unsigned(u64),
    /// A number with sign.
    Signed(i64),
    /// An address of the guest, or a number that is shown as one: in JSON, as everywhere, hexadecimal.
    #[serde(with = "hexadecimal")]
    Pointer(Gva),
    /// A character of one byte.
    Character {
        /// Its number, as a character.
        char: char,
    },
    /// A number by its name.
    Enumerator {
        /// The name.
        #[serde(rename = "enum")]
        name: Box<str>,
    },
    /// Text.
    Text {
        /// As much of it as was kept.
        text: Box<str>,
        /// Whether that is not all.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        truncated: bool,
    },
    /// Bytes.
    Bytes {
        /// Two hexadecimal digits for each.
        bytes: Box<str>,
    },
    /// A stack: where the probe sits, then where each caller goes on.
    Stack {
        /// By name and offset, the innermost first.
        stack: Box<[Box<str>]>,
        /// Whether there are more, which are not known.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        truncated: bool,
    },
    /// The guest has no memory where the value should be.
    Fault,
}

impl FieldValue {
    /// These bytes.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        Self::Bytes {
            bytes: digits.collect::<String>().into(),
        }
    }

    /// Bytes that it takes beside itself.
    #[must_use]
    pub fn weight(&self) -> usize {
        match self {
            Self::Enumerator { name: text }
            | Self::Text { text, .. }
            | Self::Bytes { bytes: text } => text.len(),
            Self::Stack { stack, .. } => {
                let names: usize = stack.iter().map(|name| name.len()).sum();
                size_of_val::<[Box<str>]>(stack) + names
            }
            Self::Bool(_)
            | Self::Unsigned(_)
            | Self::Signed(_)
            | Self::Pointer(_)
            | Self::Character { .. }
            | Self::Fault => 0,
        }
    }

    /// This text; what is no UTF-8 is replaced.
    #[must_use]
    pub fn of_text(text: &[u8], truncated: bool) -> Self {
        Self::Text {
            text: String::from_utf8_lossy(text).into(),
            truncated,
        }
    }
}

impl std::fmt::Display for FieldValue {
    /// In one line, whatever the guest has put there: control characters are escaped.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Unsigned(value) => value.fmt(f),
            Self::Signed(value) => value.fmt(f),
            Self::Pointer(value) => value.fmt(f),
            Self::Character { char } => write!(f, "{char:?}"),
            Self::Enumerator { name } => f.write_str(&masked(name)),
            Self::Text { text, truncated } => {
                let more = if *truncated { "..." } else { "" };
                write!(f, "{text:?}{more}")
            }
            Self::Bytes { bytes } => f.write_str(&masked(bytes)),
            Self::Stack { stack, truncated } => {
                for (depth, one) in stack.iter().enumerate() {
                    let arrow = if depth > 0 { " <- " } else { "" };
                    write!(f, "{arrow}{}", masked(one))?;
                }
                f.write_str(if *truncated { " <- ..." } else { "" })
            }
            Self::Fault => f.write_str("fault"),
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

    #[test]
    fn what_is_no_number_comes_back_from_json_as_it_was() {
        let text = |text: &str, truncated| FieldValue::of_text(text.as_bytes(), truncated);
        for (value, json, shown) in [
            (text("0x12", false), r#"{"text":"0x12"}"#, r#""0x12""#),
            (
                text("a\"\n", true),
                r#"{"text":"a\"\n","truncated":true}"#,
                r#""a\"\n"..."#,
            ),
            (
                FieldValue::of_bytes(&[0, 255]),
                r#"{"bytes":"00ff"}"#,
                "00ff",
            ),
            (
                FieldValue::Character { char: '\0' },
                r#"{"char":"\u0000"}"#,
                r"'\0'",
            ),
            (
                FieldValue::Enumerator { name: "RED".into() },
                r#"{"enum":"RED"}"#,
                "RED",
            ),
            (FieldValue::Fault, "null", "fault"),
        ] {
            assert_eq!(serde_json::to_string(&value).unwrap(), json);
            assert_eq!(serde_json::from_str::<FieldValue>(json).unwrap(), value);
            assert_eq!(value.to_string(), shown);
        }
    }

    #[test]
    fn numbers_with_names_are_shown_by_them() {
        let names = Enumeration {
            name: "state".into(),
            names: vec![(-1, "DEAD".into()), (3, "BUSY".into())],
        };
        let kind = FieldType::enumeration(4, Arc::new(names));
        for (bits, shown) in [(3, "BUSY"), (0xffff_ffff, "DEAD"), (7, "7")] {
            assert_eq!(kind.value(bits).to_string(), shown);
        }
        assert_eq!((kind.name(), kind.bytes(), kind.words()), ("state", 4, 1));
    }
}
