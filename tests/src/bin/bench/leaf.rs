//! What a traced call costs: the guest's own measurements, in ring 3.

use std::collections::HashMap;
use std::path::Path;

use crate::Failed;
use crate::guest::Guest;
use crate::sample::Samples;
use crate::table::{Row, Target};

/// Calls in each timed loop.
const CALLS: u64 = 2_000_000;
/// Rounds in each guest.
const ROUNDS: u64 = 7;
/// Guests with one clock and with the other, in turn.
const TURNS: usize = 3;

const TRACE: [&str; 4] = ["--trace", "function", "--filter", "bench_leaf_traced"];

/// Cycles per call of each leaf, one value per round.
type Rounds = HashMap<String, Vec<f64>>;

/// Rows about one vCPU, then about two against one.
pub fn rows(place: &Path, tsc_ghz: f64) -> Result<Vec<Row>, Failed> {
    let mut timed = Rounds::new();
    let mut untimed = Rounds::new();
    let mut together = Rounds::new();
    for _ in 0..TURNS {
        bench(place, "tsc", &mut timed)?;
        bench(place, "none", &mut untimed)?;
        bench_smp(place, &mut together)?;
    }
    let mut rows = one_vcpu(&timed, &untimed, tsc_ghz)?;
    rows.extend(two_vcpus(&together, tsc_ghz)?);
    Ok(rows)
}

fn one_vcpu(timed: &Rounds, untimed: &Rounds, ghz: f64) -> Result<Vec<Row>, Failed> {
    let plain = column(timed, "bench_leaf_plain")?;
    let nop = column(timed, "bench_leaf_nop")?;
    let traced = column(timed, "bench_leaf_traced")?;
    let rdtsc = column(timed, "bench_leaf_rdtsc")?;
    let plain_then = column(untimed, "bench_leaf_plain")?;
    let traced_then = column(untimed, "bench_leaf_traced")?;
    let added = |with: &[f64], without: &[f64]| -> Samples {
        pairs(with, without)
            .map(|(with, without)| (with - without) / ghz)
            .collect()
    };
    let ratio: Samples = pairs(
        &pairs(traced, plain).map(|(a, b)| a - b).collect::<Vec<_>>(),
        &pairs(rdtsc, plain).map(|(a, b)| a - b).collect::<Vec<_>>(),
    )
    .map(|(stub, rdtsc)| stub / rdtsc)
    .collect();
    let plain_ns: Samples = plain.iter().map(|cycles| cycles / ghz).collect();
    let idle: Samples = pairs(nop, plain).map(|(nop, plain)| nop / plain).collect();
    Ok(vec![
        Row::median(
            "call of a leaf without instrumentation",
            "ns",
            &plain_ns,
            Target::None,
        ),
        Row::median(
            "the same with a nop, against without",
            "x",
            &idle,
            Target::AtMost(1.02),
        ),
        Row::median("traced: added", "ns", &added(traced, plain), Target::None),
        Row::median(
            "rdtsc in the leaf: added",
            "ns",
            &added(rdtsc, plain),
            Target::None,
        ),
        Row::median(
            "added by tracing against added by rdtsc",
            "x",
            &ratio,
            Target::AtMost(1.15),
        ),
        Row::median(
            "traced without a time: added",
            "ns",
            &added(traced_then, plain_then),
            Target::None,
        ),
    ])
}

fn two_vcpus(rounds: &Rounds, ghz: f64) -> Result<Vec<Row>, Failed> {
    let solo = column(rounds, "solo 0")?;
    let rates = |cycles: &[f64]| -> Vec<f64> { cycles.iter().map(|one| ghz * 1e3 / one).collect() };
    let alone = rates(solo);
    let both: Vec<f64> = pairs(
        &rates(column(rounds, "smp 0")?),
        &rates(column(rounds, "smp 1")?),
    )
    .map(|(first, second)| first + second)
    .collect();
    let scaling: Samples = pairs(&both, &alone)
        .map(|(both, alone)| both / alone)
        .collect();
    let alone: Samples = alone.into_iter().collect();
    Ok(vec![
        Row::median("events of 1 vCPU", "M/s", &alone, Target::None),
        Row::median(
            "events of 2 vCPUs",
            "M/s",
            &both.into_iter().collect(),
            Target::None,
        ),
        Row::median(
            "events of 2 vCPUs against 1",
            "x",
            &scaling,
            Target::AtLeast(1.9),
        ),
    ])
}

fn pairs<'a>(one: &'a [f64], other: &'a [f64]) -> impl Iterator<Item = (f64, f64)> + 'a {
    one.iter().copied().zip(other.iter().copied())
}

fn column<'a>(rounds: &'a Rounds, name: &str) -> Result<&'a [f64], Failed> {
    match rounds.get(name) {
        Some(column) => Ok(column),
        None => Err(format!("the guest measured no '{name}'").into()),
    }
}

fn bench(place: &Path, clock: &str, rounds: &mut Rounds) -> Result<(), Failed> {
    let cmdline = format!("workload=bench iterations={CALLS} rounds={ROUNDS}");
    let arguments = [&TRACE[..], &["--clock", clock]].concat();
    let guest = Guest::boot(place, 1, &cmdline, &arguments)?;
    collect(guest, rounds)
}

fn bench_smp(place: &Path, rounds: &mut Rounds) -> Result<(), Failed> {
    let cmdline = format!("workload=bench_smp iterations={CALLS} rounds={ROUNDS}");
    collect(Guest::boot(place, 2, &cmdline, &TRACE)?, rounds)
}

/// Reads the lines `bench NAME CALLS CYCLES`; the name may be two words.
fn collect(guest: Guest, rounds: &mut Rounds) -> Result<(), Failed> {
    for line in guest.finish()? {
        let Some(result) = line.strip_prefix("bench ") else {
            continue;
        };
        let mut words = result.trim().rsplitn(3, ' ');
        let (Some(cycles), Some(calls), Some(name)) = (words.next(), words.next(), words.next())
        else {
            return Err(format!("not a measurement: {line}").into());
        };
        let per_call = cycles.parse::<f64>()? / calls.parse::<f64>()?;
        rounds.entry(name.to_owned()).or_default().push(per_call);
    }
    Ok(())
}
