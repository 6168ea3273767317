//! Small ELF files for tests, built byte by byte: no compiler is needed.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "what a test asks for that no file can hold is a failed test"
)]

use crate::kallsyms::testing::{Layout, tables};

/// One section with its load segment.
#[derive(Debug)]
struct Section {
    name: &'static str,
    address: u64,
    flags: u64,
    /// The rights of its segment.
    rights: u32,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Symbol {
    name: &'static str,
    address: u64,
    size: u64,
    info: u8,
}

/// Builds an executable; every section is a load segment too, at the same physical address less
/// the upper half.
#[derive(Debug)]
pub struct ElfFile {
    sections: Vec<Section>,
    symbols: Vec<Symbol>,
    with_section_names: bool,
}

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const ALLOC: u64 = 2;
const WRITE: u64 = 1;
const EXECUTE: u64 = 4;
const READABLE: u32 = 4;
const WRITABLE: u32 = 6;
const EXECUTABLE: u32 = 5;
/// Where the text of the test images lies.
pub const TEXT: u64 = 0xffff_ffff_8010_0000;
const GLOBAL: u8 = 0x10;

impl Default for ElfFile {
    fn default() -> Self {
        Self::new()
    }
}

impl ElfFile {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sections: Vec::new(),
            symbols: Vec::new(),
            with_section_names: true,
        }
    }

    /// Code at an address.
    #[must_use]
    pub fn text(self, address: u64, bytes: &[u8]) -> Self {
        self.section(".text", address, (ALLOC | EXECUTE, EXECUTABLE), bytes)
    }

    /// Code in a segment of data, as kernels have their init text there.
    #[must_use]
    pub fn code_in_data(self, name: &'static str, address: u64, bytes: &[u8]) -> Self {
        self.section(name, address, (ALLOC | EXECUTE, WRITABLE), bytes)
    }

    /// Data in a section that claims to be code, too.
    #[must_use]
    pub fn executable_data(self, name: &'static str, address: u64, bytes: &[u8]) -> Self {
        let flags = ALLOC | WRITE | EXECUTE;
        self.section(name, address, (flags, WRITABLE), bytes)
    }

    /// A run of addresses.
    #[must_use]
    pub fn list(self, name: &'static str, address: u64, entries: &[u64]) -> Self {
        let bytes: Vec<u8> = entries
            .iter()
            .flat_map(|entry| entry.to_le_bytes())
            .collect();
        self.section(name, address, (ALLOC, READABLE), &bytes)
    }

    /// Any bytes.
    #[must_use]
    pub fn data(self, name: &'static str, address: u64, bytes: &[u8]) -> Self {
        self.section(name, address, (ALLOC, READABLE), bytes)
    }

    /// Forgets all section names but those of the symbol table, as a linker script can.
    #[must_use]
    pub fn without_names(mut self) -> Self {
        self.with_section_names = false;
        self
    }

    /// A section with these flags, in a segment with these rights.
    fn section(
        mut self,
        name: &'static str,
        address: u64,
        (flags, rights): (u64, u32),
        bytes: &[u8],
    ) -> Self {
        self.sections.push(Section {
            name,
            address,
            flags,
            rights,
            bytes: bytes.to_vec(),
        });
        self
    }

    /// A global function.
    #[must_use]
    pub fn function(self, name: &'static str, address: u64, size: u64) -> Self {
        self.symbol(name, address, size, GLOBAL | 2)
    }

    /// A `static` function.
    #[must_use]
    pub fn local(self, name: &'static str, address: u64, size: u64) -> Self {
        self.symbol(name, address, size, 2)
    }

    /// A global label.
    #[must_use]
    pub fn label(self, name: &'static str, address: u64) -> Self {
        self.symbol(name, address, 0, GLOBAL)
    }

    fn symbol(mut self, name: &'static str, address: u64, size: u64, info: u8) -> Self {
        self.symbols.push(Symbol {
            name,
            address,
            size,
            info,
        });
        self
    }

    /// The bytes of the file.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let contents = HEADER + self.sections.len() * PROGRAM_HEADER;
        let mut body = Vec::new();
        let mut programs = Vec::new();
        let mut headers = vec![0; 64];
        let mut names = vec![0];
        for section in &self.sections {
            let name = if self.with_section_names {
                section.name
            } else {
                ".x"
            };
            let offset = contents + body.len();
            body.extend(&section.bytes);
            let place = (section.address, offset, section.bytes.len());
            programs.extend(program_header(section.rights, place));
            headers.extend(section_header(
                add(&mut names, name),
                1,
                section.flags,
                place,
                0,
            ));
        }
        let (symbols, strings) = self.symbol_table();
        let place = (0, contents + body.len(), symbols.len());
        body.extend(symbols);
        let link = u32::try_from(self.sections.len()).unwrap() + 2;
        headers.extend(section_header(
            add(&mut names, ".symtab"),
            2,
            0,
            place,
            link,
        ));
        let place = (0, contents + body.len(), strings.len());
        body.extend(strings);
        headers.extend(section_header(add(&mut names, ".strtab"), 3, 0, place, 0));
        let own = add(&mut names, ".shstrtab");
        let place = (0, contents + body.len(), names.len());
        body.extend(names);
        headers.extend(section_header(own, 3, 0, place, 0));
        let shoff = contents + body.len();
        let mut file = self.header(shoff as u64);
        file.extend(programs);
        file.extend(body);
        file.extend(headers);
        file
    }

    fn header(&self, shoff: u64) -> Vec<u8> {
        let count = u16::try_from(self.sections.len()).unwrap();
        let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
        header.resize(16, 0);
        header.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        for word in [0x10_0000, HEADER as u64, shoff] {
            header.extend(word.to_le_bytes());
        }
        header.extend([0; 4]);
        for half in [64, 56, count, 64, count + 4, count + 3] {
            header.extend(half.to_le_bytes());
        }
        header
    }

    fn symbol_table(&self) -> (Vec<u8>, Vec<u8>) {
        let mut table = vec![0; 24];
        let mut strings = vec![0];
        for symbol in &self.symbols {
            table.extend(add(&mut strings, symbol.name).to_le_bytes());
            table.extend([symbol.info, 0, 1, 0]);
            table.extend(symbol.address.to_le_bytes());
            table.extend(symbol.size.to_le_bytes());
        }
        (table, strings)
    }
}

fn add(strings: &mut Vec<u8>, name: &str) -> u32 {
    let at = u32::try_from(strings.len()).unwrap();
    strings.extend(name.as_bytes());
    strings.push(0);
    at
}

fn program_header(rights: u32, (address, offset, length): (u64, usize, usize)) -> Vec<u8> {
    let physical = address & 0x7fff_ffff;
    let length = length as u64;
    let mut header = [1u32.to_le_bytes(), rights.to_le_bytes()].concat();
    for word in [offset as u64, address, physical, length, length, 16] {
        header.extend(word.to_le_bytes());
    }
    header
}

fn section_header(
    name: u32,
    kind: u32,
    flags: u64,
    (address, offset, length): (u64, usize, usize),
    link: u32,
) -> Vec<u8> {
    let mut header = [name.to_le_bytes(), kind.to_le_bytes()].concat();
    for word in [flags, address, offset as u64, length as u64] {
        header.extend(word.to_le_bytes());
    }
    let entry = if kind == 2 { 24u64 } else { 0 };
    header.extend([link.to_le_bytes(), 1u32.to_le_bytes()].concat());
    header.extend(16u64.to_le_bytes());
    header.extend(entry.to_le_bytes());
    header
}

/// The tables in which a kernel carries its names, as of 6.1: type, name and address of each, by address.
#[must_use]
pub fn kallsyms(symbols: &[(u8, String, u64)], base: u64) -> Vec<u8> {
    let layout = Layout {
        addresses_first: true,
        by_name: false,
        wide: true,
        absolute_percpu: false,
        whole: false,
        from_themselves: None,
        odd: false,
    };
    tables(symbols, base, layout)
}

/// Code of one function: `head`, then `int3` up to 16 bytes.
#[must_use]
pub fn body(head: &[u8]) -> [u8; 16] {
    let mut body = [0xcc; 16];
    body[..head.len()].copy_from_slice(head);
    body
}

/// `call target` at `address`.
#[must_use]
pub fn call(address: u64, target: u64) -> [u8; 5] {
    let [a, b, c, d, ..] = target.wrapping_sub(address).wrapping_sub(5).to_le_bytes();
    [0xe8, a, b, c, d]
}

/// An image with `count` functions `f0`, `f1`, … of 16 bytes each, every one with a one-nop site
/// at its entry.
#[must_use]
pub fn nop_image(count: u64) -> crate::Image {
    image_of(count, |_| false)
}

/// The same, but that every other one begins with a landing pad, so that its site crosses the border of a word.
#[must_use]
pub fn mixed_image(count: u64) -> crate::Image {
    image_of(count, |number| number % 2 == 1)
}

fn image_of(count: u64, has_pad: fn(u64) -> bool) -> crate::Image {
    const PAD: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let names: Vec<&'static str> = (0..count)
        .map(|n| &*Box::leak(format!("f{n}").into_boxed_str()))
        .collect();
    let addresses: Vec<u64> = (0..count).map(|n| TEXT + 16 * n).collect();
    let padded = [&PAD[..], &insn::nop::NOP5].concat();
    let code = (0..count).flat_map(|n| match has_pad(n) {
        true => body(&padded),
        false => body(&insn::nop::NOP5),
    });
    let code: Vec<u8> = code.collect();
    let sites = (0..count).map(|n| TEXT + 16 * n + if has_pad(n) { 4 } else { 0 });
    let sites: Vec<u64> = sites.collect();
    let mut file = ElfFile::new()
        .text(TEXT, &code)
        .list("__mcount_loc", TEXT - 0x8_0000, &sites);
    for (name, address) in names.into_iter().zip(addresses) {
        file = file.function(name, address, 16);
    }
    crate::Image::parse(&file.build()).unwrap()
}
