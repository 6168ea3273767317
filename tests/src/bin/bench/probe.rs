//! What a probe costs, beside a plain record: the guest's own measurements, in ring 3.

use std::path::Path;

use crate::Failed;
use crate::guest::Guest;
use crate::rounds::{CALLS, Rounds, pairs};
use crate::sample::Samples;
use crate::table::{Row, Target};

/// Rounds in each guest.
const ROUNDS: u64 = 100;
/// Guests of each kind, in turn.
const TURNS: usize = 3;

const TRACED: &str = "bench_leaf_traced";
/// A function that these guests do not call: what is traced beside the probe.
const IDLE: &str = "calls_leaf";

const INTEGERS: &str = "three integers";
/// The three integers of the rows by tactic.
const FETCH: &str = "%rdi:u32 %rsi:u32 %rdx:u32";
/// Where each tactic can be had in the leaf: at its nop, at its longest instruction, and after the nop.
const TACTICS: [(u8, &str, &str); 5] = [
    (1, "the patch site", ""),
    (2, "one instruction displaced", "+0xc"),
    (3, "several displaced", "+0x5"),
    (4, "a hop", "+0x5"),
    (5, "a breakpoint of the guest", "+0x5"),
];
/// A breakpoint is so slow that fewer calls do.
const BREAKPOINTS: u64 = 200;

/// What is captured, and what a row calls that. The first is a record without a value. The first 16 bytes of the
/// function `xmm_save` are none of them zero.
const PROBES: [(&str, &str); 7] = [
    ("probe", ""),
    (INTEGERS, FETCH),
    ("three words", "%rdi %rsi %rdx"),
    ("condition false", "%rdi if %rdi == 0x123456789abcdef"),
    ("a word of the stack", "word=*(%rsp):x64"),
    (
        "a word through a pointer",
        "word=*(%rbx-%rbx+0xffffffff81430000):x64",
    ),
    ("a string of 16 bytes", "text=&xmm_save:string[16]"),
];

/// Rows about a probe at the site of a function.
pub fn rows(place: &Path, ghz: f64) -> Result<Vec<Row>, Failed> {
    let mut plain = Rounds::default();
    let mut probed: Vec<Rounds> = PROBES.iter().map(|_| Rounds::default()).collect();
    for _ in 0..TURNS {
        let function = ["--trace", "function", "--filter", TRACED];
        plain.collect(boot(place, &function)?, 0)?;
        for ((_, captured), rounds) in PROBES.iter().zip(&mut probed) {
            let probe = format!("{TRACED} {captured}");
            let arguments = ["--trace", "function", "--filter", IDLE, "--probe", &probe];
            rounds.collect(boot(place, &arguments)?, 0)?;
        }
    }
    let added = |rounds: &Rounds| -> Result<Samples, Failed> {
        let cycles = rounds.added(TRACED)?;
        Ok(cycles.into_iter().map(|cycles| cycles / ghz).collect())
    };
    let function = added(&plain)?;
    let mut rows = vec![Row::median(
        "function: added",
        "ns",
        &function,
        Target::None,
    )];
    let values = probed
        .iter()
        .zip(PROBES)
        .find(|(_, (name, _))| *name == INTEGERS);
    if let (Some((values, _)), Some(record)) = (values, probed.first()) {
        let title = format!("probe, {INTEGERS}");
        rows.extend(more(values, record, &title, ghz)?);
    }
    for ((name, _), rounds) in PROBES.iter().zip(&probed) {
        let target = match *name {
            "condition false" => Target::AtMost(2.0),
            _ => Target::None,
        };
        let title = match *name {
            "probe" => "probe: added".to_owned(),
            name => format!("probe, {name}: added"),
        };
        rows.push(Row::median(title, "ns", &added(rounds)?, target));
    }
    rows.extend(untimed(place, ghz)?);
    rows.extend(tactics(place, ghz)?);
    Ok(rows)
}

/// What values cost over a record without, in time and as a share of that record.
fn more(with: &Rounds, without: &Rounds, title: &str, ghz: f64) -> Result<[Row; 2], Failed> {
    let (with, without) = (with.added(TRACED)?, without.added(TRACED)?);
    let time = pairs(&with, &without).map(|(with, without)| (with - without) / ghz);
    let share = pairs(&with, &without).map(|(with, without)| (with - without) / without);
    let title = format!("{title}: over a record without");
    Ok([
        Row::median(title.clone(), "ns", &time.collect(), Target::None),
        Row::median(title, "x", &share.collect(), Target::AtMost(0.3)),
    ])
}

/// What three integers cost where no time stamp hides it: in records of the usual size, and in small ones, of which
/// more stay in the cache.
fn untimed(place: &Path, ghz: f64) -> Result<Vec<Row>, Failed> {
    let mut rows = Vec::new();
    for bytes in ["256", "64"] {
        let [mut with, mut without] = [Rounds::default(), Rounds::default()];
        for _ in 0..TURNS {
            for (fetch, rounds) in [(FETCH, &mut with), ("", &mut without)] {
                let probe = format!("{TRACED} {fetch}");
                let clock = ["--clock", "none", "--record-bytes", bytes];
                let arguments = [&clock[..], &["--probe", &probe]].concat();
                rounds.collect(boot(place, &arguments)?, 0)?;
            }
        }
        let title = format!("probe, {INTEGERS}, no time, {bytes} bytes a record");
        rows.extend(more(&with, &without, &title, ghz)?);
    }
    Ok(rows)
}

/// Rows about the ways in which a probe gets into the text.
fn tactics(place: &Path, ghz: f64) -> Result<Vec<Row>, Failed> {
    let mut rounds: Vec<Rounds> = TACTICS.iter().map(|_| Rounds::default()).collect();
    for _ in 0..TURNS {
        for ((number, _, offset), rounds) in TACTICS.iter().zip(&mut rounds) {
            let probe = format!("{TRACED}{offset} {FETCH}");
            let number = number.to_string();
            let arguments = ["--probe", &probe, "--probe-tactic", &number];
            let calls = if number == "5" { BREAKPOINTS } else { CALLS };
            rounds.collect(boot_with(place, calls, &arguments)?, 0)?;
        }
    }
    let mut rows = Vec::new();
    for ((number, name, _), rounds) in TACTICS.iter().zip(&rounds) {
        let cycles = rounds.added(TRACED)?.into_iter();
        let added: Samples = cycles.map(|cycles| cycles / ghz).collect();
        let title = format!("probe, {INTEGERS}, tactic {number} ({name}): added");
        rows.push(Row::median(title, "ns", &added, Target::None));
    }
    if let [.., several, _, breakpoint] = &*rounds {
        let (stub, trap) = (several.added(TRACED)?, breakpoint.added(TRACED)?);
        let times: Samples = pairs(&trap, &stub)
            .map(|(trap, stub)| trap / stub)
            .collect();
        let title = "probe: a breakpoint's cost over a jump's (tactic 5 over 3)";
        rows.push(Row::median(title, "times", &times, Target::None));
    }
    Ok(rows)
}

fn boot(place: &Path, arguments: &[&str]) -> Result<Guest, Failed> {
    boot_with(place, CALLS, arguments)
}

fn boot_with(place: &Path, calls: u64, arguments: &[&str]) -> Result<Guest, Failed> {
    let cmdline = format!("workload=bench iterations={calls} rounds={ROUNDS}");
    Guest::boot(place, 1, &cmdline, arguments)
}
