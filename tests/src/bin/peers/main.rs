//! `make bench-peers`: what an event costs here and with other tools, in one run, on one host, of the same leaf and the
//! same tree of calls: in a process for tools that trace processes, in a guest's ring 3 for us. A table and JSON.
//!
//! A tool that is not there, or may not run, has a row that says so.

mod ours;
mod program;
mod tools;

use std::path::Path;
use std::process::ExitCode;

use ours::{FIRST, WAYS, Way};
use serde_json::{Value, json};
use tests::measure::Failed;
use tests::measure::host::{Machine, load, step_forward};
use tests::measure::rounds::{Rounds, pairs};
use tests::measure::sample::Samples;
use tools::{Kept, TOOLS, Tool};

/// Each tool runs so often, all in turn.
const TURNS: usize = 3;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("bench-peers: {failed}");
            ExitCode::FAILURE
        }
    }
}

/// What was measured of a tool.
#[derive(Debug, Default)]
struct Measured {
    leaf: Vec<f64>,
    rdtsc: Vec<f64>,
    tree: Vec<f64>,
    made: u64,
    kept: Option<Kept>,
    failed: Option<String>,
}

fn run() -> Result<(), Failed> {
    let result = std::env::args().nth(1);
    let result = result.ok_or("usage: peers FILE.json")?;
    step_forward();
    let (machine, before) = (Machine::this()?, load()?);
    let mut ways: Vec<Measured> = WAYS.iter().map(|_| Measured::default()).collect();
    let mut tools: Vec<Measured> = TOOLS.iter().map(|_| Measured::default()).collect();
    for _ in 0..TURNS {
        let place = tempfile::tempdir()?;
        for (way, measured) in WAYS.iter().zip(&mut ways) {
            measured.way(way, place.path(), machine.tsc_ghz)?;
        }
        for (tool, measured) in TOOLS.iter().zip(&mut tools) {
            if let Err(failed) = measured.tool(tool, machine.tsc_ghz) {
                measured.failed.get_or_insert(failed.to_string());
            }
        }
    }
    let rows = rows(&ways, &tools);
    println!("{machine}; load before {before}, after {}\n", load()?);
    print(&rows);
    let json = json!({ "host": machine.json(), "load_before": before, "rows": rows });
    std::fs::write(&result, serde_json::to_string_pretty(&json)? + "\n")?;
    println!("\n{result}");
    Ok(())
}

/// The nanoseconds by which one column of the rounds is over another one.
fn over(rounds: &Rounds, what: &str, plain: &str, ghz: f64) -> Result<Vec<f64>, Failed> {
    let columns = pairs(rounds.of(what)?, rounds.of(plain)?);
    Ok(columns.map(|(one, other)| (one - other) / ghz).collect())
}

impl Measured {
    fn way(&mut self, way: &Way, place: &Path, ghz: f64) -> Result<(), Failed> {
        let ([leaf, tree], kept) = way.run(place)?;
        let mut rounds = Rounds::default();
        rounds.read(&leaf, FIRST)?;
        rounds.read(&tree, FIRST)?;
        let of_leaf = |what| over(&rounds, what, "bench_leaf_plain", ghz);
        self.leaf.extend(of_leaf("bench_leaf_traced")?);
        self.rdtsc.extend(of_leaf("bench_leaf_rdtsc")?);
        if !way.tree.is_empty() {
            self.tree
                .extend(over(&rounds, "tree_traced", "tree_plain", ghz)?);
        }
        let [calls, loops] = way.calls;
        self.made += calls * loops * way.events;
        if !way.tree.is_empty() {
            self.made += calls / TREE * TREE * loops * way.events;
        }
        self.keep(kept);
        Ok(())
    }

    fn tool(&mut self, tool: &Tool, ghz: f64) -> Result<(), Failed> {
        let place = tempfile::tempdir()?;
        let program = tool.build.make(place.path())?;
        let mut command = std::process::Command::new(program);
        command.args(tool.calls.map(|number| number.to_string()));
        let (lines, kept) = (tool.run)(command, place.path())?;
        // What a debugger says stands between the lines.
        let lines: Vec<String> = lines
            .into_iter()
            .filter(|line| line.starts_with("bench "))
            .collect();
        let mut rounds = Rounds::default();
        rounds.read(&lines, 0)?;
        self.leaf
            .extend(over(&rounds, "leaf_traced", "leaf_plain", ghz)?);
        self.rdtsc
            .extend(over(&rounds, "leaf_rdtsc", "leaf_plain", ghz)?);
        let [calls, loops] = tool.calls;
        self.made += calls * loops * tool.events;
        if tool.has_tree {
            self.tree
                .extend(over(&rounds, "tree_traced", "tree_plain", ghz)?);
            self.made += calls / TREE * TREE * loops * tool.events;
        }
        kept.into_iter().for_each(|kept| self.keep(kept));
        Ok(())
    }

    fn keep(&mut self, new: Kept) {
        let old = self.kept.get_or_insert(Kept {
            events: 0,
            bytes: 0,
        });
        old.events += new.events;
        old.bytes += new.bytes;
    }
}

/// Calls of one root of the tree.
const TREE: u64 = 63;

fn rows(ways: &[Measured], tools: &[Measured]) -> Vec<Value> {
    let rdtsc: Samples = ways.iter().flat_map(|way| way.rdtsc.clone()).collect();
    let ours = |events: u64| {
        let found = WAYS.iter().zip(ways).find(|(way, _)| way.events == events);
        found.map_or(f64::NAN, |(_, measured)| samples(&measured.leaf).median())
    };
    let ways = WAYS.iter().zip(ways);
    let ways = ways.map(|(way, measured)| (way.title, way.events, measured));
    let tools = TOOLS.iter().zip(tools);
    let tools = tools.map(|(tool, measured)| (tool.title, tool.events, measured));
    ways.chain(tools)
        .map(|(title, events, measured)| row(title, events, measured, rdtsc.median(), ours(events)))
        .collect()
}

fn samples(values: &[f64]) -> Samples {
    values.iter().copied().collect()
}

#[expect(clippy::cast_precision_loss, reason = "fewer than 2^52 events")]
fn row(title: &str, events: u64, measured: &Measured, rdtsc: f64, ours: f64) -> Value {
    let (leaf, tree) = (samples(&measured.leaf), samples(&measured.tree));
    let kept = measured.kept;
    json!({
        "what": title,
        "events_of_a_call": events,
        "leaf_ns": leaf.median(),
        "leaf_lower_quarter_ns": leaf.percentile(25),
        "leaf_upper_quarter_ns": leaf.percentile(75),
        "tree_ns": tree.median(),
        "rounds": leaf.count(),
        "x_rdtsc": leaf.median() / events as f64 / rdtsc,
        "x_ours": leaf.median() / ours,
        "events": measured.made,
        "events_lost": kept.map(|kept| measured.made.saturating_sub(kept.events)),
        "bytes_an_event": kept.map(|kept| kept.bytes as f64 / kept.events.max(1) as f64),
        "failed": measured.failed,
    })
}

fn print(rows: &[Value]) {
    println!(
        "| what | events a call | added to a call of the leaf, ns | quarters | of the tree, ns | an event, x rdtsc | x ours | lost | bytes an event |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for row in rows {
        let title = row["what"].as_str().unwrap_or_default();
        if let Some(failed) = row["failed"].as_str() {
            let reason = failed.lines().next().unwrap_or_default();
            println!("| {title} | not measured: {reason} | | | | | | | |");
            continue;
        }
        let number = |value: &Value| {
            value
                .as_f64()
                .map_or(String::new(), |it| format!("{it:.2}"))
        };
        let share = |part: &Value, all: &Value| match (part.as_f64(), all.as_f64()) {
            (Some(part), Some(all)) => format!("{:.1} %", 100.0 * part / all),
            _ => String::new(),
        };
        let count = |value: &Value| value.as_u64().map_or(String::new(), |it| it.to_string());
        println!(
            "| {title} | {} | {} | {}..{} | {} | {} | {} | {} | {} |",
            count(&row["events_of_a_call"]),
            number(&row["leaf_ns"]),
            number(&row["leaf_lower_quarter_ns"]),
            number(&row["leaf_upper_quarter_ns"]),
            number(&row["tree_ns"]),
            number(&row["x_rdtsc"]),
            number(&row["x_ours"]),
            share(&row["events_lost"], &row["events"]),
            number(&row["bytes_an_event"])
        );
    }
}
