//! Data files that the list of tasks lacks. A task is listed before anything goes to its file, so no run that is killed leaves one:
//! the list was cut or exchanged since, and who reads the trace by it sees fewer threads, or none.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirEntry};
use std::path::Path;

use terms::quantity::counted;

use crate::export::uftrace::layout::FIRST_TID;

/// The tasks of data files of ours that have something in them, in their order. They are looked for before the list is read: what
/// comes meanwhile is in that.
pub(super) struct DataFiles(Vec<u32>);

impl DataFiles {
    /// Those of this directory.
    pub fn of(directory: &Path) -> Self {
        let files = fs::read_dir(directory).into_iter().flatten();
        let mut tids: Vec<u32> = files.filter_map(|file| tid(&file.ok()?)).collect();
        tids.sort_unstable();
        Self(tids)
    }

    /// Those that are none of these.
    pub fn without<'a>(self, listed: impl Iterator<Item = &'a Path>) -> Option<Unlisted> {
        let listed: BTreeSet<_> = listed.filter_map(Path::file_name).collect();
        let names = self.0.into_iter().map(data_file);
        let mut unlisted = names.filter(|name| !listed.contains(OsStr::new(name)));
        let first = unlisted.next()?;
        let count = 1 + unlisted.count() as u64;
        Some(Unlisted { count, first })
    }
}

fn data_file(tid: u32) -> String {
    format!("{tid}.dat")
}

/// The task of a data file that has something in it.
fn tid(file: &DirEntry) -> Option<u32> {
    let name = file.file_name().into_string().ok()?;
    let tid: u32 = name.strip_suffix(".dat")?.parse().ok()?;
    let is_one = tid >= FIRST_TID && name == data_file(tid);
    let data = is_one.then(|| file.metadata().ok()).flatten()?;
    (data.is_file() && data.len() > 0).then_some(tid)
}

/// Data files that no line of the list is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlisted {
    count: u64,
    first: String,
}

impl fmt::Display for Unlisted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "task.txt was cut or exchanged since: it does not list {} that {} there (first: {})",
            counted(self.count, "data file"),
            if self.count == 1 { "is" } else { "are" },
            self.first
        )
    }
}
