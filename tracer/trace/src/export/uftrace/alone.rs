//! A trace without a call, for uftrace: it opens no directory without a record, and its tui ends in one without a call
//! that has returned. So a task of its own makes one call, from the first thing that is told to the last, of a function
//! that says what it is. Our own readers go by vCPUs and threads, and do not see it.

use std::fs;
use std::io;
use std::path::Path;

use super::directory::append;
use super::error::ExportError;
use super::layout::{self, Extent, FIRST_TID, NAMES_FILE};
use super::record::{Kind, Record};
use crate::export::call_formats::CallFormats;

/// The function that is called, as uftrace shows it.
pub const NO_CALLS: &str = "(no calls)";
/// The task that calls it: before all that there can be.
const TID: u32 = FIRST_TID - 1;
const NAME: &str = "events";

/// What the files say beside that.
pub(super) struct Told<'a> {
    pub command_line: &'a str,
    pub module: &'a str,
    /// The tasks that there are; the first one is that of the session.
    pub tids: Vec<u32>,
    pub values: &'a CallFormats,
    pub extent: Extent,
    /// When the first comment was, and the last, in nanoseconds.
    pub span: Option<(u64, u64)>,
}

/// Adds the task and its call to what stands in `directory`.
pub(super) fn write(directory: &Path, mut told: Told<'_>) -> Result<(), ExportError> {
    let put = |name: &str, how: &dyn Fn(&Path) -> io::Result<()>| {
        let path = directory.join(name);
        how(&path).map_err(ExportError::io("write", &path))
    };
    let symbols = format!("{}.sym", told.module);
    put(&symbols, &|path| {
        let text = fs::read_to_string(path)?;
        fs::write(path, told.extent.with_last(&text, NO_CALLS))
    })?;
    put(&format!("{TID}.dat"), &|path| {
        fs::write(
            path,
            call(told.extent.last(), told.span.unwrap_or_default()),
        )
    })?;
    put(NAMES_FILE, &|path| append(path, &layout::name(TID, NAME)))?;
    let first = told.tids.first().copied().unwrap_or(TID);
    put("task.txt", &|path| {
        append(path, layout::task(TID, first, told.module).as_bytes())
    })?;
    told.tids.push(TID);
    let info = layout::info(told.command_line, told.module, &told.tids, told.values);
    put("info", &|path| fs::write(path, &info))
}

/// A call around everything from the first moment to the last.
fn call(function: u64, (first, last): (u64, u64)) -> Vec<u8> {
    let entry = Record {
        time: first.saturating_sub(1),
        kind: Kind::Entry,
        value: function,
        depth: 0,
        has_values: false,
    };
    let exit = Record {
        time: last.saturating_add(1),
        kind: Kind::Exit,
        ..entry
    };
    [entry.pack(), exit.pack()].concat()
}
