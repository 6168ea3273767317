//! What expressions, text and conditions are, computed a second time: by Rust, not by machine code.

use terms::expression::{Expression, Operator};
use terms::field::{FieldType, FieldValue};
use tracer::capture::{Capture, Condition, Source, Text};

/// Registers and memory at a probe.
pub struct State<'a> {
    /// A register by its number.
    pub register: &'a dyn Fn(u8) -> u64,
    /// A byte of memory, if there is one.
    pub byte: &'a dyn Fn(u64) -> Option<u8>,
    /// Whether memory is reached at all.
    pub has_reach: bool,
}

impl State<'_> {
    /// The value; none is a fault.
    pub fn number(&self, value: &Expression) -> Option<u64> {
        match value {
            Expression::Constant(value) => Some(*value),
            Expression::Own(_) => panic!("this process has none"),
            Expression::Register(number) => Some((self.register)(*number)),
            Expression::Load {
                address,
                bytes,
                signed,
            } => {
                let address = self.number(address)?;
                let mut word = [0; 8];
                for (place, byte) in word.iter_mut().enumerate().take(usize::from(*bytes)) {
                    *byte = (self.byte)(address.wrapping_add(place as u64))?;
                }
                Some(extend(u64::from_le_bytes(word), 8 * bytes, *signed))
            }
            Expression::Extend {
                value,
                bits,
                signed,
            } => Some(extend(self.number(value)?, *bits, *signed)),
            Expression::Apply(operator, left, right) => {
                let (left, right) = (self.number(left)?, self.number(right)?);
                apply(*operator, left, right)
            }
        }
    }

    /// The first bytes of a text, at most `max`, and whether there are more.
    fn text(&self, text: &Text, max: u16) -> Option<(Vec<u8>, bool)> {
        if !self.has_reach {
            return None;
        }
        let length = match &text.length {
            Some(length) => Some(self.number(length)?),
            None => None,
        };
        let address = self.number(&text.address)?;
        let mut bytes = Vec::new();
        let most = length.map_or(u64::from(max), |length| length.min(u64::from(max)));
        for place in 0..most {
            let byte = (self.byte)(address.wrapping_add(place))?;
            if length.is_none() && byte == 0 {
                return Some((bytes, false));
            }
            bytes.push(byte);
        }
        let more = match length {
            Some(length) => length > u64::from(max),
            None => (self.byte)(address.wrapping_add(u64::from(max))) != Some(0),
        };
        Some((bytes, more))
    }

    /// What the reader is to say of a capture's values; none if its condition does not hold.
    pub fn values(&self, capture: &Capture) -> Option<Vec<FieldValue>> {
        let condition = capture.condition.as_ref();
        let holds = condition.is_none_or(|condition| self.condition(condition) == Some(true));
        let values = capture.values.iter();
        holds.then(|| {
            values
                .map(|value| self.value(&value.source, &value.kind))
                .collect()
        })
    }

    fn value(&self, source: &Source, kind: &FieldType) -> FieldValue {
        let value = match source {
            Source::Operand(_) | Source::Stack { .. } => panic!("not made here"),
            Source::Number(number) => self.number(number).map(|value| kind.value(value)),
            Source::Bytes { .. } if !self.has_reach => None,
            Source::Bytes { address, length } => self.number(address).and_then(|address| {
                let bytes =
                    (0..u64::from(*length)).map(|place| (self.byte)(address.wrapping_add(place)));
                let bytes = bytes.collect::<Option<Vec<u8>>>()?;
                Some(FieldValue::of_bytes(&bytes))
            }),
            Source::Text { text, max } => {
                let text = self.text(text, *max);
                text.map(|(bytes, more)| FieldValue::of_text(&bytes, more))
            }
        };
        value.unwrap_or(FieldValue::Fault)
    }

    /// Whether it holds; none if it meets a fault.
    pub fn condition(&self, condition: &Condition) -> Option<bool> {
        match condition {
            Condition::NonZero(value) => Some(self.number(value)? != 0),
            Condition::TextIs(text, wanted) => {
                let (bytes, more) = self.text(text, wanted.len() as u16)?;
                Some(!more && bytes == **wanted)
            }
            Condition::Not(inner) => Some(!self.condition(inner)?),
            Condition::All(parts) => {
                for part in parts {
                    if !self.condition(part)? {
                        return Some(false);
                    }
                }
                Some(true)
            }
            Condition::Any(parts) => {
                for part in parts {
                    if self.condition(part)? {
                        return Some(true);
                    }
                }
                Some(false)
            }
        }
    }
}

fn extend(value: u64, bits: u8, signed: bool) -> u64 {
    let unused = 64 - u32::from(bits);
    if signed {
        ((value << unused).cast_signed() >> unused).cast_unsigned()
    } else {
        value << unused >> unused
    }
}

fn apply(operator: Operator, left: u64, right: u64) -> Option<u64> {
    let (signed, by) = (left.cast_signed(), right.cast_signed());
    Some(match operator {
        Operator::Add => left.wrapping_add(right),
        Operator::Subtract => left.wrapping_sub(right),
        Operator::Multiply => left.wrapping_mul(right),
        Operator::Divide => left.checked_div(right)?,
        Operator::DivideSigned => signed.checked_div(by)?.cast_unsigned(),
        Operator::Remainder => left.checked_rem(right)?,
        Operator::RemainderSigned => signed.checked_rem(by)?.cast_unsigned(),
        Operator::And => left & right,
        Operator::Or => left | right,
        Operator::Xor => left ^ right,
        Operator::ShiftLeft => left.checked_shl(right.min(64) as u32).unwrap_or(0),
        Operator::ShiftRight => left.checked_shr(right.min(64) as u32).unwrap_or(0),
        Operator::ShiftRightSigned => (signed >> right.min(63)).cast_unsigned(),
        Operator::Equal => u64::from(left == right),
        Operator::NotEqual => u64::from(left != right),
        Operator::Less => u64::from(left < right),
        Operator::LessOrEqual => u64::from(left <= right),
        Operator::LessSigned => u64::from(signed < by),
        Operator::LessOrEqualSigned => u64::from(signed <= by),
    })
}
