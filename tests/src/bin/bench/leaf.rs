//! What a traced call costs: the guest's own measurements, in ring 3.

use std::collections::HashMap;
use std::path::Path;

use tracer::tracing::options::ClockSource;
use vmm::control::method::Method;
use vmm::control::methods::sessions::OfSession;
use vmm::control::methods::tracing::TracingOff;

use crate::Failed;
use crate::guest::Guest;
use crate::rounds::{CALLS, Rounds, change, pairs, ratio};
use crate::sample::Samples;
use crate::sessions::more_sessions;
use crate::table::{Row, Target};

/// Rounds in each guest.
const ROUNDS: u64 = 100;
/// More of them where the first are spent on getting there.
const CHANGED_ROUNDS: u64 = 300;
/// Guests of each kind, in turn.
const TURNS: usize = 3;

const TRACED: &str = "bench_leaf_traced";
/// Clocks of the cases with callers, and how rows name them.
const CALLERS: [(&str, &str); 2] = [("tsc", ""), ("none", ", no time")];
/// Tracers of sessions that ask whose call it is, whether it is another's, and how rows name that.
const TASKS: [(&str, bool, &str); 4] = [
    ("function", true, "function, another task's"),
    ("graph", true, "graph, another task's"),
    ("function", false, "function, the task's own"),
    ("graph", false, "graph, the task's own"),
];
const HOOKS: [&str; 3] = ["balanced", "jmp", "ret"];
/// The exits of calls are recorded too.
const GRAPH_RECORDS: u64 = 2;

/// What is different in a guest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Case {
    Function {
        clock: &'static str,
    },
    /// Calls say where they were made.
    Callers {
        clock: &'static str,
    },
    FunctionOff,
    FunctionSmp,
    /// So many function sessions on the one function.
    List {
        sessions: usize,
    },
    Graph {
        hook: &'static str,
        clock: &'static str,
    },
    GraphOff,
    GraphSmp,
    /// Only what a task does is recorded: the one that calls, or another one.
    Task {
        tracer: &'static str,
        is_other: bool,
    },
    Profile {
        clock: &'static str,
    },
}

type Measured = HashMap<Case, Rounds>;

/// Rows about one vCPU, then about two against one.
pub fn rows(place: &Path, tsc_ghz: f64) -> Result<Vec<Row>, Failed> {
    let mut measured = Measured::new();
    for _ in 0..TURNS {
        for case in cases() {
            case.run(place, measured.entry(case.clone()).or_default())?;
        }
    }
    let mut rows = function(&measured, tsc_ghz)?;
    rows.extend(callers(&measured, tsc_ghz)?);
    rows.extend(graph(&measured, tsc_ghz)?);
    rows.extend(page(&measured, tsc_ghz)?);
    rows.extend(profile(&measured, tsc_ghz)?);
    rows.extend(list(&measured, tsc_ghz)?);
    rows.extend(off(&measured, tsc_ghz)?);
    rows.extend(tasks(&measured, tsc_ghz)?);
    rows.extend(two_vcpus(
        of(&measured, &Case::FunctionSmp)?,
        "function",
        tsc_ghz,
    )?);
    rows.extend(two_vcpus(
        of(&measured, &Case::GraphSmp)?,
        "graph",
        tsc_ghz,
    )?);
    Ok(rows)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for clock in ["tsc", "none", "page"] {
        cases.push(Case::Function { clock });
        let hooks = if clock == "page" { &HOOKS[..1] } else { &HOOKS };
        cases.extend(hooks.iter().map(|hook| Case::Graph { hook, clock }));
    }
    cases.extend(CALLERS.map(|(clock, _)| Case::Callers { clock }));
    cases.extend(["tsc", "page"].map(|clock| Case::Profile { clock }));
    cases.extend([2, 4].map(|sessions| Case::List { sessions }));
    cases.extend([Case::FunctionOff, Case::GraphOff]);
    cases.extend([Case::FunctionSmp, Case::GraphSmp]);
    cases.extend(TASKS.map(|(tracer, is_other, _)| Case::Task { tracer, is_other }));
    cases
}

impl Case {
    fn run(&self, place: &Path, rounds: &mut Rounds) -> Result<(), Failed> {
        let (workload, vcpus) = match self {
            Self::FunctionSmp | Self::GraphSmp => ("bench_smp", 2),
            _ => ("bench", 1),
        };
        let count = match self {
            Self::FunctionOff | Self::GraphOff | Self::List { .. } => CHANGED_ROUNDS,
            _ => ROUNDS,
        };
        let cmdline = format!("workload={workload} iterations={CALLS} rounds={count}");
        let guest = Guest::boot(place, vcpus, &cmdline, &self.arguments())?;
        let off = [TracingOff(OfSession::default()).call()?];
        let skip = match self {
            Self::FunctionOff => change(&guest, &off, CALLS)?,
            Self::GraphOff => change(&guest, &off, GRAPH_RECORDS * CALLS)?,
            Self::List { sessions } => change(
                &guest,
                &more_sessions(*sessions, TRACED, ClockSource::Tsc)?,
                CALLS,
            )?,
            _ => 0,
        };
        rounds.collect(guest, skip)
    }

    fn arguments(&self) -> Vec<&'static str> {
        let rest: &[&str] = match self {
            Self::Function { clock } => &["--trace", "function", "--clock", clock],
            Self::Callers { clock } => &["--trace", "function", "--callers", "--clock", clock],
            Self::FunctionOff | Self::FunctionSmp | Self::List { .. } => &["--trace", "function"],
            Self::Graph { hook, clock } => {
                &["--trace", "graph", "--return-hook", hook, "--clock", clock]
            }
            Self::GraphOff | Self::GraphSmp => &["--trace", "graph"],
            Self::Profile { clock } => &["--trace", "profile", "--clock", clock],
            // Who calls is the main thread, which is number 0.
            Self::Task { tracer, is_other } => {
                let task = if *is_other { "63" } else { "0" };
                &["--trace", tracer, "--only-tasks", task]
            }
        };
        [&["--filter", TRACED], rest].concat()
    }
}

fn of<'a>(measured: &'a Measured, case: &Case) -> Result<&'a Rounds, Failed> {
    Ok(measured.get(case).ok_or_else(|| format!("no {case:?}"))?)
}

/// Nanoseconds that `leaf` takes longer than without instrumentation.
fn added(rounds: &Rounds, leaf: &str, ghz: f64) -> Result<Samples, Failed> {
    let cycles = rounds.added(leaf)?;
    Ok(cycles.into_iter().map(|cycles| cycles / ghz).collect())
}

fn function(measured: &Measured, ghz: f64) -> Result<Vec<Row>, Failed> {
    let timed = of(measured, &Case::Function { clock: "tsc" })?;
    let untimed = of(measured, &Case::Function { clock: "none" })?;
    let plain: Samples = timed
        .of("bench_leaf_plain")?
        .iter()
        .map(|one| one / ghz)
        .collect();
    let idle = timed.times("bench_leaf_nop")?;
    let missed = added(timed, "bench_leaf_nop", ghz)?;
    let against = ratio(&timed.added(TRACED)?, &timed.added("bench_leaf_rdtsc")?);
    let rdtsc = added(timed, "bench_leaf_rdtsc", ghz)?;
    let twice = added(timed, "bench_leaf_rdtsc_twice", ghz)?;
    let floor = ratio(&untimed.added(TRACED)?, &untimed.added("bench_leaf_xadd")?);
    let none = Target::None;
    let mut rows = floors(untimed, ghz)?;
    rows.extend([
        Row::median("call of a leaf without instrumentation", "ns", &plain, none),
        Row::median(
            "with a nop that is not selected, against without",
            "x",
            &idle,
            Target::AtMost(1.02),
        ),
        Row::median("filter miss: added", "ns", &missed, none),
        Row::median("rdtsc in the leaf: added", "ns", &rdtsc, none),
        Row::median("two rdtsc in the leaf: added", "ns", &twice, none),
        Row::median("function: added", "ns", &added(timed, TRACED, ghz)?, none),
        Row::median("function: x untraced", "x", &timed.times(TRACED)?, none),
        Row::median(
            "function: added, against rdtsc",
            "x",
            &against,
            Target::AtMost(1.02),
        ),
        Row::median(
            "function, no time: added",
            "ns",
            &added(untimed, TRACED, ghz)?,
            none,
        ),
        Row::median(
            "function, no time: x untraced",
            "x",
            &untimed.times(TRACED)?,
            none,
        ),
        Row::median(
            "function, no time: added, against xadd",
            "x",
            &floor,
            Target::AtMost(1.25),
        ),
    ]);
    Ok(rows)
}

fn callers(measured: &Measured, ghz: f64) -> Result<Vec<Row>, Failed> {
    let row = |(clock, title): (&'static str, &str)| {
        let rounds = of(measured, &Case::Callers { clock })?;
        let title = format!("function with callers{title}: added");
        let added = added(rounds, TRACED, ghz)?;
        Ok(Row::median(title, "ns", &added, Target::None))
    };
    CALLERS.into_iter().map(row).collect()
}

/// What this host does not do faster: one store in the leaf, what reserves one record and two, a time stamp and two.
fn floors(rounds: &Rounds, ghz: f64) -> Result<Vec<Row>, Failed> {
    let leaves = [
        ("store", "bench_leaf_store"),
        ("xadd", "bench_leaf_xadd"),
        ("two dependent xadd", "bench_leaf_xadd_twice"),
    ];
    let row = |(title, leaf): (&str, &str)| {
        let title = format!("{title} in the leaf: added");
        let added = added(rounds, leaf, ghz)?;
        Ok(Row::median(title, "ns", &added, Target::None))
    };
    leaves.into_iter().map(row).collect()
}

fn graph(measured: &Measured, ghz: f64) -> Result<Vec<Row>, Failed> {
    let mut rows = Vec::new();
    for (clock, title) in [("tsc", ""), ("none", ", no time")] {
        for hook in HOOKS {
            let rounds = of(measured, &Case::Graph { hook, clock })?;
            let title = format!("graph, {hook}{title}");
            let times = rounds.times(TRACED)?;
            rows.push(Row::median(
                format!("{title}: added"),
                "ns",
                &added(rounds, TRACED, ghz)?,
                Target::None,
            ));
            rows.push(Row::median(
                format!("{title}: x untraced"),
                "x",
                &times,
                Target::None,
            ));
            if hook == "balanced" {
                rows.push(against_floor(rounds, clock, &title)?);
            }
        }
    }
    let untimed = |hook| {
        of(
            measured,
            &Case::Graph {
                hook,
                clock: "none",
            },
        )?
        .added(TRACED)
    };
    let against = ratio(&untimed("balanced")?, &untimed("jmp")?);
    rows.push(Row::median(
        "graph, no time: balanced against jmp",
        "x",
        &against,
        Target::AtMost(0.5),
    ));
    Ok(rows)
}

/// What a pair of records costs beside the two instructions that it cannot do without.
fn against_floor(rounds: &Rounds, clock: &str, title: &str) -> Result<Row, Failed> {
    let (floor, leaf, most) = match clock {
        "tsc" => ("two rdtsc", "bench_leaf_rdtsc_twice", 1.05),
        _ => ("two xadd", "bench_leaf_xadd_twice", 1.25),
    };
    let against = ratio(&rounds.added(TRACED)?, &rounds.added(leaf)?);
    let title = format!("{title}: added, against {floor}");
    Ok(Row::median(title, "x", &against, Target::AtMost(most)))
}

/// The clock page, at the period that it has by default (100 ns).
fn page(measured: &Measured, ghz: f64) -> Result<Vec<Row>, Failed> {
    let clock = "page";
    let hook = "balanced";
    let timed = "tsc";
    let cases = [
        (
            "function",
            Case::Function { clock },
            Case::Function { clock: timed },
        ),
        (
            "graph, balanced",
            Case::Graph { hook, clock },
            Case::Graph { hook, clock: timed },
        ),
    ];
    let mut rows = Vec::new();
    for (tracer, case, counter) in cases {
        let rounds = of(measured, &case)?;
        let title = format!("{tracer}, clock page: ");
        let against = ratio(
            &rounds.added(TRACED)?,
            &of(measured, &counter)?.added(TRACED)?,
        );
        let added = added(rounds, TRACED, ghz)?;
        rows.push(Row::median(
            title.clone() + "added",
            "ns",
            &added,
            Target::None,
        ));
        rows.push(Row::median(
            title.clone() + "added, against rdtsc's",
            "x",
            &against,
            Target::AtMost(0.5),
        ));
        rows.push(Row::median(
            title + "x untraced",
            "x",
            &rounds.times(TRACED)?,
            Target::None,
        ));
    }
    Ok(rows)
}

/// Calls counted and timed in the guest, without records.
fn profile(measured: &Measured, ghz: f64) -> Result<Vec<Row>, Failed> {
    let row = |(clock, title): (&'static str, &str)| {
        let added = added(of(measured, &Case::Profile { clock })?, TRACED, ghz)?;
        let title = format!("{title}: added");
        Ok(Row::median(title, "ns", &added, Target::None))
    };
    let cases = [("tsc", "profile"), ("page", "profile, clock page")];
    cases.into_iter().map(row).collect()
}

/// Several sessions on one function, against one.
fn list(measured: &Measured, ghz: f64) -> Result<Vec<Row>, Failed> {
    let direct = of(measured, &Case::Function { clock: "tsc" })?.added(TRACED)?;
    let mut rows = Vec::new();
    for (sessions, target) in [(2, Target::AtMost(2.2)), (4, Target::None)] {
        let rounds = of(measured, &Case::List { sessions })?;
        let title = format!("function, {sessions} sessions: added");
        let against = ratio(&rounds.added(TRACED)?, &direct);
        rows.push(Row::median(
            title.clone(),
            "ns",
            &added(rounds, TRACED, ghz)?,
            Target::None,
        ));
        rows.push(Row::median(title + ", against 1", "x", &against, target));
    }
    Ok(rows)
}

fn off(measured: &Measured, ghz: f64) -> Result<Vec<Row>, Failed> {
    let cases = [("function", Case::FunctionOff), ("graph", Case::GraphOff)];
    let row = |(tracer, case): (&str, Case)| {
        let added = added(of(measured, &case)?, TRACED, ghz)?;
        let title = format!("{tracer}, tracing-off: added");
        Ok(Row::median(title, "ns", &added, Target::AtMost(1.5)))
    };
    cases.into_iter().map(row).collect()
}

/// Filters of tasks: what is false is to cost two nanoseconds at most.
fn tasks(measured: &Measured, ghz: f64) -> Result<Vec<Row>, Failed> {
    let row = |(tracer, is_other, title): (&'static str, bool, &str)| {
        let added = added(of(measured, &Case::Task { tracer, is_other })?, TRACED, ghz)?;
        let target = if is_other {
            Target::AtMost(2.0)
        } else {
            Target::None
        };
        Ok(Row::median(format!("{title}: added"), "ns", &added, target))
    };
    TASKS.into_iter().map(row).collect()
}

fn two_vcpus(rounds: &Rounds, tracer: &str, ghz: f64) -> Result<Vec<Row>, Failed> {
    let rates = |cycles: &[f64]| -> Vec<f64> { cycles.iter().map(|one| ghz * 1e3 / one).collect() };
    let alone = rates(rounds.of("solo 0")?);
    let (first, second) = (rates(rounds.of("smp 0")?), rates(rounds.of("smp 1")?));
    let both: Vec<f64> = pairs(&first, &second)
        .map(|(first, second)| first + second)
        .collect();
    let scaling = ratio(&both, &alone);
    let title = |what: &str| format!("{tracer}: traced calls of {what}");
    let none = Target::None;
    let (alone, both) = (alone.into_iter().collect(), both.into_iter().collect());
    Ok(vec![
        Row::median(title("1 vCPU"), "M/s", &alone, none),
        Row::median(title("2 vCPUs"), "M/s", &both, none),
        Row::median(
            title("2 vCPUs against 1"),
            "x",
            &scaling,
            Target::AtLeast(1.95),
        ),
    ])
}
