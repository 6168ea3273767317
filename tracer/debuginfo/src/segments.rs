//! The bytes that an ELF file holds of what it loads.

use object::elf::{FileHeader64, PT_LOAD};
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader, ProgramHeader};
use terms::addr::Gva;

use super::DebugError;

/// Whether a file is an ELF file.
pub(super) fn check(file: &[u8]) -> Result<(), DebugError> {
    let header = FileHeader64::<LE>::parse(file);
    let is_it = header.is_ok_and(|header| header.is_little_endian());
    is_it.then_some(()).ok_or(DebugError::NotElf)
}

/// Up to `length` bytes that the file holds for `address`.
pub(super) fn bytes_at(file: &[u8], address: Gva, length: u64) -> Option<&[u8]> {
    let header = FileHeader64::<LE>::parse(file).ok()?;
    let segments = header.program_headers(LE, file).ok()?;
    let loaded = segments
        .iter()
        .filter(|segment| segment.p_type(LE) == PT_LOAD);
    let into = |start: u64, size: u64| address.0.checked_sub(start).filter(|into| *into < size);
    let mut held = loaded.filter_map(|segment| {
        let size = segment.p_filesz(LE);
        let into = into(segment.p_vaddr(LE), size)?;
        let start = usize::try_from(segment.p_offset(LE).checked_add(into)?).ok()?;
        let length = usize::try_from(length.min(size - into)).ok()?;
        file.get(start..start.checked_add(length)?)
    });
    held.next()
}
