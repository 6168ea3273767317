//! Probes with addresses and captures.

use std::sync::Arc;

use debuginfo::{DebugInfo, Place, Shape};
use image::Image;
use terms::field::FieldType;

use super::BadProbe;
use super::evaluate::{Evaluator, typed, wrong};
use super::expression::{Fetch, Format, What};
use super::places::{Point, points};
use super::request::{Request, Spec, Wanted};
use super::typed::{Kind, Typed};
use crate::capture::{Capture, Captured, Source, Text};

/// Values of one probe, at most.
const VALUES_MAX: usize = 32;
/// Bytes of text that are kept if nobody says how many.
const TEXT_KEPT: u16 = 64;
/// Bytes of text that can be kept.
const TEXT_MAX: u64 = 4096;
/// Bytes of a stack that are kept if nobody says how many: a record of 4 KiB holds as many.
const STACK_KEPT: u64 = 1984;
/// And at least, and at most.
const STACK_MIN: u64 = 64;
const STACK_MAX: u64 = 16 << 10;
/// Bytes of a structure or array that are captured as they are.
const BYTES_MAX: u64 = 256;

/// A probe at one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// What it is called: `vfs_open`, `vfs_open+0x12`, `vfs_open%return`, `fs.c:120`.
    pub name: Arc<str>,
    /// Where it is hit.
    pub point: Point,
    /// What it captures.
    pub capture: Capture,
}

/// Finds the places and the values of a request. All places of one request have the same values, by name and type.
///
/// # Errors
/// A [`BadProbe`] that says what there is not, what comes near, and what works.
pub fn resolve(
    image: &Image,
    debug: Option<&DebugInfo>,
    request: &Request,
) -> Result<Vec<Resolved>, BadProbe> {
    let places = points(image, debug, request);
    let (name, points) =
        places.map_err(|why| why.at(&request.text, request.place_at + offset_at(request)))?;
    let resolved = points.into_iter().map(|point| {
        let evaluator = Evaluator {
            image,
            debug,
            point,
        };
        Ok(Resolved {
            name: Arc::clone(&name),
            point,
            capture: Capturing(evaluator).capture(request)?,
        })
    });
    let resolved = resolved.collect::<Result<Vec<_>, BadProbe>>()?;
    check_same(image, request, &resolved)?;
    Ok(resolved)
}

/// Where the place says what is wrong with it: its offset, where it has one.
fn offset_at(request: &Request) -> usize {
    match &request.spec {
        Spec::Function { offset: 1.., .. } => request.place.rfind('+').map_or(0, |sign| sign + 1),
        _ => 0,
    }
}

fn check_same(image: &Image, request: &Request, all: &[Resolved]) -> Result<(), BadProbe> {
    let Some((first, rest)) = all.split_first() else {
        return Ok(());
    };
    for other in rest {
        let mut pairs = first.capture.values.iter().zip(&other.capture.values);
        let differs = pairs.find(|(a, b)| a.name != b.name || a.kind != b.kind);
        let same_count = first.capture.values.len() == other.capture.values.len();
        if differs.is_some() || !same_count {
            let name = differs.map_or("$args".to_owned(), |(a, _)| a.name.to_string());
            let id = first.point.function();
            let start = id
                .and_then(|id| image.function(id))
                .map(|found| found.address);
            let example = match first.point {
                Point::At { at, .. } => at,
                _ => start.unwrap_or_default(),
            };
            return Err(BadProbe::Different {
                place: request.place.clone(),
                count: all.len(),
                name,
                example,
            });
        }
    }
    Ok(())
}

/// What is captured of the values that expressions have at a place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capturing<'a>(pub Evaluator<'a>);

impl Capturing<'_> {
    fn capture(&self, request: &Request) -> Result<Capture, BadProbe> {
        let text = &request.text;
        let mut values: Vec<Captured> = Vec::new();
        for (at, wanted) in &request.fetches {
            let more = match wanted {
                Wanted::Arguments => self.arguments().map_err(|why| why.at(text, *at)),
                Wanted::One(fetch) => self.fetched(fetch).map_err(|why| {
                    let within = fetch.wrong_at(&why);
                    why.at(text, at + within)
                }),
            };
            for new in more? {
                if values.iter().any(|value| value.name == new.name) {
                    let name = new.name.to_string();
                    return Err(BadProbe::SameName { name }.at(text, *at));
                }
                values.push(new);
            }
        }
        if values.len() > VALUES_MAX {
            return Err(BadProbe::TooMany {
                count: values.len(),
                max: VALUES_MAX,
            });
        }
        let condition = request.condition.as_ref().map(|(at, node)| {
            let condition = self.0.condition(node);
            condition.map_err(|why| {
                let within = node.wrong_at(&why);
                why.at(text, at + within)
            })
        });
        let condition = condition.transpose()?;
        Ok(Capture { values, condition })
    }

    /// All parameters that can be captured.
    fn arguments(&self) -> Result<Vec<Captured>, BadProbe> {
        if matches!(self.0.point, Point::Return(_)) {
            let why =
                "parameters are gone at a function's return: probe the function itself for them";
            return Err(wrong("$args", why));
        }
        let parameters = self.0.parameters()?;
        let mut values = Vec::new();
        let mut refused = None;
        for parameter in parameters {
            let captured = parameter.map_err(BadProbe::from).and_then(|variable| {
                let name = variable.name.clone();
                self.all_of(&name, &typed(variable), None, &name)
            });
            match captured {
                Ok(captured) => values.extend(captured),
                Err(why) => refused = Some(why),
            }
        }
        match refused {
            Some(why) if values.is_empty() => Err(why),
            _ => Ok(values),
        }
    }

    /// A value, or the members of one that is not in memory.
    pub(super) fn all_of(
        &self,
        name: &str,
        value: &Typed,
        format: Option<&Format>,
        text: &str,
    ) -> Result<Vec<Captured>, BadProbe> {
        if let Some(Shape::Structure(structure)) = self.0.shape(value)?
            && structure.slice.is_none()
            && structure.variant.is_none()
            && format.is_none()
            && !matches!(value.place, Place::Memory(_))
        {
            let members = structure
                .members
                .iter()
                .filter(|member| !member.name.is_empty());
            let parts = members.map(|member| {
                let called = member.name.strip_prefix("__").unwrap_or(&member.name);
                let (name, text) = (format!("{name}.{called}"), format!("{text}.{called}"));
                self.captured(&name, &self.0.part(value, member, &text)?, None, &text)
            });
            return parts.collect();
        }
        Ok(vec![self.captured(name, value, format, text)?])
    }

    /// `$stack` or `$stack[BYTES]`, if that is what is wanted.
    fn stack(&self, fetch: &Fetch) -> Result<Option<Captured>, BadProbe> {
        let bytes = match &fetch.node.what {
            What::Stack => STACK_KEPT,
            What::Index(of, bytes) => match (&of.what, &bytes.what) {
                (What::Stack, What::Number(bytes, _)) => *bytes,
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        if fetch.format.is_some() {
            return Err(wrong("$stack", "has a type of its own"));
        }
        let at = match self.0.point {
            Point::Entry(function) => self.0.image.function(function).map(|one| one.address),
            Point::At { at, .. } => Some(at),
            Point::Return(_) => {
                let why = "is walked from inside of a function: probe the function itself, not its return";
                return Err(wrong("$stack", why));
            }
        };
        let fits = (STACK_MIN..=STACK_MAX).contains(&bytes) && bytes % 8 == 0;
        let max = u16::try_from(bytes).ok().filter(|_| fits);
        let max = max.ok_or_else(|| {
            let why = format!(
                "of {bytes} bytes: {STACK_MIN} to {STACK_MAX} can be kept, a multiple of 8"
            );
            wrong("$stack", why)
        })?;
        Ok(Some(Captured {
            name: fetch
                .name
                .trim_start_matches('$')
                .split('[')
                .next()
                .unwrap_or_default()
                .into(),
            kind: FieldType::stack(max),
            source: Source::Stack {
                at: at.unwrap_or_default(),
                max,
            },
        }))
    }

    fn fetched(&self, fetch: &Fetch) -> Result<Vec<Captured>, BadProbe> {
        if let Some(stack) = self.stack(fetch)? {
            return Ok(vec![stack]);
        }
        let value = self.0.evaluate(&fetch.node)?;
        let name = fetch.name.trim_start_matches(['%', '$']);
        if let Some(format) = &fetch.format
            && let Some(several) = self.elements(name, &value, format, &fetch.node.text)?
        {
            return Ok(several);
        }
        self.all_of(name, &value, fetch.format.as_ref(), &fetch.node.text)
    }

    /// A value, as it is to be recorded.
    pub(super) fn captured(
        &self,
        name: &str,
        value: &Typed,
        format: Option<&Format>,
        text: &str,
    ) -> Result<Captured, BadProbe> {
        let (kind, source) = match format {
            Some(format) => self.formatted(value, format, text)?,
            None => self.plain(value, text)?,
        };
        Ok(Captured {
            name: name.into(),
            kind,
            source,
        })
    }

    /// As the user wants it.
    fn formatted(
        &self,
        value: &Typed,
        format: &Format,
        text: &str,
    ) -> Result<(FieldType, Source), BadProbe> {
        let unknown = || BadProbe::Format {
            name: format.name.clone(),
        };
        if format.name == "string" && format.count.is_none() {
            let (found, length) = self.text(value, text)?;
            let given = match format.length {
                None => None,
                Some(length @ 1..=TEXT_MAX) => u16::try_from(length).ok(),
                Some(length) => {
                    let why = format!("{length} bytes of text: 1 to {TEXT_MAX} can be kept");
                    return Err(wrong(text, why));
                }
            };
            let max = given.or(length).unwrap_or(TEXT_KEPT);
            return Ok((FieldType::text(max), Source::Text { text: found, max }));
        }
        if format.length.is_some() {
            return Err(unknown());
        }
        let kind = FieldType::named(&format.name).ok_or_else(unknown)?;
        let bits = u8::try_from(8 * kind.bytes()).unwrap_or(64);
        let number = match (&value.kind, &value.place, self.0.shape(value)?) {
            // Bits of which nothing is known are what they are said to be.
            (Kind::Untyped, place, _) => self.0.bits(place, bits, kind.is_signed(), text)?,
            (_, place, Some(Shape::Unreadable { bytes, .. })) if bytes >= u64::from(bits / 8) => {
                self.0.bits(place, bits, kind.is_signed(), text)?
            }
            _ => self.0.value(value, text)?.0,
        };
        Ok((kind, Source::Number(number)))
    }

    /// As its type says.
    fn plain(&self, value: &Typed, text: &str) -> Result<(FieldType, Source), BadProbe> {
        let named = |name: &str| FieldType::named(name).ok_or_else(|| wrong(text, "has no type"));
        let shape = self.0.shape(value)?;
        let kind = match (&value.kind, shape) {
            (Kind::Pointer(_), _) | (_, Some(Shape::Pointer(_))) => named("pointer")?,
            (Kind::Number(width), _) => named(match (width.bits, width.signed) {
                (32, true) => "i32",
                (32, false) => "u32",
                (_, true) => "i64",
                (_, false) => "u64",
            })?,
            (_, None) => named("x64")?,
            (_, Some(Shape::Number { kind, .. })) => kind,
            (_, Some(Shape::Structure(structure))) => {
                if let Some(slice) = structure.slice
                    && slice.of.is_none()
                {
                    let (found, _) = self.text(value, text)?;
                    let source = Source::Text {
                        text: found,
                        max: TEXT_KEPT,
                    };
                    return Ok((FieldType::text(TEXT_KEPT), source));
                }
                if let Some((member, names)) = &structure.variant {
                    let discriminant = self.0.part(value, member, text)?;
                    let (number, _) = self.0.value(&discriminant, text)?;
                    let bytes = match self.0.shape(&discriminant)? {
                        Some(Shape::Number { kind, .. }) => u8::try_from(kind.bytes()).unwrap_or(8),
                        _ => 8,
                    };
                    let kind = FieldType::enumeration(bytes, Arc::clone(names));
                    return Ok((kind, Source::Number(number)));
                }
                return self.raw(value, structure.bytes, text);
            }
            (_, Some(Shape::Array { of, .. })) => {
                let is_char = match self.0.shape_of(of)? {
                    Shape::Number { kind, .. } => kind.name() == "char",
                    _ => false,
                };
                if is_char && matches!(value.place, Place::Memory(_)) {
                    let (found, length) = self.text(value, text)?;
                    let max = length.unwrap_or(TEXT_KEPT);
                    return Ok((FieldType::text(max), Source::Text { text: found, max }));
                }
                let size = self.0.size(&value.kind, text)?;
                return self.raw(value, size, text);
            }
            (_, Some(Shape::Void)) => return Err(wrong(text, "has no type that has values")),
            (_, Some(Shape::Unreadable { what, .. })) => {
                let why =
                    format!("is {what}, which a record cannot hold: `{text}:x64` has its bits");
                return Err(wrong(text, why));
            }
        };
        let (number, _) = self.0.value(value, text)?;
        Ok((kind, Source::Number(number)))
    }

    /// Bytes as they are.
    fn raw(&self, value: &Typed, bytes: u64, text: &str) -> Result<(FieldType, Source), BadProbe> {
        if !matches!(value.place, Place::Memory(_)) {
            let named = [(1, "x8"), (2, "x16"), (4, "x32"), (8, "x64")];
            let fits = named.iter().find(|(size, _)| *size == bytes);
            if let Some(kind) = fits.and_then(|(_, name)| FieldType::named(name)) {
                let bits = u8::try_from(8 * bytes).unwrap_or(64);
                let number = self.0.bits(&value.place, bits, false, text)?;
                return Ok((kind, Source::Number(number)));
            }
            let why = "is not in memory here: name its members";
            return Err(wrong(text, why));
        }
        if bytes == 0 || bytes > BYTES_MAX {
            let why = format!(
                "has {bytes} bytes, of which a record holds 1 to {BYTES_MAX}: name a part of it"
            );
            return Err(wrong(text, why));
        }
        let length = u16::try_from(bytes).unwrap_or(u16::MAX);
        let address = self.0.address_of(value, text)?;
        Ok((FieldType::raw(length), Source::Bytes { address, length }))
    }

    /// The text that a value is or points to, and how long it can be.
    pub(super) fn text(&self, value: &Typed, text: &str) -> Result<(Text, Option<u16>), BadProbe> {
        let shape = self.0.shape(value)?;
        match (&value.kind, shape) {
            (_, Some(Shape::Structure(structure))) => {
                let slice = structure.slice.ok_or_else(|| {
                    wrong(
                        text,
                        format!("is a structure ({}), not text", structure.name),
                    )
                })?;
                let word = |offset: u64| {
                    let part = value.place.part(8 * offset);
                    let part = part.ok_or_else(|| wrong(text, "is too large"))?;
                    self.0.bits(&part, 64, false, text)
                };
                let found = Text {
                    address: word(slice.address)?,
                    length: Some(word(slice.length)?),
                };
                Ok((found, None))
            }
            (_, Some(Shape::Array { count, .. })) => {
                let found = Text {
                    address: self.0.address_of(value, text)?,
                    length: None,
                };
                let count = count.filter(|count| (1..=TEXT_MAX).contains(count));
                Ok((found, count.and_then(|count| u16::try_from(count).ok())))
            }
            (_, Some(Shape::Number { kind, .. })) if kind.bytes() < 8 => {
                let why = format!("is {}, not the address of text", self.0.called(value));
                Err(wrong(text, why))
            }
            _ => {
                let (address, _) = self.0.value(value, text)?;
                Ok((
                    Text {
                        address,
                        length: None,
                    },
                    None,
                ))
            }
        }
    }
}
