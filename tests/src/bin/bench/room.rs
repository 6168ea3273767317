//! What a session costs that waits for its reader at full rings, beside one that loses records there, while its rings have room.

use std::path::Path;

use crate::Failed;
use crate::guest::Guest;
use crate::rounds::{CALLS, Rounds, ratio};
use crate::sample::Samples;
use crate::table::{Row, Target};

/// Loops of each leaf in each guest, of which the first do not count. Each makes its records in memory that no other has used.
const ROUNDS: u64 = 40;
const FIRST: usize = 5;
/// Guests of each kind, in turn.
const TURNS: usize = 3;
const TRACED: &str = "bench_leaf_traced";
/// KiB of a ring that holds all records of a guest, whether its reader comes or not.
const RING: &str = "131072";
const MODES: [&str; 2] = ["discard", "lossless"];
/// Tracer, clock, and how rows name them.
const KINDS: [(&str, &str, &str); 4] = [
    ("function", "tsc", "function"),
    ("function", "none", "function, no time"),
    ("graph", "tsc", "graph"),
    ("graph", "none", "graph, no time"),
];

/// Rows about one vCPU, each kind in both modes.
pub fn rows(place: &Path, tsc_ghz: f64) -> Result<Vec<Row>, Failed> {
    let mut rows = Vec::new();
    for (tracer, clock, title) in KINDS {
        let mut measured = [Rounds::default(), Rounds::default()];
        for _ in 0..TURNS {
            for (mode, rounds) in MODES.iter().zip(&mut measured) {
                let how = ["--trace", tracer, "--clock", clock, "--mode", mode];
                run(place, &how, rounds)?;
            }
        }
        let [discard, lossless] = measured.each_ref().map(|rounds| rounds.added(TRACED));
        let (discard, lossless) = (discard?, lossless?);
        let ns = |cycles: &[f64]| cycles.iter().map(|one| one / tsc_ghz).collect::<Samples>();
        for (mode, cycles) in MODES.iter().zip([&discard, &lossless]) {
            let title = format!("{title}, {mode} with room: added");
            rows.push(Row::median(title, "ns", &ns(cycles), Target::None));
        }
        let title = format!("{title}, with room: lossless against discard");
        let against = ratio(&lossless, &discard);
        rows.push(Row::median(title, "x", &against, Target::None));
    }
    Ok(rows)
}

/// A guest whose rings are read into a compact trace, and what it measured.
fn run(place: &Path, how: &[&str], rounds: &mut Rounds) -> Result<(), Failed> {
    let cmdline = format!("workload=bench iterations={CALLS} rounds={ROUNDS}");
    let output = place.join("room");
    let kept = output.to_str().ok_or("a path that is no text")?;
    let what = ["--filter", TRACED, "--ring-size", RING];
    let into = ["--store", "compact", "--output", kept];
    let guest = Guest::boot(place, 1, &cmdline, &[how, &what, &into].concat())?;
    rounds.collect(guest, FIRST)?;
    Ok(std::fs::remove_dir_all(output)?)
}
