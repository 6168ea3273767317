//! What the values of calls are: the file `values.json` beside the calls, an array with an object for each function
//! whose arguments or return value were captured. The values themselves lie after the records of uftrace's data
//! files, as uftrace wants them, and this file says how to read them back with their names.
//!
//! uftrace is told of a function by its name. Where several have one name, or it has no way to write a name, the values lie
//! *beside*: in the file beside the records, which uftrace does not open, in the same form.
//!
//! ```text
//!  number   its bytes, filled up to a multiple of 4
//!  text     its length (16 bits) and its bytes, filled up together; what was longer ends in `...`
//!           what a terminal acts on is escaped, `\u{1b}`, and so are backslashes: `\\`
//!           where the guest has no memory: length 4, four bytes of 0xff (uftrace shows NULL)
//!  together filled up to a multiple of 8
//! ```
//!
//! What has no type that uftrace knows is left out (bytes), and a call of which a number could not be read has none of
//! its values of that moment here.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terms::field::{Enumeration, Field, FieldType, FieldValue};
use terms::function::{Function, FunctionId};
use terms::printable;
use terms::printable::Reversible;

use super::uftrace::record::truncated;
use crate::event::{Moment, Values};

/// The file's name.
pub const VALUES_FILE: &str = "values.json";
/// What the place is called where a call was made.
pub const CALLER: &str = "caller";
/// The glob of all functions.
const EVERY: &str = "*";
/// What uftrace takes for text that could not be read.
const NO_TEXT: [u8; 4] = [0xff; 4];
/// What stands after text that was longer.
const MORE: &str = "...";
/// Values of one call, and bytes of each, at most: of a file that may come from anywhere.
const FIELDS_MAX: usize = 64;
const TEXT_MAX: u16 = 1 << 14;
/// The most that is read of what a value or an enumerator is called: each call has it again, for four bytes.
const NAME_MAX: usize = 512;

/// A function whose calls have values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct FunctionNote {
    function: String,
    address: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    beside: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    args: Vec<ValueFormat>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    retval: Vec<ValueFormat>,
}

/// One of its values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ValueFormat {
    name: String,
    r#type: String,
    bytes: u16,
    /// Of an enumeration: its numbers and names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    names: Vec<(i64, String)>,
}

impl ValueFormat {
    fn of(field: &Field) -> Self {
        let names = field.kind.names().map(|of| &of.names);
        let names = names.into_iter().flatten();
        Self {
            name: field.name.to_string(),
            r#type: field.kind.name().to_owned(),
            bytes: field.kind.bytes(),
            names: names
                .map(|(value, name)| (*value, name.to_string()))
                .collect(),
        }
    }

    fn field(&self) -> Option<Field> {
        let cut = |name: &str| printable::cut(name, NAME_MAX).into();
        let kind = if !self.names.is_empty() {
            let names = self.names.iter();
            let names = names.map(|(value, name)| (*value, cut(name)));
            let names = Enumeration {
                name: cut(&self.r#type),
                names: names.collect(),
            };
            let bytes = u8::try_from(self.bytes).ok();
            let bytes = bytes.filter(|bytes| [1, 2, 4, 8].contains(bytes))?;
            FieldType::enumeration(bytes, Arc::new(names))
        } else if self.r#type == "string" && self.bytes <= TEXT_MAX {
            FieldType::text(self.bytes)
        } else {
            FieldType::named(&self.r#type)?
        };
        Some(Field {
            name: cut(&self.name),
            kind,
        })
    }
}

/// The values of one function's calls at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Format {
    name: String,
    fields: Arc<[Field]>,
    /// Whether its values lie beside the records.
    is_beside: bool,
}

/// What the values of the calls of a trace are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallFormats {
    /// By the low 48 bits of the function's address.
    functions: BTreeMap<(u64, Moment), Format>,
    /// Of the entry of every other function.
    others: Option<Format>,
}

impl CallFormats {
    /// Of what is captured of these functions' calls.
    pub fn of<'a>(
        functions: &[Function],
        captured: impl Iterator<Item = (FunctionId, Moment, &'a [Field])>,
    ) -> Self {
        let mut names: HashMap<&str, usize> = HashMap::new();
        for function in functions {
            *names.entry(&function.display).or_default() += 1;
        }
        Self::of_named(functions, |name| names.get(name) == Some(&1), captured)
    }

    /// The same for who knows which names are those of one function.
    pub(super) fn of_named<'a>(
        functions: &[Function],
        is_alone: impl Fn(&str) -> bool,
        captured: impl Iterator<Item = (FunctionId, Moment, &'a [Field])>,
    ) -> Self {
        let format = |(id, moment, fields): (FunctionId, Moment, &[Field])| {
            let function = functions.get(id.index())?;
            let name = &*function.display;
            let format = Format {
                name: name.to_owned(),
                fields: fields.into(),
                is_beside: !is_alone(name) || !can_be_written(name),
            };
            Some(((truncated(function.address.0), moment), format))
        };
        Self {
            functions: captured.filter_map(format).collect(),
            others: None,
        }
    }

    /// Where each call was made: what is known of all calls of a trace that has callers.
    #[must_use]
    pub fn callers() -> Self {
        let caller = FieldType::named("pointer").map(|kind| Field {
            name: CALLER.into(),
            kind,
        });
        Self {
            functions: BTreeMap::new(),
            others: Some(Format {
                name: EVERY.to_owned(),
                fields: caller.into_iter().collect(),
                is_beside: false,
            }),
        }
    }

    /// Values lie where they lay before, although other functions may have come.
    pub fn stay_as(&mut self, before: &Self) {
        for (key, format) in &mut self.functions {
            if let Some(before) = before.functions.get(key) {
                format.is_beside = before.is_beside;
            }
        }
    }

    /// Whether the values of the function at `address` lie beside the records.
    #[must_use]
    pub fn is_beside(&self, address: u64, moment: Moment) -> bool {
        let format = self.functions.get(&(truncated(address), moment));
        format.is_some_and(|format| format.is_beside)
    }

    /// Whether uftrace is told of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.values().all(|format| format.is_beside) && self.others.is_none()
    }

    /// The fields of the calls of the function at `address`.
    #[must_use]
    pub fn fields(&self, address: u64, moment: Moment) -> Option<&[Field]> {
        let others = self.others.as_ref().filter(|_| moment == Moment::Entry);
        let format = self.functions.get(&(truncated(address), moment));
        format.or(others).map(|format| &*format.fields)
    }

    /// The bytes that stand after the record of a call with these values; none for what cannot be said.
    #[must_use]
    pub fn encode(&self, address: u64, moment: Moment, values: &[FieldValue]) -> Option<Vec<u8>> {
        let fields = self.fields(address, moment)?;
        let mut bytes = Vec::new();
        for (field, value) in fields.iter().zip(values) {
            encode(&field.kind, value, &mut bytes)?;
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        (fields.len() == values.len() && !bytes.is_empty()).then_some(bytes)
    }

    /// Reads what stands after a record. None for a function that is not known, or what cannot be there.
    ///
    /// # Errors
    /// What `from` says, and [`io::ErrorKind::UnexpectedEof`].
    pub fn decode(
        &self,
        address: u64,
        moment: Moment,
        from: &mut impl Read,
    ) -> io::Result<Option<(Values, usize)>> {
        let Some(fields) = self.fields(address, moment) else {
            return Ok(None);
        };
        let (mut values, mut length) = (Vec::with_capacity(fields.len()), 0);
        for field in fields {
            let (value, read) = decode(&field.kind, from)?;
            values.push(value);
            length += read;
        }
        let whole = length.next_multiple_of(8);
        from.read_exact(&mut vec![0; whole - length])?;
        Ok(Some((values.into(), whole)))
    }

    /// How uftrace is told of them: the arguments, and what is returned.
    #[must_use]
    pub fn specs(&self) -> (String, String) {
        let (mut args, mut retval) = (String::new(), String::new());
        let plain = self
            .functions
            .iter()
            .filter(|(_, format)| !format.is_beside);
        for ((_, moment), format) in plain {
            let into = match moment {
                Moment::Entry => &mut args,
                Moment::Exit => &mut retval,
            };
            // Writing to a string cannot fail.
            let _ = write!(
                into,
                "{}{}@",
                if into.is_empty() { "" } else { ";" },
                pattern(&format.name)
            );
            for (field, number) in format.fields.iter().zip(1..) {
                let (comma, kind) = (if number == 1 { "" } else { "," }, spec(&field.kind));
                let _ = match moment {
                    Moment::Entry => write!(into, "{comma}arg{number}/{kind}"),
                    Moment::Exit => write!(into, "{comma}retval/{kind}"),
                };
            }
        }
        if self.others.is_some() {
            // A pointer into text, which uftrace shows by its name.
            let comma = if args.is_empty() { "" } else { ";" };
            args = format!("{args}{comma}{EVERY}@arg1/p");
        }
        (args, retval)
    }

    /// Writes the file of the trace in `directory`: a reader finds the old one or the new one.
    ///
    /// # Errors
    /// The file and what the system says of it.
    pub fn write(&self, directory: &Path) -> Result<(), (PathBuf, io::Error)> {
        let mut notes: BTreeMap<u64, FunctionNote> = BTreeMap::new();
        for ((address, moment), format) in &self.functions {
            let note = notes.entry(*address).or_default();
            note.function.clone_from(&format.name);
            note.address = format!("{address:#x}");
            note.beside = format.is_beside;
            let values = format.fields.iter().map(ValueFormat::of).collect();
            match moment {
                Moment::Entry => note.args = values,
                Moment::Exit => note.retval = values,
            }
        }
        let path = directory.join(VALUES_FILE);
        let fresh = directory.join(format!("{VALUES_FILE}.new"));
        let notes: Vec<&FunctionNote> = notes.values().collect();
        let text = printable::json(&notes).map_err(io::Error::from);
        text.and_then(|text| fs::write(&fresh, text))
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|error| (path, error))
    }

    /// Reads such a file back; what is wrong with it otherwise.
    ///
    /// # Errors
    /// What is wrong, as text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let notes: Vec<FunctionNote> =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mut functions = BTreeMap::new();
        for note in notes {
            let digits = note.address.strip_prefix("0x");
            let address = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let address = address.ok_or_else(|| format!("{:?} is no address", note.address))?;
            for (moment, values) in [(Moment::Entry, note.args), (Moment::Exit, note.retval)] {
                if values.is_empty() {
                    continue;
                }
                let fields = values.iter().map(ValueFormat::field);
                let fields: Option<Arc<[Field]>> = fields.collect();
                let fields = fields.filter(|fields| fields.len() <= FIELDS_MAX);
                let format = Format {
                    name: note.function.clone(),
                    fields: fields
                        .ok_or_else(|| format!("{}: a type that is none", note.function))?,
                    is_beside: note.beside,
                };
                functions.insert((truncated(address), moment), format);
            }
        }
        Ok(Self {
            functions,
            others: None,
        })
    }
}

/// Whether a file has the name of this one.
#[must_use]
pub fn is_values_file(name: &str) -> bool {
    name.strip_suffix(".new").unwrap_or(name) == VALUES_FILE
}

/// Whether uftrace can be told of a function of this name.
fn can_be_written(name: &str) -> bool {
    !name.is_empty() && !name.contains(['@', ';', '\n'])
}

/// Whether there is a type for it.
#[must_use]
pub fn has_type(kind: &FieldType) -> bool {
    kind.is_number() && [1, 2, 4, 8].contains(&kind.bytes())
        || kind.is_text() && kind.bytes() <= TEXT_MAX
}

/// A glob that matches this name only.
fn pattern(name: &str) -> String {
    let mut pattern = String::new();
    for char in name.chars() {
        if "*?[]\\".contains(char) {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern
}

fn spec(kind: &FieldType) -> String {
    let bits = 8 * u32::from(kind.bytes());
    match kind.name() {
        _ if kind.is_text() => "s".to_owned(),
        "char" => "c".to_owned(),
        "pointer" | "x8" | "x16" | "x32" | "x64" => format!("x{bits}"),
        _ if kind.is_signed() || kind.names().is_some() => format!("d{bits}"),
        _ => format!("u{bits}"),
    }
}

fn encode(kind: &FieldType, value: &FieldValue, into: &mut Vec<u8>) -> Option<()> {
    let bits = match value {
        FieldValue::Text { text, truncated } => {
            let more = if *truncated { MORE } else { "" };
            let text = Reversible::of(text).0;
            let length = u16::try_from(text.len() + more.len()).ok()?;
            into.extend(length.to_le_bytes());
            into.extend(text.as_bytes());
            into.extend(more.as_bytes());
            return Some(());
        }
        FieldValue::Fault if kind.is_text() => {
            let length = u16::try_from(NO_TEXT.len()).ok()?;
            into.extend(length.to_le_bytes());
            into.extend(NO_TEXT);
            return Some(());
        }
        FieldValue::Bool(value) => u64::from(*value),
        FieldValue::Unsigned(value) => *value,
        FieldValue::Signed(value) => value.cast_unsigned(),
        FieldValue::Pointer(value) => value.0,
        FieldValue::Character { char } => u64::from(u32::from(*char)),
        FieldValue::Enumerator { name } => {
            let names = kind.names()?.names.iter();
            let found = names.clone().find(|(_, known)| **known == **name)?;
            found.0.cast_unsigned()
        }
        FieldValue::Bytes { .. } | FieldValue::Stack { .. } | FieldValue::Fault => return None,
    };
    into.extend(bits.to_le_bytes().get(..usize::from(kind.bytes()))?);
    Some(())
}

/// A value and how many bytes it took.
fn decode(kind: &FieldType, from: &mut impl Read) -> io::Result<(FieldValue, usize)> {
    if !kind.is_text() {
        let mut bits = [0; 8];
        let length = usize::from(kind.bytes()).next_multiple_of(4).min(8);
        from.read_exact(bits.get_mut(..length).unwrap_or_default())?;
        return Ok((kind.value(u64::from_le_bytes(bits)), length));
    }
    let mut length = [0; 2];
    from.read_exact(&mut length)?;
    let length = usize::from(u16::from_le_bytes(length));
    let whole = (2 + length).next_multiple_of(4);
    let mut bytes = vec![0; whole - 2];
    from.read_exact(&mut bytes)?;
    bytes.truncate(length);
    if bytes == NO_TEXT {
        return Ok((FieldValue::Fault, whole));
    }
    let text = Reversible::from(String::from_utf8_lossy(&bytes)).reversed();
    let kept = text.strip_suffix(MORE);
    let kept = kept.filter(|_| text.len() > usize::from(kind.bytes()));
    let value = FieldValue::of_text(kept.unwrap_or(&text).as_bytes(), kept.is_some());
    Ok((value, whole))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terms::addr::Gva;

    use super::*;

    fn formats(kinds: Vec<FieldType>) -> CallFormats {
        let field = |(kind, number)| Field {
            name: format!("v{number}").into(),
            kind,
        };
        let format = Format {
            name: "<T as f*[?]>::g".to_owned(),
            fields: kinds.into_iter().zip(0..).map(field).collect(),
            is_beside: false,
        };
        let functions = [((0xffff_8000_1000, Moment::Entry), format)];
        CallFormats {
            functions: functions.into(),
            others: None,
        }
    }

    fn names() -> FieldType {
        let names = Enumeration {
            name: "state".into(),
            names: vec![(-1, "DEAD".into()), (3, "BUSY".into())],
        };
        FieldType::enumeration(4, Arc::new(names))
    }

    fn kind_and_value() -> impl Strategy<Value = (FieldType, FieldValue)> {
        let names = prop::sample::select(vec![
            "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "x8", "x32", "x64", "bool",
            "char", "pointer",
        ]);
        let number = (names, any::<u64>()).prop_map(|(name, bits)| {
            let kind = FieldType::named(name).unwrap();
            let value = kind.value(bits);
            (kind, value)
        });
        let named = prop_oneof![Just(3u64), Just(u64::MAX), any::<u64>()];
        let named = named.prop_map(|bits| (self::names(), self::names().value(bits)));
        let text =
            ("[a-z \u{1b}\u{9b}\u{202e}\\\\]{0,12}", any::<bool>()).prop_map(|(text, more)| {
                let more = more && text.len() == 12;
                (
                    FieldType::text(12),
                    FieldValue::of_text(text.as_bytes(), more),
                )
            });
        let fault = Just((FieldType::text(12), FieldValue::Fault));
        prop_oneof![8 => number, 2 => named, 3 => text, 1 => fault]
    }

    proptest! {
        #[test]
        fn values_come_back(both in prop::collection::vec(kind_and_value(), 1..8)) {
            let (kinds, values): (Vec<_>, Vec<_>) = both.into_iter().unzip();
            let formats = formats(kinds);
            let address = 0xffff_ffff_8000_1000;
            let bytes = formats.encode(address, Moment::Entry, &values).unwrap();
            prop_assert_eq!(bytes.len() % 8, 0);
            let mut from = &*bytes;
            let (read, length) = formats.decode(address, Moment::Entry, &mut from).unwrap().unwrap();
            prop_assert_eq!((&*read, length), (&*values, bytes.len()));
            prop_assert!(from.is_empty());
        }

        /// Whatever a file holds: values, or an error.
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let formats = formats(vec![FieldType::text(8), names(), FieldType::named("u8").unwrap()]);
            let _ = formats.decode(0xffff_8000_1000, Moment::Entry, &mut &*bytes);
        }
    }

    /// As a file that comes from somebody can have them.
    #[test]
    fn no_length_is_too_much_for_what_says_what_they_are() {
        let kinds = [u16::MAX, 1 << 13].map(FieldType::raw);
        assert_eq!(kinds.each_ref().map(spec), ["u524280", "u65536"]);
        assert!(!kinds.iter().any(has_type));
    }

    #[test]
    fn the_file_says_what_the_values_are() {
        let directory = tempfile::tempdir().unwrap();
        let named = |name| FieldType::named(name).unwrap();
        let formats = formats(vec![
            names(),
            FieldType::text(32),
            named("x64"),
            named("char"),
        ]);
        formats.write(directory.path()).unwrap();
        let text = fs::read_to_string(directory.path().join(VALUES_FILE)).unwrap();
        assert_eq!(CallFormats::parse(&text).unwrap(), formats);
        let (args, retval) = formats.specs();
        let expected = r"<T as f\*\[\?\]>::g@arg1/d32,arg2/s,arg3/x64,arg4/c";
        assert_eq!((args.as_str(), retval.as_str()), (expected, ""));
        for damaged in [
            text.replace("0xffff", "ffff"),
            text.replace("x64", "y64"),
            text.replace("\"bytes\":4", "\"bytes\":3"),
            text.replace("\"bytes\":32", "\"bytes\":65000"),
            "[".to_owned(),
        ] {
            assert!(CallFormats::parse(&damaged).is_err(), "{damaged}");
        }
    }

    /// Each call had it again: four bytes in a file were as many as its name has.
    #[test]
    fn what_values_and_enumerators_are_called_is_read_so_far_and_says_so() {
        let long = "é".repeat(1 << 20);
        let text = format!(
            r#"[{{"function":"f","address":"0x1000","args":[{{"name":"{long}","type":"{long}","bytes":4,"names":[[3,"{long}"]]}}]}}]"#
        );
        let formats = CallFormats::parse(&text).unwrap();
        let fields = formats.fields(0x1000, Moment::Entry).unwrap();
        let bytes = [3, 0, 0, 0, 0, 0, 0, 0];
        let read = formats.decode(0x1000, Moment::Entry, &mut &bytes[..]);
        let (values, _) = read.unwrap().unwrap();
        let FieldValue::Enumerator { name } = &values[0] else {
            panic!("{values:?}")
        };
        let cut = format!("{}...", "é".repeat(NAME_MAX / 2));
        assert_eq!(**name, cut);
        assert_eq!(*fields[0].name, cut);
        assert_eq!(fields[0].kind.name(), cut);
    }

    #[test]
    fn a_number_that_could_not_be_read_is_not_made_up() {
        let formats = formats(vec![FieldType::named("u32").unwrap()]);
        let at = |value| formats.encode(0xffff_8000_1000, Moment::Entry, &[value]);
        assert_eq!(at(FieldValue::Fault), None);
        assert_eq!(
            at(FieldValue::Unsigned(7)),
            Some(vec![7, 0, 0, 0, 0, 0, 0, 0])
        );
        assert_eq!(
            at(FieldValue::Pointer(Gva(7))).map(|bytes| bytes.len()),
            Some(8)
        );
    }
}
