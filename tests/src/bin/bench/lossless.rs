//! What it costs to lose nothing: a vCPU that makes traced calls only, whose ring is read on another CPU into a compact trace.
//! Where the reader does not keep up, the vCPU waits for it; in discard mode it loses records instead, which is quicker.

use std::path::Path;

use vmm::control::method::Nothing;
use vmm::control::methods::guest::ShowStatus;

use crate::Failed;
use crate::guest::Guest;
use crate::rounds::{Rounds, ratio};
use crate::sample::Samples;
use crate::table::{Row, Target};

/// Calls in each loop: many times what a ring holds.
const CALLS: u64 = 4_000_000;
/// Loops of each of the two kinds in each guest; the first one is not counted.
const ROUNDS: u64 = 8;
/// Guests of each mode, in turn.
const TURNS: usize = 5;
/// Both are the same with one vCPU.
const LOOPS: [&str; 2] = ["solo 0", "smp 0"];

/// What guests of one mode have done.
#[derive(Debug, Default)]
struct Done {
    rounds: Rounds,
    /// Records lost of a hundred, by guest.
    lost: Vec<f64>,
    /// Waits, and milliseconds of all together, by guest.
    waits: Vec<f64>,
    waited_ms: Vec<f64>,
}

/// Rows about one vCPU.
pub fn rows(place: &Path, tsc_ghz: f64) -> Result<Vec<Row>, Failed> {
    let mut done = [Done::default(), Done::default()];
    let modes = ["discard", "lossless"];
    for _ in 0..TURNS {
        for (mode, done) in modes.iter().zip(&mut done) {
            done.run(mode, place)?;
        }
    }
    let [discard, lossless] = &done;
    let none = Target::None;
    let ns = |done: &Done| -> Result<Samples, Failed> {
        Ok(done
            .cycles()?
            .into_iter()
            .map(|one| one / tsc_ghz)
            .collect())
    };
    let all = |values: &[f64]| values.iter().copied().collect::<Samples>();
    Ok(vec![
        Row::median(
            "discard, into a compact trace: a call",
            "ns",
            &ns(discard)?,
            none,
        ),
        Row::median("discard: records lost", "%", &all(&discard.lost), none),
        Row::median(
            "lossless, into a compact trace: a call",
            "ns",
            &ns(lossless)?,
            none,
        ),
        Row::median(
            "lossless: waits in a guest",
            "",
            &all(&lossless.waits),
            none,
        ),
        Row::median(
            "lossless: waited in a guest",
            "ms",
            &all(&lossless.waited_ms),
            none,
        ),
        Row::median(
            "lossless against discard",
            "x",
            &ratio(&lossless.cycles()?, &discard.cycles()?),
            Target::AtMost(1.3),
        ),
    ])
}

impl Done {
    fn run(&mut self, mode: &str, place: &Path) -> Result<(), Failed> {
        let cmdline = format!("workload=bench_smp,list,spin iterations={CALLS} rounds={ROUNDS}");
        let output = place.join("lossless");
        let output = output.to_str().ok_or("a path that is no text")?;
        let what = ["--trace", "function", "--filter", "bench_leaf_traced"];
        let how = ["--mode", mode, "--store", "compact", "--output", output];
        let mut guest = Guest::boot(place, 1, &cmdline, &[&what[..], &how].concat())?;
        let mut lines = Vec::new();
        while lines
            .last()
            .is_none_or(|line: &String| !line.contains("workload spin"))
        {
            lines.push(guest.line()?.ok_or("the guest has ended")?);
        }
        let status = guest.connect()?.ask(&ShowStatus(Nothing {}))?;
        let session = status.tracing.sessions.first().ok_or("no session")?;
        let (lost, calls) = session.rings.iter().fold((0, 0), |(lost, calls), ring| {
            (lost + ring.lost, calls + ring.written + ring.discarded)
        });
        let expected = LOOPS.len() as u64 * CALLS * ROUNDS;
        if calls != expected || mode == "lossless" && lost > 0 {
            return Err(format!("{expected} calls, {lost} lost: {:?}", session.rings).into());
        }
        let waits = session.waits.clone().unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "less than 2^53")]
        {
            self.lost.push(100.0 * lost as f64 / calls as f64);
            self.waits.push(waits.count as f64);
            self.waited_ms.push(waits.total_ns as f64 / 1e6);
        }
        guest.type_text("q")?;
        let _ = guest.finish()?;
        std::fs::remove_dir_all(output)?;
        self.rounds.read(&lines, 1)
    }

    /// Of a call, loop by loop.
    fn cycles(&self) -> Result<Vec<f64>, Failed> {
        let of = LOOPS.map(|name| self.rounds.of(name));
        let all: Result<Vec<&[f64]>, Failed> = of.into_iter().collect();
        Ok(all?.concat())
    }
}
