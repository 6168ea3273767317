//! What uftrace's tests ask of recording and reading, on the bundled guest.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tests::exact::{gated, without_gate};
use tests::{CALLS, Client, Counts, Guest, Trace};

const ROUNDS: usize = 3;

fn traced(workload: &str, options: &[&str]) -> (Counts, Trace) {
    let guest = Guest::new(&format!("workload={workload} iterations={ROUNDS}"));
    let guest = guest.with(["--trace", "graph", "--mode", "discard"]);
    let with_one = |guest: Guest, option: &&str| guest.with([*option]);
    let (ended, trace) = options.iter().fold(guest, with_one).output().run();
    (ended.good().printed().called(), trace)
}

/// How often each function is shown.
fn shown(trace: &Trace, options: &[&str]) -> Counts {
    let mut counts = Counts::new();
    for line in happenings(trace, options) {
        if line["kind"] == "call" {
            *counts.entry(name(&line).to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Each call and each return that is shown.
fn happenings(trace: &Trace, options: &[&str]) -> Vec<Value> {
    let options = [options, &["--json"]].concat();
    let report = trace.report_with("graph", &options);
    let lines = report
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["function"].is_string()).collect()
}

fn name(happening: &Value) -> &str {
    happening["function"].as_str().unwrap()
}

/// The calls of these of [`CALLS`], in this many trees that begin with the first of them.
fn trees(roots: usize, names: &[&str]) -> Counts {
    let counts = names.iter().zip(0_u32..);
    counts
        .map(|(name, level)| ((*name).to_owned(), roots as u64 * 2_u64.pow(level)))
        .collect()
}

#[test]
fn filter_subtree() {
    let (_, trace) = traced("calls", &[]);
    let read = shown(&trace, &["--graph-function", "calls_twig"]);
    let expected = trees(ROUNDS * 16, &CALLS[4..]);
    assert_eq!(read, expected);
    let (_, recorded) = traced("calls", &["--graph-function", "calls_twig"]);
    assert_eq!(shown(&recorded, &[]), expected);
}

#[test]
fn filter_notrace() {
    let (_, trace) = traced("calls", &[]);
    let expected = trees(ROUNDS, &CALLS[..3]);
    let read = shown(&trace, &["--graph-notrace", "calls_branch"]);
    assert_eq!(read, expected);
    let (_, recorded) = traced("calls", &["--graph-notrace", "calls_branch"]);
    assert_eq!(shown(&recorded, &[]), expected);
}

#[test]
fn filter_depth() {
    let (_, trace) = traced("calls", &[]);
    for depth in 1..=CALLS.len() {
        let read = shown(&trace, &["--max-depth", &depth.to_string()]);
        assert_eq!(read, trees(ROUNDS, &CALLS[..depth]), "{depth}");
    }
    let (_, recorded) = traced("calls", &["--max-depth", "2"]);
    assert_eq!(shown(&recorded, &[]), trees(ROUNDS, &CALLS[..2]));
}

/// Times are those of the trace itself, so this knows exactly which calls must be there.
#[test]
fn filter_time() {
    let (called, trace) = traced("calls", &[]);
    let durations = |options: &[&str]| {
        let all = happenings(&trace, options);
        let returns = all.iter().filter(|one| one["kind"] == "return");
        let mut durations: Vec<u64> = returns
            .map(|one| one["duration_ns"].as_u64().unwrap())
            .collect();
        durations.sort_unstable();
        durations
    };
    let all = durations(&[]);
    assert_eq!(all.len() as u64, called.values().sum::<u64>());
    for least in [all[all.len() / 2], all[all.len() - 4], *all.last().unwrap()] {
        let mut expected = all.clone();
        expected.retain(|ns| *ns >= least);
        assert_eq!(durations(&["--threshold", &format!("{least}ns")]), expected);
    }
}

#[test]
fn hide() {
    let (_, trace) = traced("calls", &[]);
    let options = ["--hide", "calls_b*"];
    let mut expected = trees(ROUNDS, &CALLS);
    expected.retain(|name, _| !name.starts_with("calls_b"));
    assert_eq!(shown(&trace, &options), expected);
    // What it calls stands in its place.
    let twigs = happenings(&trace, &options);
    let mut twigs = twigs.iter().filter(|one| name(one) == "calls_twig");
    assert!(twigs.all(|twig| twig["depth"] == 2 && twig["caller"] == "calls_trunk"));
}

/// How many bytes there are from each function to the next one, as the image of the guest says.
fn sizes() -> BTreeMap<String, u64> {
    let image = image::Image::parse(&std::fs::read(tests::guest()).unwrap()).unwrap();
    let ids = (0..).map(terms::function::FunctionId);
    let sizes = image.functions.iter().zip(ids);
    sizes
        .map(|(function, id)| (function.display.to_string(), image.code(id).len() as u64))
        .collect()
}

#[test]
fn filter_size() {
    let (called, trace) = traced("calls,recursion,threads", &[]);
    let sizes = sizes();
    let mut of_called: Vec<u64> = called.keys().map(|name| sizes[name]).collect();
    of_called.sort_unstable();
    let middle = of_called[of_called.len() / 2];
    for least in [1, middle, of_called.last().unwrap() + 64] {
        let mut expected = called.clone();
        // Sizes go up to the next function: padding counts.
        expected.retain(|name, _| sizes[name].next_multiple_of(16) >= least);
        let read = shown(&trace, &["--min-size", &least.to_string()]);
        assert_eq!(read, expected, "{least}");
    }
}

/// What is called of the functions that begin so.
fn beginning(called: &Counts, start: &str) -> Counts {
    let mut of = called.clone();
    of.retain(|name, _| name.starts_with(start));
    of
}

#[test]
fn filter_location() {
    // Of a file by its name, by the end of its path, by a glob of it; one that is taken out again; some of its functions.
    for (filter, expected) in [
        (&["file:calls.rs"][..], "calls_"),
        (&["file:workloads/src/rec*.rs"], "recursion_"),
        (&["file:workloads/src/*.rs", "!file:calls.rs"], "recursion_"),
        (&["file:*/calls.rs:*_leaf"], "calls_leaf"),
    ] {
        let options: Vec<&str> = filter.iter().flat_map(|one| ["--filter", *one]).collect();
        let (called, trace) = traced("calls,recursion", &options);
        let expected = beginning(&called, expected);
        assert!(!expected.is_empty(), "{filter:?}");
        assert_eq!(trace.uftrace(), expected, "{filter:?}");
    }
    let (called, trace) = traced("calls,recursion", &["--notrace", "file:calls.rs"]);
    assert_eq!(trace.uftrace(), beginning(&called, "recursion_"));
    whoever_attaches_filters_by_file_and_changes_it();
}

/// The guest of another VMM: it calls both files' functions twice, and the filter is another one meanwhile.
fn whoever_attaches_filters_by_file_and_changes_it() {
    let workloads = "calls,recursion,spin,calls,recursion";
    let mut other = gated(workloads, "iterations=10").start();
    other.wait_for("workload spin");
    let mut attached = Guest::attached(other.pid(), Some(&tests::guest()))
        .with(["--mode", "discard"])
        .output()
        .start();
    let mut client = attached.client();
    let filter = |globs: &[&str]| json!({"tracer": "graph", "filter": globs});
    let error = client.refused("start", filter(&["file:cals.rs"]));
    let expected =
        "no function comes from a source file as in 'file:cals.rs'; did you mean `calls.rs`";
    assert!(error.starts_with(expected), "{error}");
    client.call("start", filter(&["file:recursion.rs"]));
    let listed = client.call("functions", json!({"glob": "file:recursion.rs"}));
    let listed = listed["functions"].as_array().unwrap().iter();
    let names: Vec<&str> = listed.map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"recursion_step"), "{names:?}");
    assert!(
        names.iter().all(|name| name.contains("recursion")),
        "{names:?}"
    );
    other.type_text("q");
    other.wait_for_times("checksum recursion", 1);
    client.call("filter.set", json!({"filter": ["file:calls.rs:calls_*f"]}));
    other.type_text("q");
    let (ended, _) = other.end();
    let printed = without_gate(ended.good().printed());
    let (ended, trace) = attached.end();
    let _ = ended.good();
    let half = |name: &str| (name.to_owned(), printed.calls[name] / 2);
    let expected = ["calls_leaf", "recursion_step"].map(half);
    assert_eq!(trace.uftrace(), Counts::from(expected));
    assert_eq!(trace.lost(), 0);
}

#[test]
fn filter_caller() {
    let (_, trace) = traced("calls", &[]);
    let read = shown(&trace, &["--callers", "calls_bough"]);
    assert_eq!(read, trees(ROUNDS, &CALLS[..3]));
}

#[test]
fn live_toggle() {
    let mut running = gated("calls,spin,calls,spin,calls,spin", "iterations=100")
        .with(["--mode", "discard"])
        .output()
        .start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.call("start", json!({"tracer": "graph", "filter": ["calls_*"]}));
    for (round, verb) in [(1, "tracing-off"), (2, "tracing-on"), (3, "stop")] {
        running.type_text("q");
        running.wait_for_times("checksum calls", round);
        client.call(verb, Value::Null);
    }
    let status = client.status();
    assert_eq!(Client::rings(&status, "lost"), 0, "{status}");
    running.type_text("q");
    let (ended, trace) = running.end();
    let printed = without_gate(ended.good().printed());
    assert_eq!(printed.calls["calls_leaf"], 3 * 3200);
    assert_eq!(trace.uftrace()["calls_leaf"], 2 * 3200);
    assert_eq!(trace.lost(), 0);
}

#[test]
fn recursion_total() {
    let (called, trace) = traced("recursion", &[]);
    let table = trace.report_with("counts", &["--json"]);
    let table: Value = serde_json::from_str(&table).unwrap();
    let [row] = table["counts"].as_array().unwrap().as_slice() else {
        panic!("{table}");
    };
    assert_eq!(row["calls"], called["recursion_step"]);
    let all = happenings(&trace, &[]);
    let outermost = all
        .iter()
        .filter(|one| one["kind"] == "return" && one["depth"] == 0);
    let durations: Vec<u64> = outermost
        .map(|one| one["duration_ns"].as_u64().unwrap())
        .collect();
    assert_eq!(durations.len(), ROUNDS);
    assert_eq!(row["total_ns"], durations.iter().sum::<u64>());
    // All of it is its own: it calls nothing else.
    assert_eq!(row["self_ns"], row["total_ns"]);
}

#[test]
fn time_range() {
    let (_, trace) = traced("calls", &[]);
    let all = happenings(&trace, &[]);
    let roots: Vec<u64> = all
        .iter()
        .filter(|one| name(one) == "calls_root")
        .map(|one| one["time_ns"].as_u64().unwrap())
        .collect();
    let [_, _, entered, left, ..] = roots[..] else {
        panic!("{roots:?}");
    };
    // Strictly inside of the second round: what ended at its first moment is not in it.
    let (from, to) = (format!("{}ns", entered + 1), format!("{}ns", left - 1));
    let read = shown(&trace, &["--from", &from, "--to", &to]);
    assert_eq!(read, trees(1, &CALLS));
}

/// Nobody says how arguments are passed: the debug information does. Both ways of compiling say the same.
#[test]
fn dwarf_arguments() {
    let filter = ["--filter", "*optimised_*", "--args", "--retval"];
    let (called, trace) = traced("values threads=1", &filter);
    let all = happenings(&trace, &[]);
    for build in ["optimised", "unoptimised"] {
        let of = |function: &str, kind: &str| {
            let function = format!("{build}_{function}");
            let is_it = move |one: &&Value| name(one) == function && one["kind"] == kind;
            all.iter().filter(is_it).collect::<Vec<&Value>>()
        };
        let entered = of("registers", "call");
        assert_eq!(entered.len() as u64, called[&format!("{build}_registers")]);
        for one in entered {
            let args = &one["args"];
            let serial = args["serial"].as_u64().unwrap();
            let bytes = serial.to_le_bytes();
            assert_eq!(args["small"], bytes[0], "{one}");
            let narrow = i16::from_le_bytes([!bytes[0], !bytes[1]]);
            assert_eq!(args["narrow"], narrow, "{one}");
        }
        for one in of("step", "call") {
            let (argument, result) = (&one["args"]["value"], of("step", "return"));
            let wanted = argument.as_i64().unwrap().wrapping_mul(3).wrapping_add(1);
            assert!(result.iter().any(|one| one["retval"] == json!([wanted])));
        }
        for one in of("is_odd", "return") {
            assert!(one["retval"][0].is_boolean(), "{one}");
        }
    }
}

#[test]
fn csv() {
    let (called, trace) = traced("calls", &[]);
    let table = trace.report_with("counts", &["--csv"]);
    let mut lines = table.lines();
    let heads: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| heads.iter().position(|head| *head == name).unwrap();
    let (calls, total, function) = (column("calls"), column("total_ns"), column("function"));
    let json = trace.report_with("counts", &["--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let mut read = Counts::new();
    for (line, row) in lines.zip(json["counts"].as_array().unwrap()) {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), heads.len(), "{line}");
        assert_eq!(cells[total], row["total_ns"].to_string(), "{line}");
        read.insert(cells[function].to_owned(), cells[calls].parse().unwrap());
    }
    assert_eq!(read, called);
}
