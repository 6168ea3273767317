//! A number that is computed from the state of a vCPU: what says where a variable is, and what a probe captures.
//!
//! Whoever knows where a value is says so as an [`Expression`]; code is made of it elsewhere. Neither knows of the other.

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
    /// The eight bytes at this distance from what the processor has for its own data: a kernel's data of each processor, while it runs itself.
    Own(i32),
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
            (Self::Apply(Operator::Add, inner, distance), by) => match *distance {
                Self::Constant(distance) => inner.offset(distance.wrapping_add(by).cast_signed()),
                distance => {
                    let sum = Self::Apply(Operator::Add, inner, Box::new(distance));
                    Self::apply(Operator::Add, sum, Self::Constant(by))
                }
            },
            (value, by) => Self::apply(Operator::Add, value, Self::Constant(by)),
        }
    }

    /// `left operator right`.
    #[must_use]
    pub fn apply(operator: Operator, left: Self, right: Self) -> Self {
        Self::Apply(operator, Box::new(left), Box::new(right))
    }
}

impl Expression {
    /// Whether its value can be a fault.
    #[must_use]
    pub fn can_fault(&self) -> bool {
        use Operator::{Divide, DivideSigned, Remainder, RemainderSigned};
        match self {
            Self::Constant(_) | Self::Register(_) | Self::Own(_) => false,
            Self::Load { .. } => true,
            Self::Extend { value, .. } => value.can_fault(),
            Self::Apply(Divide | DivideSigned | Remainder | RemainderSigned, _, _) => true,
            Self::Apply(_, left, right) => left.can_fault() || right.can_fault(),
        }
    }

    /// Whether it reads the guest's memory.
    #[must_use]
    pub fn needs_memory(&self) -> bool {
        match self {
            Self::Constant(_) | Self::Register(_) | Self::Own(_) => false,
            Self::Load { .. } => true,
            Self::Extend { value, .. } => value.needs_memory(),
            Self::Apply(_, left, right) => left.needs_memory() || right.needs_memory(),
        }
    }
}
