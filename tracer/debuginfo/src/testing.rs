//! Small ELF files with DWARF, for tests, built entry by entry.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use gimli::{DwAt, DwForm, DwTag, constants as dw};

/// What an attribute is, and how it is written.
#[derive(Debug, Clone)]
pub(crate) enum Form {
    Data1(u8),
    Data2(u16),
    Data4(u32),
    Data8(u64),
    Udata(u64),
    Sdata(i64),
    ImplicitConst(i64),
    Address(u64),
    Flag,
    Text(&'static str),
    /// At this offset of `.debug_str`.
    Shared(u32),
    /// At this offset of the section that the attribute is about.
    Section(u32),
    /// The entry at this offset of the unit.
    Entry(u32),
}

impl Form {
    const fn number(&self) -> DwForm {
        match self {
            Self::Data1(_) => dw::DW_FORM_data1,
            Self::Data2(_) => dw::DW_FORM_data2,
            Self::Data4(_) => dw::DW_FORM_data4,
            Self::Data8(_) => dw::DW_FORM_data8,
            Self::Udata(_) => dw::DW_FORM_udata,
            Self::Sdata(_) => dw::DW_FORM_sdata,
            Self::ImplicitConst(_) => dw::DW_FORM_implicit_const,
            Self::Address(_) => dw::DW_FORM_addr,
            Self::Flag => dw::DW_FORM_flag_present,
            Self::Text(_) => dw::DW_FORM_string,
            Self::Shared(_) => dw::DW_FORM_strp,
            Self::Section(_) => dw::DW_FORM_sec_offset,
            Self::Entry(_) => dw::DW_FORM_ref4,
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        match self {
            Self::Data1(value) => into.push(*value),
            Self::Data2(value) => into.extend(value.to_le_bytes()),
            Self::Data4(value)
            | Self::Shared(value)
            | Self::Section(value)
            | Self::Entry(value) => into.extend(value.to_le_bytes()),
            Self::Data8(value) | Self::Address(value) => into.extend(value.to_le_bytes()),
            Self::Udata(value) => unsigned(into, *value),
            Self::Sdata(value) => signed(into, *value),
            Self::Text(text) => {
                into.extend(text.bytes());
                into.push(0);
            }
            Self::ImplicitConst(_) | Self::Flag => {}
        }
    }
}

fn unsigned(into: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        into.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    into.push(value.to_le_bytes()[0]);
}

fn signed(into: &mut Vec<u8>, mut value: i64) {
    while !(-0x40..0x40).contains(&value) {
        into.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    into.push(value.to_le_bytes()[0] & 0x7f);
}

/// Bytes of the head of a unit of DWARF 5.
const HEAD: usize = 12;

/// One unit, of which each entry has an abbreviation of its own.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    abbreviations: Vec<u8>,
    entries: Vec<u8>,
    count: u64,
}

impl Unit {
    /// With an entry for the unit itself.
    pub fn new(attributes: &[(DwAt, Form)]) -> Self {
        let mut unit = Self::default();
        unit.parent(dw::DW_TAG_compile_unit, attributes);
        unit
    }

    /// An entry without children; where it is.
    pub fn entry(&mut self, tag: DwTag, attributes: &[(DwAt, Form)]) -> u32 {
        self.add(tag, false, attributes)
    }

    /// An entry whose children follow, up to [`Self::end`]; where it is.
    pub fn parent(&mut self, tag: DwTag, attributes: &[(DwAt, Form)]) -> u32 {
        self.add(tag, true, attributes)
    }

    /// There are no more children.
    pub fn end(&mut self) {
        self.entries.push(0);
    }

    /// A type of whole numbers.
    pub fn integer(&mut self, name: &'static str, bytes: u8, encoding: gimli::DwAte) -> u32 {
        let attributes = [
            (dw::DW_AT_name, Form::Text(name)),
            (dw::DW_AT_byte_size, Form::Data1(bytes)),
            (dw::DW_AT_encoding, Form::Data1(encoding.0)),
        ];
        self.entry(dw::DW_TAG_base_type, &attributes)
    }

    /// Where the next entry will be.
    pub fn next(&self) -> u32 {
        u32::try_from(HEAD + self.entries.len()).unwrap()
    }

    fn add(&mut self, tag: DwTag, has_children: bool, attributes: &[(DwAt, Form)]) -> u32 {
        let at = self.next();
        self.count += 1;
        unsigned(&mut self.abbreviations, self.count);
        unsigned(&mut self.abbreviations, tag.0.into());
        self.abbreviations.push(has_children.into());
        unsigned(&mut self.entries, self.count);
        for (name, form) in attributes {
            unsigned(&mut self.abbreviations, name.0.into());
            unsigned(&mut self.abbreviations, form.number().0.into());
            if let Form::ImplicitConst(value) = form {
                signed(&mut self.abbreviations, *value);
            }
            form.write(&mut self.entries);
        }
        self.abbreviations.extend([0, 0]);
        at
    }

    /// The last entry `count` times more.
    pub fn repeat(&mut self, entry: u32, count: usize) {
        let start = usize::try_from(entry).unwrap() - HEAD;
        let entry = self.entries[start..].to_vec();
        self.entries.extend(entry.repeat(count));
    }

    /// `.debug_info` and `.debug_abbrev` with this unit `count` times, all with the same abbreviations.
    pub fn sections(mut self, count: usize) -> [(&'static str, Vec<u8>); 2] {
        self.end();
        self.abbreviations.push(0);
        let length = u32::try_from(HEAD - 4 + self.entries.len()).unwrap();
        let head = [&length.to_le_bytes()[..], &[5, 0, 1, 8, 0, 0, 0, 0]].concat();
        let unit = [head, self.entries].concat();
        [
            (".debug_info", unit.repeat(count)),
            (".debug_abbrev", self.abbreviations),
        ]
    }
}

/// A line table of DWARF 5 whose paths are at these offsets of `.debug_line_str`: one row for each, from `address` on, two
/// bytes apart.
pub(crate) fn lines(paths: &[u32], address: u64) -> Vec<u8> {
    // Path, as `line_strp`.
    const FORMAT: [u8; 3] = [1, 1, 0x1f];
    let mut head = vec![1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
    // No directory.
    head.extend(FORMAT);
    head.push(0);
    head.extend(FORMAT);
    unsigned(&mut head, paths.len() as u64);
    for path in paths {
        head.extend(path.to_le_bytes());
    }
    let mut program = vec![0, 9, dw::DW_LNE_set_address.0];
    program.extend(address.to_le_bytes());
    for file in 0..paths.len() as u64 {
        program.push(dw::DW_LNS_set_file.0);
        unsigned(&mut program, file);
        program.extend([dw::DW_LNS_copy.0, dw::DW_LNS_advance_pc.0, 2]);
    }
    program.extend([0, 1, dw::DW_LNE_end_sequence.0]);
    let head_length = u32::try_from(head.len()).unwrap().to_le_bytes();
    let table = [&[5, 0, 8, 0], &head_length[..], &head, &program].concat();
    let length = u32::try_from(table.len()).unwrap().to_le_bytes();
    [&length[..], &table].concat()
}

/// Builds a file section by section.
#[derive(Debug, Default)]
pub(crate) struct File {
    sections: Vec<(&'static str, u64, Vec<u8>)>,
}

/// The flag of a section that is compressed.
const COMPRESSED: u64 = 1 << 11;

impl File {
    pub fn new(sections: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Self {
        let sections = sections.into_iter();
        Self {
            sections: sections.map(|(name, bytes)| (name, 0, bytes)).collect(),
        }
    }

    /// One more section.
    pub fn section(mut self, name: &'static str, bytes: Vec<u8>) -> Self {
        self.sections.push((name, 0, bytes));
        self
    }

    /// One more section, compressed.
    pub fn compressed(self, name: &'static str, bytes: &[u8]) -> Self {
        let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(bytes).unwrap();
        self.packed(name, 1, bytes.len() as u64, &packed.finish().unwrap())
    }

    /// One more section that says that it is compressed in this way, and has so many bytes when it is unpacked.
    pub fn packed(mut self, name: &'static str, kind: u32, size: u64, packed: &[u8]) -> Self {
        let words = [u64::from(kind), size, 1].map(u64::to_le_bytes);
        let bytes = [&words.concat(), packed].concat();
        self.sections.push((name, COMPRESSED, bytes));
        self
    }

    /// The bytes of the file, with `copies` of the header of its last section.
    pub fn build_with_copies(&self, copies: usize) -> Vec<u8> {
        let mut file = vec![0; 64];
        let mut names = vec![0];
        let mut headers = vec![0; 64];
        let of_names = (".shstrtab", 0, Vec::new());
        let named = self.sections.iter().chain([&of_names]);
        for (index, (name, flags, bytes)) in named.enumerate() {
            let at = u32::try_from(names.len()).unwrap();
            names.extend(name.bytes().chain([0]));
            let is_last = index == self.sections.len();
            let bytes = if is_last { &names } else { bytes };
            let mut header = [at.to_le_bytes(), 1_u32.to_le_bytes()].concat();
            for word in [*flags, 0, file.len() as u64, bytes.len() as u64, 0, 1, 0] {
                header.extend(word.to_le_bytes());
            }
            file.extend(bytes);
            if is_last {
                let last = headers[headers.len() - 64..].to_vec();
                headers.extend(last.repeat(copies));
            }
            headers.extend(header);
        }
        let count = u16::try_from(headers.len() / 64).unwrap();
        let start = (file.len() as u64).to_le_bytes();
        file[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        file[16..24].copy_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
        file[40..48].copy_from_slice(&start);
        for (at, half) in [(52, 64), (54, 56), (58, 64), (60, count), (62, count - 1)] {
            file[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
        file.extend(headers);
        file
    }

    /// The bytes of the file.
    pub fn build(&self) -> Vec<u8> {
        self.build_with_copies(0)
    }
}
