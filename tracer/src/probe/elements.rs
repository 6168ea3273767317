//! Several values of one type that lie in memory one after the other: `*%rsi:char[4]`, `*names:string[16][2]`.

use debuginfo::Place;
use terms::field::FieldType;

use super::BadProbe;
use super::evaluate::wrong;
use super::expression::Format;
use super::resolve::Capturing;
use super::typed::{Kind, Typed};
use crate::capture::Captured;

/// As many as a record tells apart.
const ELEMENTS_MAX: u64 = 32;
/// Bytes of a pointer to text.
const POINTER: u64 = 8;

impl Format {
    /// How many values it is of, and what each is; none if it is of one.
    fn elements(&self) -> Option<(u64, Self)> {
        let one = |length| Self {
            name: self.name.clone(),
            length,
            count: None,
            at: self.at,
        };
        match (self.name.as_str(), self.length, self.count) {
            ("string", length, count) => Some((count?, one(length))),
            (_, count, None) => Some((count?, one(None))),
            // Two numbers are for texts only.
            (_, _, Some(_)) => None,
        }
    }

    /// Bytes from one to the next.
    fn stride(&self) -> Result<u64, BadProbe> {
        if self.name == "string" {
            return Ok(POINTER);
        }
        let kind = FieldType::named(&self.name).ok_or_else(|| BadProbe::Format {
            name: self.name.clone(),
        })?;
        Ok(kind.bytes().into())
    }
}

impl Capturing<'_> {
    /// Each of the values, if there are to be several.
    pub(super) fn elements(
        &self,
        name: &str,
        value: &Typed,
        format: &Format,
        text: &str,
    ) -> Result<Option<Vec<Captured>>, BadProbe> {
        let Some((count, one)) = format.elements() else {
            return Ok(None);
        };
        let stride = one.stride()?;
        if !(1..=ELEMENTS_MAX).contains(&count) {
            let why = format!("{count} of a kind: 1 to {ELEMENTS_MAX} can be captured");
            return Err(wrong(text, why));
        }
        if !matches!(value.place, Place::Memory(_)) {
            let why = format!("is not in memory here: `*{text}` is what it leads to");
            return Err(wrong(text, why));
        }
        let start = self.0.address_of(value, text)?;
        let captured = (0..count).map(|index| {
            let offset = (index * stride).cast_signed();
            let place = Place::Memory(start.clone().offset(offset));
            let element = Typed::new(Kind::Untyped, place);
            let name = format!("{name}[{index}]");
            self.captured(&name, &element, Some(&one), text)
        });
        captured.collect::<Result<Vec<_>, _>>().map(Some)
    }
}
