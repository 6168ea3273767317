//! What a function is given and what it returns, where calls of it begin and end.

use gimli::{AttributeValue, constants as dw};
use terms::expression::{Expression, Operator};

use super::DebugError;
use super::abi::Classes;
use super::place::Place;
use super::scope::{CHILDREN_MAX, Found, Scope};
use super::shape::{Moment, TypeId, Variable};
use super::units::damaged;

impl<'a> Scope<'_, 'a> {
    /// Each parameter, or why it is not known.
    pub fn parameters(&self) -> Result<Vec<Result<Variable, DebugError>>, DebugError> {
        let parameters = self.parameter_entries()?;
        let all = parameters
            .iter()
            .zip(0..)
            .map(|(found, index)| match self.moment {
                Moment::Entry(_) => self.passed(&parameters, index),
                _ => self.located(found),
            });
        Ok(all.collect())
    }

    pub(super) fn parameter_entries(&self) -> Result<Vec<Found<'a>>, DebugError> {
        let children = self.dwarf.children(&self.unit, self.entry, CHILDREN_MAX)?;
        let parameters = children
            .into_iter()
            .filter(|child| child.tag() == dw::DW_TAG_formal_parameter);
        let named = parameters.zip(1..).map(|(entry, number)| Found {
            name: self
                .name_of(&entry)
                .unwrap_or_else(|| format!("arg{number}")),
            entry,
        });
        Ok(named.collect())
    }

    /// A parameter at the function's first instruction. What was compiled with optimisation says where it is there; what was
    /// not says where it is after the prologue, so that the calling convention is asked.
    pub(super) fn passed(
        &self,
        parameters: &[Found<'a>],
        index: usize,
    ) -> Result<Variable, DebugError> {
        let Some(found) = parameters.get(index) else {
            return Err(DebugError::Damaged("a parameter too many".to_owned()));
        };
        let location = found.entry.attr_value(dw::DW_AT_location);
        let is_fixed = location.is_some_and(|location| location.exprloc_value().is_some());
        let said = self.located(found);
        // What is nowhere by a list, or has no place at all, nobody may have passed: compilers leave that out where
        // they see both sides.
        if !is_fixed {
            return said;
        }
        let is_above = |place: &Place| match place {
            Place::Memory(address) => {
                self.counts_from_cfa() && stack_offset(address).is_some_and(|above| above >= 8)
            }
            Place::Value(_) | Place::Pieces(_) => true,
        };
        if let Ok(variable) = said
            && is_above(&variable.place)
        {
            return Ok(variable);
        }
        let mut classes = Classes::new(self.is_rust());
        for before in parameters.iter().take(index) {
            let of = self.type_of(&before.entry);
            classes.pass(self.dwarf, of);
        }
        let of = self.type_of(&found.entry);
        let passed = classes.pass(self.dwarf, of);
        let place = passed.ok_or_else(|| DebugError::Place {
            name: found.name.clone(),
            place: self.place(),
            why: "it, or one before it, is not passed as an integer or a pointer; after the prologue it can be"
                .to_owned(),
        })?;
        Ok(Variable {
            name: found.name.clone(),
            of: of.map(TypeId::Dwarf),
            place,
        })
    }

    /// What the function returns.
    pub fn returned(&self) -> Result<Option<Variable>, DebugError> {
        let entry = self.unit.entry(self.entry).map_err(damaged)?;
        let Some(of) = self.type_of(&entry) else {
            return Ok(None);
        };
        let classes = Classes::new(self.is_rust());
        let place = classes
            .returned(self.dwarf, of)
            .ok_or_else(|| DebugError::Place {
                name: "$retval".to_owned(),
                place: format!("{}%return", self.name),
                why: format!(
                    "{} is not returned as an integer or a pointer",
                    self.dwarf.type_name(of)
                ),
            })?;
        Ok(Some(Variable {
            name: "retval".to_owned(),
            of: Some(TypeId::Dwarf(of)),
            place,
        }))
    }

    /// Whether the frame base is the canonical frame address, which is the same at all instructions. Where it is the stack pointer, what lies
    /// above that is right after the prologue only.
    fn counts_from_cfa(&self) -> bool {
        let entry = self.unit.entry(self.entry).ok();
        let base = entry.and_then(|entry| entry.attr_value(dw::DW_AT_frame_base)?.exprloc_value());
        base.is_some_and(|base| base.0.slice() == [dw::DW_OP_call_frame_cfa.0])
    }

    fn is_rust(&self) -> bool {
        let root = self.unit.entry(self.unit.header.root_offset());
        let language = root
            .ok()
            .and_then(|root| root.attr_value(dw::DW_AT_language));
        matches!(language, Some(AttributeValue::Language(dw::DW_LANG_Rust)))
    }
}

/// How far above the stack pointer an address is.
fn stack_offset(address: &Expression) -> Option<i64> {
    const RSP: u8 = 4;
    match address {
        Expression::Register(RSP) => Some(0),
        Expression::Apply(Operator::Add, left, right) => match (&**left, &**right) {
            (Expression::Register(RSP), Expression::Constant(by)) => Some(by.cast_signed()),
            (inner, Expression::Constant(by)) => stack_offset(inner)?.checked_add(by.cast_signed()),
            _ => None,
        },
        _ => None,
    }
}
