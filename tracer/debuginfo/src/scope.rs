//! The variables of a function at an instruction, and where they are.

use gimli::{AttributeValue, Expression as Program, UnitOffset, constants as dw};
use terms::expression::Expression;
use terms::nearest::nearest;

use super::DebugError;
use super::constant::unsigned;
use super::location::{Frame, NoPlace};
use super::place::Place;
use super::sections::Bytes;
use super::shape::{Moment, TypeId, Variable};
use super::units::{Dwarf, ENTRIES_MAX, Entry, Unit, damaged, is_variable};

/// Scopes inside each other.
const DEPTH_MAX: u32 = 64;
/// Variables and scopes of one function.
pub(super) const CHILDREN_MAX: usize = 1 << 14;
/// Functions that a function was made of, one after the other.
const ORIGINS_MAX: u32 = 8;
/// Ranges that a message lists.
const RANGES_SHOWN: usize = 4;
/// Names that a message lists.
const NAMES_SHOWN: usize = 12;

/// A function and the variables that are in scope.
pub(super) struct Scope<'u, 'a> {
    pub(super) dwarf: &'u Dwarf<'a>,
    pub(super) unit: Unit<'a>,
    pub(super) entry: UnitOffset,
    pub(super) moment: Moment,
    /// What the function is called, and where it begins.
    pub(super) name: String,
    start: u64,
    /// The first instruction that does something.
    begun: u64,
}

/// A variable of a scope: what names it, and what says where it is.
pub(super) struct Found<'a> {
    pub entry: Entry<'a>,
    pub name: String,
}

impl<'u, 'a> Scope<'u, 'a> {
    /// That of a moment; `None` where no function is known. `begun` says what is the first instruction of a function
    /// that does something.
    pub fn at(
        dwarf: &'u Dwarf<'a>,
        moment: Moment,
        begun: impl FnOnce(u64) -> u64,
    ) -> Result<Option<Self>, DebugError> {
        let at = match moment {
            Moment::Entry(at) | Moment::At(at) | Moment::Return(at) => at.0,
        };
        let Some((unit, offset)) = dwarf.function_at(at)? else {
            return Ok(None);
        };
        let entry = unit.entry(offset).map_err(damaged)?;
        let ranges = dwarf.ranges(&unit, &entry);
        let start = ranges.first().map_or(at, |(start, _)| *start);
        let mut scope = Self {
            dwarf,
            unit,
            entry: offset,
            moment,
            name: String::new(),
            start,
            begun: begun(start),
        };
        scope.name = scope
            .name_of(&entry)
            .unwrap_or_else(|| "the function".to_owned());
        Ok(Some(scope))
    }

    fn address(&self) -> u64 {
        match self.moment {
            Moment::Entry(at) | Moment::At(at) | Moment::Return(at) => at.0,
        }
    }

    /// Where the question is asked, as people say it.
    pub(super) fn place(&self) -> String {
        shown(&self.name, self.start, self.address())
    }

    /// The name of an entry, or of what it is an instance of.
    pub(super) fn name_of(&self, entry: &Entry<'a>) -> Option<String> {
        if let Some(name) = self.dwarf.own_name(&self.unit, entry) {
            return Some(name);
        }
        self.through_origins(entry, |dwarf, unit, entry| dwarf.own_name(unit, entry))
    }

    pub(super) fn type_of(&self, entry: &Entry<'a>) -> Option<usize> {
        let own = self.dwarf.reference(&self.unit, entry, dw::DW_AT_type);
        own.or_else(|| {
            self.through_origins(entry, |dwarf, unit, entry| {
                dwarf.reference(unit, entry, dw::DW_AT_type)
            })
        })
    }

    /// The first answer of what an entry is an instance of.
    pub(super) fn through_origins<T>(
        &self,
        entry: &Entry<'a>,
        ask: impl Fn(&Dwarf<'a>, &Unit<'a>, &Entry<'a>) -> Option<T>,
    ) -> Option<T> {
        let origin = |unit: &Unit<'a>, entry: &Entry<'a>| {
            let origin = self.dwarf.reference(unit, entry, dw::DW_AT_abstract_origin);
            origin.or_else(|| self.dwarf.reference(unit, entry, dw::DW_AT_specification))
        };
        let mut next = origin(&self.unit, entry)?;
        for _ in 0..ORIGINS_MAX {
            let (unit, offset) = self.dwarf.unit_of(next).ok()?;
            let entry = unit.entry(offset).ok()?;
            if let Some(answer) = ask(self.dwarf, &unit, &entry) {
                return Some(answer);
            }
            next = origin(&unit, &entry)?;
        }
        None
    }

    /// All variables that are in scope, the innermost ones first.
    fn variables(&self) -> Result<Vec<Found<'a>>, DebugError> {
        let mut scopes = Vec::new();
        self.collect(self.entry, 0, &mut scopes)?;
        scopes.reverse();
        Ok(scopes.into_iter().flatten().collect())
    }

    fn collect(
        &self,
        of: UnitOffset,
        depth: u32,
        scopes: &mut Vec<Vec<Found<'a>>>,
    ) -> Result<(), DebugError> {
        let mut own = Vec::new();
        let mut inner = Vec::new();
        for child in self.dwarf.children(&self.unit, of, CHILDREN_MAX)? {
            if is_variable(child.tag()) {
                let name = self.name_of(&child);
                own.extend(name.map(|name| Found { entry: child, name }));
            } else if matches!(
                child.tag(),
                dw::DW_TAG_lexical_block | dw::DW_TAG_inlined_subroutine
            ) {
                inner.push(child);
            }
        }
        scopes.push(own);
        if depth >= DEPTH_MAX || matches!(self.moment, Moment::Entry(_)) {
            return Ok(());
        }
        let at = self.address();
        for scope in inner {
            let ranges = self.dwarf.ranges(&self.unit, &scope);
            if ranges
                .iter()
                .any(|(start, end)| (*start..*end).contains(&at))
            {
                self.collect(scope.offset(), depth + 1, scopes)?;
            }
        }
        Ok(())
    }

    /// The variable that a name means.
    pub fn variable(&self, name: &str) -> Result<Variable, DebugError> {
        let parameters = self.parameter_entries()?;
        if matches!(self.moment, Moment::Entry(_))
            && let Some(index) = parameters.iter().position(|found| found.name == name)
        {
            return self.passed(&parameters, index);
        }
        let variables = self.variables()?;
        if let Some(found) = variables.iter().find(|found| found.name == name) {
            return self.located(found);
        }
        if let Some(global) = self.global(name)? {
            return Ok(global);
        }
        let names: Vec<&str> = variables.iter().map(|found| found.name.as_str()).collect();
        if self.is_elsewhere(name) {
            return Err(DebugError::OptimisedOut {
                name: name.to_owned(),
                place: self.place(),
                available: Vec::new(),
            });
        }
        let mut known: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        known.dedup();
        Err(DebugError::Variable {
            name: name.to_owned(),
            place: self.place(),
            near: nearest(name, names.into_iter(), 3),
            known: match known.len() {
                ..=NAMES_SHOWN => known,
                _ => Vec::new(),
            },
        })
    }

    /// Whether what the function is an instance of has a variable that the function has not.
    fn is_elsewhere(&self, name: &str) -> bool {
        let Ok(entry) = self.unit.entry(self.entry) else {
            return false;
        };
        let found = self.through_origins(&entry, |dwarf, unit, entry| {
            let children = dwarf.children(unit, entry.offset(), CHILDREN_MAX).ok()?;
            let mut children = children.iter();
            let is_it = |child: &Entry<'a>| {
                is_variable(child.tag()) && dwarf.own_name(unit, child).as_deref() == Some(name)
            };
            children.any(is_it).then_some(())
        });
        found.is_some()
    }

    /// A variable with its place here.
    pub(super) fn located(&self, found: &Found<'a>) -> Result<Variable, DebugError> {
        let place = self.place_of(&found.entry, self.address());
        let place = place.map_err(|why| match why {
            NoPlace::OptimisedOut => DebugError::OptimisedOut {
                name: found.name.clone(),
                place: self.place(),
                available: self.available(&found.entry),
            },
            NoPlace::Cannot(why) => DebugError::Place {
                name: found.name.clone(),
                place: self.place(),
                why,
            },
        })?;
        Ok(Variable {
            name: found.name.clone(),
            of: self.type_of(&found.entry).map(TypeId::Dwarf),
            place,
        })
    }

    fn place_of(&self, entry: &Entry<'a>, at: u64) -> Result<Place, NoPlace> {
        if let Some(value) = entry.attr_value(dw::DW_AT_const_value) {
            // Whoever reads it takes as many bits of it as the type has.
            let constant = unsigned(&value)
                .ok_or_else(|| NoPlace::Cannot("it is a constant of an odd kind".to_owned()))?;
            return Ok(Place::Value(Expression::Constant(constant)));
        }
        let location = entry.attr_value(dw::DW_AT_location);
        let program = match location {
            None => return Err(NoPlace::OptimisedOut),
            Some(location) => match location.exprloc_value() {
                Some(program) => program,
                None => self.listed(location, at).ok_or(NoPlace::OptimisedOut)?,
            },
        };
        if program.0.is_empty() {
            return Err(NoPlace::OptimisedOut);
        }
        self.frame(at).place(program)
    }

    fn frame(&self, at: u64) -> Frame<'_, 'a> {
        let entry = self.unit.entry(self.entry).ok();
        let base = entry.and_then(|entry| entry.attr_value(dw::DW_AT_frame_base));
        let base = base.and_then(|base| base.exprloc_value());
        Frame {
            dwarf: self.dwarf,
            unit: &self.unit,
            at,
            is_entry: at == self.start,
            base,
        }
    }

    /// The entry of a location list that is about an address.
    fn listed(&self, location: AttributeValue<Bytes<'a>>, at: u64) -> Option<Program<Bytes<'a>>> {
        let mut list = self
            .dwarf
            .sections
            .attr_locations(&self.unit, location)
            .ok()??;
        // Compilers may say where parameters are from after a function's patch site on, which changes nothing.
        let latest = if at == self.start { self.begun } else { at };
        let mut late = None;
        for _ in 0..super::units::RANGES_MAX {
            let Ok(Some(entry)) = list.next() else {
                break;
            };
            let (begin, end) = (entry.range.begin, entry.range.end);
            if (begin..end).contains(&at) {
                return Some(entry.data);
            }
            if (at..=latest).contains(&begin) && begin < end {
                late.get_or_insert(entry.data);
            }
        }
        late
    }

    /// Where in the function a variable is available.
    fn available(&self, entry: &Entry<'a>) -> Vec<String> {
        let location = entry.attr_value(dw::DW_AT_location);
        let list =
            location.map(|location| self.dwarf.sections.attr_locations(&self.unit, location));
        let Some(Ok(Some(mut list))) = list else {
            return Vec::new();
        };
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for _ in 0..super::units::RANGES_MAX {
            let Ok(Some(entry)) = list.next() else {
                break;
            };
            let (start, end) = (entry.range.begin, entry.range.end);
            if start >= end || self.frame(start).place(entry.data).is_err() {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => ranges.push((start, end)),
            }
        }
        let more = ranges.len() > RANGES_SHOWN;
        let ranges = ranges.iter().take(RANGES_SHOWN);
        let mut ranges: Vec<String> = ranges
            .map(|(start, end)| {
                let start = shown(&self.name, self.start, *start);
                format!("{start}..{:#x}", end.wrapping_sub(self.start))
            })
            .collect();
        if more {
            ranges.push("...".to_owned());
        }
        ranges
    }

    /// A variable of the whole program, as the function's unit knows it.
    fn global(&self, name: &str) -> Result<Option<Variable>, DebugError> {
        let last = name.rsplit("::").next().unwrap_or(name);
        let mut entries = self.unit.entries();
        let mut depth = 0_isize;
        for _ in 0..ENTRIES_MAX {
            let Some(entry) = entries.next_dfs().map_err(damaged)? else {
                break;
            };
            // What is inside of functions is theirs.
            if depth > 0 && entry.depth() > depth {
                continue;
            }
            depth = match entry.tag() {
                dw::DW_TAG_subprogram => entry.depth(),
                _ => 0,
            };
            if entry.tag() != dw::DW_TAG_variable || entry.attr(dw::DW_AT_location).is_none() {
                continue;
            }
            let entry = entry.clone();
            if self.name_of(&entry).as_deref() == Some(last) {
                let found = Found {
                    entry,
                    name: name.to_owned(),
                };
                return self.located(&found).map(Some);
            }
        }
        Ok(None)
    }
}

fn shown(name: &str, start: u64, at: u64) -> String {
    match at.wrapping_sub(start) {
        0 => name.to_owned(),
        offset => format!("{name}+{offset:#x}"),
    }
}
