//! What a probe captures: values that are computed from the state of a vCPU at one place.
//!
//! Whoever knows where a variable is (debug information, the calling convention, a user who names a register)
//! says so as [`Expression`]s; `stub/capture.rs` compiles these to machine code. Neither knows of the
//! other.

use std::sync::Arc;

use crate::image::field::FieldType;

/// A number of 64 bits that is computed when a probe is hit.
///
/// Operations wrap around. What has fewer bits has been extended when it was loaded, or is by
/// [`Expression::Extend`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expression {
    /// Always the same.
    Constant(u64),
    /// What a register held at the probe, by the number that instructions have for it: 0 is `rax`, 4 `rsp`, 15 `r15`.
    Register(u8),
    /// What lies in the guest's memory. An address at which the guest has no memory is a *fault*: of the
    /// value that needed it, never of the guest.
    Load {
        /// Where.
        address: Box<Expression>,
        /// How much: 1, 2, 4 or 8 bytes.
        bytes: u8,
        /// Whether the top bit is a sign, to be extended.
        signed: bool,
    },
    /// The low `bits` (1 to 64) of a number.
    Extend {
        /// The number.
        value: Box<Expression>,
        /// How many of its bits count.
        bits: u8,
        /// Whether the topmost of them is a sign.
        signed: bool,
    },
    /// Two numbers joined.
    Apply(Operator, Box<Expression>, Box<Expression>),
}

/// How two numbers are joined. Comparisons are 1 where they hold, 0 where not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// Left plus right.
    Add,
    /// Left minus right.
    Subtract,
    /// Left times right.
    Multiply,
    /// Left divided by right, both without sign. By zero: a fault.
    Divide,
    /// The same with signs. What does not fit (the smallest number by -1): a fault.
    DivideSigned,
    /// What is left over by [`Operator::Divide`].
    Remainder,
    /// What is left over by [`Operator::DivideSigned`].
    RemainderSigned,
    /// Bits of both.
    And,
    /// Bits of either.
    Or,
    /// Bits of one.
    Xor,
    /// Left shifted to the left; 0 by 64 and more.
    ShiftLeft,
    /// Left shifted to the right, zeros coming in; 0 by 64 and more.
    ShiftRight,
    /// Left shifted to the right, its sign coming in; all sign by 64 and more.
    ShiftRightSigned,
    /// Whether they are equal.
    Equal,
    /// Whether they are not.
    NotEqual,
    /// Whether left is smaller, without signs.
    Less,
    /// Whether left is smaller or equal, without signs.
    LessOrEqual,
    /// Whether left is smaller, with signs.
    LessSigned,
    /// Whether left is smaller or equal, with signs.
    LessOrEqualSigned,
}

impl Expression {
    /// What lies at this address, extended without sign.
    #[must_use]
    pub fn load(self, bytes: u8) -> Self {
        Self::Load {
            address: Box::new(self),
            bytes,
            signed: false,
        }
    }

    /// The number a fixed distance further on.
    #[must_use]
    pub fn offset(self, by: i64) -> Self {
        match (self, by.cast_unsigned()) {
            (same, 0) => same,
            (Self::Constant(value), by) => Self::Constant(value.wrapping_add(by)),
            (value, by) => Self::apply(Operator::Add, value, Self::Constant(by)),
        }
    }

    /// `left operator right`.
    #[must_use]
    pub fn apply(operator: Operator, left: Self, right: Self) -> Self {
        Self::Apply(operator, Box::new(left), Box::new(right))
    }
}

/// Bytes in the guest's memory that are text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Text {
    /// Where they begin.
    pub address: Expression,
    /// How many there are; without it they end at a NUL.
    pub length: Option<Expression>,
}

/// Where a captured value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// A number.
    Number(Expression),
    /// So many bytes from an address on: what has no better type.
    Bytes {
        /// Where they begin.
        address: Expression,
        /// How many.
        length: u16,
    },
    /// Text, of which at most so many bytes are kept; what was longer is marked.
    Text {
        /// Where it is.
        text: Text,
        /// How many bytes of it are kept.
        max: u16,
    },
}

/// A value with a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Captured {
    /// What it is called, as the user wrote it: `p->f.g`.
    pub name: Arc<str>,
    /// How it is shown.
    pub kind: FieldType,
    /// Where it comes from.
    pub source: Source,
}

/// When a probe records. A condition that meets a fault does not hold, whatever it asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Condition {
    /// The number is not zero.
    NonZero(Expression),
    /// The text is this, to its last byte.
    TextIs(Text, Arc<[u8]>),
    /// The condition does not hold.
    Not(Box<Condition>),
    /// All of these hold; looked at in their order, up to the first that does not.
    All(Vec<Condition>),
    /// One of these holds; looked at in their order, up to the first that does.
    Any(Vec<Condition>),
}

/// What a probe captures at one place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Capture {
    /// The values, in the user's order.
    pub values: Vec<Captured>,
    /// When; always without one.
    pub condition: Option<Condition>,
}
