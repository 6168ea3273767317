//! 6: lock prefixes where one vCPU runs alone.

use tests::measure::Failed;
use tests::measure::rounds::{Rounds, ratio};
use tests::measure::sample::Samples;

use crate::Bench;
use crate::experiment::{Experiment, Finding, Plot, Row, Verdict};

const PREFIXES: [(&str, &str, &str); 4] = [
    ("lock", "lock xadd", "53 cycles a round (Pentium II)"),
    ("ds", "DS xadd", "34 cycles a round"),
    ("nop", "nop; xadd", "34 cycles a round"),
    ("none", "xadd", ""),
];
const MESSAGES: &str = "workload=messages iterations=60000 rounds=9 tick=100000";

pub fn experiment(bench: Bench<'_>) -> Result<Experiment, Failed> {
    let micro = bench.measure("workload=micro_locks iterations=200000 rounds=15", &[])?;
    let mut rows = Vec::new();
    for (prefix, name, seed) in PREFIXES {
        let cycles = micro.of(&format!("locks.{prefix}"))?;
        let ns: Samples = cycles.iter().map(|cycles| bench.ns(*cycles)).collect();
        rows.push(Row::of(format!("{name}, call and loop included"), "ns", ns).beside(seed));
    }
    let saved = messages(bench)?;
    let percent = saved.median();
    rows.push(
        Row::of(
            "messages between threads, DS against lock",
            "% of the time",
            saved,
        )
        .beside("hackbench −25 %, kernel build −2.8 %"),
    );
    let nop_against_ds = ratio(micro.of("locks.nop")?, micro.of("locks.ds")?).median();
    let lock = ratio(micro.of("locks.lock")?, micro.of("locks.ds")?).median();
    Ok(Experiment {
        number: 6,
        title: "Lock, DS and nop prefixes on one vCPU",
        method: "One read-modify-write instruction in a function that is called in a loop; then the message-passing workload \
                 on one vCPU, whose recorded lock prefixes the VMM leaves on or replaces by DS before the guest runs.",
        year: 2008,
        seed: "Fitzhardinge, Desnoyers, August 2008 (S4h): without locks a kernel build takes 2.8 % less, hackbench 25 %; DS \
               costs no more than a nop, and is safe where a thread can be preempted between nop and instruction.",
        rows,
        finding: Finding {
            verdict: Verdict::of(&[lock > 1.1, percent < -1.0, nop_against_ds > 0.9]),
            text: format!(
                "The locked instruction takes {lock:.2} times as long as the one with DS, the one after a nop {nop_against_ds:.2} \
                 times; without locks the messages take {percent:+.1} %."
            ),
        },
        plot: Plot::Bars { unit: "ns" },
    })
}

/// How much longer the messages take without locks than with them, in per cent, in turn.
fn messages(bench: Bench<'_>) -> Result<Samples, Failed> {
    let off: Rounds = bench.measure(MESSAGES, &["--smp-locks", "off"])?;
    let on: Rounds = bench.measure(MESSAGES, &["--smp-locks", "on"])?;
    let times = ratio(off.of("messages")?, on.of("messages")?);
    Ok(times.scaled(|times| (times - 1.0) * 100.0))
}
