//! What a probe captures: values that are computed from the state of a vCPU at one place.
//!
//! Whoever knows where a variable is (debug information, the calling convention, a user who names a register)
//! says so as [`Expression`]s; `stub/capture/mod.rs` compiles these to machine code. Neither knows of the
//! other.

use std::sync::Arc;

use image::points::Operand;
use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::expression::Expression;
use terms::field::{Field, FieldType};

/// Values of one capture, at most: so many bits has the half of a word that says which are faults.
pub const VALUES_MAX: usize = 32;
/// Bytes of text that a condition can compare with, at most.
pub const COMPARED_MAX: usize = 256;
/// How deep expressions and conditions can be nested.
pub const DEPTH_MAX: u32 = 64;
/// Bytes of text in one word of a payload.
const TEXT_PER_WORD: u16 = 4;

/// Why a capture is none that code can be made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// There are more values than bits that say which of them are faults.
    #[error("{0} values are captured at one place, {VALUES_MAX} are possible")]
    Values(usize),
    /// An expression or a condition is nested too deep.
    #[error("an expression is nested more than {DEPTH_MAX} levels deep")]
    Depth,
    /// Instructions have no number for such a register.
    #[error("there is no register {0}; there are 0 (rax) to 15 (r15)")]
    Register(u8),
    /// No instruction loads that much.
    #[error("a number of {0} bytes is loaded; 1, 2, 4 and 8 are possible")]
    Load(u8),
    /// A number has no such part.
    #[error("{0} bits of a number are taken; 1 to 64 are possible")]
    Bits(u8),
    /// The record would not hold what the type says.
    #[error("`{0}` has a type that is not that of what is captured")]
    Kind(Arc<str>),
    /// A condition compares with very long text.
    #[error("text is compared with {0} bytes, {COMPARED_MAX} are possible")]
    Compared(usize),
    /// The values do not fit into a record.
    #[error(
        "the captured values take {needed} bytes of a record, which has room for {room}; capture less, or make its records larger (record_bytes)"
    )]
    Room {
        /// Bytes that they take.
        needed: u64,
        /// Bytes that there are.
        room: u64,
    },
    /// The code is too long.
    #[error("the code of a probe would be {bytes} bytes long, {most} are possible; capture less")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most.
        most: u64,
    },
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
    /// A number where whoever made the code at this place says that it is: read as that code would, for it is there.
    Operand(Operand),
    /// A number.
    Number(Expression),
    /// So many bytes from an address on: what has no better type.
    Bytes {
        /// Where they begin.
        address: Expression,
        /// How many.
        length: u16,
    },
    /// The stack, from its pointer on, of which at most so many bytes are kept.
    Stack {
        /// Where the probe sits.
        at: Gva,
        /// How many bytes are kept.
        max: u16,
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

/// Whether code can be made of a number.
fn check_number(value: &Expression, levels: u32) -> Result<(), CaptureError> {
    let below = levels.checked_sub(1).ok_or(CaptureError::Depth)?;
    match value {
        Expression::Constant(_) | Expression::Own(_) => Ok(()),
        Expression::Register(number) if *number > 15 => Err(CaptureError::Register(*number)),
        Expression::Register(_) => Ok(()),
        Expression::Load { bytes, .. } if !matches!(bytes, 1 | 2 | 4 | 8) => {
            Err(CaptureError::Load(*bytes))
        }
        Expression::Load { address, .. } => check_number(address, below),
        Expression::Extend { bits, .. } if !(1..=64).contains(bits) => {
            Err(CaptureError::Bits(*bits))
        }
        Expression::Extend { value, .. } => check_number(value, below),
        Expression::Apply(_, left, right) => {
            check_number(left, below).and_then(|()| check_number(right, below))
        }
    }
}

fn check_operand(operand: Operand) -> Result<(), CaptureError> {
    match operand {
        Operand::Register(number) | Operand::Memory { base: number, .. } if number > 15 => {
            Err(CaptureError::Register(number))
        }
        Operand::Register(_) | Operand::Memory { .. } | Operand::Constant(_) => Ok(()),
    }
}

impl Text {
    fn check(&self) -> Result<(), CaptureError> {
        check_number(&self.address, DEPTH_MAX)?;
        self.length
            .iter()
            .try_for_each(|length| check_number(length, DEPTH_MAX))
    }
}

impl Captured {
    fn check(&self) -> Result<(), CaptureError> {
        let kind = &self.kind;
        let fits = match &self.source {
            Source::Operand(operand) => {
                check_operand(*operand)?;
                kind.is_number()
            }
            Source::Number(value) => {
                check_number(value, DEPTH_MAX)?;
                kind.is_number()
            }
            Source::Bytes { address, length } => {
                check_number(address, DEPTH_MAX)?;
                !kind.is_number() && !kind.is_text() && !kind.is_stack() && kind.bytes() == *length
            }
            Source::Text { text, max } => {
                text.check()?;
                kind.is_text() && kind.bytes() == *max
            }
            Source::Stack { max, .. } => kind.is_stack() && kind.bytes() == *max,
        };
        fits.then_some(())
            .ok_or_else(|| CaptureError::Kind(Arc::clone(&self.name)))
    }
}

impl Condition {
    /// Whether it reads the guest's memory.
    #[must_use]
    pub fn needs_memory(&self) -> bool {
        match self {
            Self::NonZero(value) => value.needs_memory(),
            Self::TextIs(..) => true,
            Self::Not(inner) => inner.needs_memory(),
            Self::All(parts) | Self::Any(parts) => parts.iter().any(Self::needs_memory),
        }
    }

    /// The length of the longest text that it compares with, if it compares with any.
    #[must_use]
    pub fn compared(&self) -> Option<usize> {
        match self {
            Self::NonZero(_) => None,
            Self::TextIs(_, bytes) => Some(bytes.len()),
            Self::Not(inner) => inner.compared(),
            Self::All(parts) | Self::Any(parts) => parts.iter().filter_map(Self::compared).max(),
        }
    }

    fn check(&self, levels: u32) -> Result<(), CaptureError> {
        let below = levels.checked_sub(1).ok_or(CaptureError::Depth)?;
        match self {
            Self::NonZero(value) => check_number(value, DEPTH_MAX),
            Self::TextIs(_, bytes) if bytes.len() > COMPARED_MAX => {
                Err(CaptureError::Compared(bytes.len()))
            }
            Self::TextIs(text, _) => text.check(),
            Self::Not(inner) => inner.check(below),
            Self::All(parts) | Self::Any(parts) => {
                parts.iter().try_for_each(|part| part.check(below))
            }
        }
    }
}

impl Capture {
    /// These fields of an event, each with where it is; always.
    pub fn of_fields(fields: impl IntoIterator<Item = (Field, Operand)>) -> Self {
        let captured = |(field, operand): (Field, Operand)| Captured {
            name: field.name,
            kind: field.kind,
            source: Source::Operand(operand),
        };
        Self {
            values: fields.into_iter().map(captured).collect(),
            condition: None,
        }
    }

    /// What the event of a probe that captures this says: the layout of its payload, for the code that writes it as
    /// for who reads it.
    #[must_use]
    pub fn format(&self, name: Arc<str>) -> EventFormat {
        let field = |value: &Captured| Field {
            name: Arc::clone(&value.name),
            kind: value.kind.clone(),
        };
        let can_fault = |value: &Captured| match &value.source {
            Source::Operand(_) => false,
            Source::Number(value) => value.can_fault(),
            Source::Bytes { .. } | Source::Text { .. } | Source::Stack { .. } => true,
        };
        EventFormat {
            name,
            fields: self.values.iter().map(field).collect(),
            has_status: self.values.iter().any(can_fault),
        }
    }

    /// Bytes of a payload that hold it.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        8 * self.format("".into()).words() as u64
    }

    /// Keeps less of texts, the longest first, so that it takes at most `room` bytes of a payload. What is cut off is
    /// marked where it happens, as in every text that is longer than what is kept of it. With room for too
    /// little still, numbers are the reason.
    pub fn shorten(&mut self, room: u64) {
        let excess = |capture: &Self| capture.payload_bytes().saturating_sub(room) / 8;
        while let words @ 1.. = excess(self) {
            let texts = self.values.iter_mut();
            let longest = texts
                .filter(|value| value.kind.is_text() || value.kind.is_stack())
                .filter(|value| value.kind.bytes() > TEXT_PER_WORD)
                .max_by_key(|value| value.kind.bytes());
            let Some(value) = longest else {
                return;
            };
            let kept = value.kind.bytes().next_multiple_of(TEXT_PER_WORD);
            let most = kept - TEXT_PER_WORD;
            // Half of what there is at a time, so that all long ones are shortened alike.
            let cut =
                u64::from(TEXT_PER_WORD) * words.min(u64::from(kept / TEXT_PER_WORD).div_ceil(2));
            let cut = u16::try_from(cut).unwrap_or(u16::MAX).min(most);
            value.kind = match value.kind.is_stack() {
                true => FieldType::stack(kept - cut),
                false => FieldType::text(kept - cut),
            };
            if let Source::Text { max, .. } | Source::Stack { max, .. } = &mut value.source {
                *max = kept - cut;
            }
        }
    }

    /// Whether it reads the guest's memory.
    #[must_use]
    pub fn needs_memory(&self) -> bool {
        let of_value = |value: &Captured| match &value.source {
            Source::Operand(_) => false,
            Source::Number(value) => value.needs_memory(),
            Source::Bytes { .. } | Source::Text { .. } | Source::Stack { .. } => true,
        };
        let condition = self.condition.as_ref();
        self.values.iter().any(of_value) || condition.is_some_and(Condition::needs_memory)
    }

    /// Whether it copies a stack.
    #[must_use]
    pub fn needs_stack(&self) -> bool {
        self.values.iter().any(|value| value.kind.is_stack())
    }

    /// Whether code can be made of it.
    ///
    /// # Errors
    /// A [`CaptureError`].
    pub fn check(&self) -> Result<(), CaptureError> {
        if self.values.len() > VALUES_MAX {
            return Err(CaptureError::Values(self.values.len()));
        }
        self.values.iter().try_for_each(Captured::check)?;
        let condition = self.condition.as_ref();
        condition.map_or(Ok(()), |condition| condition.check(DEPTH_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(max: u16) -> Captured {
        let text = Text {
            address: Expression::Register(7),
            length: None,
        };
        Captured {
            name: "text".into(),
            kind: FieldType::text(max),
            source: Source::Text { text, max },
        }
    }

    #[test]
    fn long_texts_are_shortened_until_all_fits() {
        let whole = Capture {
            values: vec![text(200), text(8), text(200)],
            condition: None,
        };
        for room in [64, 128, 256, 512, 1024] {
            let mut capture = whole.clone();
            capture.shorten(room);
            assert!(capture.payload_bytes() <= room, "{room}: {capture:?}");
            for value in &capture.values {
                let kept = value.kind.bytes();
                assert!((4..=200).contains(&kept), "{room}: {kept}");
                let Source::Text { max, .. } = value.source else {
                    panic!("a text stays one");
                };
                assert_eq!(max, kept);
            }
        }
        let mut enough = whole.clone();
        enough.shorten(2048);
        assert_eq!(enough, whole);
        // Numbers cannot be shortened.
        let number = Captured {
            name: "number".into(),
            kind: FieldType::named("u64").expect("it is a type"),
            source: Source::Number(Expression::Register(0)),
        };
        let mut many = Capture {
            values: vec![number; 20],
            condition: None,
        };
        many.shorten(64);
        assert_eq!(many.payload_bytes(), 320);
    }
}
