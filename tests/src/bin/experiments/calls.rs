//! 2: a call that returns at once, against nops and frame pointers.

use tests::measure::Failed;
use tests::measure::rounds::{Rounds, ratio};
use tests::measure::sample::Samples;

use crate::Bench;
use crate::experiment::{Experiment, Finding, Plot, Row, Verdict};

const BUILDS: [(&str, &str, &str); 5] = [
    (
        "mcount-call",
        "-pg, the call left in: returns at once",
        "+15 to 18 %",
    ),
    ("fentry-call", "-pg -mfentry, the call left in", ""),
    (
        "mcount-nop",
        "-pg, its calls made nops (frame pointers remain)",
        "in the noise",
    ),
    ("fentry-nop", "-pg -mfentry, its calls made nops", ""),
    ("frame", "no -pg, frame pointers", ""),
];

/// Differences of per cent that say nothing.
const NOISE: f64 = 2.0;

pub fn experiment(bench: Bench<'_>) -> Result<Experiment, Failed> {
    let rounds = bench.measure("workload=micro_calls iterations=20000 rounds=15", &[])?;
    let mut rows = Vec::new();
    for (build, name, seed) in BUILDS {
        rows.push(Row::of(name, "% of the program", percent(&rounds, build)?).beside(seed));
    }
    let of = |build| Ok::<_, Failed>(percent(&rounds, build)?.median());
    let (call, nop) = (of("mcount-call")?, of("mcount-nop")?);
    let (fentry, frame) = (of("fentry-nop")?, of("frame")?);
    Ok(Experiment {
        number: 2,
        title: "A call that returns at once; mcount, fentry, frame pointers",
        method: "One C program of 21 small calls in six builds, without instrumentation as the base. The nops were put \
                 there before the guest ran, as always.",
        year: 2008,
        seed: "Rostedt, 2008 (S4b, S4i): calls of an mcount that only returns cost 15 to 18 %; nops are in the noise; what \
               -pg still costs then is its frame pointers.",
        rows,
        finding: Finding {
            verdict: Verdict::of(&[
                call > nop + NOISE,
                fentry.abs() < NOISE,
                nop > fentry + NOISE,
            ]),
            text: format!(
                "The calls cost {call:+.1} %, the nops after frame pointers {nop:+.1} %, nops at the entry {fentry:+.1} %, \
                 frame pointers alone {frame:+.1} %; less than {NOISE} % says nothing here. These functions are smaller than a \
                 kernel's, so all shares are larger."
            ),
        },
        plot: Plot::Bars {
            unit: "% of the program",
        },
    })
}

/// How much longer than the base, round by round.
fn percent(rounds: &Rounds, build: &str) -> Result<Samples, Failed> {
    let of = |build: &str| rounds.of(&format!("calls.{build}"));
    Ok(ratio(of(build)?, of("base")?).scaled(|times| (times - 1.0) * 100.0))
}
