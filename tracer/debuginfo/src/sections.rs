//! The sections of a file that debug information is in.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use flate2::read::ZlibDecoder;
use gimli::{EndianSlice, LittleEndian, SectionId};
use object::elf::{ELFCOMPRESS_ZLIB, FileHeader64, SHT_NOBITS, SHT_NULL, SectionHeader64};
use object::endian::LittleEndian as LE;
use object::read::elf::{CompressionHeader, FileHeader, SectionHeader};

use super::limits::{Room, UNPACKED};
use super::unread::Unread;

/// How debug information is read.
pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// The sections that something here reads. Others are not unpacked.
const USED: [&str; 13] = [
    ".debug_info",
    ".debug_abbrev",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_line",
    ".debug_line_str",
    ".debug_addr",
    ".debug_loc",
    ".debug_loclists",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_frame",
    ".eh_frame",
];

/// Bytes of a section.
#[derive(Debug)]
enum Contents {
    InFile(Range<usize>),
    Unpacked(Vec<u8>),
}

/// One section.
#[derive(Debug)]
struct Section {
    name: &'static str,
    address: u64,
    contents: Contents,
}

/// A file, and where its sections are.
#[derive(Debug)]
pub(super) struct Sections {
    file: Arc<Vec<u8>>,
    /// One of each name, at most.
    sections: Vec<Section>,
    unread: Option<Unread>,
}

impl Sections {
    /// The sections of debug information in a file; none where it has none, or one of them cannot be read.
    pub fn read(file: &Arc<Vec<u8>>) -> Self {
        let room = Room::new(UNPACKED, file.len() as u64);
        let used = used(file).unwrap_or_default().into_iter();
        let sections = used.map(|(name, section)| {
            Ok(Section {
                name,
                address: section.sh_addr.get(LE),
                contents: contents(file, name, section, &room)?,
            })
        });
        let (sections, unread) = match sections.collect() {
            Ok(sections) => (sections, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        Self {
            file: Arc::clone(file),
            sections,
            unread,
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.sections.iter().any(|section| section.name == name)
    }

    /// Why there are none, if that is because one cannot be read.
    pub const fn unread(&self) -> Option<&Unread> {
        self.unread.as_ref()
    }

    /// How many bytes there are in all of them.
    pub fn bytes(&self) -> u64 {
        let sections = self.sections.iter();
        sections
            .map(|section| self.contents(section).len() as u64)
            .sum()
    }

    /// A section's bytes, and its address; empty if there is none.
    pub fn named(&self, name: &str) -> (&[u8], u64) {
        let found = self.sections.iter().find(|section| section.name == name);
        let found = found.map(|section| (self.contents(section), section.address));
        found.unwrap_or_default()
    }

    pub fn get(&self, id: SectionId) -> Bytes<'_> {
        EndianSlice::new(self.named(id.name()).0, LittleEndian)
    }

    fn contents<'a>(&'a self, section: &'a Section) -> &'a [u8] {
        match &section.contents {
            Contents::InFile(range) => self.file.get(range.clone()).unwrap_or_default(),
            Contents::Unpacked(bytes) => bytes,
        }
    }
}

/// The first section of each name that is used, in their order above. Names are not looked at further than that: they may
/// be as long as the file, and shared.
fn used(file: &[u8]) -> Option<Vec<(&'static str, &SectionHeader64<LE>)>> {
    let header = FileHeader64::<LE>::parse(file).ok()?;
    let table = header.sections(LE, file).ok()?;
    let names = table.section(header.section_strings_index(LE, file).ok()?);
    let names = names.ok()?.data(LE, file).ok()?;
    let is_called = |section: &SectionHeader64<LE>, name: &str| {
        let at = usize::try_from(section.sh_name(LE)).ok();
        let named = at.and_then(|at| names.get(at..)?.strip_prefix(name.as_bytes()));
        named.is_some_and(|rest| rest.starts_with(&[0]))
    };
    let is_held = |section: &SectionHeader64<LE>| {
        let is_empty = matches!(section.sh_type(LE), SHT_NULL | SHT_NOBITS);
        !is_empty && section.data(LE, file).is_ok()
    };
    let first = |name: &&'static str| {
        let mut called = table.iter().filter(|section| is_called(section, name));
        Some((*name, called.find(|section| is_held(section))?))
    };
    Some(USED.iter().filter_map(first).collect())
}

/// The bytes of a section, unpacked if there is `room` for them.
fn contents(
    file: &[u8],
    name: &'static str,
    section: &SectionHeader64<LE>,
    room: &Room,
) -> Result<Contents, Unread> {
    let damaged = Unread::Packed { section: name };
    let (head, start, size) = match section.compression(LE, file) {
        Ok(Some(packed)) => packed,
        Ok(None) => {
            let range = section.file_range(LE);
            let range = range.and_then(|(start, size)| range_of(start, size));
            return Ok(Contents::InFile(range.unwrap_or_default()));
        }
        Err(_) => return Err(damaged),
    };
    let (kind, length) = (head.ch_type(LE), head.ch_size(LE));
    if kind != ELFCOMPRESS_ZLIB {
        return Err(Unread::Compression {
            section: name,
            kind: kind.0,
        });
    }
    if !room.take(length) {
        return Err(Unread::Unpacked {
            limit: room.limit(),
        });
    }
    let packed = range_of(start, size).and_then(|range| file.get(range));
    let bytes = packed.and_then(|packed| unpacked(packed, length));
    bytes.map(Contents::Unpacked).ok_or(damaged)
}

fn range_of(start: u64, size: u64) -> Option<Range<usize>> {
    let end = usize::try_from(start.checked_add(size)?).ok()?;
    Some(usize::try_from(start).ok()?..end)
}

/// What was packed, if it is as long as it should be.
fn unpacked(packed: &[u8], length: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut limited = ZlibDecoder::new(packed).take(length);
    limited.read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 == length).then_some(bytes)
}
