//! A kernel that runs, out of its memory: the bytes that its page tables map, in the place of a file's.
//!
//! What a file says by sections is said by symbols here, and the symbols are in the bytes: so it goes in steps. What
//! is executed and what is read-only comes first, and in it are the names ([`Running::names`]). They tell what else is
//! the kernel's ([`Running::keep_lasting`]): around its text lies memory that it has freed, which can hold anything by
//! now. The rest of what is wanted is read then, and [`Running::image`] makes of all of it what it would make of a file.

use terms::addr::{Gpa, Gva, Slide};

use super::elf::Elf;
use super::{
    Image, ImageError, Segment, SymbolTable, TextRange, UnreadSymbols, kallsyms, linux, symbol_file,
};

/// What of a Linux stays as it was loaded: text, what is read-only, and data but for that of its start. What comes
/// after that is zero at first.
const LASTING: [(&str, &str); 4] = [
    ("_text", "_etext"),
    ("__start_rodata", "__end_rodata"),
    ("_sdata", "__init_begin"),
    ("__init_end", "__bss_start"),
];
/// All of it.
const WHOLE: (&str, &str) = ("_text", "_end");

/// A run of it.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Its `filesz` is what was read of it: all or nothing.
    segment: Segment,
    offset: usize,
    /// Whether it is the kernel's for as long as it runs.
    lasts: bool,
}

/// What is mapped of a kernel that runs, and what of it was read.
#[derive(Debug, Clone, Default)]
pub struct Running {
    bytes: Vec<u8>,
    /// By address.
    parts: Vec<Part>,
}

/// The names that a kernel carries.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Its symbols.
    pub symbols: SymbolTable,
    /// Why there are none.
    pub unread: Option<UnreadSymbols>,
    /// Remarks.
    pub notes: Vec<String>,
}

impl Running {
    /// With these runs of memory, of which nothing was read yet. One that overlaps another is left out.
    #[must_use]
    pub fn new(runs: &[Segment]) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        let mut sorted = runs.to_vec();
        sorted.sort_by_key(|run| run.vaddr);
        for run in sorted {
            let before = parts.last().map_or(0, |last| end(&last.segment));
            if run.memsz > 0 && run.vaddr.0 >= before && run.vaddr.checked_add(run.memsz).is_some()
            {
                parts.push(Part {
                    segment: Segment { filesz: 0, ..run },
                    offset: 0,
                    lasts: true,
                });
            }
        }
        Self {
            bytes: Vec::new(),
            parts,
        }
    }

    /// Reads what is wanted and was not read yet, by `read`. What cannot be read is left out, and returned.
    pub fn read<E>(
        &mut self,
        is_wanted: impl Fn(&Segment) -> bool,
        mut read: impl FnMut(&Segment, &mut [u8]) -> Result<(), E>,
    ) -> Vec<(Segment, E)> {
        let mut failed = Vec::new();
        for part in &mut self.parts {
            let Segment { filesz, memsz, .. } = part.segment;
            if filesz > 0 || !part.lasts || !is_wanted(&part.segment) {
                continue;
            }
            let (start, length) = (self.bytes.len(), usize::try_from(memsz).unwrap_or(0));
            self.bytes.reserve_exact(length);
            self.bytes.resize(start.saturating_add(length), 0);
            let into = self.bytes.get_mut(start..).unwrap_or_default();
            match read(&part.segment, into) {
                Ok(()) => {
                    part.offset = start;
                    part.segment.filesz = memsz;
                }
                Err(error) => {
                    self.bytes.truncate(start);
                    failed.push((part.segment, error));
                }
            }
        }
        failed
    }

    /// How many bytes were read.
    #[must_use]
    pub fn held(&self) -> usize {
        self.bytes.len()
    }

    /// The names that lie in what was read.
    ///
    /// # Errors
    /// [`ImageError::AbsurdNames`].
    pub fn names(&self) -> Result<Names, ImageError> {
        let mut notes = Vec::new();
        let kallsyms::Read { symbols, unread } = kallsyms::read(&self.elf(), &mut notes)?;
        Ok(Names {
            symbols: SymbolTable::new(symbols),
            unread,
            notes,
        })
    }

    /// The names that a file of symbols has (System.map, or an ELF file), moved so that the one called `name` lies where
    /// it runs, and how far that is. They must agree with what the kernel says of itself, its `own` names among it.
    ///
    /// # Errors
    /// [`ImageError`], as of the files of symbols of a kernel's file.
    pub fn names_of(
        &self,
        file: &[u8],
        own: &Names,
        name: (&'static str, Gva),
    ) -> Result<(Names, Slide), ImageError> {
        let (symbols, slide) = symbol_file::read_moved(file, &self.elf(), &own.symbols, name)?;
        let names = Names {
            symbols,
            ..Names::default()
        };
        Ok((names, slide))
    }

    /// Which Linux it is, if it is one.
    #[must_use]
    pub fn version(&self) -> Option<String> {
        let elf = self.elf();
        elf.loaded().find_map(|(_, bytes)| linux::version(bytes))
    }

    /// What of it stays and was not read.
    pub fn unread(&self) -> impl Iterator<Item = &Segment> {
        let unread = |part: &&Part| part.lasts && part.segment.filesz == 0;
        self.parts.iter().filter(unread).map(|part| &part.segment)
    }

    /// Forgets what is not the kernel's for as long as it runs. Whether its symbols tell.
    pub fn keep_lasting(&mut self, symbols: &SymbolTable) -> bool {
        let range = |(start, end)| range(symbols, start, end);
        let lasting: Vec<TextRange> = LASTING.into_iter().filter_map(range).collect();
        if lasting.len() < LASTING.len() {
            return false;
        }
        let whole = range(WHOLE);
        let bounds = lasting.iter().chain(&whole);
        let mut cuts: Vec<Gva> = bounds.flat_map(|range| [range.start, range.end]).collect();
        cuts.sort_unstable();
        self.parts = self
            .parts
            .iter()
            .flat_map(|part| cut(*part, &cuts))
            .collect();
        self.parts.retain(|part| {
            let start = part.segment.vaddr;
            whole.is_none_or(|whole| whole.holds(start, 1))
        });
        for part in &mut self.parts {
            let start = part.segment.vaddr;
            part.lasts = lasting.iter().any(|range| range.holds(start, 1));
            part.segment.filesz = if part.lasts { part.segment.filesz } else { 0 };
        }
        true
    }

    /// Up to `length` bytes at `at`, as far as they were read.
    #[must_use]
    pub fn bytes_at(&self, at: Gva, length: u64) -> &[u8] {
        self.elf().bytes_at(at, length)
    }

    /// Where `at` lies in the guest's memory.
    #[must_use]
    pub fn physical(&self, at: Gva) -> Option<Gpa> {
        self.parts
            .iter()
            .find_map(|part| part.segment.locate(at))
            .map(|(at, _)| at)
    }

    /// The bytes in which the kernel describes its types.
    #[must_use]
    pub fn types(&self, symbols: &SymbolTable) -> Option<&[u8]> {
        linux::btf(&self.elf(), symbols).filter(|bytes| !bytes.is_empty())
    }

    /// The image, with the places that the kernel's own tracer keeps.
    ///
    /// # Errors
    /// An [`ImageError`].
    pub fn image(&self, names: Names, sites: &[Gva]) -> Result<Image, ImageError> {
        let Names {
            symbols,
            unread,
            notes,
        } = names;
        let image = Image::of(&self.elf(), symbols, notes, Some(sites))?;
        Ok(Image {
            unread_symbols: unread,
            ..image
        })
    }

    pub(super) fn elf(&self) -> Elf<'_> {
        let parts = self.parts.iter().map(|part| (part.segment, part.offset));
        Elf::running(&self.bytes, parts)
    }
}

fn end(segment: &Segment) -> u64 {
    segment.vaddr.0.saturating_add(segment.memsz)
}

fn range(symbols: &SymbolTable, start: &str, end: &str) -> Option<TextRange> {
    let (start, end) = (symbols.address_of(start)?, symbols.address_of(end)?);
    (start < end).then_some(TextRange { start, end })
}

/// The pieces of a part between the addresses at which it is cut.
fn cut(part: Part, cuts: &[Gva]) -> Vec<Part> {
    let Segment {
        vaddr,
        paddr,
        filesz,
        memsz,
        ..
    } = part.segment;
    let inside = cuts.iter().filter_map(|cut| cut.0.checked_sub(vaddr.0));
    let mut at: Vec<u64> = inside.filter(|into| (1..memsz).contains(into)).collect();
    at.extend([0, memsz]);
    at.sort_unstable();
    at.dedup();
    let piece = |(from, to): (&u64, &u64)| {
        let length = to - from;
        Part {
            segment: Segment {
                vaddr: vaddr.wrapping_add(*from),
                paddr: paddr.wrapping_add(*from),
                filesz: if filesz > 0 { length } else { 0 },
                memsz: length,
                ..part.segment
            },
            offset: part
                .offset
                .saturating_add(usize::try_from(*from).unwrap_or(0)),
            lasts: part.lasts,
        }
    };
    at.iter().zip(at.iter().skip(1)).map(piece).collect()
}
