//! 4: one session's recorder called directly, against a list of several.

use tests::measure::Failed;
use tests::measure::guest::Guest;
use tests::measure::rounds::{Rounds, change};
use tests::measure::sample::Samples;
use tests::measure::sessions::more_sessions;
use tracer::tracing::options::ClockSource;

use crate::experiment::{Experiment, Finding, Plot, Row, Verdict};
use crate::{Bench, TURNS};

const SESSIONS: [u32; 6] = [1, 2, 3, 4, 6, 8];
const TRACED: &str = "bench_leaf_traced";
/// In each round.
const CALLS: u64 = 2_000_000;

pub fn experiment(bench: Bench<'_>) -> Result<Experiment, Failed> {
    let cmdline = format!("workload=bench iterations={CALLS} rounds=6");
    let mut rows = Vec::new();
    let mut points = Vec::new();
    for sessions in SESSIONS {
        let arguments = ["--trace", "function", "--clock", "none", "--filter", TRACED];
        let mut rounds = Rounds::default();
        for _ in 0..TURNS {
            let guest = Guest::boot(bench.place, 1, &cmdline, &arguments)?;
            let calls = more_sessions(usize::try_from(sessions)?, TRACED, ClockSource::None)?;
            let skip = change(&guest, &calls, CALLS)?;
            rounds.collect(guest, skip)?;
        }
        let added: Samples = rounds
            .added(TRACED)?
            .into_iter()
            .map(|one| bench.ns(one))
            .collect();
        points.push((f64::from(sessions), added.median()));
        let what = if sessions == 1 {
            "1 session: direct".to_owned()
        } else {
            format!("{sessions} sessions: list")
        };
        rows.push(Row::of(what, "ns added", added));
    }
    let [Some((_, one)), Some((_, two)), Some((most, last))] =
        [points.first(), points.get(1), points.last()]
    else {
        return Err("no sessions were measured".into());
    };
    let finding = Finding {
        verdict: Verdict::of(&[one < two]),
        text: format!(
            "One session adds {one:.1} ns, two add {two:.1} ns, {most} add {last:.1} ns. Here the list, too, is code made \
             for the function, without a loop or an indirect call, so a session on it costs about as much as alone."
        ),
    };
    Ok(Experiment {
        number: 4,
        title: "Direct against list",
        method: "A leaf that 1 to 8 function sessions trace, without times, which would hide the rest.",
        year: 2014,
        seed: "Rostedt, 2014 (S2): a function with a single user calls that user's trampoline directly instead of going \
               through the list; no figure but profiles, in which the common trampoline and the list vanish.",
        rows,
        finding,
        plot: Plot::Lines {
            over: "sessions",
            unit: "ns added to a call",
            series: vec![("function sessions".to_owned(), points)],
        },
    })
}
