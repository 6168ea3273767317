//! Types in DWARF.

use std::sync::Arc;

use gimli::{AttributeValue, UnitOffset, constants as dw};
use terms::field::{Enumeration, FieldType};

use super::DebugError;
use super::constant::{fitted, signed, unsigned};
use super::sections::Bytes;
use super::shape::{Member, Shape, Slice, Structure, TypeId};
use super::units::{Dwarf, Entry, Unit};

/// Names and qualifiers of one type, one inside the other.
const DEPTH_MAX: usize = 32;
/// Members, enumerators, dimensions of one type.
const CHILDREN_MAX: usize = 1 << 14;

/// What a whole number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Integer {
    bytes: u64,
    signed: bool,
}

impl<'a> Dwarf<'a> {
    /// The type's entry, without typedefs and qualifiers; `None` is C's `void`.
    fn plain(&self, of: usize) -> Result<Option<(Unit<'a>, UnitOffset)>, DebugError> {
        let mut at = of;
        for _ in 0..DEPTH_MAX {
            let (unit, offset) = self.unit_of(at)?;
            let entry = unit.entry(offset).map_err(super::units::damaged)?;
            let is_alias = matches!(
                entry.tag(),
                dw::DW_TAG_typedef
                    | dw::DW_TAG_const_type
                    | dw::DW_TAG_volatile_type
                    | dw::DW_TAG_restrict_type
                    | dw::DW_TAG_atomic_type
                    | dw::DW_TAG_immutable_type
                    | dw::DW_TAG_packed_type
            );
            if !is_alias {
                return Ok(Some((unit, offset)));
            }
            match self.reference(&unit, &entry, dw::DW_AT_type) {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Err(DebugError::Damaged(
            "a type that is made of itself".to_owned(),
        ))
    }

    pub fn shape(&self, of: usize) -> Result<Shape, DebugError> {
        let Some((unit, offset)) = self.plain(of)? else {
            return Ok(Shape::Void);
        };
        let entry = unit.entry(offset).map_err(super::units::damaged)?;
        let bytes = size(&entry);
        let name = || self.own_name(&unit, &entry).unwrap_or_default();
        let to = || {
            let to = self.reference(&unit, &entry, dw::DW_AT_type);
            to.map(TypeId::Dwarf)
        };
        Ok(match entry.tag() {
            dw::DW_TAG_base_type => base(&entry, &name(), bytes),
            tag if is_pointer(tag) => Shape::Pointer(to()),
            dw::DW_TAG_structure_type | dw::DW_TAG_union_type | dw::DW_TAG_class_type => {
                self.structure(&unit, &entry, name(), bytes)?
            }
            dw::DW_TAG_array_type => self.array(&unit, &entry)?,
            dw::DW_TAG_enumeration_type => self.enumeration(&unit, &entry, name(), bytes)?,
            dw::DW_TAG_unspecified_type => Shape::Void,
            dw::DW_TAG_subroutine_type => Shape::Unreadable {
                what: "a function".to_owned(),
                bytes: 0,
            },
            tag => Shape::Unreadable {
                what: format!("a type of the kind {tag}"),
                bytes,
            },
        })
    }

    pub fn type_name(&self, of: usize) -> String {
        self.name_within(of, 0)
            .unwrap_or_else(|| "a type without a name".to_owned())
    }

    fn name_within(&self, of: usize, depth: usize) -> Option<String> {
        if depth > DEPTH_MAX {
            return None;
        }
        let (unit, offset) = self.unit_of(of).ok()?;
        let entry = unit.entry(offset).ok()?;
        let inner = || match self.reference(&unit, &entry, dw::DW_AT_type) {
            Some(inner) => self.name_within(inner, depth + 1),
            None => Some("void".to_owned()),
        };
        let own = || self.own_name(&unit, &entry);
        let tagged = |kind: &str| Some(format!("{kind} {}", own().unwrap_or_default()));
        match entry.tag() {
            dw::DW_TAG_pointer_type => own().or_else(|| Some(format!("{} *", inner()?))),
            dw::DW_TAG_const_type => Some(format!("const {}", inner()?)),
            dw::DW_TAG_volatile_type => Some(format!("volatile {}", inner()?)),
            dw::DW_TAG_array_type => Some(format!("an array of {}", inner()?)),
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type => tagged("struct"),
            dw::DW_TAG_union_type => tagged("union"),
            dw::DW_TAG_enumeration_type => tagged("enum"),
            dw::DW_TAG_subroutine_type => Some("a function".to_owned()),
            _ => own(),
        }
    }

    fn structure(
        &self,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
        name: String,
        bytes: u64,
    ) -> Result<Shape, DebugError> {
        if entry.attr(dw::DW_AT_declaration).is_some() {
            return Ok(Shape::Unreadable {
                what: format!("struct {name}, which is only declared here"),
                bytes: 0,
            });
        }
        let mut structure = Structure {
            name,
            bytes,
            ..Structure::default()
        };
        for child in self.children(unit, entry.offset(), CHILDREN_MAX)? {
            match child.tag() {
                dw::DW_TAG_member | dw::DW_TAG_inheritance => {
                    structure.members.extend(self.member(unit, &child)?);
                }
                dw::DW_TAG_variant_part => self.variants(unit, &child, &mut structure)?,
                _ => {}
            }
        }
        structure.slice = self.slice(&structure);
        Ok(Shape::Structure(structure))
    }

    fn member(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Result<Option<Member>, DebugError> {
        let Some(of) = self.reference(unit, entry, dw::DW_AT_type) else {
            return Ok(None);
        };
        let number = |attribute| {
            let value = entry.attr_value(attribute)?;
            value.udata_value()
        };
        if entry.attr(dw::DW_AT_external).is_some() {
            return Ok(None);
        }
        let bytes = number(dw::DW_AT_data_member_location).unwrap_or(0);
        let bits = number(dw::DW_AT_bit_size);
        let start = bytes.checked_mul(8);
        let offset = match (number(dw::DW_AT_data_bit_offset), bits) {
            (Some(offset), _) => Some(offset),
            // Until DWARF 4: from the top of a unit of so many bytes.
            (None, Some(bits)) => match number(dw::DW_AT_bit_offset) {
                Some(above) => {
                    let unit_bytes = match number(dw::DW_AT_byte_size) {
                        Some(bytes) => bytes,
                        None => self.integer(of).map_or(0, |integer| integer.bytes),
                    };
                    let end = start.and_then(|start| start.checked_add(unit_bytes.checked_mul(8)?));
                    end.and_then(|end| end.checked_sub(above)?.checked_sub(bits))
                }
                None => start,
            },
            (None, None) => start,
        };
        let Some(offset) = offset else {
            return Ok(None);
        };
        let bits = bits.and_then(|bits| u8::try_from(bits).ok());
        Ok(Some(Member {
            name: self.own_name(unit, entry).unwrap_or_default(),
            offset,
            bits: bits.filter(|bits| (1..=64).contains(bits)),
            of: TypeId::Dwarf(of),
        }))
    }

    /// What whole number a type is, if it is one. It is not asked what else it is made of, which may be the type that asks.
    fn integer(&self, of: usize) -> Option<Integer> {
        let (unit, offset) = self.plain(of).ok()??;
        let entry = unit.entry(offset).ok()?;
        let signed = match entry.tag() {
            dw::DW_TAG_base_type => is_signed(&entry).unwrap_or_default(),
            dw::DW_TAG_enumeration_type => self.is_signed(&unit, &entry).unwrap_or_default(),
            _ => return None,
        };
        let bytes = size(&entry);
        Some(Integer { bytes, signed })
    }

    /// Whether the numbers of an enumeration have a sign, if it says so itself.
    fn is_signed(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Option<bool> {
        is_signed(entry).or_else(|| {
            let of = self.reference(unit, entry, dw::DW_AT_type)?;
            let (unit, offset) = self.plain(of).ok()??;
            is_signed(&unit.entry(offset).ok()?)
        })
    }

    /// What a type points to, if it is a pointer.
    #[expect(
        clippy::option_option,
        reason = "no pointer, one to anything, one to something"
    )]
    fn pointed(&self, of: usize) -> Option<Option<TypeId>> {
        let (unit, offset) = self.plain(of).ok()??;
        let entry = unit.entry(offset).ok()?;
        let to = self.reference(&unit, &entry, dw::DW_AT_type);
        is_pointer(entry.tag()).then(|| to.map(TypeId::Dwarf))
    }

    /// The variants of a Rust enum: each is a member, and what tells them apart has their names.
    fn variants(
        &self,
        unit: &Unit<'a>,
        part: &Entry<'a>,
        structure: &mut Structure,
    ) -> Result<(), DebugError> {
        let mut names = Vec::new();
        let mut discriminants = Vec::new();
        for child in self.children(unit, part.offset(), CHILDREN_MAX)? {
            if child.tag() == dw::DW_TAG_member {
                let member = self.member(unit, &child)?;
                discriminants.extend(member.map(|member| (child.offset(), member)));
                continue;
            }
            if child.tag() != dw::DW_TAG_variant {
                continue;
            }
            let value = child.attr_value(dw::DW_AT_discr_value);
            for member in self.children(unit, child.offset(), 16)? {
                let Some(member) = self.member(unit, &member)? else {
                    continue;
                };
                if let Some(value) = value {
                    names.push((value, Arc::from(member.name.as_str())));
                }
                structure.members.push(member);
            }
        }
        let discriminant = match part.attr_value(dw::DW_AT_discr) {
            Some(AttributeValue::UnitRef(at)) => {
                discriminants.into_iter().find(|(offset, _)| *offset == at)
            }
            _ => None,
        };
        if let Some((_, member)) = discriminant {
            let names = names.into_iter();
            let names = names.filter_map(|(value, name)| Some((self.told(&member, &value)?, name)));
            let names = Enumeration {
                name: structure.name.as_str().into(),
                names: names.collect(),
            };
            structure.variant = Some((member, Arc::new(names)));
        }
        Ok(())
    }

    /// What `member` holds when it says that a value is of the variant with this number.
    fn told(&self, member: &Member, value: &AttributeValue<Bytes<'a>>) -> Option<i64> {
        let TypeId::Dwarf(of) = member.of else {
            return None;
        };
        match self.integer(of) {
            Some(Integer {
                bytes,
                signed: true,
            }) => Some(fitted(signed(value)?, bytes, true)),
            Some(Integer { bytes, .. }) => Some(fitted(unsigned(value)?, bytes, false)),
            None => unsigned(value).map(u64::cast_signed),
        }
    }

    /// Rust's references to text and slices are an address and a length.
    fn slice(&self, of: &Structure) -> Option<Slice> {
        let member = |name: &str| of.members.iter().find(|member| member.name == name);
        let (address, length) = (member("data_ptr")?, member("length")?);
        if of.members.len() != 2
            || !address.offset.is_multiple_of(8)
            || !length.offset.is_multiple_of(8)
        {
            return None;
        }
        let TypeId::Dwarf(pointer) = address.of else {
            return None;
        };
        let to = self.pointed(pointer)?;
        let is_text = of.name.ends_with("str") || of.name.ends_with("str>");
        Some(Slice {
            address: address.offset / 8,
            length: length.offset / 8,
            of: if is_text { None } else { to },
        })
    }

    fn array(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Result<Shape, DebugError> {
        let Some(of) = self.reference(unit, entry, dw::DW_AT_type) else {
            return Err(DebugError::Damaged("an array of nothing".to_owned()));
        };
        let mut counts = Vec::new();
        for child in self.children(unit, entry.offset(), 16)? {
            let number = |attribute| child.attr_value(attribute)?.udata_value();
            if child.tag() == dw::DW_TAG_subrange_type {
                let last = number(dw::DW_AT_upper_bound).and_then(|last| last.checked_add(1));
                counts.push(number(dw::DW_AT_count).or(last));
            }
        }
        match counts.as_slice() {
            [] => Ok(Shape::Array {
                of: TypeId::Dwarf(of),
                count: None,
            }),
            [count] => Ok(Shape::Array {
                of: TypeId::Dwarf(of),
                count: *count,
            }),
            _ => Ok(Shape::Unreadable {
                what: "an array of several dimensions".to_owned(),
                bytes: 0,
            }),
        }
    }

    fn enumeration(
        &self,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
        name: String,
        bytes: u64,
    ) -> Result<Shape, DebugError> {
        let mut names = Vec::new();
        let mut has_negative = false;
        for child in self.children(unit, entry.offset(), CHILDREN_MAX)? {
            let value = child.attr_value(dw::DW_AT_const_value);
            if child.tag() == dw::DW_TAG_enumerator
                && let Some(value) = value
                && let Some(number) = unsigned(&value)
                && let Some(name) = self.own_name(unit, &child)
            {
                has_negative |= matches!(value, AttributeValue::Sdata(..0));
                names.push((number, Arc::from(name)));
            }
        }
        let Some(size) = u8::try_from(bytes)
            .ok()
            .filter(|size| matches!(size, 1 | 2 | 4 | 8))
        else {
            return Ok(Shape::Unreadable {
                what: format!("enum {name} of {bytes} bytes"),
                bytes,
            });
        };
        let signed = self.is_signed(unit, entry).unwrap_or(has_negative);
        let names = names.into_iter();
        let names = names.map(|(number, name)| (fitted(number, bytes, signed), name));
        let names = names.collect();
        let names = Arc::new(Enumeration {
            name: match name.as_str() {
                "" => "enum".into(),
                name => name.into(),
            },
            names,
        });
        Ok(Shape::Number {
            kind: FieldType::enumeration(size, Arc::clone(&names)),
            signed,
            names: Some(names),
        })
    }
}

fn size(entry: &Entry<'_>) -> u64 {
    let value = entry.attr_value(dw::DW_AT_byte_size);
    value.and_then(|value| value.udata_value()).unwrap_or(0)
}

const fn is_pointer(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type
    )
}

/// Whether the numbers of a type have a sign, if it says so.
fn is_signed(entry: &Entry<'_>) -> Option<bool> {
    match entry.attr_value(dw::DW_AT_encoding)? {
        AttributeValue::Encoding(encoding) => Some(matches!(
            encoding,
            dw::DW_ATE_signed | dw::DW_ATE_signed_char
        )),
        _ => None,
    }
}

/// A type that is not made of others.
fn base(entry: &Entry<'_>, name: &str, bytes: u64) -> Shape {
    let encoding = match entry.attr_value(dw::DW_AT_encoding) {
        Some(AttributeValue::Encoding(encoding)) => encoding,
        _ => dw::DW_ATE_unsigned,
    };
    let signed = is_signed(entry).unwrap_or_default();
    let shown = match (encoding, bytes) {
        (dw::DW_ATE_boolean, 1) => "bool",
        (dw::DW_ATE_signed_char | dw::DW_ATE_unsigned_char, 1) if name == "char" => "char",
        (dw::DW_ATE_float | dw::DW_ATE_complex_float | dw::DW_ATE_decimal_float, _) => "",
        (_, 1) if signed => "i8",
        (_, 2) if signed => "i16",
        (_, 4) if signed => "i32",
        (_, 8) if signed => "i64",
        (_, 1) => "u8",
        (_, 2) => "u16",
        (_, 4) => "u32",
        (_, 8) => "u64",
        _ => "",
    };
    match FieldType::named(shown) {
        Some(kind) => Shape::Number {
            kind,
            signed,
            names: None,
        },
        None if bytes == 0 => Shape::Void,
        None => Shape::Unreadable {
            what: format!("a {name} of {bytes} bytes"),
            bytes,
        },
    }
}
