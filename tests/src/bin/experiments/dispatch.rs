//! 5: from a tracepoint to its callbacks, without and with retpolines.

use tests::measure::Failed;
use tests::measure::rounds::{Rounds, pairs, ratio};
use tests::measure::sample::Samples;

use crate::Bench;
use crate::experiment::{Experiment, Finding, Plot, Row, Verdict};

const WAYS: [(&str, &str); 4] = [
    ("direct", "direct: one retargeted jump"),
    ("pointer", "function pointer"),
    ("iterator1", "iterator, 1 callback"),
    ("iterator2", "iterator, 2 callbacks"),
];
const BUILDS: [&str; 2] = ["plain", "retpoline"];
const MESSAGES: &str = "workload=messages iterations=60000 rounds=9 tick=100000";
const EVENTS: [&str; 2] = ["message_sent", "message_received"];

pub fn experiment(bench: Bench<'_>) -> Result<Experiment, Failed> {
    let rounds = bench.measure("workload=micro_dispatch iterations=200000 rounds=15", &[])?;
    let mut rows = Vec::new();
    for build in BUILDS {
        for (way, name) in WAYS {
            let added = added(&rounds, build, way)?.scaled(|cycles| bench.ns(cycles));
            rows.push(Row::of(format!("{build}: {name}"), "ns added", added));
        }
    }
    let (on, message) = messages(bench)?;
    let percent = on.median();
    rows.push(
        Row::of(
            "messages, their tracepoints on and recorded by a stub",
            "% of the time",
            on,
        )
        .beside("+8.9 % iterator with retpolines, +3 % direct, −0.6 % direct without"),
    );
    rows.push(Row::not_run(
        "messages, their tracepoints on, through the iterator with retpolines",
        "% of the time",
        "the guest's Rust code is built without retpolines",
    ));
    let ns =
        |build, way| -> Result<f64, Failed> { Ok(bench.ns(added(&rounds, build, way)?.median())) };
    let (plain, thunk) = (ns("plain", "iterator1")?, ns("retpoline", "iterator1")?);
    let (direct, direct_thunk) = (ns("plain", "direct")?, ns("retpoline", "direct")?);
    Ok(Experiment {
        number: 5,
        title: "Dispatch of tracepoints",
        method: "A loop that passes a place: with its nop as the base, with a call through a retargeted jump, through a pointer, \
                 through the iterator; the same C code with -mindirect-branch=thunk. Then the message-passing workload with its \
                 tracepoints on.",
        seed: "Rostedt, 2018 (S1): with retpolines and all tracepoints on hackbench takes 8.9 % more time, with direct calls 3 %; \
               without retpolines direct calls save 0.6 %.",
        rows,
        finding: Finding {
            verdict: Verdict::of(&[thunk > direct_thunk + 1.0, (plain - direct).abs() < 3.0]),
            text: format!(
                "With retpolines the iterator adds {thunk:.1} ns to a pass, a direct call {direct_thunk:.1} ns; without them it is \
                 {plain:.1} ns against {direct:.1} ns. Recording both tracepoints of each message adds {percent:.0} % to one that takes \
                 {message:.0} ns, sent and received: hackbench's take microseconds."
            ),
        },
        plot: Plot::Bars { unit: "ns added" },
    })
}

/// Cycles that a pass takes longer than the nop in the same build.
fn added(rounds: &Rounds, build: &str, way: &str) -> Result<Samples, Failed> {
    let of = |way: &str| rounds.of(&format!("dispatch.{build}.{way}"));
    Ok(pairs(of(way)?, of("off")?)
        .map(|(with, without)| with - without)
        .collect())
}

/// How much longer the messages take with their tracepoints on, in per cent, and how many nanoseconds one
/// takes without.
fn messages(bench: Bench<'_>) -> Result<(Samples, f64), Failed> {
    let off = bench.measure(MESSAGES, &[])?;
    let arguments: Vec<&str> = EVENTS.iter().flat_map(|event| ["--event", event]).collect();
    let on = bench.measure(MESSAGES, &[&["--trace", "nop"], &*arguments].concat())?;
    let times = ratio(on.of("messages")?, off.of("messages")?);
    let alone: Samples = off.of("messages")?.iter().copied().collect();
    let percent = times.scaled(|times| (times - 1.0) * 100.0);
    Ok((percent, bench.ns(alone.median())))
}
