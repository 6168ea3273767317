//! The types in their order, which is their number.

use std::borrow::Cow;

use super::BtfError;

const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;
/// Name, kind with the number of entries, size or type.
const TYPE: usize = 12;
/// Bytes of a name, at most (`KSYM_NAME_LEN`, include/linux/kallsyms.h).
const NAME_MAX: usize = 512;

/// What a type is, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    Pointer,
    Array,
    Struct,
    Union,
    Enum,
    Float,
    /// A typedef or a qualifier: another type by its name.
    Alias,
    /// A struct or union that is only declared.
    Forward,
    Function,
    Prototype,
    /// An enumeration of 64 bits.
    Enum64,
    /// A variable, by its type.
    Variable,
    /// What is said about other types.
    Other,
}

/// One type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Type<'a> {
    pub kind: Kind,
    /// Whether members have bit offsets with widths.
    pub flag: bool,
    /// Its size, or the type that it refers to.
    pub size: u32,
    /// Where its name is.
    pub name: u32,
    /// What follows it.
    rest: &'a [u8],
}

impl<'a> Type<'a> {
    /// What follows the type, in groups of `count` words (at most four, without a rest).
    pub fn words(self, count: usize) -> impl Iterator<Item = [u32; 4]> + use<'a> {
        let groups = self.rest.chunks_exact(4 * count.clamp(1, 4));
        groups.map(|group| {
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(group.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            words
        })
    }
}

/// All types of a kernel.
#[derive(Debug)]
pub(super) struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where type 1, 2, … begins.
    offsets: Cow<'a, [u32]>,
}

impl<'a> Types<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        let mut all = Self::with_offsets(bytes, &[])?;
        all.offsets = Cow::Owned(all.index()?);
        Ok(all)
    }

    /// The same, where it has been found out before where each type begins.
    pub fn with_offsets(bytes: &'a [u8], offsets: &'a [u32]) -> Result<Self, BtfError> {
        let header = bytes.first_chunk::<HEADER>().ok_or(BtfError::Header)?;
        let words: Vec<usize> = header
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word) as usize)
            .collect();
        let &[first, length, types, types_length, strings, strings_length] = words.as_slice()
        else {
            return Err(BtfError::Header);
        };
        if first & 0xff_ffff != usize::from(MAGIC) | 1 << 16 || length < HEADER {
            return Err(BtfError::Header);
        }
        let part = |offset: usize, size: usize| {
            let start = length.checked_add(offset)?;
            bytes.get(start..start.checked_add(size)?)
        };
        Ok(Self {
            types: part(types, types_length).ok_or(BtfError::Outside)?,
            strings: part(strings, strings_length).ok_or(BtfError::Outside)?,
            offsets: Cow::Borrowed(offsets),
        })
    }

    /// Where each type begins.
    fn index(&self) -> Result<Vec<u32>, BtfError> {
        let mut offsets = Vec::new();
        let mut offset = 0;
        while offset < self.types.len() {
            let id = u32::try_from(offsets.len() + 1).unwrap_or(u32::MAX);
            let head = self
                .types
                .get(offset..offset + TYPE)
                .ok_or(BtfError::Cut { id })?;
            let info = head.get(4..).and_then(|rest| rest.first_chunk()).copied();
            let info = u32::from_le_bytes(info.unwrap_or_default());
            let (_, rest) = kind_of(info).ok_or(BtfError::Kind {
                kind: number(info),
                id,
            })?;
            offsets.push(u32::try_from(offset).unwrap_or(u32::MAX));
            offset += TYPE + rest;
            if offset > self.types.len() {
                return Err(BtfError::Cut { id });
            }
        }
        Ok(offsets)
    }

    /// Where each type begins, as it was found out.
    pub fn into_offsets(self) -> Vec<u32> {
        self.offsets.into_owned()
    }

    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// The type with this number; there is none with 0, which is `void`.
    pub fn get(&self, id: u32) -> Option<Type<'a>> {
        let offset = *self.offsets.get(id.checked_sub(1)? as usize)? as usize;
        let head = self.types.get(offset..)?;
        let word = |index: usize| {
            let bytes = head.get(4 * index..)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let info = word(1)?;
        let (kind, rest) = kind_of(info)?;
        Some(Type {
            kind,
            flag: info >> 31 != 0,
            size: word(2)?,
            name: word(0)?,
            rest: head.get(TYPE..TYPE + rest)?,
        })
    }

    /// The first type of this kind with this name.
    pub fn named(&self, kind: Kind, name: &str) -> Option<Type<'a>> {
        (1..=u32::try_from(self.len()).ok()?)
            .filter_map(|id| self.get(id))
            .find(|found| found.kind == kind && self.string(found.name) == Some(name.as_bytes()))
    }

    /// The string at this offset; none that is longer than any name. Names may share their ends, so a section of a guest's making can
    /// have a long one for each of its types.
    pub fn string(&self, offset: u32) -> Option<&'a [u8]> {
        let string = self.strings.get(offset as usize..)?;
        let string = string.get(..=NAME_MAX).unwrap_or(string);
        string.get(..memchr::memchr(0, string)?)
    }
}

fn number(info: u32) -> u8 {
    u8::try_from(info >> 24 & 0x1f).unwrap_or_default()
}

/// The kind, and how many bytes follow the type.
fn kind_of(info: u32) -> Option<(Kind, usize)> {
    let entries = (info & 0xffff) as usize;
    Some(match number(info) {
        1 => (Kind::Int, 4),
        2 => (Kind::Pointer, 0),
        3 => (Kind::Array, 12),
        4 => (Kind::Struct, 12 * entries),
        5 => (Kind::Union, 12 * entries),
        6 => (Kind::Enum, 8 * entries),
        // Typedef, volatile, const, restrict, type tag.
        8..=11 | 18 => (Kind::Alias, 0),
        7 => (Kind::Forward, 0),
        12 => (Kind::Function, 0),
        13 => (Kind::Prototype, 8 * entries),
        14 => (Kind::Variable, 4),
        // Declaration tag.
        17 => (Kind::Other, 4),
        // Section.
        15 => (Kind::Other, 12 * entries),
        19 => (Kind::Enum64, 12 * entries),
        16 => (Kind::Float, 0),
        _ => return None,
    })
}
