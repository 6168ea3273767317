//! 1: what stands at a function's entry while nobody traces it.

use tests::measure::Failed;
use tests::measure::rounds::{Rounds, pairs};
use tests::measure::sample::Samples;

use crate::Bench;
use crate::experiment::{Experiment, Finding, Plot, Row, Verdict};

/// Name in the guest, for people, and what the seed measured on an AMD64 in 2008, in cycles over none.
const VARIANTS: [(&str, &str, &str); 7] = [
    ("jmp2", "2-byte jmp", "+0.49 cycles hot"),
    ("jmp5", "5-byte jmp", "+0.49 cycles hot"),
    ("nop3+2", "3+2 byte nops", "+1.49 cycles hot"),
    ("nop66", "66 66 66 66 90", "+0.49 cycles hot"),
    ("p6", "P6 nop 0f 1f 44 00 00", "+0.49 cycles hot"),
    ("llvm", "LLVM's nop 0f 1f 44 00 08", ""),
    ("call", "call that returns at once", ""),
];
/// Differences of nanoseconds that say nothing.
const NOISE: f64 = 0.05;
/// Sites in the crowded line.
const CROWD: f64 = 10.0;

pub fn experiment(bench: Bench<'_>) -> Result<Experiment, Failed> {
    let rounds = bench.measure("workload=micro_nops iterations=200000 rounds=9", &[])?;
    let mut rows = Vec::new();
    for (place, sites, title) in [
        ("hot", 1.0, "hot loop"),
        ("crowded", CROWD, "10 in one line, each"),
        ("cold", 1.0, "8 MiB of text in no order"),
    ] {
        for (variant, name, seed) in VARIANTS {
            let added = added(&rounds, place, variant)?;
            let added = added.scaled(|cycles| bench.ns(cycles) / sites);
            let seed = if place == "hot" { seed } else { "" };
            rows.push(Row::of(format!("{title}: {name}"), "ns added", added).beside(seed));
        }
    }
    let finding = finding(bench, &rounds)?;
    Ok(Experiment {
        number: 1,
        title: "Nops at function entries",
        method: "The same function with each candidate at its entry, put at the same address at run time; called in a loop, \
                 with ten sites in its cache line, and as one of 131,072 functions that are called in no order.",
        year: 2008,
        seed: "Desnoyers, Rostedt, Torvalds, August 2008 (S4d): jumps cost more than nops, because they take up branch \
               prediction; one 5-byte nop is as good as two nops or better; whatever it is, the difference is small.",
        rows,
        finding,
        plot: Plot::Bars { unit: "ns added" },
    })
}

/// Cycles that a call takes longer than without a site, round by round.
fn added(rounds: &Rounds, place: &str, variant: &str) -> Result<Samples, Failed> {
    let of = |variant: &str| rounds.of(&format!("nops.{place}.{variant}"));
    Ok(pairs(of(variant)?, of("none")?)
        .map(|(with, without)| with - without)
        .collect())
}

fn finding(bench: Bench<'_>, rounds: &Rounds) -> Result<Finding, Failed> {
    let ns = |variant| -> Result<f64, Failed> {
        Ok(bench.ns(added(rounds, "crowded", variant)?.median()) / CROWD)
    };
    let (jump, two, p6, prefixed) = (ns("jmp2")?, ns("nop3+2")?, ns("p6")?, ns("nop66")?);
    let one = p6.max(prefixed);
    Ok(Finding {
        verdict: Verdict::of(&[jump > one + NOISE, one <= two + NOISE]),
        text: format!(
            "Where many sites share a line, a jump costs {jump:.2} ns, the 3+2 nops {two:.2} ns, the P6 nop {p6:.2} ns and \
             66 66 66 66 90 {prefixed:.2} ns."
        ),
    })
}
