//! The functions of a kernel by its BTF: what they take, what they return, and what that is made of. Where in a
//! function a variable is, BTF does not say.

use std::collections::HashMap;
use std::sync::Arc;

use terms::field::{Enumeration, FieldType};
use terms::printable::escaped;

use super::types::{Kind, Type, Types};
use super::{BtfError, DEPTH_MAX};
use crate::{Member, Shape, Structure, TypeId};

/// Bits of an integer's description that say how it is shown.
const SIGNED: u32 = 1 << 24;
const BOOL: u32 = 4 << 24;
/// All names together may be this many times as long as the section.
const NAMES_PER_SECTION: usize = 4;

/// Functions by name, and their types.
#[derive(Debug)]
pub struct Functions {
    bytes: Vec<u8>,
    offsets: Vec<u32>,
    by_name: HashMap<Box<str>, u32>,
    structures: HashMap<Box<str>, u32>,
    variables: HashMap<Box<str>, u32>,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prototype {
    /// Names and types of its parameters; one without a type stands for any others.
    pub parameters: Vec<(String, Option<TypeId>)>,
    /// What it returns, if anything.
    pub returned: Option<TypeId>,
}

impl Functions {
    /// Reads a section `.BTF`.
    ///
    /// # Errors
    /// A [`BtfError`] that says what is wrong with it.
    pub fn read(bytes: Vec<u8>) -> Result<Self, BtfError> {
        let types = Types::parse(&bytes)?;
        let limit = bytes.len().saturating_mul(NAMES_PER_SECTION);
        let mut total = 0_usize;
        let (mut by_name, mut structures, mut variables) =
            (HashMap::new(), HashMap::new(), HashMap::new());
        for id in 1..=u32::try_from(types.len()).unwrap_or(u32::MAX) {
            let Some(found) = types.get(id) else {
                continue;
            };
            let (into, of) = match found.kind {
                Kind::Function => (&mut by_name, id),
                Kind::Struct | Kind::Union => (&mut structures, id),
                Kind::Variable => (&mut variables, found.size),
                _ => continue,
            };
            let name = types.string(found.name).map(std::str::from_utf8);
            if let Some(Ok(name)) = name.filter(|name| *name != Ok("")) {
                total = total.saturating_add(name.len());
                if total > limit {
                    return Err(BtfError::Names { limit });
                }
                into.entry(name.into()).or_insert(of);
            }
        }
        let offsets = types.into_offsets();
        Ok(Self {
            bytes,
            offsets,
            by_name,
            structures,
            variables,
        })
    }

    /// The structure or union with this name.
    #[must_use]
    pub fn structure(&self, name: &str) -> Option<TypeId> {
        self.structures.get(name).copied().map(TypeId::Btf)
    }

    /// The names of all structures and unions.
    pub fn structures(&self) -> impl Iterator<Item = &str> {
        self.structures.keys().map(|name| &**name)
    }

    /// The type of the variable with this name: of a kernel's, those of which each processor has its own.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<TypeId> {
        self.variables.get(name).copied().map(TypeId::Btf)
    }

    fn types(&self) -> Option<Types<'_>> {
        Types::with_offsets(&self.bytes, &self.offsets).ok()
    }

    /// What is known of the function with this name.
    #[must_use]
    pub fn prototype(&self, name: &str) -> Option<Prototype> {
        let types = self.types()?;
        let function = types.get(*self.by_name.get(name)?)?;
        let prototype = types.get(function.size)?;
        if prototype.kind != Kind::Prototype {
            return None;
        }
        let id = |id: u32| (id != 0).then_some(TypeId::Btf(id));
        let parameters = prototype
            .words(2)
            .map(|[name, of, ..]| (text(&types, name), id(of)));
        Some(Prototype {
            parameters: parameters.collect(),
            returned: id(prototype.size),
        })
    }

    /// What values of a type are made of.
    #[must_use]
    pub fn shape(&self, id: u32) -> Option<Shape> {
        let types = self.types()?;
        let Some(of) = plain(&types, id)? else {
            return Some(Shape::Void);
        };
        let name = text(&types, of.name);
        let bytes = u64::from(of.size);
        Some(match of.kind {
            Kind::Int => integer(of, &name),
            Kind::Pointer => Shape::Pointer((of.size != 0).then_some(TypeId::Btf(of.size))),
            Kind::Array => {
                let [element, _, count, _] = of.words(3).next()?;
                Shape::Array {
                    of: TypeId::Btf(element),
                    count: (count != 0).then_some(u64::from(count)),
                }
            }
            Kind::Struct | Kind::Union => Shape::Structure(Structure {
                name,
                bytes,
                members: of.words(3).map(|entry| member(&types, of, entry)).collect(),
                ..Structure::default()
            }),
            Kind::Enum | Kind::Enum64 => enumeration(&types, of, name)?,
            Kind::Forward => Shape::Unreadable {
                what: format!("struct {name}, which is only declared"),
                bytes: 0,
            },
            Kind::Float => Shape::Unreadable {
                what: format!("a float ({name})"),
                bytes,
            },
            Kind::Prototype | Kind::Function => Shape::Unreadable {
                what: "a function".to_owned(),
                bytes: 0,
            },
            Kind::Alias | Kind::Variable | Kind::Other => return None,
        })
    }

    /// What a type is called.
    #[must_use]
    pub fn type_name(&self, id: u32) -> Option<String> {
        let types = self.types()?;
        let Some(of) = plain(&types, id)? else {
            return Some("void".to_owned());
        };
        let name = text(&types, of.name);
        Some(match of.kind {
            Kind::Struct | Kind::Forward => format!("struct {name}"),
            Kind::Union => format!("union {name}"),
            Kind::Enum | Kind::Enum64 => format!("enum {name}"),
            Kind::Pointer => "a pointer".to_owned(),
            Kind::Array => "an array".to_owned(),
            _ => name,
        })
    }
}

/// A type without typedefs and qualifiers; there is none after `void`.
#[expect(clippy::option_option, reason = "damaged, nothing, something")]
fn plain<'a>(types: &Types<'a>, id: u32) -> Option<Option<Type<'a>>> {
    let mut id = id;
    for _ in 0..DEPTH_MAX {
        if id == 0 {
            return Some(None);
        }
        let at = types.get(id)?;
        if at.kind != Kind::Alias {
            return Some(Some(at));
        }
        id = at.size;
    }
    None
}

fn text(types: &Types<'_>, offset: u32) -> String {
    let bytes = types.string(offset).unwrap_or_default();
    escaped(&String::from_utf8_lossy(bytes)).into_owned()
}

fn integer(of: Type<'_>, name: &str) -> Shape {
    let encoding = of.words(1).next().map_or(0, |[word, ..]| word);
    let signed = encoding & SIGNED != 0;
    let shown = match (of.size, signed) {
        (1, _) if encoding & BOOL != 0 => "bool",
        (1, _) if name == "char" => "char",
        (1, true) => "i8",
        (2, true) => "i16",
        (4, true) => "i32",
        (8, true) => "i64",
        (1, false) => "u8",
        (2, false) => "u16",
        (4, false) => "u32",
        (8, false) => "u64",
        _ => "",
    };
    match FieldType::named(shown) {
        Some(kind) => Shape::Number {
            kind,
            signed,
            names: None,
        },
        None => Shape::Unreadable {
            what: format!("a {name} of {} bytes", of.size),
            bytes: u64::from(of.size),
        },
    }
}

fn member(types: &Types<'_>, of: Type<'_>, [name, id, place, _]: [u32; 4]) -> Member {
    // With bit fields, the upper byte is a width.
    let (offset, width) = match of.flag {
        true => (place & 0xff_ffff, u8::try_from(place >> 24).unwrap_or(0)),
        false => (place, 0),
    };
    Member {
        name: text(types, name),
        offset: u64::from(offset),
        bits: (1..=64).contains(&width).then_some(width),
        of: TypeId::Btf(id),
    }
}

fn enumeration(types: &Types<'_>, of: Type<'_>, name: String) -> Option<Shape> {
    let size = u8::try_from(of.size).ok()?;
    if !matches!(size, 1 | 2 | 4 | 8) {
        return None;
    }
    let signed = of.flag;
    let low = |word: u32| match signed {
        true => i64::from(word.cast_signed()),
        false => i64::from(word),
    };
    let names = match of.kind {
        Kind::Enum => of
            .words(2)
            .map(|[name, value, ..]| (low(value), text(types, name).into()))
            .collect(),
        _ => of
            .words(3)
            .map(|[name, value, high, _]| {
                let value = u64::from(high) << 32 | u64::from(value);
                (value.cast_signed(), text(types, name).into())
            })
            .collect(),
    };
    let names = Arc::new(Enumeration {
        name: if name.is_empty() {
            "enum".into()
        } else {
            name.into()
        },
        names,
    });
    Some(Shape::Number {
        kind: FieldType::enumeration(size, Arc::clone(&names)),
        signed,
        names: Some(names),
    })
}
