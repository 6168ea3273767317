//! The same leaf and the same tree in a guest, traced by us.

use std::path::Path;

use tests::measure::Failed;
use tests::measure::guest::{Guest, beside_this};
use tests::starts_vmm;

use crate::tools::{Kept, bytes_below};

/// A way of ours.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// Its name in the table.
    pub title: &'static str,
    /// Events of a call.
    pub events: u64,
    /// Calls in each loop, and loops.
    pub calls: [u64; 2],
    /// What is done with what is traced.
    pub how: &'static [&'static str],
    /// What is traced of the leaf's guest.
    pub leaf: &'static [&'static str],
    /// The same of the tree's, if it is traced.
    pub tree: &'static [&'static str],
    /// Whether its vCPU waits for the reader, who writes a compact trace, in a time that the guest sees.
    pub is_lossless: bool,
}

/// Bytes of a record in a trace directory.
const RECORD: u64 = 16;
const MANY: [u64; 2] = [20_000, 60];
/// The first loops touch the ring's pages for the first time, of which a guest's are made then: they do not count.
pub const FIRST: usize = 20;

/// All of them; others are compared with the first that has as many events of a call.
pub const WAYS: [Way; 7] = [
    of_functions("exotrace function", 1, &["--trace", "function"]),
    of_functions("exotrace graph", 2, &["--trace", "graph"]),
    of_functions(
        "exotrace function, no time",
        1,
        &["--trace", "function", "--clock", "none"],
    ),
    of_functions(
        "exotrace graph, no time",
        2,
        &["--trace", "graph", "--clock", "none"],
    ),
    Way {
        title: "exotrace, a breakpoint of the guest instead of a jump",
        events: 1,
        calls: [200, 40],
        how: &["--probe-tactic", "5"],
        leaf: &["--probe", "bench_leaf_traced+0x5"],
        tree: &[],
        is_lossless: false,
    },
    Way {
        is_lossless: true,
        ..of_functions(
            "exotrace graph, lossless, compact",
            2,
            &["--trace", "graph"],
        )
    },
    Way {
        is_lossless: true,
        ..of_functions(
            "exotrace graph, no time, lossless, compact",
            2,
            &["--trace", "graph", "--clock", "none"],
        )
    },
];

/// The leaf, and all functions of the tree.
const fn of_functions(title: &'static str, events: u64, how: &'static [&'static str]) -> Way {
    Way {
        title,
        events,
        calls: MANY,
        how,
        leaf: &["--filter", "bench_leaf_traced"],
        tree: &["--filter", "calls_*"],
        is_lossless: false,
    }
}

/// What a way has beside what it traces that loses nothing.
const LOSSLESS: [&str; 6] = [
    "--mode",
    "lossless",
    "--wait-time",
    "visible",
    "--store",
    "compact",
];

impl Way {
    /// What the guest of the leaf printed, and that of the tree; and what was kept of both.
    pub fn run(&self, place: &Path) -> Result<([Vec<String>; 2], Kept), Failed> {
        let [calls, rounds] = self.calls;
        let mut kept = Kept {
            events: 0,
            bytes: 0,
        };
        let mut boot = |workload: &str, what: &[&str]| -> Result<Vec<String>, Failed> {
            let cmdline = format!("workload={workload} iterations={calls} rounds={rounds}");
            let directory = tempfile::tempdir_in(place)?;
            let output = directory.path().to_string_lossy().into_owned();
            let mode: &[&str] = if self.is_lossless { &LOSSLESS } else { &[] };
            let into = ["--output", &output, "--force"];
            let arguments = [self.how, what, mode, &into].concat();
            let lines = Guest::boot(place, 1, &cmdline, &arguments)?.finish()?;
            let new = match self.is_lossless {
                true => kept_compact(directory.path())?,
                false => kept_in_directory(directory.path())?,
            };
            kept.events += new.events;
            kept.bytes += new.bytes;
            Ok(lines)
        };
        let leaf = boot("bench", self.leaf)?;
        let tree = match self.tree {
            [] => Vec::new(),
            tree => boot("bench_tree", tree)?,
        };
        Ok(([leaf, tree], kept))
    }
}

/// Of calls in a directory in uftrace's format.
fn kept_in_directory(directory: &Path) -> Result<Kept, Failed> {
    let records = bytes_below(directory, Some("dat"))?;
    let sides = bytes_below(directory, Some("side"))?;
    Ok(Kept {
        events: records / RECORD,
        bytes: records + sides,
    })
}

/// Of a compact trace: its bytes, and the events that it has as such a directory.
fn kept_compact(directory: &Path) -> Result<Kept, Failed> {
    let bytes = bytes_below(directory, Some("exo"))?;
    let whole = directory.join("whole");
    let mut export = starts_vmm(beside_this("vmm")?);
    let export = export.args(["export", "--format", "uftrace", "-o"]);
    if !export.arg(&whole).arg(directory).status()?.success() {
        return Err("a compact trace could not be exported".into());
    }
    let events = kept_in_directory(&whole)?.events;
    Ok(Kept { events, bytes })
}
