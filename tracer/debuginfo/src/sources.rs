//! Which source file each function comes from: the line table says it of a function's first instruction.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::lines::ROWS_MAX;
use super::units::{Dwarf, Unit};

/// What has been found so far.
struct Sources<'q> {
    /// Where the functions are, by address.
    functions: &'q [Range<u64>],
    /// Of each function: the address of the first row in it, and its file.
    found: Vec<Option<(u64, Arc<str>)>>,
    /// Every path once, however many functions come from it.
    paths: BTreeSet<Arc<str>>,
}

impl Sources<'_> {
    /// The function that covers an address, if nothing before that address is known of it.
    fn open(&self, address: u64) -> Option<usize> {
        let end = self
            .functions
            .partition_point(|function| function.start <= address);
        let index = end.checked_sub(1)?;
        let is_in = self.functions.get(index)?.contains(&address);
        let known = self.found.get(index)?.as_ref();
        (is_in && known.is_none_or(|(at, _)| address < *at)).then_some(index)
    }

    /// The path, kept if there is room for it.
    fn path(&mut self, path: &str, has_room: impl FnOnce(usize) -> bool) -> Option<Arc<str>> {
        if let Some(known) = self.paths.get(path) {
            return Some(Arc::clone(known));
        }
        let new: Arc<str> = has_room(path.len()).then(|| path.into())?;
        self.paths.insert(Arc::clone(&new));
        Some(new)
    }
}

impl Dwarf<'_> {
    /// The file of each of these functions, which are in the order of their addresses and do not lie over each other.
    pub fn sources(&self, functions: &[Range<u64>]) -> Vec<Option<Arc<str>>> {
        let mut sources = Sources {
            functions,
            found: vec![None; functions.len()],
            paths: BTreeSet::new(),
        };
        for offset in self.index.units() {
            // A unit that cannot be read has no lines.
            if let Ok(unit) = self.unit(offset) {
                self.sources_of(&unit, &mut sources);
            }
        }
        let files = sources.found.into_iter();
        files.map(|found| found.map(|(_, file)| file)).collect()
    }

    fn sources_of(&self, unit: &Unit<'_>, sources: &mut Sources<'_>) {
        let Some(program) = unit.line_program.clone() else {
            return;
        };
        let mut known: HashMap<u64, Option<Arc<str>>> = HashMap::new();
        let mut rows = program.rows();
        for _ in 0..ROWS_MAX {
            let Ok(Some((header, row))) = rows.next_row() else {
                return;
            };
            // What the linker has left out lies at 0.
            if row.end_sequence() || row.address() == 0 {
                continue;
            }
            let Some(index) = sources.open(row.address()) else {
                continue;
            };
            let file = known.entry(row.file_index()).or_insert_with(|| {
                let entry = header.file(row.file_index())?;
                let path = self.path(unit, header, entry);
                sources.path(&path, |bytes| self.has_room(bytes))
            });
            if let (Some(file), Some(found)) = (file, sources.found.get_mut(index)) {
                *found = Some((row.address(), Arc::clone(file)));
            }
        }
    }
}
