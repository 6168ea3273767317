//! Structures and variables by their names alone, in DWARF: looked for once, in all of it.

use std::collections::HashMap;

use gimli::constants as dw;

use super::shape::TypeId;
use super::units::{Dwarf, ENTRIES_MAX, Unit};

/// What has a name, by where it is described; of several of one name the first.
#[derive(Debug, Default)]
pub(super) struct Named {
    structures: HashMap<String, usize>,
    /// The types of variables that are in no function.
    variables: HashMap<String, usize>,
}

impl Named {
    pub fn structure(&self, name: &str) -> Option<TypeId> {
        self.structures.get(name).copied().map(TypeId::Dwarf)
    }

    pub fn structures(&self) -> impl Iterator<Item = &str> {
        self.structures.keys().map(String::as_str)
    }

    pub fn variable(&self, name: &str) -> Option<TypeId> {
        self.variables.get(name).copied().map(TypeId::Dwarf)
    }
}

impl Dwarf<'_> {
    /// Everything that has a name.
    pub fn named(&self) -> Named {
        let mut named = Named::default();
        for offset in self.index.units() {
            // A unit that cannot be read has no names.
            if let Ok(unit) = self.unit(offset) {
                self.names_of(&unit, offset, &mut named);
            }
        }
        named
    }

    fn names_of(&self, unit: &Unit<'_>, start: usize, named: &mut Named) {
        let mut entries = unit.entries();
        for _ in 0..ENTRIES_MAX {
            let Ok(Some(entry)) = entries.next_dfs() else {
                return;
            };
            let is_declared = entry.attr_value(dw::DW_AT_declaration).is_some();
            match entry.tag() {
                dw::DW_TAG_structure_type | dw::DW_TAG_union_type if !is_declared => {
                    if let Some(name) = self.own_name(unit, entry) {
                        let at = start.saturating_add(entry.offset().0);
                        named.structures.entry(name).or_insert(at);
                    }
                }
                dw::DW_TAG_variable if entry.attr_value(dw::DW_AT_external).is_some() => {
                    let of = self.reference(unit, entry, dw::DW_AT_type);
                    if let (Some(name), Some(of)) = (self.own_name(unit, entry), of) {
                        named.variables.entry(name).or_insert(of);
                    }
                }
                _ => {}
            }
        }
    }
}
