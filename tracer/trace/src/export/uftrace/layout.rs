//! The files of a trace directory that describe it: `info`, `task.txt`, the map, the symbols and the names of tasks.
//!
//! Every vCPU (in a graph trace: every thread) is a uftrace task. All are of one session, the image's, so that uftrace
//! shows one graph of them; since it names a task after its session, names are told as the events of perf that it reads.

use std::fmt::Write;

use terms::addr::Gva;
use terms::function::Function;
use terms::printable::is_printable;
use terms::quantity::in_seconds;

use super::record::truncated;
use crate::export::call_formats::CallFormats;

/// The file for what uftrace's files cannot hold.
pub const SIDE_FILE: &str = "exotrace.json";
/// The file that names tasks.
pub const NAMES_FILE: &str = "perf-cpu0.dat";
/// The map of the one session.
pub const MAP_FILE: &str = "sid-0000000000000000.map";
/// What says in the symbols where the one before ends: no function.
pub const SYMBOL_END: &str = "__sym_end";
/// The file whose lines uftrace shows as comments among the calls.
pub const COMMENT_FILE: &str = "extern.dat";
/// The file of a compact trace, which is read instead of all of these where it stands.
pub const STORE_FILE: &str = "records.exo";
/// The task id of vCPU or thread 0.
pub const FIRST_TID: u32 = 1000;
/// Functions begin at multiples of no more than that: what is less lies between them for that.
const GAP: u64 = 64;
/// Symbols and maps are in pages.
const PAGE: u64 = 0x1000;
/// Where the maps say that the stack is: uftrace takes everything above it for its own kernel.
const STACK: (u64, u64) = (0xffff_ffff_e000, 0xffff_ffff_f000);

/// A line of [`COMMENT_FILE`].
#[must_use]
pub fn comment(time_ns: u64, text: &str) -> String {
    format!("{} {text}\n", in_seconds(time_ns))
}

/// The task id of a vCPU or thread.
#[must_use]
pub fn tid(number: u32) -> u32 {
    FIRST_TID.saturating_add(number)
}

/// The name of the data file of a vCPU or thread.
#[must_use]
pub fn data_file(number: u32) -> String {
    format!("{}.dat", tid(number))
}

/// The name of the file beside a thread's data file.
#[must_use]
pub fn side_file(number: u32) -> String {
    format!("{}.side", tid(number))
}

/// The `info` file: a header, then one line or more for each bit of its mask.
pub(super) fn info(
    command_line: &str,
    module: &str,
    tids: &[u32],
    values: &CallFormats,
) -> Vec<u8> {
    const TASK_SESSION: u64 = 1 << 1;
    const ARGUMENTS: u64 = 1 << 3;
    const RETURNED: u64 = 1 << 4;
    const SYMBOLS_RELATIVE: u64 = 1 << 5;
    const NAMES: u64 = 1 << 8;
    const EXECUTABLE: u64 = 1;
    const COMMAND_LINE: u64 = 1 << 3;
    const TASK_INFO: u64 = 1 << 7;
    const ARGUMENT_SPEC: u64 = 1 << 10;
    const PATTERN_TYPE: u64 = 1 << 12;
    let (features, infos) = match values.is_empty() {
        true => (0, 0),
        false => (ARGUMENTS | RETURNED, ARGUMENT_SPEC | PATTERN_TYPE),
    };
    const HEADER_LENGTH: u16 = 40;
    const MAX_STACK: u16 = 1024;
    let mut info = Vec::new();
    info.extend(b"Ftrace!\0");
    info.extend(4u32.to_le_bytes());
    info.extend(HEADER_LENGTH.to_le_bytes());
    // Little-endian, 64-bit.
    info.extend([1, 2]);
    info.extend((TASK_SESSION | SYMBOLS_RELATIVE | NAMES | features).to_le_bytes());
    info.extend((EXECUTABLE | COMMAND_LINE | TASK_INFO | infos).to_le_bytes());
    info.extend(MAX_STACK.to_le_bytes());
    info.resize(usize::from(HEADER_LENGTH), 0);
    let tids: Vec<String> = tids.iter().map(u32::to_string).collect();
    let text = format!(
        "exename:{module}\ncmdline:{}\ntaskinfo:lines=2\ntaskinfo:nr_tid={}\ntaskinfo:tids={}\n",
        quotable(command_line),
        tids.len(),
        tids.join(",")
    );
    info.extend(text.as_bytes());
    if !values.is_empty() {
        let (arguments, returned) = values.specs();
        let named = [("argspec", arguments), ("retspec", returned)];
        let lines: String = named
            .iter()
            .filter(|(_, spec)| !spec.is_empty())
            .map(|(name, spec)| format!("{name}:{spec}\n"))
            .collect();
        let count = lines.lines().count();
        info.extend(format!("argspec:lines={count}\n{lines}pattern_type:glob\n").as_bytes());
    }
    info
}

/// `uftrace dump --chrome` copies command line and names into JSON as they are.
fn quotable(text: &str) -> String {
    text.chars()
        .map(|char| match char {
            '"' => '\'',
            '\\' => '/',
            char if !is_printable(char) => ' ',
            char => char,
        })
        .collect()
}

/// The lines of `task.txt` about a task. The first one is that of the session, and starts the others: uftrace
/// shows nobody else, and to browsers it names processes only.
pub(super) fn task(tid: u32, first: u32, module: &str) -> String {
    const START: &str = "timestamp=0.000000000";
    if tid != first {
        return format!("FORK {START} pid={tid} ppid={first}\n");
    }
    format!(
        "SESS {START} pid={tid} sid=0000000000000000 exename=\"{module}\"\n\
         TASK {START} tid={tid} pid={tid}\n"
    )
}

/// The record of [`NAMES_FILE`] that names a task from the first moment on: `PERF_RECORD_COMM`.
pub(super) fn name(tid: u32, name: &str) -> Vec<u8> {
    const COMM: u32 = 3;
    /// With a zero at the end.
    const NAME_LENGTH: usize = 16;
    const LENGTH: u16 = 48;
    let tid = tid.to_le_bytes();
    let name = quotable(name);
    let mut shown = name.as_bytes().to_vec();
    shown.truncate(name.floor_char_boundary(NAME_LENGTH - 1));
    shown.resize(NAME_LENGTH, 0);
    let (kind, time) = (COMM.to_le_bytes(), 0u64.to_le_bytes());
    let header = [&kind[..], &[0, 0], &LENGTH.to_le_bytes()];
    [&header.concat()[..], &tid, &tid, &shown, &tid, &tid, &time].concat()
}

/// What a directory is told of the guest's text.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a> {
    /// Its functions, by number.
    pub functions: &'a [Function],
    /// Where functions that come later end at the latest, if any can come.
    pub limit: Option<Gva>,
}

/// Where the image lies, as far as 48-bit addresses can say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    start: u64,
    end: u64,
}

impl Extent {
    pub fn of(text: Text<'_>) -> Self {
        let functions = text.functions.iter();
        let first = functions.clone().map(|f| truncated(f.address.0)).min();
        let last = functions.map(|f| truncated(f.address.0.saturating_add(f.size)));
        let start = first.unwrap_or(0) / PAGE * PAGE;
        // Functions of modules can come later, above the kernel.
        let limit = text.limit.map(|limit| truncated(limit.0));
        let end = last
            .chain(limit)
            .max()
            .unwrap_or(0)
            .max(start + 1)
            .next_multiple_of(PAGE)
            .min(STACK.0);
        Self {
            // All of them can lie where uftrace has its stack.
            start: start.min(end - PAGE),
            end,
        }
    }

    /// A `sid-….map` file.
    pub fn map(&self, module: &str) -> String {
        format!(
            "{:012x}-{:012x} r-xp 00000000 00:00 0                          {module}\n\
             {:012x}-{:012x} rw-p 00000000 00:00 0                          [stack]\n",
            self.start, self.end, STACK.0, STACK.1
        )
    }

    /// The address of the last byte.
    pub const fn last(&self) -> u64 {
        self.end - 1
    }

    /// The `….sym` file with one more symbol, for the last byte.
    pub fn with_last(&self, symbols: &str, name: &str) -> String {
        let end = symbols.trim_end().rfind('\n').map_or(0, |place| place + 1);
        let (symbols, end) = symbols.split_at(end);
        format!("{symbols}{:016x} T {name}\n{end}", self.last() - self.start)
    }

    /// The `….sym` file: what lies between functions is of none, unless it is no more than fills up to the next one.
    pub fn symbols(&self, functions: &[Function]) -> String {
        let mut functions: Vec<(u64, &str, u64)> = functions
            .iter()
            .map(|f| (truncated(f.address.0), &*f.display, f.size))
            .collect();
        functions.sort_unstable();
        let next = functions.iter().skip(1).map(|(address, ..)| *address);
        let next = next.chain([self.end]);
        let mut text = String::new();
        for ((address, name, size), next) in functions.iter().zip(next) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:016x} T {name}", address.saturating_sub(self.start));
            let end = address.saturating_add(*size);
            if *size > 0 && end.saturating_add(GAP) <= next {
                let _ = writeln!(
                    text,
                    "{:016x} ? {SYMBOL_END}",
                    end.saturating_sub(self.start)
                );
            }
        }
        let _ = writeln!(text, "{:016x} ? {SYMBOL_END}", self.end - self.start);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64) -> Function {
        Function {
            address: Gva(address),
            size: 16,
            display: "f".into(),
            ..Function::default()
        }
    }

    /// Such a file comes from somebody; a guest has nothing there.
    #[test]
    fn functions_where_uftrace_has_its_stack_are_in_the_last_page_before_it() {
        for address in [STACK.0, STACK.0 + PAGE, (1 << 48) - 1, u64::MAX] {
            let functions = [at(address)];
            let text = Text {
                functions: &functions,
                limit: None,
            };
            let extent = Extent::of(text);
            assert_eq!(extent.end, STACK.0);
            assert_eq!(extent.start, STACK.0 - PAGE, "{address:#x}");
            let symbols = extent.symbols(&functions);
            assert!(symbols.contains(" T f\n"), "{symbols}");
            assert!(
                extent
                    .with_last(&symbols, "g")
                    .contains("0000000000000fff T g\n")
            );
        }
    }
}
