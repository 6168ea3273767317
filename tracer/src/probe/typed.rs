//! A value with its type, while an expression is worked out.

use debuginfo::{Place, TypeId};
use terms::expression::Expression;

/// What a value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of a type that debug information describes.
    Of(TypeId),
    /// A number that was computed or written.
    Number(Width),
    /// Bits of which nothing is known: a register, memory.
    Untyped,
    /// The address of something.
    Pointer(Box<Kind>),
}

/// C's arithmetic types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Width {
    /// 32 or 64.
    pub bits: u8,
    /// Whether it has a sign.
    pub signed: bool,
}

impl Width {
    pub const INT: Self = Self {
        bits: 32,
        signed: true,
    };
    pub const U64: Self = Self {
        bits: 64,
        signed: false,
    };
    pub const I64: Self = Self {
        bits: 64,
        signed: true,
    };

    /// What a number of so many bytes is promoted to.
    pub fn promoted(bytes: u64, signed: bool) -> Self {
        match bytes {
            ..4 => Self::INT,
            4 => Self { bits: 32, signed },
            _ => Self { bits: 64, signed },
        }
    }

    /// The type that an operation on both has.
    pub fn common(self, other: Self) -> Self {
        let bits = self.bits.max(other.bits);
        let unsigned = |one: Self| one.bits == bits && !one.signed;
        Self {
            bits,
            signed: !unsigned(self) && !unsigned(other),
        }
    }

    /// The type of a number as it is written.
    pub fn written(number: u64, other_base: bool) -> Self {
        let unsigned = |bits| Self {
            bits,
            signed: false,
        };
        match (i32::try_from(number), i64::try_from(number)) {
            (Ok(_), _) => Self::INT,
            _ if other_base && u32::try_from(number).is_ok() => unsigned(32),
            (_, Ok(_)) => Self::I64,
            _ => unsigned(64),
        }
    }
}

/// A value and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Typed {
    pub kind: Kind,
    pub place: Place,
    /// Of a bit field, its bits.
    pub field: Option<u8>,
}

impl Typed {
    pub fn new(kind: Kind, place: Place) -> Self {
        Self {
            kind,
            place,
            field: None,
        }
    }

    pub fn number(value: Expression, width: Width) -> Self {
        Self::new(Kind::Number(width), Place::Value(value))
    }
}
