//! The ELF file under an image: headers checked before anything in them is used, and the bytes
//! that the file holds for a virtual address.
//!
//! `object` reads the structures; what it accepts too easily is checked here: tables and sections
//! past the end of the file, segments that overlap, wrap around or are larger than any image.

use object::elf::{
    ET_CORE, ET_DYN, ET_EXEC, ET_REL, FileHeader64, PF_R, PF_W, PF_X, PT_LOAD, ProgramHeader64,
    SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHT_NOBITS, SHT_NULL, SectionHeader64,
};
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable};
use terms::addr::{Gpa, Gva};

use super::{ImageError, Segment, TextRange, claimed};

/// The largest segment that is believed: no kernel image comes near it.
const MAX_SEGMENT: u64 = 16 << 30;
/// The machine number of x86-64.
const X86_64: u16 = 62;
/// The offsets of the class, the data encoding and the machine in the header.
const CLASS: usize = 4;
const ENCODING: usize = 5;
const MACHINE: usize = 18;
/// No name of a section is longer than that: names can be as long as the file, and many can share one.
const NAME_MAX: usize = 255;

/// A load segment, and where the file holds it.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    segment: Segment,
    index: usize,
    offset: u64,
}

/// A checked ELF file.
#[derive(Debug)]
pub(super) struct Elf<'a> {
    pub bytes: &'a [u8],
    pub entry: u64,
    pub position_independent: bool,
    /// Whether these are the bytes of a kernel that runs: it has no sections, and what it needed only to start is gone.
    pub running: bool,
    pub sections: SectionTable<'a, FileHeader64<LE>>,
    /// The names of sections.
    names: &'a [u8],
    /// Sorted by virtual address.
    mapped: Vec<Mapped>,
}

impl<'a> Elf<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ImageError> {
        check_ident(bytes)?;
        let header = FileHeader64::<LE>::parse(bytes).map_err(damaged)?;
        let position_independent = check_type(header)?;
        let programs = program_headers(bytes, header)?;
        let sections = sections(bytes, header)?;
        let names = section_names(bytes, header, &sections);
        let mapped = load_segments(bytes, programs)?;
        let entry = header.e_entry.get(LE);
        Ok(Self {
            bytes,
            entry,
            position_independent,
            running: false,
            sections,
            names,
            mapped,
        })
    }

    /// What is mapped of a kernel that runs: `parts`, by address and without overlap, and where `bytes` has them.
    pub fn running(bytes: &'a [u8], parts: impl Iterator<Item = (Segment, usize)>) -> Self {
        let mapped = parts.enumerate().map(|(index, (segment, offset))| Mapped {
            segment,
            index,
            offset: offset as u64,
        });
        Self {
            bytes,
            entry: 0,
            position_independent: false,
            running: true,
            sections: SectionTable::default(),
            names: &[],
            mapped: mapped.collect(),
        }
    }

    /// The load segments in the order of the file.
    pub fn segments(&self) -> Vec<Segment> {
        let mut in_order = self.mapped.clone();
        in_order.sort_by_key(|mapped| mapped.index);
        in_order.into_iter().map(|mapped| mapped.segment).collect()
    }

    /// The bytes that the file holds of each load segment, with their address.
    pub fn loaded(&self) -> impl Iterator<Item = (Gva, &'a [u8])> {
        self.mapped.iter().map(|mapped| {
            let Segment { vaddr, filesz, .. } = mapped.segment;
            let bytes = mapped.slice(self.bytes, vaddr, filesz);
            (vaddr, bytes.unwrap_or_default())
        })
    }

    /// Up to `length` bytes that the file holds for `address`; empty where it holds none.
    pub fn bytes_at(&self, address: Gva, length: u64) -> &'a [u8] {
        let end = self
            .mapped
            .partition_point(|mapped| mapped.segment.vaddr <= address);
        let found = end.checked_sub(1).and_then(|index| self.mapped.get(index));
        found
            .and_then(|mapped| mapped.slice(self.bytes, address, length))
            .unwrap_or_default()
    }

    /// The data of every section with this name, with its address. It is no more than `claimed` allows, however many
    /// sections there are.
    pub fn sections_named(&self, name: &str) -> Vec<(Gva, &'a [u8])> {
        let named = self.sections.iter().filter(|section| {
            let rest = self.name_after(section, name);
            rest.is_some_and(|rest| rest.starts_with(&[0]))
        });
        let data = named.filter_map(|section| {
            let data = self.data(section)?;
            Some((Gva(section.sh_addr.get(LE)), data))
        });
        data.collect()
    }

    /// The rest of the name, and the data, of every section whose name begins so.
    pub fn sections_starting_with(&self, start: &str) -> Vec<(String, &'a [u8])> {
        let sections = self.sections.iter().filter_map(|section| {
            let rest = self.name_after(section, start)?;
            let end = memchr::memchr(0, rest.get(..NAME_MAX).unwrap_or(rest))?;
            let rest = std::str::from_utf8(rest.get(..end)?).ok()?;
            Some((rest.to_owned(), self.data(section)?))
        });
        sections.collect()
    }

    /// What follows `start` in the names, if a section's own name begins so.
    fn name_after(&self, section: &SectionHeader64<LE>, start: &str) -> Option<&'a [u8]> {
        let at = usize::try_from(section.sh_name.get(LE)).ok()?;
        self.names.get(at..)?.strip_prefix(start.as_bytes())
    }

    /// The bytes that the file holds of a section.
    fn data(&self, section: &SectionHeader64<LE>) -> Option<&'a [u8]> {
        is_held(section).then(|| section.data(LE, self.bytes).ok())?
    }

    /// The executable ranges: from the sections, and without sections from the segments.
    ///
    /// What a segment may do says little: a kernel makes page tables of its own, and may have its init text in the
    /// segment of its data. So code that nobody writes to is text wherever it is loaded; a section that may be
    /// written, too, is text only in an executable segment.
    pub fn text(&self) -> Vec<TextRange> {
        let (loaded, executable) = (self.held(|_| true), self.held(|segment| segment.execute));
        self.code_or(executable.clone(), |section, text| {
            let segments = if is_writable(section) {
                &executable
            } else {
                &loaded
            };
            lies_in(text, segments)
        })
    }

    /// What claims to be code: text, and data whose section says so, too. Linux has its `.data` in such a one
    /// since 6.16, so the types of symbols there are those of code.
    ///
    /// Of a kernel that runs it is all that is not read-only, for its init text is data by then, and what was loaded
    /// as code and what as data does not show in the page tables.
    pub fn claimed_code(&self) -> Vec<TextRange> {
        if self.running {
            let segments = self.mapped.iter().map(|mapped| mapped.segment);
            let changing = segments.filter(|segment| segment.execute || segment.write);
            let ranges = changing.filter_map(|segment| range(segment.vaddr, segment.memsz));
            return merged(ranges.collect());
        }
        let loaded = self.held(|_| true);
        let executable = self.held(|segment| segment.execute);
        self.code_or(executable, |_, text| lies_in(text, &loaded))
    }

    /// The sections of code that `is_wanted`; where there are none, `otherwise`.
    fn code_or(
        &self,
        otherwise: Vec<TextRange>,
        is_wanted: impl Fn(&SectionHeader64<LE>, TextRange) -> bool,
    ) -> Vec<TextRange> {
        let sections = self.sections.iter().filter(|section| is_code(section));
        let wanted = sections.filter_map(|section| {
            let text = range(Gva(section.sh_addr.get(LE)), section.sh_size.get(LE))?;
            is_wanted(section, text).then_some(text)
        });
        let from_sections = merged(wanted.collect());
        if from_sections.is_empty() {
            merged(otherwise)
        } else {
            from_sections
        }
    }

    /// What the file holds of these segments.
    fn held(&self, is_wanted: impl Fn(&Segment) -> bool) -> Vec<TextRange> {
        let segments = self.mapped.iter().map(|mapped| mapped.segment);
        segments
            .filter(is_wanted)
            .filter_map(|segment| range(segment.vaddr, segment.filesz))
            .collect()
    }
}

impl Mapped {
    fn slice<'a>(&self, bytes: &'a [u8], address: Gva, length: u64) -> Option<&'a [u8]> {
        let into = address.0.checked_sub(self.segment.vaddr.0)?;
        let left = self.segment.filesz.checked_sub(into)?.min(length);
        let start = self.offset.checked_add(into)?;
        let end = start.checked_add(left)?;
        bytes.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}

fn damaged(error: object::Error) -> ImageError {
    ImageError::Damaged(error.to_string())
}

fn check_ident(bytes: &[u8]) -> Result<(), ImageError> {
    if bytes.is_empty() {
        return Err(ImageError::Empty);
    }
    if !bytes.starts_with(b"\x7fELF") {
        return Err(ImageError::NotElf {
            found: bytes.iter().take(4).copied().collect(),
        });
    }
    inside(
        bytes,
        || "the ELF header".to_owned(),
        0,
        size_of::<FileHeader64<LE>>() as u64,
    )?;
    match bytes.get(CLASS) {
        Some(2) => {}
        Some(1) => return Err(ImageError::Not64Bit { class: "32-bit" }),
        _ => {
            return Err(ImageError::Not64Bit {
                class: "unknown-class",
            });
        }
    }
    match bytes.get(ENCODING) {
        Some(1) => {}
        other => {
            return Err(ImageError::NotLittleEndian {
                encoding: other.copied().unwrap_or(0),
            });
        }
    }
    let machine = bytes
        .get(MACHINE..)
        .and_then(|rest| rest.first_chunk::<2>());
    match machine.map(|field| u16::from_le_bytes(*field)) {
        Some(X86_64) => Ok(()),
        other => Err(ImageError::NotX86 {
            machine: other.unwrap_or(0),
        }),
    }
}

/// Whether the file is position-independent.
fn check_type(header: &FileHeader64<LE>) -> Result<bool, ImageError> {
    let found = match header.e_type(LE) {
        ET_EXEC => return Ok(false),
        ET_DYN => return Ok(true),
        ET_REL => "a relocatable object",
        ET_CORE => "a core dump",
        _ => "of an unknown type",
    };
    Err(ImageError::NotExecutable { found })
}

fn inside(
    bytes: &[u8],
    what: impl FnOnce() -> String,
    offset: u64,
    length: u64,
) -> Result<(), ImageError> {
    let file = bytes.len() as u64;
    match offset.checked_add(length) {
        Some(end) if end <= file => Ok(()),
        _ => Err(ImageError::PastEnd {
            what: what(),
            offset,
            length,
            file,
        }),
    }
}

fn program_headers<'a>(
    bytes: &'a [u8],
    header: &'a FileHeader64<LE>,
) -> Result<&'a [ProgramHeader64<LE>], ImageError> {
    let count = u64::from(header.e_phnum(LE));
    let length = count * size_of::<ProgramHeader64<LE>>() as u64;
    inside(
        bytes,
        || "the program header table".to_owned(),
        header.e_phoff.get(LE),
        length,
    )?;
    header.program_headers(LE, bytes).map_err(damaged)
}

fn sections<'a>(
    bytes: &'a [u8],
    header: &'a FileHeader64<LE>,
) -> Result<SectionTable<'a, FileHeader64<LE>>, ImageError> {
    let count = u64::from(header.e_shnum(LE));
    let length = count * size_of::<SectionHeader64<LE>>() as u64;
    inside(
        bytes,
        || "the section header table".to_owned(),
        header.e_shoff.get(LE),
        length,
    )?;
    let table = header.sections(LE, bytes).map_err(damaged)?;
    for (index, section) in table.iter().enumerate() {
        if is_held(section) {
            let name = || format!("section {index}");
            inside(
                bytes,
                name,
                section.sh_offset.get(LE),
                section.sh_size.get(LE),
            )?;
        }
    }
    let held = table.iter().filter(|section| is_held(section));
    claimed::check(
        bytes,
        "sections",
        held.map(|section| section.sh_size.get(LE)),
    )?;
    Ok(table)
}

/// Whether the file holds bytes of a section.
fn is_held(section: &SectionHeader64<LE>) -> bool {
    !matches!(section.sh_type(LE), SHT_NULL | SHT_NOBITS)
}

/// The bytes in which the names of sections are; none if the file does not say where.
fn section_names<'a>(
    bytes: &'a [u8],
    header: &FileHeader64<LE>,
    sections: &SectionTable<'a, FileHeader64<LE>>,
) -> &'a [u8] {
    let index = header.section_strings_index(LE, bytes).ok();
    let section = index.and_then(|index| sections.section(index).ok());
    let data = section.and_then(|section| section.data(LE, bytes).ok());
    data.unwrap_or_default()
}

fn load_segments(
    bytes: &[u8],
    programs: &[ProgramHeader64<LE>],
) -> Result<Vec<Mapped>, ImageError> {
    let mut mapped = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        if program.p_type(LE) == PT_LOAD && program.p_memsz.get(LE) > 0 {
            mapped.push(load_segment(bytes, index, program)?);
        }
    }
    if mapped.is_empty() {
        return Err(ImageError::NoSegments);
    }
    let held = mapped.iter().map(|mapped| mapped.segment.filesz);
    claimed::check(bytes, "load segments", held)?;
    check_overlap(&mut mapped, "physical", |mapped| mapped.segment.paddr.0)?;
    check_overlap(&mut mapped, "virtual", |mapped| mapped.segment.vaddr.0)?;
    Ok(mapped)
}

fn load_segment(
    bytes: &[u8],
    index: usize,
    program: &ProgramHeader64<LE>,
) -> Result<Mapped, ImageError> {
    let (offset, filesz) = program.file_range(LE);
    let memsz = program.p_memsz.get(LE);
    let (vaddr, paddr) = (program.p_vaddr.get(LE), program.p_paddr.get(LE));
    inside(bytes, || format!("load segment {index}"), offset, filesz)?;
    if filesz > memsz {
        return Err(ImageError::FileLargerThanMemory {
            index,
            filesz,
            memsz,
        });
    }
    for address in [vaddr, paddr] {
        if memsz > MAX_SEGMENT || address.checked_add(memsz).is_none() {
            return Err(ImageError::AbsurdSegment {
                index,
                address,
                memsz,
                limit: MAX_SEGMENT,
            });
        }
    }
    let flags = program.p_flags(LE);
    let has = |flag| flags & flag == flag;
    let segment = Segment {
        vaddr: Gva(vaddr),
        paddr: Gpa(paddr),
        filesz,
        memsz,
        read: has(PF_R),
        write: has(PF_W),
        execute: has(PF_X),
    };
    Ok(Mapped {
        segment,
        index,
        offset,
    })
}

/// Sorts by address and refuses overlap.
fn check_overlap(
    mapped: &mut [Mapped],
    space: &'static str,
    address: impl Fn(&Mapped) -> u64,
) -> Result<(), ImageError> {
    mapped.sort_by_key(&address);
    for (low, high) in mapped.iter().zip(mapped.iter().skip(1)) {
        if address(high) - address(low) < low.segment.memsz {
            let address = address(high);
            return Err(ImageError::Overlap {
                first: low.index,
                second: high.index,
                space,
                address,
            });
        }
    }
    Ok(())
}

fn is_code(section: &SectionHeader64<LE>) -> bool {
    let flags = section.sh_flags(LE);
    section.sh_type(LE) != SHT_NOBITS
        && flags & SHF_EXECINSTR == SHF_EXECINSTR
        && flags & SHF_ALLOC == SHF_ALLOC
}

fn is_writable(section: &SectionHeader64<LE>) -> bool {
    section.sh_flags(LE) & SHF_WRITE == SHF_WRITE
}

fn range(start: Gva, length: u64) -> Option<TextRange> {
    let end = start.checked_add(length)?;
    (length > 0).then_some(TextRange { start, end })
}

/// Whether one of `ranges`, sorted and without overlap, holds all of `text`.
fn lies_in(text: TextRange, ranges: &[TextRange]) -> bool {
    let end = ranges.partition_point(|range| range.start <= text.start);
    let holder = end.checked_sub(1).and_then(|index| ranges.get(index));
    holder.is_some_and(|range| text.end <= range.end)
}

fn merged(mut ranges: Vec<TextRange>) -> Vec<TextRange> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<TextRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
