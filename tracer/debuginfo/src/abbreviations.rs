//! What units say with what: tables of abbreviations, one of which any number of units may have.

use std::collections::BTreeSet;

use gimli::{DebugAbbrevOffset, Reader, SectionId, constants as dw};

use super::limits::{ABBREVIATIONS, Room};
use super::sections::{Bytes, Sections};
use super::unread::Unread;

/// Looks at the tables of all units, each once: those of a compiler lie one after the other, but a file can have one begin at every byte
/// of another.
///
/// # Errors
/// [`Unread::Abbreviations`] where there is too much of them to be parsed.
pub(super) fn check(files: &Sections, dwarf: &gimli::Dwarf<Bytes<'_>>) -> Result<(), Unread> {
    let section = files.get(SectionId::DebugAbbrev);
    let room = Room::new(ABBREVIATIONS, section.len() as u64);
    let mut seen = BTreeSet::new();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let DebugAbbrevOffset(at) = header.debug_abbrev_offset();
        if !seen.insert(at) {
            continue;
        }
        let mut table = section;
        let bytes = match table.skip(at) {
            Ok(()) => bytes_of(table),
            Err(_) => 0,
        };
        if !room.take(bytes as u64) {
            let limit = room.limit();
            return Err(Unread::Abbreviations { limit });
        }
    }
    Ok(())
}

/// How long the table is that begins here, up to where it is damaged.
fn bytes_of(section: Bytes<'_>) -> usize {
    let mut left = section;
    while let Ok(true) = skip_one(&mut left) {}
    section.len() - left.len()
}

/// Goes past one abbreviation. Whether there was one.
fn skip_one(left: &mut Bytes<'_>) -> gimli::Result<bool> {
    if left.read_uleb128()? == 0 {
        return Ok(false);
    }
    let _tag = left.read_uleb128()?;
    let _has_children = left.read_u8()?;
    loop {
        let (name, form) = (left.read_uleb128()?, left.read_uleb128()?);
        if form == u64::from(dw::DW_FORM_implicit_const.0) {
            left.read_sleb128()?;
        }
        if (name, form) == (0, 0) {
            return Ok(true);
        }
    }
}
