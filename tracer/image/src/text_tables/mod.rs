//! What an image's own tables say of its text: where the kernel rewrites it, and which instructions it knows by
//! their address. Nothing of ours may overlap the one or move the other.
//!
//! A Linux kernel changes its text at many places, by tables: some while it runs, whenever somebody toggles
//! something, some once, before or when it starts its processors. A place that is rewritten while our jump is over
//! it is the end of the guest (the kernel checks what it finds); one that was displaced into a detour stays there as
//! it was, and does the wrong thing from then on. So both are left alone, and so is what is rewritten only once:
//! there the image is not what runs. Which is which is said in `text_tables/list.rs`.
//!
//! The tables are found by the symbols that bound them, for most have no section of their own in a linked kernel. A
//! Linux without these symbols cannot be displaced anywhere ([`TextTables::missing`]).

mod list;

use insn::flow::first_length;
use terms::addr::{Gva, Slide};
use terms::site::SITE_LENGTH;

use self::list::{BETWEEN, EXCEPTIONS, Entries, KNOWN, RUNTIME, STATIC_CALLS, TABLES, Table};
use super::elf::Elf;
use super::range::text_range;
use super::words::words;
use super::{SymbolTable, TextRange};

/// The longest instruction.
const INSTRUCTION_MAX: u64 = 15;
/// What an entry takes up at least in the file, on average over all tables: hostile bounds could list far more
/// than there is.
const BYTES_PER_ENTRY: usize = 16;

/// Why it is not known what a kernel rewrites.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The table has no bounds.
    #[error(
        "its list of {what} cannot be found without the symbols {start} and {stop} (CONFIG_KALLSYMS_ALL has them, and \
         so has its System.map)"
    )]
    NotNamed {
        /// What it lists.
        what: &'static str,
        /// Where it begins.
        start: &'static str,
        /// Where it ends.
        stop: &'static str,
    },
    /// The table is not in the file, or of a layout that is not known.
    #[error("its list of {what} at {at} is not in the image, or of an unknown layout")]
    NotUnderstood {
        /// What it lists.
        what: &'static str,
        /// Where it begins.
        at: Gva,
    },
}

/// Some bytes of text that the kernel rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stretch {
    start: Gva,
    end: Gva,
    what: &'static str,
}

impl Stretch {
    fn overlaps(&self, from: Gva, to: Gva) -> bool {
        self.start < to && from < self.end
    }
}

/// What an image's tables say of its text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextTables {
    /// By where they begin.
    rewritten: Vec<Stretch>,
    /// The length of the longest of them.
    longest: u64,
    /// The few long ones.
    ranges: Vec<Stretch>,
    /// Instructions that are known by their address, sorted.
    known: Vec<Gva>,
    missing: Option<TableError>,
}

impl TextTables {
    /// Those of `elf`, whose executable ranges are `text`, and whose call sites of the tracer are `traced`. Of a Linux
    /// none may be missing.
    pub(super) fn read(
        elf: &Elf<'_>,
        symbols: &SymbolTable,
        text: &[TextRange],
        traced: impl Iterator<Item = Gva>,
        is_linux: bool,
    ) -> Self {
        let mut reader = Reader {
            elf,
            symbols,
            room: elf.bytes.len() / BYTES_PER_ENTRY,
            found: Vec::new(),
        };
        let length = SITE_LENGTH as u64;
        traced.for_each(|at| reader.add(at, length, "a call site of the kernel's tracer"));
        // All are read, whichever fails.
        let errors = TABLES.iter().filter_map(|table| reader.table(table).err());
        let errors: Vec<TableError> = errors.collect();
        let missing = errors.into_iter().next().filter(|_| is_linux);
        reader.runtime_constants();
        let known = KNOWN.iter().flat_map(|table| reader.words(table, text));
        let mut known: Vec<Gva> = known.collect();
        known.sort_unstable();
        known.dedup();
        let no_exceptions = is_linux && reader.bytes(&EXCEPTIONS).is_err();
        let missing = missing.or(no_exceptions.then(|| EXCEPTIONS.not_named()));
        let ranges = reader.ranges();
        let mut rewritten = reader.found;
        rewritten.sort_unstable();
        rewritten.dedup();
        let lengths = rewritten.iter().map(|one| one.end.0 - one.start.0);
        Self {
            longest: lengths.max().unwrap_or_default(),
            rewritten,
            ranges,
            known,
            missing,
        }
    }

    /// The same of a kernel that runs elsewhere.
    pub(super) fn moved_by(self, slide: Slide) -> Self {
        let all = |stretches: Vec<Stretch>| -> Vec<Stretch> {
            let moved = stretches.into_iter().map(|one| Stretch {
                start: slide.runs(one.start),
                end: slide.runs(one.end),
                ..one
            });
            moved.collect()
        };
        Self {
            rewritten: all(self.rewritten),
            ranges: all(self.ranges),
            known: self.known.iter().map(|at| slide.runs(*at)).collect(),
            ..self
        }
    }

    /// Why it is not known what the kernel rewrites, if it is not: then nothing of it can be displaced.
    #[must_use]
    pub const fn missing(&self) -> Option<&TableError> {
        self.missing.as_ref()
    }

    /// The first place that the kernel itself rewrites between `from` and `to`, and what it is there.
    #[must_use]
    pub fn rewritten(&self, from: Gva, to: Gva) -> Option<(Gva, &'static str)> {
        let lowest = Gva(from.0.saturating_sub(self.longest));
        let first = self.rewritten.partition_point(|one| one.start < lowest);
        let near = self.rewritten.get(first..).unwrap_or_default();
        let near = near.iter().take_while(|one| one.start < to);
        let mut all = near.chain(&self.ranges);
        let found = all.find(|one| one.overlaps(from, to))?;
        Some((found.start, found.what))
    }

    /// Whether the kernel knows the instruction at `at` by its address: one that may fault, or that says where
    /// a warning comes from.
    #[must_use]
    pub fn may_fault(&self, at: Gva) -> bool {
        self.known.binary_search(&at).is_ok()
    }

    /// How many places there are of each kind, by name.
    #[must_use]
    pub fn count(&self, what: &str) -> usize {
        self.rewritten.iter().filter(|one| one.what == what).count()
    }
}

/// Reads tables.
struct Reader<'a, 'e> {
    elf: &'a Elf<'e>,
    symbols: &'a SymbolTable,
    /// How many more places are believed.
    room: usize,
    found: Vec<Stretch>,
}

impl<'e> Reader<'_, 'e> {
    fn add(&mut self, at: Gva, length: u64, what: &'static str) {
        let is_there = length > 0 && !self.elf.bytes_at(at, 1).is_empty();
        if is_there && self.room > 0 {
            self.room -= 1;
            self.found.push(Stretch {
                start: at,
                end: Gva(at.0.saturating_add(length)),
                what,
            });
        }
    }

    /// The bytes of a table, in one piece or several; none when this kernel has no such table.
    fn bytes(&self, table: &Table) -> Result<Vec<(Gva, &'e [u8])>, TableError> {
        let bound = |name| self.symbols.address_of(name);
        let (first, last) = table.bounds;
        if let (Some(start), Some(stop)) = (bound(first), bound(last)) {
            // What was rewritten by a list that is freed now will not be rewritten again.
            if self.elf.running && !table.lasts && self.elf.bytes_at(start, 1).is_empty() {
                return Ok(Vec::new());
            }
            let length = stop.0.checked_sub(start.0);
            let data = length.map(|length| self.elf.bytes_at(start, length));
            let is_whole = data.is_some_and(|data| Some(data.len() as u64) == length);
            let data = data.filter(|_| is_whole);
            return data
                .map(|data| vec![(start, data)])
                .ok_or(TableError::NotUnderstood {
                    what: table.whats,
                    at: start,
                });
        }
        let sections = self.elf.sections_named(table.section);
        let is_due = sections.is_empty() && table.is_due(self.symbols);
        if is_due {
            return Err(table.not_named());
        }
        Ok(sections)
    }

    fn table(&mut self, table: &Table) -> Result<(), TableError> {
        for (start, data) in self.bytes(table)? {
            let before = self.room;
            let is_understood = self.entries(table, start, data);
            if !is_understood || (self.room == 0 && before > 0) {
                let what = table.whats;
                return Err(TableError::NotUnderstood { what, at: start });
            }
        }
        Ok(())
    }

    /// Whether the entries are what they must be.
    fn entries(&mut self, table: &Table, start: Gva, data: &'e [u8]) -> bool {
        let what = table.what;
        match table.entries {
            Entries::Instructions { apart } => {
                for (at, _) in distances(start, data, apart) {
                    // A call that is none just now can be a return of one byte; what the guest writes there is a call again.
                    let length = match table.section {
                        STATIC_CALLS => self.length_at(at).max(SITE_LENGTH as u64),
                        _ => self.length_at(at),
                    };
                    self.add(at, length, what);
                }
            }
            Entries::Bytes { length } => {
                let all = distances(start, data, 4);
                all.for_each(|(at, _)| self.add(at, length, what));
            }
            Entries::Paravirt => {
                for entry in data.chunks_exact(16) {
                    let Some((at, [_, length, ..])) = entry.split_first_chunk() else {
                        return false;
                    };
                    self.add(Gva(u64::from_le_bytes(*at)), u64::from(*length), what);
                }
            }
            Entries::Alternatives => return self.alternatives(what, start, data),
        }
        true
    }

    /// `struct alt_instr` has had several layouts: it is the one in which every entry leads to text that is longer than,
    /// or as long as, what it is replaced by.
    fn alternatives(&mut self, what: &'static str, start: Gva, data: &'e [u8]) -> bool {
        // Bytes of an entry, and where in it the length of the original is. The replacement's is the next byte.
        for (apart, length_at) in [(12, 10), (13, 10), (14, 12)] {
            let entry = |(at, entry): (Gva, &[u8])| {
                let mut lengths = entry.get(length_at..)?.iter().copied();
                let (old, new) = (lengths.next()?, lengths.next()?);
                let is_one = new <= old && !self.elf.bytes_at(at, 1).is_empty();
                is_one.then_some((at, u64::from(old)))
            };
            if !data.len().is_multiple_of(apart) {
                continue;
            }
            let all: Option<Vec<_>> = distances(start, data, apart).map(entry).collect();
            if let Some(all) = all {
                for (at, length) in all {
                    self.add(at, length, what);
                }
                return true;
            }
        }
        false
    }

    fn length_at(&self, at: Gva) -> u64 {
        let bytes = self.elf.bytes_at(at, INSTRUCTION_MAX);
        // What cannot be decoded is as long as what is written there.
        first_length(bytes).unwrap_or(SITE_LENGTH) as u64
    }

    /// Constants in instructions, each of them with a list of its own.
    fn runtime_constants(&mut self) {
        let (start, stop) = ("__start_", "__stop_");
        for (list, length) in RUNTIME {
            let prefix = format!("{start}{list}");
            let symbols = self.symbols.iter();
            let lists = symbols.filter(|symbol| symbol.name.starts_with(&prefix));
            let bounds: Vec<_> = lists
                .filter_map(|symbol| {
                    let rest = symbol.name.strip_prefix(start)?;
                    let end = self.symbols.address_of(&format!("{stop}{rest}"))?;
                    Some((symbol.address, end.0.checked_sub(symbol.address.0)?))
                })
                .collect();
            for (at, bytes) in bounds {
                let data = self.elf.bytes_at(at, bytes);
                for (at, _) in distances(at, data, 4) {
                    self.add(
                        at,
                        length,
                        "a constant that is known when the kernel starts",
                    );
                }
            }
        }
    }

    /// The words of a table that lead to `text`, which is sorted.
    fn words(&self, table: &Table, text: &[TextRange]) -> Vec<Gva> {
        let pieces = self.bytes(table).unwrap_or_default();
        let words = pieces.iter().flat_map(|(at, data)| words(data, *at));
        let is_text = |to: &Gva| text_range(text, *to).is_some();
        words.map(Gva).filter(is_text).collect()
    }

    fn ranges(&self) -> Vec<Stretch> {
        let bound = |name| self.symbols.address_of(name);
        let ranges = BETWEEN.iter().filter_map(|(start, end, what)| {
            let (start, end) = (bound(start)?, bound(end)?);
            (start < end).then_some(Stretch { start, end, what })
        });
        ranges.collect()
    }
}

/// Where the distance leads that each entry begins with, and the entry.
fn distances<'e>(
    start: Gva,
    data: &'e [u8],
    apart: usize,
) -> impl Iterator<Item = (Gva, &'e [u8])> + use<'e> {
    let entries = (0u64..).step_by(apart).zip(data.chunks_exact(apart));
    entries.filter_map(move |(offset, entry)| {
        let distance = i64::from(i32::from_le_bytes(*entry.first_chunk()?));
        // The linker leaves 0 where it fills up, and for what it threw away.
        let to = start.wrapping_add(offset).0.wrapping_add_signed(distance);
        (distance != 0).then_some((Gva(to), entry))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Image;
    use crate::testing::{ElfFile, TEXT, body};

    /// Every word of a table that leads to text, and none that leads between. To compare each word with each range would
    /// take minutes here.
    #[test]
    fn words_are_known_that_lead_to_any_of_many_ranges_of_text() {
        const RANGES: u64 = 30_000;
        let start = |number: u64| TEXT + number * 32;
        let last = start(RANGES - 1);
        let inside = [TEXT, TEXT + 15, start(5000) + 7, last, last + 15];
        let outside = [TEXT - 1, TEXT + 16, start(5000) - 1, last + 16];
        for name in ["__ex_table", "__bug_table"] {
            let words = [&inside[..], &outside, &[0x41; 400_000]].concat();
            let file = ElfFile::new().list(name, TEXT - 0x80_0000, &words);
            let text = (0..RANGES).map(start);
            let file = text.fold(file, |file, at| file.text(at, &body(&[0xc3])));
            let image = Image::parse(&file.build()).unwrap();
            assert_eq!(image.text.len() as u64, RANGES);
            let known = |all: &[u64]| {
                all.iter()
                    .filter(|at| image.tables.may_fault(Gva(**at)))
                    .count()
            };
            assert_eq!(
                (known(&inside), known(&outside)),
                (inside.len(), 0),
                "{name}"
            );
        }
    }
}
