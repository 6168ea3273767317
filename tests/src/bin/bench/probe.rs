//! What a probe costs, beside a plain record: the guest's own measurements, in ring 3.

use std::path::Path;

use crate::Failed;
use crate::guest::Guest;
use crate::rounds::{CALLS, Rounds, pairs};
use crate::sample::Samples;
use crate::table::{Row, Target};

/// Rounds in each guest.
const ROUNDS: u64 = 5;
/// Guests of each kind, in turn.
const TURNS: usize = 3;

const TRACED: &str = "bench_leaf_traced";
/// A function that these guests do not call: what is traced beside the probe.
const IDLE: &str = "calls_leaf";

const INTEGERS: &str = "three integers";

/// What is captured, and what a row calls that. The first is a record without a value.
const PROBES: [(&str, &str); 6] = [
    ("probe", ""),
    (INTEGERS, "%rdi:u32 %rsi:u32 %rdx:u32"),
    ("three words", "%rdi %rsi %rdx"),
    ("condition false", "%rdi if %rdi == 0x123456789abcdef"),
    ("a word of the stack", "word=*(%rsp):x64"),
    (
        "a word behind a pointer",
        "word=*(%rbx-%rbx+0xffffffff81430000):x64",
    ),
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
        let (values, record) = (values.added(TRACED)?, record.added(TRACED)?);
        let more = pairs(&values, &record).map(|(with, without)| (with - without) / ghz);
        let title = format!("probe, {INTEGERS}: over a record without");
        rows.push(Row::median(
            title,
            "ns",
            &more.collect(),
            Target::AtMost(2.0),
        ));
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
    Ok(rows)
}

fn boot(place: &Path, arguments: &[&str]) -> Result<Guest, Failed> {
    let cmdline = format!("workload=bench iterations={CALLS} rounds={ROUNDS}");
    Guest::boot(place, 1, &cmdline, arguments)
}
