//! Which part of the debug information is about which addresses. That much is read of every unit when
//! the first question comes, and more only of those that are asked about.

use std::sync::OnceLock;

use gimli::{DebugInfoOffset, DwTag, UnitOffset, constants as dw};

use terms::addr::Slide;

use super::DebugError;
use super::sections::{Bytes, Sections};

/// Units of one file, at most.
const UNITS_MAX: usize = 1 << 18;
/// Entries of one unit that are looked at.
pub(super) const ENTRIES_MAX: usize = 1 << 23;
/// Ranges of one unit that are looked at: a function has one or more.
const UNIT_RANGES_MAX: usize = 1 << 20;
/// Ranges of one entry that are looked at.
pub(super) const RANGES_MAX: usize = 1 << 12;

pub(super) type Unit<'a> = gimli::Unit<Bytes<'a>>;
pub(super) type Entry<'a> = gimli::DebuggingInformationEntry<Bytes<'a>>;

/// One unit.
#[derive(Debug)]
struct UnitEntry {
    offset: usize,
    functions: OnceLock<Vec<FunctionEntry>>,
}

/// Code of a function.
#[derive(Debug, Clone, Copy)]
struct FunctionEntry {
    start: u64,
    end: u64,
    entry: usize,
}

/// All units.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By their offset.
    units: Vec<UnitEntry>,
    /// Start, end and number of a unit, by address.
    ranges: Vec<(u64, u64, usize)>,
}

/// The debug information of a file.
#[derive(Debug)]
pub(super) struct Dwarf<'a> {
    pub sections: gimli::Dwarf<Bytes<'a>>,
    pub files: &'a Sections,
    pub index: &'a Index,
    pub slide: Slide,
}

pub(super) fn damaged(error: gimli::Error) -> DebugError {
    DebugError::Damaged(error.to_string())
}

pub(super) fn sections(files: &Sections) -> gimli::Dwarf<Bytes<'_>> {
    let loaded = gimli::Dwarf::load(|id| Ok::<_, std::convert::Infallible>(files.get(id)));
    match loaded {
        Ok(sections) => sections,
        Err(never) => match never {},
    }
}

impl Index {
    /// Reads the head of each unit; those that are damaged are left out.
    pub fn read(files: &Sections) -> Self {
        let dwarf = sections(files);
        let mut index = Self::default();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            if index.units.len() >= UNITS_MAX {
                break;
            }
            let Some(DebugInfoOffset(offset)) = header.debug_info_offset() else {
                continue;
            };
            let number = index.units.len();
            index.units.push(UnitEntry {
                offset,
                functions: OnceLock::new(),
            });
            let Ok(unit) = dwarf.unit(header) else {
                continue;
            };
            let Ok(mut ranges) = dwarf.unit_ranges(&unit) else {
                continue;
            };
            for _ in 0..UNIT_RANGES_MAX {
                let Ok(Some(range)) = ranges.next() else {
                    break;
                };
                if range.begin < range.end && range.begin != 0 {
                    index.ranges.push((range.begin, range.end, number));
                }
            }
        }
        index.ranges.sort_unstable();
        index
    }

    /// Offsets of all units.
    pub fn units(&self) -> impl Iterator<Item = usize> {
        self.units.iter().map(|unit| unit.offset)
    }
}

impl<'a> Dwarf<'a> {
    /// The unit that begins at an offset.
    pub fn unit(&self, offset: usize) -> Result<Unit<'a>, DebugError> {
        let header = self.sections.unit_header(DebugInfoOffset(offset));
        header
            .and_then(|header| self.sections.unit(header))
            .map_err(damaged)
    }

    /// The unit that an entry is in, and the entry's offset in that.
    pub fn unit_of(&self, entry: usize) -> Result<(Unit<'a>, UnitOffset), DebugError> {
        let units = &self.index.units;
        let end = units.partition_point(|unit| unit.offset <= entry);
        let found = end.checked_sub(1).and_then(|index| units.get(index));
        let found = found.ok_or_else(|| DebugError::Damaged("an entry in no unit".to_owned()))?;
        let unit = self.unit(found.offset)?;
        let offset = UnitOffset(entry - found.offset);
        match offset.is_in_bounds(&unit.header) {
            true => Ok((unit, offset)),
            false => Err(DebugError::Damaged("an entry in no unit".to_owned())),
        }
    }

    /// The function whose code is at an address: its unit, and its entry.
    pub fn function_at(&self, address: u64) -> Result<Option<(Unit<'a>, UnitOffset)>, DebugError> {
        let ranges = &self.index.ranges;
        let end = ranges.partition_point(|(start, ..)| *start <= address);
        // Units whose ranges lie over each other are few.
        let nearest = ranges.get(..end).unwrap_or_default().iter().rev().take(64);
        for (_, _, number) in nearest.filter(|(_, end, _)| address < *end) {
            let Some(found) = self.index.units.get(*number) else {
                continue;
            };
            let unit = self.unit(found.offset)?;
            let functions = found.functions.get_or_init(|| self.functions(&unit));
            let end = functions.partition_point(|function| function.start <= address);
            let candidates = functions
                .get(..end)
                .unwrap_or_default()
                .iter()
                .rev()
                .take(8);
            let mut candidates = candidates.filter(|function| address < function.end);
            if let Some(function) = candidates.next() {
                return Ok(Some((unit, UnitOffset(function.entry))));
            }
        }
        Ok(None)
    }

    /// The functions of a unit that have code, by address.
    fn functions(&self, unit: &Unit<'a>) -> Vec<FunctionEntry> {
        let mut functions = Vec::new();
        let mut entries = unit.entries();
        for _ in 0..ENTRIES_MAX {
            let Ok(Some(entry)) = entries.next_dfs() else {
                break;
            };
            if entry.tag() != dw::DW_TAG_subprogram {
                continue;
            }
            for (start, end) in self.ranges(unit, entry) {
                functions.push(FunctionEntry {
                    start,
                    end,
                    entry: entry.offset().0,
                });
            }
        }
        functions.sort_unstable_by_key(|function| (function.start, function.end));
        functions
    }

    /// The addresses that an entry is about.
    pub fn ranges(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let Ok(mut ranges) = self.sections.die_ranges(unit, entry) else {
            return found;
        };
        while let Ok(Some(range)) = ranges.next() {
            if found.len() >= RANGES_MAX {
                break;
            }
            if range.begin < range.end {
                found.push((range.begin, range.end));
            }
        }
        found
    }

    /// A name that an entry has itself.
    pub fn own_name(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Option<String> {
        let value = entry.attr_value(dw::DW_AT_name)?;
        let name = self.sections.attr_string(unit, value).ok()?;
        let name = name.to_string_lossy();
        Some(terms::printable::escaped(&name).into_owned())
    }

    /// The entry that an attribute refers to.
    pub fn reference(
        &self,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
        attribute: gimli::DwAt,
    ) -> Option<usize> {
        use gimli::AttributeValue as Value;
        match entry.attr_value(attribute)? {
            Value::UnitRef(offset) => {
                let DebugInfoOffset(at) = offset.to_debug_info_offset(&unit.header)?;
                Some(at)
            }
            Value::DebugInfoRef(DebugInfoOffset(at)) => Some(at),
            _ => None,
        }
    }

    /// The children of an entry, in their order.
    pub fn children(
        &self,
        unit: &Unit<'a>,
        of: UnitOffset,
        max: usize,
    ) -> Result<Vec<Entry<'a>>, DebugError> {
        let mut tree = unit.entries_tree(Some(of)).map_err(damaged)?;
        let root = tree.root().map_err(damaged)?;
        let mut children = root.children();
        let mut found = Vec::new();
        while let Some(child) = children.next().map_err(damaged)? {
            if found.len() >= max {
                break;
            }
            found.push(child.entry().clone());
        }
        Ok(found)
    }
}

/// Whether a tag is that of a variable or parameter.
pub(super) fn is_variable(tag: DwTag) -> bool {
    matches!(tag, dw::DW_TAG_variable | dw::DW_TAG_formal_parameter)
}
