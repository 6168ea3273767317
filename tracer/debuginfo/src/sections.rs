//! The sections of a file that debug information is in.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use flate2::read::ZlibDecoder;
use gimli::{EndianSlice, LittleEndian, SectionId};
use object::elf::{ELFCOMPRESS_ZLIB, FileHeader64};
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader, SectionHeader};

/// How debug information is read.
pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// The largest section that is unpacked: that of a distribution's kernel has some 300 MB.
const UNPACKED_MAX: u64 = 2 << 30;

/// Bytes of a section.
#[derive(Debug)]
enum Contents {
    InFile(Range<usize>),
    Unpacked(Vec<u8>),
}

/// A file, and where its sections are.
#[derive(Debug)]
pub(super) struct Sections {
    file: Arc<Vec<u8>>,
    sections: Vec<(String, u64, Contents)>,
}

impl Sections {
    /// The sections of debug information in a file; none where it has none.
    pub fn read(file: &Arc<Vec<u8>>) -> Self {
        let sections = found(file).unwrap_or_default();
        Self {
            file: Arc::clone(file),
            sections,
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.sections.iter().any(|(known, ..)| known == name)
    }

    /// A section's bytes, and its address; empty if there is none.
    pub fn named(&self, name: &str) -> (&[u8], u64) {
        let found = self.sections.iter().find(|(known, ..)| known == name);
        let Some((_, address, contents)) = found else {
            return (&[], 0);
        };
        let bytes = match contents {
            Contents::InFile(range) => self.file.get(range.clone()).unwrap_or_default(),
            Contents::Unpacked(bytes) => bytes,
        };
        (bytes, *address)
    }

    pub fn get(&self, id: SectionId) -> Bytes<'_> {
        EndianSlice::new(self.named(id.name()).0, LittleEndian)
    }
}

fn found(file: &[u8]) -> Option<Vec<(String, u64, Contents)>> {
    let header = FileHeader64::<LE>::parse(file).ok()?;
    let table = header.sections(LE, file).ok()?;
    let mut sections = Vec::new();
    for section in table.iter() {
        let Ok(name) = table.section_name(LE, section) else {
            continue;
        };
        let name = String::from_utf8_lossy(name).into_owned();
        let is_wanted = name.starts_with(".debug_") || name == ".eh_frame" || name == ".BTF";
        let Some((start, size)) = section.file_range(LE).filter(|_| is_wanted) else {
            continue;
        };
        let Some(range) = range(start, size).filter(|range| range.end <= file.len()) else {
            continue;
        };
        let contents = match section.compression(LE, file) {
            Ok(Some((header, offset, length))) => {
                use object::read::elf::CompressionHeader;
                let packed = range_of(file, offset, length);
                let is_zlib = header.ch_type(LE) == ELFCOMPRESS_ZLIB;
                match packed.filter(|_| is_zlib).and_then(unpacked) {
                    Some(bytes) => Contents::Unpacked(bytes),
                    None => continue,
                }
            }
            _ => Contents::InFile(range),
        };
        sections.push((name, section.sh_addr.get(LE), contents));
    }
    Some(sections)
}

fn range(start: u64, size: u64) -> Option<Range<usize>> {
    let end = usize::try_from(start.checked_add(size)?).ok()?;
    Some(usize::try_from(start).ok()?..end)
}

fn range_of(file: &[u8], start: u64, size: u64) -> Option<&[u8]> {
    file.get(range(start, size)?)
}

fn unpacked(packed: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut limited = ZlibDecoder::new(packed).take(UNPACKED_MAX);
    limited.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
