//! Kernels that are not what they should be.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::place::guest;

/// A folder of damaged kernels.
#[derive(Debug)]
pub struct Kernels(TempDir);

/// Where fields of the ELF header lie, and how long they are.
const E_PHOFF: (usize, usize) = (32, 8);
const E_SHOFF: (usize, usize) = (40, 8);
const E_PHNUM: (usize, usize) = (56, 2);
const E_SHNUM: (usize, usize) = (60, 2);
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const PT_LOAD: u64 = 1;
const SHT_SYMTAB: u64 = 2;

/// An image that is being damaged.
#[derive(Debug, Clone)]
pub struct Damaged(pub Vec<u8>);

impl Damaged {
    /// The bundled guest, still whole.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn guest() -> Self {
        Self(std::fs::read(guest()).expect("the bundled guest"))
    }

    fn get(&self, at: usize, length: usize) -> u64 {
        let bytes = self.0.iter().skip(at).take(length).rev();
        bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// Writes a little-endian number.
    #[must_use]
    pub fn set(mut self, (at, length): (usize, usize), value: u64) -> Self {
        for (target, byte) in self
            .0
            .iter_mut()
            .skip(at)
            .take(length)
            .zip(value.to_le_bytes())
        {
            *target = byte;
        }
        self
    }

    /// Cut off after so many bytes.
    #[must_use]
    pub fn cut(mut self, length: usize) -> Self {
        self.0.truncate(length);
        self
    }

    /// Another place of the program headers.
    #[must_use]
    pub fn program_headers_at(self, offset: u64) -> Self {
        self.set(E_PHOFF, offset)
    }

    /// Another number of program headers.
    #[must_use]
    pub fn program_headers(self, count: u64) -> Self {
        self.set(E_PHNUM, count)
    }

    /// Without section headers: no symbols, no lists of sites.
    #[must_use]
    pub fn without_sections(self) -> Self {
        self.set(E_SHOFF, 0).set(E_SHNUM, 0).set((62, 2), 0)
    }

    /// Without a symbol table.
    #[must_use]
    pub fn without_symbols(mut self) -> Self {
        let table = self.get(E_SHOFF.0, E_SHOFF.1);
        for index in 0..self.get(E_SHNUM.0, E_SHNUM.1) {
            let header = place(table) + place(index) * SECTION_HEADER;
            if self.get(header + 4, 4) == SHT_SYMTAB {
                self = self.set((header + 4, 4), 0);
            }
        }
        self
    }

    /// Offsets of the program headers of loadable segments.
    #[must_use]
    pub fn segments(&self) -> Vec<usize> {
        let table = self.get(E_PHOFF.0, E_PHOFF.1);
        let all = (0..self.get(E_PHNUM.0, E_PHNUM.1))
            .map(|index| place(table) + place(index) * PROGRAM_HEADER);
        all.filter(|header| self.get(*header, 4) == PT_LOAD)
            .collect()
    }

    /// Changes a field of segment `index`: 8 offset, 24 physical address, 32 bytes in the file, 40
    /// bytes in memory.
    ///
    /// # Panics
    /// When there is no such segment.
    #[must_use]
    pub fn segment(self, index: usize, field: usize, value: u64) -> Self {
        let header = *self.segments().get(index).expect("a segment");
        self.set((header + field, 8), value)
    }

    /// A field of segment `index`.
    ///
    /// # Panics
    /// When there is no such segment.
    #[must_use]
    pub fn segment_field(&self, index: usize, field: usize) -> u64 {
        self.get(*self.segments().get(index).expect("a segment") + field, 8)
    }
}

fn place(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// A kernel of nothing but this code, loaded and entered at 16 MiB.
#[must_use]
pub fn bare(code: &[u8]) -> Damaged {
    let mut bytes = vec![0; 0x1000];
    bytes.extend_from_slice(code);
    let length = code.len() as u64;
    let header = 64;
    Damaged(bytes)
        .set((0, 8), 0x0001_0102_464c_457f)
        .set((16, 8), 0x0000_0001_003e_0002)
        .set((24, 8), 0x0100_0000)
        .set(E_PHOFF, header)
        .set((52, 2), 64)
        .set((54, 2), PROGRAM_HEADER as u64)
        .set(E_PHNUM, 1)
        .set((64, 8), 7 << 32 | PT_LOAD)
        .set((72, 8), 0x1000)
        .set((80, 8), 0xffff_ffff_8100_0000)
        .set((88, 8), 0x0100_0000)
        .set((96, 8), length)
        .set((104, 8), length)
        .set((112, 8), 0x1000)
}

impl Kernels {
    /// An empty folder.
    ///
    /// # Panics
    /// When there is no room for it.
    #[must_use]
    pub fn new() -> Self {
        Self(TempDir::new().expect("a temporary folder"))
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a kernel into the folder.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn write(&self, name: &str, image: &Damaged) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, &image.0).expect("room for a kernel");
        path
    }
}

impl Default for Kernels {
    fn default() -> Self {
        Self::new()
    }
}
