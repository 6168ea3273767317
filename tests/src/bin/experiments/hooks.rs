//! 3: ways to hook returns.

use tests::measure::Failed;
use tests::measure::rounds::{Rounds, pairs};
use tests::measure::sample::Samples;

use crate::Bench;
use crate::experiment::{Experiment, Finding, Plot, Row, Verdict};

const HOOKS: [(&str, &str); 3] = [
    ("ret", "3 calls, 4 returns: the base"),
    ("jmp", "1.7 % and 0.3 % faster as a whole"),
    ("balanced", ""),
];
const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];

pub fn experiment(bench: Bench<'_>) -> Result<Experiment, Failed> {
    let mut rows = Vec::new();
    let mut series = Vec::new();
    let mut medians = Vec::new();
    for (hook, seed) in HOOKS {
        let arguments = [
            "--trace",
            "graph",
            "--clock",
            "none",
            "--filter",
            "micro_nested",
        ];
        let arguments = [&arguments[..], &["--return-hook", hook]].concat();
        let rounds = bench.measure(
            "workload=micro_depth iterations=200000 rounds=7",
            &arguments,
        )?;
        let mut points = Vec::new();
        for depth in DEPTHS {
            let added = added(&rounds, depth)?.scaled(|cycles| bench.ns(cycles));
            points.push((f64::from(depth), added.median()));
            rows.push(
                Row::of(format!("{hook}, {depth} deep"), "ns added", added).beside(if depth == 1 {
                    seed
                } else {
                    ""
                }),
            );
        }
        medians.push(points.iter().map(|(_, ns)| *ns).collect::<Vec<_>>());
        series.push((hook.to_owned(), points));
    }
    Ok(Experiment {
        number: 3,
        title: "Ways to hook returns",
        method: "A function that calls itself, traced with entry and exit records but no times, against the same function \
                 without instrumentation; nanoseconds added to each call.",
        year: 2009,
        seed: "Rostedt, October 2009 (S0): leaving the hook by jmp instead of ret keeps calls and returns balanced; 1.7 % and \
               0.3 % on two machines, never slower.",
        rows,
        finding: finding(&medians),
        plot: Plot::Lines {
            over: "calls deep",
            unit: "ns added to a call",
            series,
        },
    })
}

fn added(rounds: &Rounds, depth: u32) -> Result<Samples, Failed> {
    let of = |name| rounds.of(&format!("depth.{name}.{depth}"));
    Ok(pairs(of("traced")?, of("plain")?)
        .map(|(traced, plain)| traced - plain)
        .collect())
}

fn finding(medians: &[Vec<f64>]) -> Finding {
    let [ret, jmp, balanced] = medians else {
        return Finding {
            verdict: Verdict::Undecided,
            text: "not all hooks were measured".to_owned(),
        };
    };
    let faster: Vec<bool> = jmp.iter().zip(ret).map(|(jmp, ret)| jmp < ret).collect();
    let range = |values: &[f64]| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        format!("{least:.1} to {most:.1} ns")
    };
    Finding {
        verdict: Verdict::of(&faster),
        text: format!(
            "jmp is faster than ret at {} of {} depths: over all of them ret adds {}, jmp {}, and a stub that calls the body \
             and returns, so that every return is predicted, {}.",
            faster.iter().filter(|faster| **faster).count(),
            faster.len(),
            range(ret),
            range(jmp),
            range(balanced)
        ),
    }
}
