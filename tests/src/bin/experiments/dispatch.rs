//! 5: from a tracepoint to its callbacks, without and with retpolines.

use tests::measure::Failed;
use tests::measure::rounds::{Rounds, pairs, ratio};
use tests::measure::sample::Samples;
use tests::{guest, guest_with_retpolines};

use crate::experiment::{Experiment, Finding, Plot, Row, Verdict};
use crate::{Bench, TURNS};

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
    let messages = Messages::measure(bench)?;
    let recorded = messages.against(Way::DIRECT, Way::OFF)?;
    let percent = recorded.median();
    rows.push(Row::of(
        "messages, plain: direct and recorded, against tracepoints off",
        "% of the time",
        recorded,
    ));
    let mut changes = Vec::new();
    for (way, name, seed) in RECORDED {
        let change = messages.against(way, Way::ITERATOR)?;
        changes.push(change.median());
        let title = format!("messages, {name}, against plain through the iterator");
        rows.push(Row::of(title, "% of the time", change).beside(seed));
    }
    let [through, direct_with, direct_without] = changes[..] else {
        return Err("three changes were measured".into());
    };
    let message = bench.ns(messages
        .of(Way::OFF)?
        .iter()
        .copied()
        .collect::<Samples>()
        .median());
    let ns =
        |build, way| -> Result<f64, Failed> { Ok(bench.ns(added(&rounds, build, way)?.median())) };
    let (plain, thunk) = (ns("plain", "iterator1")?, ns("retpoline", "iterator1")?);
    let (direct, direct_thunk) = (ns("plain", "direct")?, ns("retpoline", "direct")?);
    Ok(Experiment {
        number: 5,
        title: "Dispatch of tracepoints",
        method: "A loop that passes a place: with its nop as the base, with a call through a retargeted jump, through a pointer, \
                 through the iterator; the same C code with -mindirect-branch=thunk. Then the message-passing workload, in Rust without \
                 and with -Zretpoline, its tracepoints on and recorded by a stub, which is called directly or through the iterator.",
        year: 2018,
        seed: "Rostedt, 2018 (S1): with retpolines and all tracepoints on hackbench takes 8.9 % more time, with direct calls 3 %; \
               without retpolines direct calls save 0.6 %.",
        rows,
        finding: Finding {
            verdict: Verdict::of(&[
                thunk > direct_thunk + 1.0,
                (plain - direct).abs() < 3.0,
                through > direct_with,
            ]),
            text: format!(
                "With retpolines the iterator adds {thunk:.1} ns to a pass, a direct call {direct_thunk:.1} ns; without them it is \
                 {plain:.1} ns against {direct:.1} ns. Of messages whose two tracepoints are recorded, retpolines change the time by \
                 {through:+.1} % through the iterator and {direct_with:+.1} % with direct calls, direct calls alone by \
                 {direct_without:+.1} %. Recording adds {percent:.0} % to a message, which takes {message:.0} ns, sent and received: \
                 hackbench's take microseconds."
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

/// A run of the messages: in which build, and what becomes of their tracepoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    has_retpolines: bool,
    dispatch: Option<&'static str>,
}

impl Way {
    const OFF: Self = Self::plain(None);
    const ITERATOR: Self = Self::plain(Some("iterator"));
    const DIRECT: Self = Self::plain(Some("direct"));

    const fn plain(dispatch: Option<&'static str>) -> Self {
        Self {
            has_retpolines: false,
            dispatch,
        }
    }

    const fn with_retpolines(self) -> Self {
        Self {
            has_retpolines: true,
            ..self
        }
    }
}

/// Ways of recording, and what the seed has for each. Its base is the iterator without retpolines, as here.
const RECORDED: [(Way, &str, &str); 3] = [
    (
        Way::ITERATOR.with_retpolines(),
        "retpolines: through the iterator",
        "+8.9 %",
    ),
    (Way::DIRECT.with_retpolines(), "retpolines: direct", "+3 %"),
    (Way::DIRECT, "plain: direct", "−0.6 %"),
];

/// Cycles that a message takes, round by round.
struct Messages(Vec<(Way, Rounds)>);

impl Messages {
    fn measure(bench: Bench<'_>) -> Result<Self, Failed> {
        let ways = [Way::OFF, Way::ITERATOR].into_iter();
        let ways = ways.chain(RECORDED.map(|(way, ..)| way));
        let mut all: Vec<_> = ways.map(|way| (way, Rounds::default())).collect();
        let (plain, retpolines) = (guest(), guest_with_retpolines());
        for _ in 0..TURNS {
            for (way, rounds) in &mut all {
                let image = if way.has_retpolines {
                    &retpolines
                } else {
                    &plain
                };
                let on = way.dispatch.map(|dispatch| ["--dispatch", dispatch]);
                let events = EVENTS.iter().flat_map(|event| ["--event", event]);
                let arguments: Vec<&str> = match on {
                    Some(dispatch) => dispatch.into_iter().chain(events).collect(),
                    None => Vec::new(),
                };
                bench.measure_into(rounds, image, MESSAGES, &arguments)?;
            }
        }
        Ok(Self(all))
    }

    fn of(&self, way: Way) -> Result<&[f64], Failed> {
        let found = self.0.iter().find(|(there, _)| *there == way);
        found.ok_or("not measured")?.1.of("messages")
    }

    /// How much longer one way takes than another, in per cent.
    fn against(&self, one: Way, other: Way) -> Result<Samples, Failed> {
        let times = ratio(self.of(one)?, self.of(other)?);
        Ok(times.scaled(|times| (times - 1.0) * 100.0))
    }
}
