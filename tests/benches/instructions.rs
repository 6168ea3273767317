//! `make bench-linux`, its second part: what tracing adds to a stock Linux in instructions, by us and by the kernel's own tracers.
//!
//! In a box whose time is the number of instructions that it has executed (`images/box/run --count`), so the numbers are
//! the same on every host. The guest's program `costs` makes a system call, or opens, reads and closes a file, many times
//! round by round, and says how many it were in the round with the fewest: one in which nothing else was done. An instruction is
//! no time: `rdtsc` is one, and so is a load that misses every cache.

use std::process::ExitCode;

use tests::measure::Failed;
use tests::measure::host::{Machine, load};
use tests::measure::sample::Samples;
use tests::measure::table::{Row, Table, Target};
use tests::{Ended, Guest};

/// What the guest calls with `costs call`, of which nothing else makes any.
macro_rules! function {
    ($rest:literal) => {
        concat!("__x64_sys_sched_get_priority_max", $rest)
    };
}

/// How often it does (images/linux/costs.c).
const CALLS: u64 = 101 * 500;

/// Without any tracer.
const NOTHING: &str = "nothing";

/// What is measured of the kernel's own tracers: each with what the guest's shell is told ([`WORDS`]).
const OWN: [(&str, &str); 9] = [
    (NOTHING, "all"),
    ("function", "echo $F >set_ftrace_filter; t function c"),
    ("graph", "t function_graph c"),
    ("entry, three registers", "p p:a $F a=%di b=%si c=%dx"),
    ("inside, three registers", "p p:a $F+9 a=%di b=%si c=%dx"),
    ("return, its value", "p r:a $F v=\\$retval"),
    ("entry, counted", "fentry $F costs call $n"),
    ("function, all", "echo >set_ftrace_filter; t function all"),
    ("graph, all", "t function_graph all"),
];

/// The beginning of what the shell is told. `n` is the line's number; a tracer is on for one measurement, and a probe is.
const WORDS: &str = concat!(
    "cd /sys/kernel/tracing; F=",
    function!(""),
    "; c() { costs call $n; }; all() { c; costs file $n; }; \
     said() { echo events $n: $(grep -e ^entries -e ^overrun per_cpu/cpu0/stats); }; \
     t() { echo >trace; echo $1 >current_tracer; $2; said; echo nop >current_tracer; }; \
     e() { echo $1 >events/kprobes/a/enable; }; \
     p() { echo >trace; echo $* >kprobe_events; e 1; c; said; e 0; echo >kprobe_events; }; "
);

/// What is measured of us: options of `vmm run`, and how many records are made in all, where only that function is traced.
const OURS: [(&str, &[&str], Option<u64>); 12] = [
    (NOTHING, &[], None),
    (
        "function",
        &["--trace", "function", "--filter", function!("")],
        Some(CALLS),
    ),
    (
        "function, no time",
        &[
            "--trace",
            "function",
            "--filter",
            function!(""),
            "--clock",
            "none",
        ],
        Some(CALLS),
    ),
    (
        "graph",
        &["--trace", "graph", "--filter", function!("")],
        Some(2 * CALLS),
    ),
    (
        "graph, no time",
        &[
            "--trace",
            "graph",
            "--filter",
            function!(""),
            "--clock",
            "none",
        ],
        Some(2 * CALLS),
    ),
    (
        "entry, three registers",
        &["--probe", function!(" %di %si %dx")],
        Some(CALLS),
    ),
    (
        "inside, three registers",
        &["--probe", function!("+9 %di %si %dx")],
        Some(CALLS),
    ),
    (
        "return, its value",
        &["--probe", function!("%return $retval")],
        Some(CALLS),
    ),
    (
        "inside, by an exit",
        &[
            "--probe-tactic",
            "5",
            "--probe",
            function!("+9 %di %si %dx"),
        ],
        Some(CALLS),
    ),
    ("function, all", &["--trace", "function"], None),
    ("graph, all", &["--trace", "graph"], None),
    (
        "graph, all, no time",
        &["--trace", "graph", "--clock", "none"],
        None,
    ),
];

/// Instructions of a system call, and of opening, reading and closing a file, in each round.
#[derive(Debug, Clone, Default)]
struct Costs {
    call: Samples,
    file: Samples,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("bench-linux: {failed}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failed> {
    // Cargo adds `--bench`.
    let result = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let result = result.ok_or("usage: instructions FILE.json, in a box that counts")?;
    let before = load()?;
    let own = of_the_kernel()?;
    let ours = of_us()?;
    let mut host = Machine::this()?;
    host.name
        .insert_str(0, "the box, whose time counts instructions, ");
    Table::new(host, before, rows(&own, &ours)?)?.publish(&result)
}

/// What the kernel's own tracers cost, in one boot that nobody traces.
fn of_the_kernel() -> Result<Measured, Failed> {
    let lines = OWN.iter().zip(0..);
    let lines: String = lines
        .map(|((_, line), n)| format!("n={n}; {line}; "))
        .collect();
    eprintln!("the kernel's own tracers");
    let (ended, _) = Guest::linux(&format!("{WORDS}{lines}"), None).run();
    let costs = |(index, (name, _)): (usize, &(&'static str, _))| {
        let recorded = recorded(&ended, index, name);
        if *name != NOTHING && recorded < CALLS {
            return Err(format!("{name}: {recorded} events, not {CALLS}: {}", ended.stdout).into());
        }
        Ok((
            *name,
            costs(&ended, &index.to_string(), name.contains(", all"))?,
        ))
    };
    OWN.iter().enumerate().map(costs).collect()
}

/// How many events the kernel's tracer has recorded, or counted, in this measurement.
fn recorded(ended: &Ended, index: usize, name: &str) -> u64 {
    let of = match name.contains("counted") {
        true => "fentry counted ".to_owned(),
        false => format!("events {index}: "),
    };
    let mut lines = ended.stdout.lines();
    let line = lines.find(|line| line.starts_with(&of)).unwrap_or_default();
    let numbers = line.split_whitespace().skip(2);
    numbers.filter_map(|word| word.parse::<u64>().ok()).sum()
}

/// What ours cost, each in a boot of its own.
fn of_us() -> Result<Measured, Failed> {
    let measured = OURS.iter().map(|(name, options, records)| {
        eprintln!("ours: {name}");
        let guest = Guest::linux("costs call ours; costs file ours", None);
        let with_one = |guest: Guest, option: &&str| guest.with([*option]);
        let (ended, _) = options.iter().fold(guest, with_one).run();
        if let Some(records) = records
            && !ended
                .stderr
                .replace(',', "")
                .contains(&format!(" {records} records made"))
        {
            return Err(format!("{name}: not {records} records: {}", ended.stderr).into());
        }
        Ok((*name, costs(&ended, "ours", true)?))
    });
    measured.collect()
}

/// What a guest said of the measurement with this name.
fn costs(ended: &Ended, name: &str, needs_file: bool) -> Result<Costs, Failed> {
    let mut costs = Costs::default();
    for line in ended.stdout.lines() {
        let Some((what, said)) = line.trim().split_once(':') else {
            continue;
        };
        let of = match what.split(' ').collect::<Vec<_>>()[..] {
            ["costs", "call", of] if of == name => &mut costs.call,
            ["costs", "file", of] if of == name => &mut costs.file,
            _ => continue,
        };
        let rounds: Result<Vec<f64>, _> = said.split_whitespace().map(str::parse).collect();
        *of = rounds?.into_iter().collect();
    }
    let is_missing = costs.call.count() == 0 || needs_file && costs.file.count() == 0;
    if ended.code != Some(0) || is_missing {
        return Err(format!("no costs of {name}: {}{}", ended.stdout, ended.stderr).into());
    }
    Ok(costs)
}

/// What was measured, in order.
type Measured = Vec<(&'static str, Costs)>;

fn rows(own: &Measured, ours: &Measured) -> Result<Vec<Row>, Failed> {
    let (_, nothing) = own.first().ok_or("nothing untraced")?;
    let mut rows = vec![
        row("a call, untraced".into(), "instr.", &nothing.call),
        row("a file, untraced".into(), "instr.", &nothing.file),
    ];
    for (whose, measured) in [("ours", ours), ("Linux's", own)] {
        let (_, nothing) = measured.first().ok_or("nothing untraced")?;
        for (name, costs) in measured.iter().skip(1) {
            rows.extend(rows_of(&format!("{whose}: {name}"), costs, nothing));
        }
    }
    Ok(rows)
}

/// What a tracer of one function adds to a call of it; how many times as long everything takes with one of all functions.
fn rows_of(name: &str, costs: &Costs, nothing: &Costs) -> Vec<Row> {
    let (call, file) = (nothing.call.min(), nothing.file.min());
    if !name.contains(", all") {
        let added = costs.call.scaled(|with| with - call);
        return vec![row(format!("{name}: added to a call"), "instr.", &added)];
    }
    vec![
        row(
            format!("{name}: a call"),
            "x",
            &costs.call.scaled(|with| with / call),
        ),
        row(
            format!("{name}: a file"),
            "x",
            &costs.file.scaled(|with| with / file),
        ),
    ]
}

/// The round with the fewest instructions, and the spread of all.
fn row(what: String, unit: &'static str, rounds: &Samples) -> Row {
    Row::percentile(what, unit, rounds, 0, Target::None)
}
