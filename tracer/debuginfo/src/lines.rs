//! The code of a line of a source file.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use gimli::LineProgramHeader;
use terms::addr::Gva;
use terms::nearest::nearest;
use terms::printable::escaped;

use super::DebugError;
use super::sections::Bytes;
use super::units::{Dwarf, Unit};

/// Rows of one line table, at most.
pub(super) const ROWS_MAX: usize = 1 << 24;
/// Files of one line table, at most.
const FILES_MAX: u64 = 1 << 16;
/// Bytes of a path, at most, as on Linux.
const PATH_MAX: usize = 4096;

/// What was found of one file.
#[derive(Debug, Default)]
struct Lines {
    /// Where the code for the line begins.
    found: BTreeSet<Gva>,
    /// The nearest lines with code before and after it.
    before: Option<u64>,
    after: Option<u64>,
}

impl Lines {
    /// There is code for the line `here`; an address where a run of instructions for it begins. It is `line` that is wanted.
    fn note(&mut self, line: u64, here: u64, beginning: Option<Gva>) {
        match here.cmp(&line) {
            Ordering::Less => self.before = self.before.max(Some(here)),
            Ordering::Greater => {
                self.after = Some(self.after.map_or(here, |known| known.min(here)));
            }
            Ordering::Equal => self.found.extend(beginning),
        }
    }
}

impl<'a> Dwarf<'a> {
    /// Where the code of a line begins: wherever a run of instructions for it does.
    pub fn line(&self, file: &str, line: u64) -> Result<Vec<Gva>, DebugError> {
        let mut by_path: BTreeMap<String, Lines> = BTreeMap::new();
        let mut names: BTreeSet<String> = BTreeSet::new();
        for offset in self.index.units() {
            // A unit that cannot be read has no lines.
            if let Ok(unit) = self.unit(offset) {
                self.lines_of(&unit, file, line, &mut by_path, &mut names);
            }
        }
        if by_path.is_empty() {
            return Err(DebugError::File {
                file: file.to_owned(),
                near: nearest(file, names.iter().map(String::as_str), 3),
            });
        }
        let with_code = || by_path.iter().filter(|(_, lines)| !lines.found.is_empty());
        match with_code().count() {
            0 => {
                let before = by_path.values().filter_map(|lines| lines.before).max();
                let after = by_path.values().filter_map(|lines| lines.after).min();
                let mut nearest: Vec<u64> = before.into_iter().chain(after).collect();
                nearest.sort_by_key(|near| near.abs_diff(line));
                Err(DebugError::Line {
                    file: file.to_owned(),
                    line,
                    nearest,
                })
            }
            1 => Ok(with_code()
                .flat_map(|(_, lines)| lines.found.iter().copied())
                .collect()),
            _ => Err(DebugError::Files {
                file: file.to_owned(),
                files: with_code().map(|(path, _)| path.clone()).take(4).collect(),
            }),
        }
    }

    fn lines_of(
        &self,
        unit: &Unit<'a>,
        file: &str,
        line: u64,
        by_path: &mut BTreeMap<String, Lines>,
        names: &mut BTreeSet<String>,
    ) {
        let Some(program) = unit.line_program.clone() else {
            return;
        };
        let wanted = self.files(unit, program.header(), file, names);
        if wanted.is_empty() {
            return;
        }
        for path in wanted.values() {
            by_path.entry(path.clone()).or_default();
        }
        let mut rows = program.rows();
        let mut last = None;
        for _ in 0..ROWS_MAX {
            let Ok(Some((_, row))) = rows.next_row() else {
                return;
            };
            if row.end_sequence() {
                last = None;
                continue;
            }
            let here = (
                row.file_index(),
                row.line().map_or(0, std::num::NonZero::get),
            );
            let is_beginning = row.is_stmt() && last != Some(here);
            if row.is_stmt() {
                last = Some(here);
            }
            let lines = wanted.get(&here.0).and_then(|path| by_path.get_mut(path));
            if let Some(lines) = lines.filter(|_| here.1 > 0 && row.address() != 0) {
                let beginning = is_beginning.then_some(Gva(row.address()));
                lines.note(line, here.1, beginning);
            }
        }
    }

    /// The files of a unit whose paths end with `file`, by their numbers. What the others are called goes into `names`.
    fn files(
        &self,
        unit: &Unit<'a>,
        header: &LineProgramHeader<Bytes<'a>>,
        file: &str,
        names: &mut BTreeSet<String>,
    ) -> BTreeMap<u64, String> {
        let mut wanted = BTreeMap::new();
        for index in 0..=FILES_MAX {
            let Some(entry) = header.file(index) else {
                // DWARF 4 counts from 1.
                if index == 0 {
                    continue;
                }
                break;
            };
            let path = self.path(unit, header, entry);
            if ends_with(&path, file) {
                if !self.has_room(path.len()) {
                    break;
                }
                wanted.insert(index, path);
            } else if let Some(name) = path.rsplit('/').next()
                && names.len() < 1 << 16
                && !names.contains(name)
                && self.has_room(name.len())
            {
                names.insert(name.to_owned());
            }
        }
        wanted
    }

    /// The path of a file of a line table. What is longer than any path is left out of it.
    pub(super) fn path(
        &self,
        unit: &Unit<'a>,
        header: &LineProgramHeader<Bytes<'a>>,
        entry: &gimli::FileEntry<Bytes<'a>>,
    ) -> String {
        let text = |value| {
            let found = self.sections.attr_string(unit, value).ok();
            let found = found.filter(|text| text.len() <= PATH_MAX);
            found
                .map(|text| escaped(&text.to_string_lossy()).into_owned())
                .unwrap_or_default()
        };
        let name = text(entry.path_name());
        let directory = entry.directory(header).map(text).unwrap_or_default();
        match directory.as_str() {
            "" => name,
            _ if name.starts_with('/') => name,
            directory => format!("{directory}/{name}"),
        }
    }
}

/// Whether a path is what was written, or ends so.
fn ends_with(path: &str, written: &str) -> bool {
    let written = written.strip_prefix("./").unwrap_or(written);
    let before = path.strip_suffix(written);
    before.is_some_and(|before| {
        before.is_empty() || before.ends_with('/') || written.starts_with('/')
    })
}
