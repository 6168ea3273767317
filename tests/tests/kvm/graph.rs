//! Graph traces: every call has its return, on its thread, whatever the guest does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;
use tests::{CALLS, Counts, Ended, Guest, Printed, Trace, scaled, usual_or_long, vmm_says};

const WORKLOADS: &str =
    "calls,recursion,tail_calls,threads,smp,c_fentry,c_mcount,c_patchable,nops,variadic_float";

/// A traced run of `workloads`, with room for every record.
fn traced(cmdline: &str, vcpus: u32, hook: &str) -> (Printed, Trace) {
    traced_by("tsc", cmdline, vcpus, hook)
}

fn traced_by(clock: &str, cmdline: &str, vcpus: u32, hook: &str) -> (Printed, Trace) {
    let (ended, trace) = Guest::new(cmdline)
        .vcpus(vcpus)
        .with(["--trace", "graph", "--return-hook", hook])
        .with(["--mode", "discard", "--ring-size", "32768"])
        .with(["--clock", clock])
        .output()
        .run();
    (ended.good().printed(), trace)
}

/// What the side file says did not fit.
fn anomalies(trace: &Trace) -> Value {
    let text = std::fs::read_to_string(trace.path().join("exotrace.json")).unwrap();
    let side: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(side["finished"], true);
    side["anomalies"].clone()
}

/// Calls with a known duration: those of which entry and exit were seen.
fn returned(trace: &Trace) -> Counts {
    let json: Value = serde_json::from_str(&trace.export("chrome")).unwrap();
    let mut counts = Counts::new();
    let mut open: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for event in json["traceEvents"].as_array().unwrap() {
        let open = open.entry(event["tid"].as_u64().unwrap()).or_default();
        if event["ph"] == "B" {
            open.push(event["name"].as_str().unwrap().to_owned());
        } else if event["ph"] == "E" {
            let name = open.pop().expect("it has begun");
            let is_known = event["args"]["end"].is_null();
            *counts.entry(name).or_default() += u64::from(is_known);
        }
    }
    counts
}

/// The calls of each function, as the folded stacks of a trace without times have them.
fn weighed(trace: &Trace) -> Counts {
    let mut counts = Counts::new();
    for line in trace.export("folded").lines() {
        let (stack, calls) = line.rsplit_once(' ').unwrap();
        let function = stack.rsplit(';').next().unwrap().to_owned();
        *counts.entry(function).or_default() += calls.parse::<u64>().unwrap();
    }
    counts
}

/// The calls of `report --format graph`, without CPU and duration.
fn tree(trace: &Trace, options: &[&str]) -> Vec<String> {
    let report = trace.report_with("graph", options);
    let lines = report.lines().filter(|line| !line.starts_with('#'));
    let calls = lines.filter_map(|line| line.split_once("|  "));
    let plain = |call: &str| call.split(" /*").next().unwrap_or_default().to_owned();
    calls.map(|(_, call)| plain(call)).collect()
}

/// Every function is entered and left as often as the guest says, and nothing is odd.
fn assert_complete(trace: &Trace, printed: &Printed) {
    assert_eq!(trace.lost(), 0);
    assert_eq!(anomalies(trace), Value::Array(Vec::new()));
    assert_eq!(trace.uftrace(), printed.called(), "uftrace report");
    assert_eq!(returned(trace), printed.called(), "calls that returned");
}

fn every_workload(hook: &str) {
    let iterations = scaled(100);
    let cmdline = format!("workload={WORKLOADS} iterations={iterations} tick=200");
    for vcpus in [1, 2] {
        let (untraced, _) = Guest::new(&cmdline).vcpus(vcpus).run();
        let (printed, trace) = traced(&cmdline, vcpus, hook);
        assert_eq!(
            printed,
            untraced.good().printed(),
            "tracing changed the guest"
        );
        assert_complete(&trace, &printed);
    }
}

#[test]
fn every_call_returns_with_balanced_hooks() {
    every_workload("balanced");
}

#[test]
fn every_call_returns_with_jmp_hooks() {
    every_workload("jmp");
}

#[test]
fn every_call_returns_with_ret_hooks() {
    every_workload("ret");
}

#[test]
fn threads_that_are_preempted_and_migrate_keep_their_calls() {
    for vcpus in [1, 2] {
        let iterations = scaled(usual_or_long(2000, 5000));
        let cmdline =
            format!("workload=threads,smp,nops iterations={iterations} threads=6 tick=500");
        let (printed, trace) = traced(&cmdline, vcpus, "balanced");
        assert_complete(&trace, &printed);
    }
}

/// The lines of a call that calls the next function twice.
fn twice(names: &[&str], depth: usize, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    match names {
        [] => {}
        [leaf] => lines.push(format!("{indent}{leaf}();")),
        [name, inner @ ..] => {
            lines.push(format!("{indent}{name}() {{"));
            twice(inner, depth + 1, lines);
            twice(inner, depth + 1, lines);
            lines.push(format!("{indent}}}"));
        }
    }
}

#[test]
fn the_tree_of_calls_is_the_known_one() {
    let mut expected = Vec::new();
    for _ in 0..20 {
        twice(&CALLS, 0, &mut expected);
    }
    for (vcpus, hook) in [(1, "balanced"), (2, "balanced"), (1, "jmp"), (1, "ret")] {
        let (_, trace) = traced("workload=calls iterations=20 tick=500", vcpus, hook);
        assert_eq!(tree(&trace, &[]), expected, "{vcpus} vCPUs, {hook}");
    }
    let (_, trace) = traced_by("none", "workload=calls iterations=20", 1, "balanced");
    assert_eq!(tree(&trace, &[]), expected, "without a clock");
}

/// Without times, stacks have to be found by a part of their addresses.
#[test]
fn every_call_returns_without_a_clock() {
    let iterations = scaled(100);
    let cmdline = format!("workload={WORKLOADS} iterations={iterations} tick=200");
    for hook in ["balanced", "jmp"] {
        let (printed, trace) = traced_by("none", &cmdline, 1, hook);
        assert_eq!(trace.lost(), 0);
        assert_eq!(anomalies(&trace), Value::Array(Vec::new()));
        assert_eq!(trace.uftrace(), printed.called(), "uftrace report");
        assert_eq!(weighed(&trace), printed.called(), "folded stacks");
    }
}

#[test]
fn the_tree_of_recursion_is_the_known_one() {
    const DEPTH: usize = 200;
    let mut once = Vec::new();
    for depth in 0..DEPTH - 1 {
        once.push(format!("{}recursion_step() {{", "  ".repeat(depth)));
    }
    once.push(format!("{}recursion_step();", "  ".repeat(DEPTH - 1)));
    once.extend(
        (0..DEPTH - 1)
            .rev()
            .map(|depth| format!("{}}}", "  ".repeat(depth))),
    );
    let expected: Vec<String> = (0..10).flat_map(|_| once.clone()).collect();
    for (vcpus, hook) in [(1, "balanced"), (2, "balanced"), (1, "jmp"), (1, "ret")] {
        let (_, trace) = traced("workload=recursion iterations=10 tick=500", vcpus, hook);
        assert_eq!(tree(&trace, &[]), expected, "{vcpus} vCPUs, {hook}");
    }
}

#[test]
fn a_report_selects_calls_as_ftrace_does() {
    let (_, trace) = traced("workload=calls iterations=2", 1, "balanced");
    let only = |call: &str, count: usize| vec![call.to_owned(); count];
    assert_eq!(
        tree(&trace, &["--max-depth", "1"]),
        only("calls_root();", 2)
    );
    assert_eq!(
        tree(&trace, &["--graph-function", "*_leaf"]),
        only("calls_leaf();", 64)
    );
    let mut twigs = Vec::new();
    (0..32).for_each(|_| twice(&["calls_twig", "calls_leaf"], 0, &mut twigs));
    assert_eq!(tree(&trace, &["--graph-function", "calls_twig"]), twigs);
    let notrace = ["--graph-notrace", "calls_trunk"];
    assert_eq!(tree(&trace, &notrace), only("calls_root();", 2));
    assert!(tree(&trace, &["--threshold", "100s"]).is_empty());
}

/// `calls` in full, twice, without some of its functions: what these call stands in their place.
fn tree_without(hidden: &[&str]) -> Vec<String> {
    fn add(names: &[&str], depth: usize, hidden: &[&str], lines: &mut Vec<String>) {
        let [name, inner @ ..] = names else { return };
        let indent = "  ".repeat(depth);
        let mut children = Vec::new();
        let depth = depth + usize::from(!hidden.contains(name));
        (0..2).for_each(|_| add(inner, depth, hidden, &mut children));
        match (hidden.contains(name), children.is_empty()) {
            (true, _) => lines.extend(children),
            (false, true) => lines.push(format!("{indent}{name}();")),
            (false, false) => {
                lines.push(format!("{indent}{name}() {{"));
                lines.extend(children);
                lines.push(format!("{indent}}}"));
            }
        }
    }
    let mut lines = Vec::new();
    (0..2).for_each(|_| add(&CALLS, 0, hidden, &mut lines));
    lines
}

/// How many bytes there are from the entry of each function to the next one, as the trace's symbols have it.
fn sizes(trace: &Trace) -> BTreeMap<String, u64> {
    let files = std::fs::read_dir(trace.path()).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let is_symbols = |path: &PathBuf| path.extension().is_some_and(|end| end == "sym");
    let symbols: Vec<String> = files
        .filter(is_symbols)
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let lines = symbols.iter().flat_map(|text| text.lines());
    let mut functions: Vec<(u64, &str)> = lines
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (u64::from_str_radix(words[0], 16).unwrap(), words[2])
        })
        .collect();
    functions.sort_unstable();
    let pairs = functions.windows(2);
    pairs
        .map(|pair| (pair[0].1.to_owned(), pair[1].0 - pair[0].0))
        .collect()
}

#[test]
fn a_report_leaves_out_functions_and_shows_the_ways_to_others() {
    let (_, trace) = traced("workload=calls iterations=2", 1, "balanced");
    assert_eq!(tree(&trace, &[]), tree_without(&[]));
    assert_eq!(
        tree(&trace, &["--hide", "calls_b*", "--hide", "calls_root"]),
        tree_without(&["calls_bough", "calls_branch", "calls_root"])
    );
    // What is called below it is on no way to it.
    let below = ["calls_branch", "calls_twig", "calls_leaf"];
    let ways = tree(&trace, &["--callers", "calls_bough"]);
    assert_eq!(ways, tree_without(&below));
    let both = ["--callers", "calls_bough", "--callers", "calls_trunk"];
    assert_eq!(tree(&trace, &both), tree_without(&below));
    let path = trace.path();
    let report = ["report", path.to_str().unwrap(), "--hide", "nobody"];
    let ended = vmm_says(&report).good();
    assert!(
        ended
            .stderr
            .contains("no function of the guest matches 'nobody'"),
        "{ended}"
    );
    let late = ["report", path.to_str().unwrap(), "--from", "1000s"];
    let ended = vmm_says(&late).good();
    assert!(
        ended.stderr.contains("nothing of the trace is in the part"),
        "{ended}"
    );
}

#[test]
fn a_report_leaves_out_small_functions() {
    let (printed, trace) = traced(&format!("workload={WORKLOADS} iterations=5"), 1, "balanced");
    let (called, sizes) = (printed.called(), sizes(&trace));
    let of_called: BTreeSet<u64> = called.keys().map(|name| sizes[name]).collect();
    assert!(of_called.len() > 2, "{of_called:?}");
    let last = of_called.last().unwrap() + 1;
    for size in of_called.iter().copied().chain([last]) {
        let options = ["--min-size", &size.to_string(), "--json"];
        let shown = trace.report_with("counts", &options);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let rows = shown["counts"].as_array().unwrap().iter();
        let shown: Counts = rows
            .map(|row| {
                let name = row["function"].as_str().unwrap().to_owned();
                (name, row["calls"].as_u64().unwrap())
            })
            .collect();
        let mut expected = called.clone();
        expected.retain(|name, _| sizes[name] >= size);
        assert_eq!(shown, expected, "{size}");
    }
}

/// One line for each call and each return, as objects and as comma-separated values.
#[test]
fn programs_read_each_call_and_return() {
    let (printed, trace) = traced(
        "workload=calls,threads iterations=20 tick=500",
        2,
        "balanced",
    );
    let lines = |format: &str, options: &[&str]| {
        let text = trace.report_with(format, options);
        text.lines().map(ToOwned::to_owned).collect::<Vec<String>>()
    };
    for format in ["graph", "function"] {
        let (mut calls, mut returns) = (Counts::new(), Counts::new());
        for line in lines(format, &["--json"]) {
            let line: Value = serde_json::from_str(&line).unwrap();
            let name = line["function"].as_str().map(ToOwned::to_owned);
            match (line["kind"].as_str().unwrap(), name) {
                ("call", Some(name)) => *calls.entry(name).or_default() += 1,
                ("return", Some(name)) => *returns.entry(name).or_default() += 1,
                _ => assert!(line["function"].is_null(), "{line}"),
            }
        }
        assert_eq!(calls, printed.called(), "{format}");
        let expected = if format == "graph" {
            printed.called()
        } else {
            Counts::new()
        };
        assert_eq!(returns, expected, "{format}");
        let rows = lines(format, &["--csv"]);
        let is_step = |row: &&String| row.contains(",call,") || row.contains(",return,");
        let steps = rows.iter().filter(is_step).count() as u64;
        let expected: u64 = calls.values().chain(returns.values()).sum();
        assert_eq!(steps, expected, "{format}");
    }
}

#[test]
fn a_run_writes_what_is_selected() {
    let (_, trace) = Guest::new("workload=calls iterations=2")
        .with([
            "--trace",
            "graph",
            "--max-depth",
            "2",
            "--graph-function",
            "calls_t*",
        ])
        .output()
        .run();
    let counts: Vec<(String, u64)> = trace.uftrace().into_iter().collect();
    assert_eq!(
        counts,
        [("calls_bough".to_owned(), 8), ("calls_trunk".to_owned(), 4)]
    );
}

/// A ring that is far too small: what is missing is said, and the rest is whole.
#[test]
fn losses_are_counted_and_shown() {
    for mode in ["overwrite", "discard"] {
        let iterations = scaled(100_000);
        let (ended, trace) = Guest::new(&format!(
            "workload=threads iterations={iterations} tick=500"
        ))
        .vcpus(2)
        .with(["--trace", "graph", "--mode", mode, "--ring-size", "4"])
        .output()
        .run();
        let printed = ended.good().printed();
        assert!(trace.lost() > 0, "{mode}");
        let entered: u64 = trace.uftrace().values().sum();
        assert!(entered < printed.total() && entered + trace.lost() > printed.total());
        let report = trace.report_with("graph", &[]);
        assert!(
            report.contains(" EVENTS]") && report.contains("unknown duration"),
            "{mode}"
        );
    }
}

#[test]
fn uftrace_and_flame_graphs_show_a_graph() {
    let (_, trace) = traced("workload=calls,threads iterations=5", 2, "balanced");
    assert!(trace.uftrace_says(&["replay"]).contains("calls_root() {"));
    assert!(trace.uftrace_says(&["graph"]).contains("(10) calls_trunk"));
    let report = trace.uftrace_says(&["report"]);
    assert!(report.contains("calls_trunk"), "{report}");
    // The graph of the first thread, then the report, then the end.
    let tui = trace.uftrace_draws("\rRq");
    for words in ["TOTAL TIME : FUNCTION", "SELF TIME", "calls_trunk"] {
        assert!(tui.contains(words), "{tui}");
    }
    let chrome = trace.uftrace_says(&["dump", "--chrome"]);
    serde_json::from_str::<Value>(&chrome).expect("uftrace writes JSON");
    let path = "calls_root;calls_trunk;calls_bough;calls_branch;calls_twig;calls_leaf ";
    assert!(
        trace
            .uftrace_says(&["dump", "--flame-graph"])
            .contains(path)
    );
    assert!(
        trace
            .uftrace_says(&["dump", "--graphviz"])
            .contains("-> \"calls_trunk\"")
    );
    assert!(trace.export("folded").contains(path));
    let svg = trace.export("flamegraph");
    assert!(svg.contains("</svg>") && svg.contains("calls_leaf"));
    for said in ["--trace graph", "calls, 0 lost"] {
        assert!(svg.contains(said), "{said}");
    }
}

fn exported(trace: &Trace, options: &[&str]) -> Ended {
    let path = trace.path();
    let words = ["export", path.to_str().unwrap()];
    vmm_says(&[&words[..], options].concat())
}

/// Whoever draws a flame graph of a damaged trace must not believe that it is of the whole one.
#[test]
fn exports_say_what_they_could_not_read() {
    let cmdline = "workload=calls iterations=20";
    let (_, trace) = traced(cmdline, 1, "balanced");
    let refused = exported(&trace, &["--format", "chrome", "--values"]);
    for words in [
        "--values",
        "chrome and perfetto have the values of every call anyway",
    ] {
        assert!(refused.refused(100).contains(words), "{refused}");
    }
    let files = std::fs::read_dir(trace.path()).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let data = files.filter(|path| path.extension().is_some_and(|end| end == "dat"));
    let data = data
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let whole = std::fs::read(&data).unwrap();
    let beside = data.with_extension("side");
    let whole_beside = std::fs::read(&beside).unwrap();
    std::fs::write(&beside, whole_beside.repeat(2)).unwrap();
    // The same once more: later records have earlier times. Then a part of one.
    std::fs::write(&data, [&whole[..], &whole, &whole[..7]].concat()).unwrap();
    for format in ["folded", "flamegraph", "chrome", "perfetto", "trace-dat"] {
        let ended = exported(&trace, &["--format", format]).good();
        for words in ["7 bytes of a torn record", "times go back"] {
            assert!(ended.stderr.contains(words), "{format}: {}", ended.stderr);
        }
    }
    std::fs::write(&data, &whole[..whole.len() / 2]).unwrap();
    for format in ["folded", "chrome"] {
        let ended = exported(&trace, &["--format", format]);
        assert_eq!(ended.code, Some(100), "{}", ended.stderr);
        assert!(ended.stderr.contains("calls are missing"), "{ended}");
        assert!(ended.stdout.contains("calls_leaf"));
    }
    let side = trace.path().join("exotrace.json");
    let text = std::fs::read_to_string(&side).unwrap();
    let killed = text.replace("\"finished\": true", "\"finished\": false");
    assert_ne!(text, killed);
    std::fs::write(side, killed).unwrap();
    let ended = exported(&trace, &["--format", "folded"]).good();
    assert!(
        ended.stderr.contains("not ended in order"),
        "{}",
        ended.stderr
    );
}

/// What each stack of a folded text has: one number, or two.
fn folded_stacks(text: &str) -> BTreeMap<String, Vec<u64>> {
    let mut stacks = BTreeMap::new();
    for line in text.lines() {
        let mut words: Vec<&str> = line.split(' ').collect();
        let numbers = words.split_off(1);
        let numbers = numbers.iter().map(|number| number.parse().unwrap());
        stacks.insert(words[0].to_owned(), numbers.collect());
    }
    stacks
}

#[test]
fn stacks_of_two_runs_are_compared_number_by_number() {
    let (_, before) = traced("workload=calls iterations=20", 1, "balanced");
    let (_, after) = traced("workload=calls,recursion iterations=30", 1, "balanced");
    let path = before.path();
    let since = ["--before", path.to_str().unwrap()];
    let both = exported(&after, &[&["--format", "folded"], &since[..]].concat());
    let both = folded_stacks(&both.good().stdout);
    let (of_before, of_after) = (
        folded_stacks(&before.export("folded")),
        folded_stacks(&after.export("folded")),
    );
    assert!(of_after.len() > of_before.len() && !of_before.is_empty());
    for (stack, numbers) in &both {
        let of = |one: &BTreeMap<String, Vec<u64>>| one.get(stack).map_or(0, |of| of[0]);
        assert_eq!(*numbers, [of(&of_before), of(&of_after)], "{stack}");
    }
    let all: BTreeSet<&String> = of_before.keys().chain(of_after.keys()).collect();
    assert_eq!(both.keys().collect::<BTreeSet<_>>(), all);
    let drawn = exported(&after, &[&["--format", "flamegraph"], &since[..]].concat());
    let drawn = drawn.good().stdout;
    assert!(drawn.contains("red took longer than in") && drawn.contains("recursion"));
    let refused = |options: &[&str], words: &str| {
        let ended = exported(&after, options);
        assert!(ended.refused(100).contains(words), "{ended}");
    };
    refused(&["--format", "chrome", "--before", "x"], "--before");
    refused(&["--format", "folded", "--icicle"], "--icicle");
    refused(&["--format", "folded", "--before", "nothing"], "nothing");
}

/// The root of an icicle is above what it calls.
#[test]
fn an_icicle_hangs_down() {
    let (_, trace) = traced("workload=calls iterations=20", 1, "balanced");
    let heights = |options: &[&str]| {
        let svg = exported(&trace, &[&["--format", "flamegraph"], options].concat());
        let svg = svg.good().stdout;
        let of = |name: &str| {
            let (_, frame) = svg.split_once(&format!("<title>{name} (")).unwrap();
            let (_, y) = frame.split_once(" y=\"").unwrap();
            y.split('"').next().unwrap().parse::<u64>().unwrap()
        };
        (of("calls_root"), of("calls_leaf"))
    };
    let (root, leaf) = heights(&[]);
    assert!(root > leaf);
    let (root, leaf) = heights(&["--icicle"]);
    assert!(root < leaf);
}
