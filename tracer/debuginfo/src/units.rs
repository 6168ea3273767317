//! Which part of the debug information is about which addresses. That much is read of every unit when
//! the first question comes, and more only of those that are asked about.

use std::sync::OnceLock;

use gimli::{DebugInfoOffset, DwTag, UnitOffset, constants as dw};

use terms::addr::{Gva, Slide};

use super::DebugError;
use super::abbreviations;
use super::limits::{RANGES, Room};
use super::sections::{Bytes, Sections};
use super::unread::Unread;

/// Units of one file, at most.
const UNITS_MAX: usize = 1 << 18;
/// Entries of one unit that are looked at.
pub(super) const ENTRIES_MAX: usize = 1 << 23;
/// Ranges of one entry that are looked at.
pub(super) const RANGES_MAX: usize = 1 << 12;
/// Attributes of the children of one entry: an entry of one byte may have any number.
const ATTRIBUTES_MAX: usize = 1 << 20;

pub(super) type Unit<'a> = gimli::Unit<Bytes<'a>>;
pub(super) type Entry<'a> = gimli::DebuggingInformationEntry<Bytes<'a>>;

/// One unit.
#[derive(Debug)]
struct UnitEntry {
    offset: usize,
    functions: OnceLock<Result<Vec<FunctionEntry>, Unread>>,
}

/// Code of a function.
#[derive(Debug, Clone, Copy)]
struct FunctionEntry {
    start: u64,
    end: u64,
    entry: usize,
}

/// All units.
#[derive(Debug)]
pub(super) struct Index {
    /// By their offset.
    units: Vec<UnitEntry>,
    /// Start, end and number of a unit, by address.
    ranges: Vec<(u64, u64, usize)>,
    /// For ranges of units and of functions.
    room: Room,
}

/// The debug information of a file, for one answer.
#[derive(Debug)]
pub(super) struct Dwarf<'a> {
    pub sections: gimli::Dwarf<Bytes<'a>>,
    pub files: &'a Sections,
    pub index: &'a Index,
    /// For all names that are looked at: where it is exceeded, there is no answer.
    pub names: Room,
    pub slide: Slide,
}

pub(super) fn damaged(error: gimli::Error) -> DebugError {
    DebugError::Damaged(error.to_string())
}

/// The sections of a file of which there is an [`Index`]. A table of abbreviations that several units have is parsed once, and there for as
/// long as these are.
pub(super) fn sections(files: &Sections) -> gimli::Dwarf<Bytes<'_>> {
    let mut sections = bare_sections(files);
    sections.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    sections
}

fn bare_sections(files: &Sections) -> gimli::Dwarf<Bytes<'_>> {
    let loaded = gimli::Dwarf::load(|id| Ok::<_, std::convert::Infallible>(files.get(id)));
    match loaded {
        Ok(sections) => sections,
        Err(never) => match never {},
    }
}

impl Index {
    /// Reads the head of each unit; those that are damaged are left out.
    pub fn read(files: &Sections) -> Result<Self, Unread> {
        abbreviations::check(files, &bare_sections(files))?;
        let dwarf = sections(files);
        let mut index = Self {
            units: Vec::new(),
            ranges: Vec::new(),
            room: Room::new(RANGES, files.bytes()),
        };
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
            let Ok(ranges) = dwarf.unit_ranges(&unit) else {
                continue;
            };
            for range in ranges.map_while(Result::ok) {
                index.take_range()?;
                if range.begin < range.end && range.begin != 0 {
                    index.ranges.push((range.begin, range.end, number));
                }
            }
        }
        index.ranges.sort_unstable();
        Ok(index)
    }

    /// Counts a range.
    fn take_range(&self) -> Result<(), Unread> {
        let limit = self.room.limit();
        let is_there = self.room.take(1);
        is_there.then_some(()).ok_or(Unread::Ranges { limit })
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
            let functions = functions.as_ref().map_err(|why| DebugError::Unread {
                what: format!("the function at {}", Gva(address)),
                why: why.clone(),
            })?;
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
    fn functions(&self, unit: &Unit<'a>) -> Result<Vec<FunctionEntry>, Unread> {
        let mut functions = Vec::new();
        let mut entries = unit.entries();
        for _ in 0..ENTRIES_MAX {
            let Ok(Some(entry)) = entries.next_dfs() else {
                break;
            };
            if entry.tag() != dw::DW_TAG_subprogram {
                continue;
            }
            for range in self.all_ranges(unit, entry) {
                self.index.take_range()?;
                if range.begin < range.end {
                    functions.push(FunctionEntry {
                        start: range.begin,
                        end: range.end,
                        entry: entry.offset().0,
                    });
                }
            }
        }
        functions.sort_unstable_by_key(|function| (function.start, function.end));
        Ok(functions)
    }

    fn all_ranges(
        &self,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
    ) -> impl Iterator<Item = gimli::Range> + use<'a> {
        let ranges = self.sections.die_ranges(unit, entry).unwrap_or_default();
        ranges.map_while(Result::ok).take(RANGES_MAX)
    }

    /// The addresses that an entry is about.
    pub fn ranges(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Vec<(u64, u64)> {
        let ranges = self.all_ranges(unit, entry);
        let ranges = ranges.filter(|range| range.begin < range.end);
        ranges.map(|range| (range.begin, range.end)).collect()
    }

    /// A name that an entry has itself.
    pub fn own_name(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Option<String> {
        let value = entry.attr_value(dw::DW_AT_name)?;
        let name = self.sections.attr_string(unit, value).ok()?;
        if !self.has_room(name.len()) {
            return None;
        }
        let shown = name.to_string_lossy();
        let shown = terms::printable::escaped(&shown).into_owned();
        // What is unprintable takes more than it does in the file.
        let more = shown.len().saturating_sub(name.len());
        self.names.take(more as u64).then_some(shown)
    }

    /// Whether there is room for one more name of so many bytes.
    pub fn has_room(&self, bytes: usize) -> bool {
        let bytes = bytes.saturating_add(size_of::<String>());
        self.names.take(bytes as u64)
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
        let mut attributes = 0;
        while let Some(child) = children.next().map_err(damaged)? {
            if found.len() >= max {
                break;
            }
            attributes += child.entry().attrs().len();
            if attributes > ATTRIBUTES_MAX {
                let what =
                    format!("an entry's children have more than {ATTRIBUTES_MAX} attributes");
                return Err(DebugError::Damaged(what));
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
