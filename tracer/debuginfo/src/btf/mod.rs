//! The types of a kernel, as far as tracing asks for them: where a member lies in a struct, and what an
//! enumerator is worth. They come from the kernel's own `.BTF`, so nothing depends on its version.
//!
//! Facts: Documentation/bpf/btf.rst of Linux.

pub mod functions;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod types;

use self::types::{Kind, Type, Types};

/// Typedefs, qualifiers and anonymous members that are followed one inside the other.
const DEPTH_MAX: usize = 32;
/// Members that are looked at for one step of a path: anonymous ones could multiply.
const MEMBERS_MAX: usize = 1 << 16;

/// Why there are no types. Every number in it comes from the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// The header is short, or another format's.
    #[error("no BTF: its header is damaged")]
    Header,
    /// A part that the header names is not there.
    #[error("damaged BTF: the header names parts past its end")]
    Outside,
    /// A type with a kind that is not known: what follows cannot be found.
    #[error("BTF with kind {kind} (type {id}), which is not known")]
    Kind {
        /// Its number.
        kind: u8,
        /// Number of the type.
        id: u32,
    },
    /// Names that together are far longer than the section.
    #[error("damaged BTF: its names together are longer than {limit} bytes")]
    Names {
        /// The most that is accepted.
        limit: usize,
    },
    /// A type that ends past the end.
    #[error("damaged BTF: type {id} is cut off")]
    Cut {
        /// Number of the type.
        id: u32,
    },
}

/// Where a member lies in its struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the beginning of the struct.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// The types of one kernel.
#[derive(Debug)]
pub struct Btf<'a> {
    types: Types<'a>,
}

impl<'a> Btf<'a> {
    /// Reads the section `.BTF`.
    ///
    /// # Errors
    /// A [`BtfError`] that says what is wrong with it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        Types::parse(bytes).map(|types| Self { types })
    }

    /// Number of types.
    #[must_use]
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Whether there are no types.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of a struct.
    #[must_use]
    pub fn size_of(&self, name: &str) -> Option<u64> {
        let found = self.types.named(Kind::Struct, name)?;
        Some(u64::from(found.size))
    }

    /// The member at the end of `path` in a struct: names with dots between, `[N]` after an array. Members
    /// of anonymous structs and unions are found as C finds them.
    #[must_use]
    pub fn field(&self, name: &str, path: &str) -> Option<Field> {
        let mut at = self.types.named(Kind::Struct, name)?;
        let mut offset = 0_u64;
        for step in path.split('.') {
            let (member, index) = split_index(step)?;
            let mut left = MEMBERS_MAX;
            let (within, of) = self.member(at, member, 0, &mut left)?;
            offset = offset.checked_add(within)?;
            at = self.plain(of)?;
            if let Some(index) = index {
                let element = self.plain(self.element(at, index)?)?;
                let before = self.size(element, 0)?.checked_mul(u64::from(index))?;
                offset = offset.checked_add(before)?;
                at = element;
            }
        }
        let size = self.size(at, 0)?;
        Some(Field { offset, size })
    }

    /// Where a bit field of a struct begins, in bits, and how many it has.
    #[must_use]
    pub fn bits(&self, name: &str, member: &str) -> Option<(u64, u8)> {
        let of = self.types.named(Kind::Struct, name)?;
        let mut members = of.words(3).filter(|_| of.flag);
        let found = members.find(|entry| self.types.string(entry[0]) == Some(member.as_bytes()))?;
        let width = u8::try_from(found[2] >> 24).ok()?;
        (width > 0).then_some((u64::from(found[2] & 0xff_ffff), width))
    }

    /// The value of an enumerator.
    #[must_use]
    pub fn enumerator(&self, enumeration: &str, name: &str) -> Option<u32> {
        let found = self.types.named(Kind::Enum, enumeration)?;
        found
            .words(2)
            .find(|entry| self.types.string(entry[0]) == Some(name.as_bytes()))
            .map(|entry| entry[1])
    }

    /// Offset and type of the member `name` of a struct or union.
    fn member(
        &self,
        of: Type<'a>,
        name: &str,
        depth: usize,
        left: &mut usize,
    ) -> Option<(u64, u32)> {
        if name.is_empty() || depth > DEPTH_MAX || !matches!(of.kind, Kind::Struct | Kind::Union) {
            return None;
        }
        for [string, kind, bits] in of.words(3).filter_map(|entry| entry.first_chunk().copied()) {
            *left = left.checked_sub(1)?;
            // With bit fields, the upper byte is a width.
            let bits = if of.flag { bits & 0xff_ffff } else { bits };
            let offset = u64::from(bits / 8);
            let found = self.types.string(string)?;
            if found == name.as_bytes() {
                return Some((offset, kind));
            }
            if found.is_empty()
                && let Some(inner) = self.plain(kind)
                && let Some((within, kind)) = self.member(inner, name, depth + 1, left)
            {
                return Some((offset + within, kind));
            }
        }
        None
    }

    /// Type of the elements of an array that has one with this number. Arrays of unknown length have any.
    fn element(&self, array: Type<'a>, index: u32) -> Option<u32> {
        let entry = array
            .words(3)
            .next()
            .filter(|_| array.kind == Kind::Array)?;
        (entry[2] == 0 || index < entry[2]).then_some(entry[0])
    }

    /// The type without typedefs and qualifiers.
    fn plain(&self, id: u32) -> Option<Type<'a>> {
        let mut at = self.types.get(id)?;
        for _ in 0..DEPTH_MAX {
            if at.kind != Kind::Alias {
                return Some(at);
            }
            at = self.types.get(at.size)?;
        }
        None
    }

    fn size(&self, of: Type<'a>, depth: usize) -> Option<u64> {
        match of.kind {
            Kind::Pointer => Some(8),
            Kind::Struct | Kind::Union | Kind::Int | Kind::Enum | Kind::Float => {
                Some(u64::from(of.size))
            }
            Kind::Array if depth < DEPTH_MAX => {
                let entry = of.words(3).next()?;
                let element = self.size(self.plain(entry[0])?, depth + 1)?;
                element.checked_mul(u64::from(entry[2]))
            }
            _ => None,
        }
    }
}

/// `mem[0]` is `mem` and 0.
fn split_index(step: &str) -> Option<(&str, Option<u32>)> {
    match step.split_once('[') {
        None => Some((step, None)),
        Some((name, index)) => Some((name, Some(index.strip_suffix(']')?.parse().ok()?))),
    }
}
