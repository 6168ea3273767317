//! What types are made of, whoever describes them.

use std::sync::Arc;

use terms::field::{Enumeration, FieldType};

/// A type, by where its description is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TypeId {
    /// At this offset of `.debug_info`.
    Dwarf(usize),
    /// This type of the `.BTF`.
    Btf(u32),
}

/// What values of a type are made of. Names that only stand for another type are looked through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// A number.
    Number {
        /// How it is shown.
        kind: FieldType,
        /// Whether its top bit is a sign.
        signed: bool,
        /// The names that it has.
        names: Option<Arc<Enumeration>>,
    },
    /// An address of something, or of anything.
    Pointer(Option<TypeId>),
    /// Members side by side, or over each other.
    Structure(Structure),
    /// The same several times.
    Array {
        /// What.
        of: TypeId,
        /// How often, if that is known.
        count: Option<u64>,
    },
    /// Nothing.
    Void,
    /// What no record can hold; it has so many bytes.
    Unreadable {
        /// What it is.
        what: String,
        /// Its size, 0 if it has none.
        bytes: u64,
    },
}

/// A structure, or a union.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Structure {
    /// What it is called.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What is in it.
    pub members: Vec<Member>,
    /// Rust's text and slices.
    pub slice: Option<Slice>,
    /// Of a Rust enum: what says which variant it is, and what the variants are called.
    pub variant: Option<(Member, Arc<Enumeration>)>,
}

/// An address and a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Bytes before the address.
    pub address: u64,
    /// Bytes before the length.
    pub length: u64,
    /// What lies there; text if nothing.
    pub of: Option<TypeId>,
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name; empty if it has none.
    pub name: String,
    /// Bits before it.
    pub offset: u64,
    /// Its bits, if it is a bit field.
    pub bits: Option<u8>,
    /// Its type.
    pub of: TypeId,
}

/// A variable, or what a function returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// What it is called.
    pub name: String,
    /// Its type; nothing is known of it if there is none.
    pub of: Option<TypeId>,
    /// Where it is.
    pub place: super::place::Place,
}

/// When variables are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// At the first instruction of the function that begins at this address: what callers pass is where the
    /// calling convention says.
    Entry(terms::addr::Gva),
    /// Before the instruction at this address.
    At(terms::addr::Gva),
    /// After the return of the function that begins at this address.
    Return(terms::addr::Gva),
}

impl Moment {
    /// The same with another address.
    pub(crate) fn map(self, to: impl FnOnce(terms::addr::Gva) -> terms::addr::Gva) -> Self {
        match self {
            Self::Entry(at) => Self::Entry(to(at)),
            Self::At(at) => Self::At(to(at)),
            Self::Return(at) => Self::Return(to(at)),
        }
    }
}
