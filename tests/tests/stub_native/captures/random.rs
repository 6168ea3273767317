//! Random captures.

use std::sync::Arc;

use terms::expression::{Expression, Operator};
use terms::field::FieldType;
use tracer::capture::{Capture, Captured, Condition, Source, Text};

use crate::random::Random;

const OPERATORS: [Operator; 19] = [
    Operator::Add,
    Operator::Subtract,
    Operator::Multiply,
    Operator::Divide,
    Operator::DivideSigned,
    Operator::Remainder,
    Operator::RemainderSigned,
    Operator::And,
    Operator::Or,
    Operator::Xor,
    Operator::ShiftLeft,
    Operator::ShiftRight,
    Operator::ShiftRightSigned,
    Operator::Equal,
    Operator::NotEqual,
    Operator::Less,
    Operator::LessOrEqual,
    Operator::LessSigned,
    Operator::LessOrEqualSigned,
];
const KINDS: [&str; 9] = ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "bool"];
/// Numbers at which something changes; the last two are the assembler's placeholders.
const SPECIAL: [u64; 12] = [
    0,
    1,
    63,
    64,
    u64::MAX,
    1 << 63,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff_8000_0000,
    0x100_0000_0000,
    0x0e5a_a5e1,
    0x0e5a_a5e2,
];

/// Makes captures that read memory at and around these addresses.
pub struct Maker<'a> {
    pub random: &'a mut Random,
    pub addresses: &'a [u64],
    /// Text that lies at some of them.
    pub texts: &'a [Vec<u8>],
}

impl Maker<'_> {
    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.below(choices.len() as u32) as usize]
    }

    fn constant(&mut self) -> u64 {
        match self.random.below(4) {
            0 => self.random.next(),
            1 => u64::from(self.random.below(100)),
            _ => self.one_of(&SPECIAL),
        }
    }

    pub fn number(&mut self, depth: u32) -> Expression {
        match self.random.below(if depth == 0 { 3 } else { 8 }) {
            0 => Expression::Constant(self.constant()),
            1 | 2 => Expression::Register(self.random.below(16) as u8),
            3 => self.load(depth - 1),
            4 => Expression::Extend {
                value: Box::new(self.number(depth - 1)),
                bits: 1 + self.random.below(64) as u8,
                signed: self.random.below(2) == 0,
            },
            _ => {
                let operator = self.one_of(&OPERATORS);
                let (left, right) = (self.number(depth - 1), self.number(depth - 1));
                Expression::apply(operator, left, right)
            }
        }
    }

    /// Mostly an address at which there can be something.
    fn address(&mut self, depth: u32) -> Expression {
        if self.addresses.is_empty() || self.random.below(6) == 0 {
            return self.number(depth);
        }
        let near = self.one_of(self.addresses);
        let address = near.wrapping_add_signed(i64::from(self.random.below(24)) - 12);
        Expression::Constant(address)
    }

    fn load(&mut self, depth: u32) -> Expression {
        let bytes = self.one_of(&[1, 2, 4, 8]);
        Expression::Load {
            address: Box::new(self.address(depth)),
            bytes,
            signed: self.random.below(2) == 0,
        }
    }

    fn text(&mut self) -> Text {
        let length = match self.random.below(3) {
            0 => None,
            1 => Some(Expression::Constant(self.random.below(40).into())),
            _ => Some(self.number(1)),
        };
        Text {
            address: self.address(1),
            length,
        }
    }

    fn value(&mut self) -> Captured {
        let (source, kind) = match self.random.below(8) {
            0 => {
                let length = self.random.below(30) as u16;
                let address = self.address(1);
                (Source::Bytes { address, length }, FieldType::raw(length))
            }
            1 => {
                let max = self.random.below(40) as u16;
                let text = self.text();
                (Source::Text { text, max }, FieldType::text(max))
            }
            _ => {
                let kind = self.one_of(&KINDS);
                let depth = self.random.below(5);
                let kind = FieldType::named(kind).unwrap();
                (Source::Number(self.number(depth)), kind)
            }
        };
        Captured {
            name: "v".into(),
            kind,
            source,
        }
    }

    pub fn condition(&mut self, depth: u32) -> Condition {
        match self.random.below(if depth == 0 { 4 } else { 7 }) {
            0 => {
                let bytes: Arc<[u8]> = match self.texts.len() {
                    0 => Arc::from(*b"abc"),
                    texts => {
                        let text = &self.texts[self.random.below(texts as u32) as usize];
                        let length = text.len().min(self.random.below(40) as usize);
                        Arc::from(&text[..length])
                    }
                };
                Condition::TextIs(self.text(), bytes)
            }
            1..4 => Condition::NonZero(self.number(depth.min(3) + 1)),
            4 => Condition::Not(Box::new(self.condition(depth - 1))),
            5 => Condition::All(self.conditions(depth - 1)),
            _ => Condition::Any(self.conditions(depth - 1)),
        }
    }

    fn conditions(&mut self, depth: u32) -> Vec<Condition> {
        (0..self.random.below(4))
            .map(|_| self.condition(depth))
            .collect()
    }

    pub fn capture(&mut self) -> Capture {
        let values = (0..self.random.below(5)).map(|_| self.value()).collect();
        let condition = (self.random.below(2) == 0).then(|| self.condition(3));
        Capture { values, condition }
    }
}
