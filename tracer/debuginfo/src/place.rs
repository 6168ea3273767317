//! Where a value is, and how bits of it are had.

use terms::expression::{Expression, Operator};

/// Where a value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In memory, at an address.
    Memory(Expression),
    /// Nowhere: an implicit value, as DWARF has it. The first byte in memory would be the lowest one.
    Value(Expression),
    /// Here and there.
    Pieces(Vec<Piece>),
}

/// A part of a value; they follow each other from the lowest bit on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// How much of the value it is.
    pub bits: u64,
    /// Bits of the place before it.
    pub skip: u64,
    /// Where it is; optimised out if nowhere.
    pub place: Option<Box<Place>>,
}

/// Why bits cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoBits {
    /// They are nowhere.
    OptimisedOut,
    /// They lie so that no number holds them.
    Odd,
}

impl Place {
    /// The place `offset` bits further on.
    #[must_use]
    pub fn part(&self, offset: u64) -> Option<Self> {
        if offset == 0 {
            return Some(self.clone());
        }
        Some(match self {
            Self::Memory(address) => {
                let bytes = i64::try_from(offset / 8).ok()?;
                let on = Self::Memory(address.clone().offset(bytes));
                match offset % 8 {
                    0 => on,
                    skip => Self::Pieces(vec![Piece {
                        bits: u64::MAX,
                        skip,
                        place: Some(Box::new(on)),
                    }]),
                }
            }
            Self::Value(value) => Self::Value(shifted(value.clone(), offset)),
            Self::Pieces(pieces) => {
                let mut left = offset;
                let mut kept = Vec::new();
                for piece in pieces {
                    let cut = left.min(piece.bits);
                    left -= cut;
                    if cut < piece.bits {
                        kept.push(Piece {
                            bits: piece.bits - cut,
                            skip: piece.skip.checked_add(cut)?,
                            place: piece.place.clone(),
                        });
                    }
                }
                Self::Pieces(kept)
            }
        })
    }

    /// The number of `bits` (1 to 64) that begins `offset` bits into the value.
    ///
    /// # Errors
    /// [`NoBits`] where there is none.
    pub fn number(&self, offset: u64, bits: u8, signed: bool) -> Result<Expression, NoBits> {
        match self {
            Self::Memory(address) => loaded(address, offset, bits, signed).ok_or(NoBits::Odd),
            Self::Value(value) => Ok(extended(shifted(value.clone(), offset), bits, signed)),
            Self::Pieces(pieces) => {
                gathered(pieces, offset, bits).map(|(value, exact)| match exact && !signed {
                    true => value,
                    false => extended(value, bits, signed),
                })
            }
        }
    }
}

fn shifted(value: Expression, offset: u64) -> Expression {
    match (value, offset) {
        (value, 0) => value,
        (Expression::Constant(value), offset) => {
            let by = u32::try_from(offset).unwrap_or(u32::MAX);
            Expression::Constant(value.checked_shr(by).unwrap_or(0))
        }
        (value, offset) => {
            Expression::apply(Operator::ShiftRight, value, Expression::Constant(offset))
        }
    }
}

/// The low `bits` of a value.
#[must_use]
pub fn extended(value: Expression, bits: u8, signed: bool) -> Expression {
    match value {
        value if bits >= 64 => value,
        Expression::Constant(value) => {
            let unused = 64 - u32::from(bits);
            let high = value << unused;
            Expression::Constant(match signed {
                true => (high.cast_signed() >> unused).cast_unsigned(),
                false => high >> unused,
            })
        }
        value => Expression::Extend {
            value: Box::new(value),
            bits,
            signed,
        },
    }
}

/// Bits in memory: of the smallest aligned unit that holds them all, as compilers lay bit fields out.
fn loaded(address: &Expression, offset: u64, bits: u8, signed: bool) -> Option<Expression> {
    if bits == 0 || bits > 64 {
        return None;
    }
    let last = offset.checked_add(u64::from(bits) - 1)?;
    let at = |start: u64, bytes: u8, signed| {
        let by = i64::try_from(start / 8).ok()?;
        Some(Expression::Load {
            address: Box::new(address.clone().offset(by)),
            bytes,
            signed,
        })
    };
    if offset.is_multiple_of(8) && matches!(bits, 8 | 16 | 32 | 64) {
        return at(offset, bits / 8, signed && bits < 64);
    }
    for bytes in [1_u8, 2, 4, 8] {
        let unit = 8 * u64::from(bytes);
        if offset / unit == last / unit {
            let start = offset - offset % unit;
            let value = shifted(at(start, bytes, false)?, offset - start);
            return Some(extended(value, bits, signed));
        }
    }
    // Over the edge of an aligned unit, in a packed structure.
    let start = offset - offset % 8;
    if last - start < 64 {
        let value = shifted(at(start, 8, false)?, offset - start);
        return Some(extended(value, bits, signed));
    }
    let low = shifted(at(start, 8, false)?, offset - start);
    let high = at(start + 64, 1, false)?;
    let by = Expression::Constant(64 - (offset - start));
    let high = Expression::apply(Operator::ShiftLeft, high, by);
    let value = Expression::apply(Operator::Or, low, high);
    Some(extended(value, bits, signed))
}

/// Bits from pieces, and whether all others are zero.
fn gathered(pieces: &[Piece], offset: u64, bits: u8) -> Result<(Expression, bool), NoBits> {
    let end = offset.saturating_add(u64::from(bits));
    let mut found: Option<Expression> = None;
    let mut covered = 0;
    let mut start = 0_u64;
    for piece in pieces {
        let stop = start.saturating_add(piece.bits);
        let (from, to) = (offset.max(start), end.min(stop));
        if from < to {
            let place = piece.place.as_deref().ok_or(NoBits::OptimisedOut)?;
            let skip = piece.skip.checked_add(from - start).ok_or(NoBits::Odd)?;
            let count = u8::try_from(to - from).map_err(|_| NoBits::Odd)?;
            let part = place.number(skip, count, false)?;
            covered += to - from;
            found = Some(match (found, from - offset) {
                (None, _) => part,
                (Some(low), by) => {
                    let by = Expression::Constant(by);
                    let high = Expression::apply(Operator::ShiftLeft, part, by);
                    Expression::apply(Operator::Or, low, high)
                }
            });
        }
        start = stop;
    }
    match found {
        Some(value) if covered == u64::from(bits) => Ok((value, true)),
        _ => Err(NoBits::OptimisedOut),
    }
}
