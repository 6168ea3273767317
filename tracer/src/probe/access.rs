//! Members, elements, what pointers lead to, and addresses.

use debuginfo::{Member, Place, Shape, Structure};
use terms::expression::{Expression, Operator};
use terms::nearest::{did_you_mean, nearest};

use super::BadProbe;
use super::evaluate::{Evaluator, wrong};
use super::expression::{Node, What};
use super::typed::{Kind, Typed};

/// Members without names, one inside the other.
const DEPTH_MAX: u32 = 16;
/// Members that a message lists.
const LISTED_MAX: usize = 16;
/// References that are followed for one member.
const REFERENCES_MAX: u32 = 4;

impl Evaluator<'_> {
    /// What a pointer leads to.
    pub(super) fn target(&self, of: Typed, text: &str) -> Result<Typed, BadProbe> {
        if let Some(Shape::Array { of: element, .. }) = self.shape(&of)? {
            return Ok(Typed::new(Kind::Of(element), of.place));
        }
        let to = match (&of.kind, self.shape(&of)?) {
            (_, Some(Shape::Pointer(Some(to)))) => Kind::Of(to),
            (_, Some(Shape::Pointer(None))) | (Kind::Untyped | Kind::Number(_), _) => Kind::Untyped,
            (Kind::Pointer(to), _) => (**to).clone(),
            _ => {
                return Err(wrong(
                    text,
                    format!("is {}, not a pointer", self.called(&of)),
                ));
            }
        };
        let (address, _) = self.value(&of, text)?;
        Ok(Typed::new(to, Place::Memory(address)))
    }

    /// What a value points to, if it is a pointer.
    pub(super) fn pointed(&self, of: &Typed) -> Result<Option<Kind>, BadProbe> {
        Ok(match (&of.kind, self.shape(of)?) {
            (Kind::Pointer(to), _) => Some((**to).clone()),
            (_, Some(Shape::Pointer(to))) => Some(to.map_or(Kind::Untyped, Kind::Of)),
            (_, Some(Shape::Array { of, .. })) => Some(Kind::Of(of)),
            _ => None,
        })
    }

    /// Bytes that a type has; of what nothing is known of, 1.
    pub(super) fn size(&self, of: &Kind, text: &str) -> Result<u64, BadProbe> {
        match of {
            Kind::Untyped => Ok(1),
            Kind::Number(width) => Ok(u64::from(width.bits / 8)),
            Kind::Pointer(_) => Ok(8),
            Kind::Of(id) => {
                let mut left = 1;
                let mut id = *id;
                for _ in 0..DEPTH_MAX {
                    left = match self.shape_of(id)? {
                        Shape::Number { kind, .. } => return Ok(left * u64::from(kind.bytes())),
                        Shape::Pointer(_) => return Ok(left * 8),
                        Shape::Structure(structure) => {
                            return left.checked_mul(structure.bytes).ok_or_else(|| huge(text));
                        }
                        Shape::Void => return Ok(left),
                        Shape::Unreadable { bytes, .. } => {
                            return left.checked_mul(bytes).ok_or_else(|| huge(text));
                        }
                        Shape::Array { of, count } => {
                            id = of;
                            let count = count.unwrap_or(0).min(u64::from(u32::MAX));
                            left.checked_mul(count)
                                .filter(|size| *size <= u64::from(u32::MAX))
                                .ok_or_else(|| huge(text))?
                        }
                    }
                }
                Err(huge(text))
            }
        }
    }

    /// A member of a structure, or of what a reference to one leads to.
    pub(super) fn member(&self, of: Typed, name: &str, text: &str) -> Result<Typed, BadProbe> {
        let mut of = of;
        for _ in 0..REFERENCES_MAX {
            match self.shape(&of)? {
                Some(Shape::Structure(structure)) => {
                    return match self.find(&structure, name, 0)? {
                        Some(member) => self.part(&of, &member, text),
                        None => Err(self.no_member(&structure, name, text)),
                    };
                }
                Some(Shape::Pointer(Some(_))) => of = self.target(of, text)?,
                None if matches!(&of.kind, Kind::Pointer(_)) => of = self.target(of, text)?,
                None => {
                    return Err(wrong(
                        text,
                        "has no type with members: only its bits are known",
                    ));
                }
                Some(_) => break,
            }
        }
        let why = format!("is {}, which has no members", self.called(&of));
        Err(wrong(text, why))
    }

    /// The member of this name, also of members without one.
    fn find(&self, of: &Structure, name: &str, depth: u32) -> Result<Option<Member>, BadProbe> {
        let is_it = |known: &str| known == name || known.strip_prefix("__") == Some(name);
        if let Some(found) = of.members.iter().find(|member| is_it(&member.name)) {
            return Ok(Some(found.clone()));
        }
        if depth >= DEPTH_MAX {
            return Ok(None);
        }
        for outer in of.members.iter().filter(|member| member.name.is_empty()) {
            let Shape::Structure(inner) = self.shape_of(outer.of)? else {
                continue;
            };
            if let Some(mut found) = self.find(&inner, name, depth + 1)? {
                found.offset = found.offset.saturating_add(outer.offset);
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn no_member(&self, of: &Structure, name: &str, text: &str) -> BadProbe {
        let mut names = Vec::new();
        self.member_names(of, 0, &mut names);
        let known: Vec<String> = names.iter().take(LISTED_MAX).cloned().collect();
        let more = if names.len() > LISTED_MAX {
            ", ..."
        } else {
            ""
        };
        let near = nearest(name, names.iter().map(String::as_str), 3);
        let why = format!(
            "{} has no member `{name}`{}; it has {}{more}",
            match of.name.as_str() {
                "" => "the structure",
                name => name,
            },
            did_you_mean(&near).trim_end_matches('?'),
            known.join(", "),
        );
        BadProbe::Member {
            text: text.to_owned(),
            name: name.to_owned(),
            why,
        }
    }

    fn member_names(&self, of: &Structure, depth: u32, names: &mut Vec<String>) {
        for member in &of.members {
            if names.len() > 4096 {
                return;
            }
            match (member.name.as_str(), self.shape_of(member.of)) {
                ("", Ok(Shape::Structure(inner))) if depth < DEPTH_MAX => {
                    self.member_names(&inner, depth + 1, names);
                }
                ("", _) => {}
                (name, _) => names.push(name.trim_start_matches("__").to_owned()),
            }
        }
    }

    /// A part of a structure.
    pub(super) fn part(&self, of: &Typed, member: &Member, text: &str) -> Result<Typed, BadProbe> {
        let place = of.place.part(member.offset);
        Ok(Typed {
            kind: Kind::Of(member.of),
            place: place.ok_or_else(|| huge(text))?,
            field: member.bits,
        })
    }

    /// An element of an array, of a slice, or of what a pointer leads to.
    pub(super) fn index(&self, of: &Node, index: &Node) -> Result<Typed, BadProbe> {
        let mut array = self.evaluate(of)?;
        if let Some(Shape::Structure(structure)) = self.shape(&array)?
            && let Some(slice) = structure.slice
        {
            let part = array
                .place
                .part(8 * slice.address)
                .ok_or_else(|| huge(&of.text))?;
            let address = self.bits(&part, 64, false, &of.text)?;
            let to = slice.of.map_or(Kind::Untyped, Kind::Of);
            array = Typed::new(Kind::Pointer(Box::new(to)), Place::Value(address));
        }
        if let Some(Shape::Array { count, .. }) = self.shape(&array)?
            && let (Some(count), What::Number(number, _)) = (count, &index.what)
            && *number >= count
            && count > 0
        {
            let why = format!("the last element is {}[{}]", of.text, count - 1);
            return Err(wrong(&format!("{}[{number}]", of.text), why));
        }
        let to = match self.pointed(&array)? {
            Some(to) => to,
            None if matches!(array.kind, Kind::Untyped) => Kind::Untyped,
            None => {
                let why = format!("is {}, neither an array nor a pointer", self.called(&array));
                return Err(wrong(&of.text, why));
            }
        };
        let size = match to {
            Kind::Untyped => 8,
            _ => self.size(&to, &of.text)?,
        };
        let (index_value, _) = self.number(index)?;
        // An array in registers has elements, too.
        if let (Place::Value(_) | Place::Pieces(_), Some(Shape::Array { .. })) =
            (&array.place, self.shape(&array)?)
        {
            let place = in_registers(&array.place, &index_value, size, &of.text)?;
            return Ok(Typed::new(to, place));
        }
        let (start, _) = self.value(&array, &of.text)?;
        let at = match index_value {
            Expression::Constant(number) => start.offset(number.wrapping_mul(size).cast_signed()),
            number if size == 1 => Expression::apply(Operator::Add, start, number),
            number => {
                let by = Expression::apply(Operator::Multiply, number, Expression::Constant(size));
                Expression::apply(Operator::Add, start, by)
            }
        };
        Ok(Typed::new(to, Place::Memory(at)))
    }

    /// Where a value lies, as a pointer.
    pub(super) fn address(&self, of: Typed, text: &str) -> Result<Typed, BadProbe> {
        let address = self.address_of(&of, text)?;
        Ok(Typed::new(
            Kind::Pointer(Box::new(of.kind)),
            Place::Value(address),
        ))
    }

    pub(super) fn address_of(&self, of: &Typed, text: &str) -> Result<Expression, BadProbe> {
        match (&of.place, of.field) {
            (Place::Memory(address), None) => Ok(address.clone()),
            (Place::Memory(_), Some(_)) => Err(wrong(text, "is a bit field and has no address")),
            (Place::Value(_) | Place::Pieces(_), _) => {
                Err(wrong(text, "is not in memory here and has no address"))
            }
        }
    }

    /// What a value is, in words.
    pub(super) fn called(&self, of: &Typed) -> String {
        match (&of.kind, self.debug) {
            (Kind::Of(id), Some(debug)) => debug.type_name(*id),
            (Kind::Number(_), _) => "a number".to_owned(),
            (Kind::Pointer(_), _) => "a pointer".to_owned(),
            _ => "a value without a type".to_owned(),
        }
    }
}

fn huge(text: &str) -> BadProbe {
    wrong(text, "is larger than anything that can be")
}

/// Where the element with this number lies of an array that registers hold, `size` bytes each.
fn in_registers(
    array: &Place,
    number: &Expression,
    size: u64,
    text: &str,
) -> Result<Place, BadProbe> {
    let Expression::Constant(number) = number else {
        let why = "is in registers: its elements have fixed numbers only";
        return Err(wrong(text, why));
    };
    let bits = size.checked_mul(8);
    let before = bits.and_then(|bits| number.checked_mul(bits));
    before
        .and_then(|bits| array.part(bits))
        .ok_or_else(|| huge(text))
}
