//! Where callers put what they pass, and functions what they return: the System V calling convention, as far as it is about
//! integers and pointers.

use terms::expression::Expression;

use super::place::{Piece, Place};
use super::shape::{Member, Shape, TypeId};
use super::units::Dwarf;

/// The registers of integers and pointers, in their order.
const REGISTERS: [u8; 6] = [7, 6, 2, 1, 8, 9];
const RAX: u8 = 0;
const RDX: u8 = 2;
const RSP: u8 = 4;
/// Structures inside each other.
const DEPTH_MAX: u32 = 16;
/// Types that are looked at for one value: in 16 bytes no more can be of any use.
const TYPES_MAX: u32 = 1 << 10;

/// What a value is passed as.
enum Class {
    /// So many bytes in so many registers, or on the stack.
    Integer(u64),
    /// On the stack, so many bytes.
    Memory(u64),
    /// In vector registers.
    Vector,
    Unknown,
}

/// What has been passed so far.
pub(super) struct Classes {
    registers: usize,
    /// Bytes on the stack; `None` if nobody knows.
    stack: Option<u64>,
    lost: bool,
    is_rust: bool,
}

/// Asks for the shapes of types.
pub(super) trait Types {
    fn shape_of(&self, of: TypeId) -> Option<Shape>;
}

impl Types for Dwarf<'_> {
    fn shape_of(&self, of: TypeId) -> Option<Shape> {
        match of {
            TypeId::Dwarf(at) => self.shape(at).ok(),
            TypeId::Btf(_) => None,
        }
    }
}

impl Classes {
    pub const fn new(is_rust: bool) -> Self {
        Self {
            registers: 0,
            stack: Some(0),
            lost: false,
            is_rust,
        }
    }

    /// Where the next argument is, if it is one of this type in the debug information.
    pub fn pass(&mut self, dwarf: &Dwarf<'_>, of: Option<usize>) -> Option<Place> {
        self.pass_type(dwarf, of.map(TypeId::Dwarf))
    }

    /// Where the next argument is.
    pub fn pass_type(&mut self, types: &impl Types, of: Option<TypeId>) -> Option<Place> {
        if self.lost {
            return None;
        }
        let class = of.map_or(Class::Unknown, |of| self.class(types, of));
        match class {
            Class::Integer(bytes) => {
                let words = bytes.div_ceil(8).max(1);
                let count = usize::try_from(words).ok()?;
                let end = self.registers.checked_add(count)?;
                match REGISTERS.get(self.registers..end) {
                    Some(registers) => {
                        self.registers = end;
                        Some(in_registers(registers))
                    }
                    None => self.on_stack(words),
                }
            }
            Class::Memory(bytes) => self.on_stack(bytes.div_ceil(8)),
            // There are eight registers of them, and the stack after those: what follows on the stack is lost.
            Class::Vector => {
                self.stack = None;
                None
            }
            Class::Unknown => {
                self.lost = true;
                None
            }
        }
    }

    fn on_stack(&mut self, words: u64) -> Option<Place> {
        let before = self.stack?;
        self.stack = words
            .checked_mul(8)
            .and_then(|bytes| before.checked_add(bytes));
        // Right above the return address.
        let above = i64::try_from(before.checked_add(8)?).ok()?;
        Some(Place::Memory(Expression::Register(RSP).offset(above)))
    }

    /// Where a value of this type in the debug information is returned.
    pub fn returned(&self, dwarf: &Dwarf<'_>, of: usize) -> Option<Place> {
        self.returned_type(dwarf, TypeId::Dwarf(of))
    }

    /// Where a value of a type is returned.
    pub fn returned_type(&self, types: &impl Types, of: TypeId) -> Option<Place> {
        match self.class(types, of) {
            Class::Integer(bytes @ ..=8) => {
                debug_assert!(bytes <= 8, "one register");
                Some(in_registers(&[RAX]))
            }
            Class::Integer(_) => Some(in_registers(&[RAX, RDX])),
            Class::Memory(_) => Some(Place::Memory(Expression::Register(RAX))),
            Class::Vector | Class::Unknown => None,
        }
    }

    fn class(&self, types: &impl Types, of: TypeId) -> Class {
        match types.shape_of(of) {
            Some(Shape::Number { kind, .. }) => Class::Integer(u64::from(kind.bytes())),
            Some(Shape::Pointer(_)) => Class::Integer(8),
            Some(Shape::Structure(structure)) => match structure.bytes {
                // Rust says nothing about how it passes structures, but text and slices are two words.
                _ if self.is_rust && structure.slice.is_some() => Class::Integer(16),
                _ if self.is_rust => Class::Unknown,
                0 => Class::Unknown,
                bytes @ 1..=16
                    if all_integers(types, &structure.members, 0, &mut { TYPES_MAX }) =>
                {
                    Class::Integer(bytes)
                }
                1..=16 => Class::Unknown,
                bytes => Class::Memory(bytes),
            },
            Some(Shape::Unreadable { what, bytes: 4 | 8 })
                if what.contains("float")
                    || what.contains("double")
                    || what.contains("f32")
                    || what.contains("f64") =>
            {
                Class::Vector
            }
            _ => Class::Unknown,
        }
    }
}

fn all_integers(types: &impl Types, members: &[Member], depth: u32, left: &mut u32) -> bool {
    members
        .iter()
        .all(|member| is_integer(types, member.of, depth, left))
}

/// Whether it is, as far as `left` types say.
fn is_integer(types: &impl Types, of: TypeId, depth: u32, left: &mut u32) -> bool {
    if depth > DEPTH_MAX || *left == 0 {
        return false;
    }
    *left -= 1;
    match types.shape_of(of) {
        Some(Shape::Number { .. } | Shape::Pointer(_)) => true,
        Some(Shape::Structure(structure)) => {
            all_integers(types, &structure.members, depth + 1, left)
        }
        Some(Shape::Array { of, count }) => {
            count.is_some_and(|count| count <= 16) && is_integer(types, of, depth + 1, left)
        }
        _ => false,
    }
}

fn in_registers(registers: &[u8]) -> Place {
    match registers {
        [one] => Place::Value(Expression::Register(*one)),
        several => {
            let pieces = several.iter().map(|register| Piece {
                bits: 64,
                skip: 0,
                place: Some(Box::new(Place::Value(Expression::Register(*register)))),
            });
            Place::Pieces(pieces.collect())
        }
    }
}
