//! The lists of sites that compilers leave in an image: `__mcount_loc` (gcc `-mrecord-mcount`,
//! Linux) and `__patchable_function_entries`, each a run of 64-bit addresses. A list that has
//! neither a section nor symbols is known by what it lists: see `lists/structure.rs`.

mod structure;

use terms::addr::Gva;

use super::SymbolTable;
use super::elf::Elf;

/// Which list an address came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum List {
    /// `__mcount_loc`.
    Mcount,
    /// `__patchable_function_entries`.
    Patchable,
    /// What a kernel that runs has made of the first: the places that its own tracer keeps.
    Recorded,
}

/// A list: the name of its section, and the symbols that bound it where it has none.
struct Source {
    list: List,
    section: &'static str,
    bounds: (&'static str, &'static str),
}

const SOURCES: [Source; 2] = [
    Source {
        list: List::Mcount,
        section: "__mcount_loc",
        bounds: ("__start_mcount_loc", "__stop_mcount_loc"),
    },
    Source {
        list: List::Patchable,
        section: "__patchable_function_entries",
        bounds: (
            "__start___patchable_function_entries",
            "__stop___patchable_function_entries",
        ),
    },
];

/// Every listed address, ascending, each once. Remarks go to `notes`.
pub(super) fn listed(
    elf: &Elf<'_>,
    symbols: &SymbolTable,
    notes: &mut Vec<String>,
) -> Vec<(Gva, List)> {
    let mut listed = Vec::new();
    for source in &SOURCES {
        let before = listed.len();
        for data in source.find(elf, symbols, notes) {
            read(data, source, &mut listed, notes);
        }
        if listed.len() > before {
            notes.push(format!(
                "{}: {} addresses",
                source.section,
                listed.len() - before
            ));
        }
    }
    if listed.is_empty()
        && let Some((at, found)) = structure::longest(elf, symbols)
    {
        notes.push(format!(
            "a list of {} calls of __fentry__ at {at}, found by its structure",
            found.len()
        ));
        listed.extend(found.into_iter().map(|address| (address, List::Mcount)));
    }
    listed.sort_unstable();
    listed.dedup_by_key(|(address, _)| *address);
    listed
}

/// The places that the tracer of a kernel that runs keeps.
pub(super) fn recorded(sites: &[Gva], notes: &mut Vec<String>) -> Vec<(Gva, List)> {
    if !sites.is_empty() {
        notes.push(format!("{} places in the kernel's own list", sites.len()));
    }
    let mut listed: Vec<_> = sites.iter().map(|site| (*site, List::Recorded)).collect();
    listed.sort_unstable();
    listed.dedup();
    listed
}

impl Source {
    fn find<'a>(
        &self,
        elf: &Elf<'a>,
        symbols: &SymbolTable,
        notes: &mut Vec<String>,
    ) -> Vec<&'a [u8]> {
        let sections = elf.sections_named(self.section);
        if !sections.is_empty() {
            return sections.into_iter().map(|(_, data)| data).collect();
        }
        let (start, stop) = self.bounds;
        let (Some(first), Some(end)) = (symbols.address_of(start), symbols.address_of(stop)) else {
            return Vec::new();
        };
        let length = end.0.saturating_sub(first.0);
        let data = elf.bytes_at(first, length);
        if (data.len() as u64) < length || end < first {
            notes.push(format!(
                "{start}..{stop}: {first}..{end} is not in the file, ignored"
            ));
            return Vec::new();
        }
        vec![data]
    }
}

fn read(data: &[u8], source: &Source, listed: &mut Vec<(Gva, List)>, notes: &mut Vec<String>) {
    let (entries, rest) = data.as_chunks::<8>();
    let addresses = entries.iter().map(|entry| u64::from_le_bytes(*entry));
    let before = listed.len();
    // The linker leaves 0 for functions that it threw away.
    listed.extend(addresses.filter(|&a| a != 0).map(|a| (Gva(a), source.list)));
    let zero = entries.len() - (listed.len() - before);
    if zero > 0 {
        notes.push(format!(
            "{}: {zero} entries are 0 (discarded functions)",
            source.section
        ));
    }
    if !rest.is_empty() {
        notes.push(format!(
            "{}: {} bytes left over at its end",
            source.section,
            rest.len()
        ));
    }
}
