//! Traces that are kept as the rings had them: what is read of them, and of what they are converted to, is what the guest
//! says of itself.

use std::fs;

use serde_json::json;
use tests::exact::{gated, open_gate, without_gate};
use tests::{Counts, Guest, Trace, until, vmm};

const COMPACT: [&str; 2] = ["--store", "compact"];

/// How often each function was called, by a report of a graph, too.
fn counts(trace: &Trace) -> Counts {
    let report = trace.report("counts");
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let calls = words.next()?.parse().ok()?;
        Some((words.next_back()?.to_owned(), calls))
    };
    report.lines().filter_map(row).collect()
}

/// The same trace, converted to a directory beside it.
fn converted(trace: Trace) -> Trace {
    let to = trace.path().with_file_name("converted");
    let mut export = vmm();
    export.arg("export").arg(trace.path());
    export.args(["--format", "uftrace", "-o"]).arg(&to);
    let output = export.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // What is there is somebody's, also where files may be replaced.
    let again = export.arg("--force").output().unwrap();
    let says = String::from_utf8(again.stderr).unwrap();
    assert!(says.contains("something is there already"), "{says}");
    trace.named("converted")
}

/// Reports and exports of both are the same.
fn assert_same(trace: Trace, formats: &[&str], exports: &[&str]) -> Trace {
    let reports: Vec<String> = formats.iter().map(|format| trace.report(format)).collect();
    let exported: Vec<String> = exports.iter().map(|format| trace.export(format)).collect();
    let trace = converted(trace);
    for (format, report) in formats.iter().zip(reports) {
        assert_eq!(trace.report(format), report, "{format}");
    }
    for (format, file) in exports.iter().zip(exported) {
        assert!(trace.export(format) == file, "{format}");
    }
    trace
}

#[test]
fn every_call_of_two_vcpus_is_in_a_compact_trace() {
    for tracer in ["function", "graph"] {
        let guest = gated("threads,smp", "iterations=200 threads=4 tick=300").vcpus(2);
        let options = ["--mode", "discard", "--ring-size", "16384"];
        let guest = guest.with(options).with(COMPACT).output();
        let mut running = guest.start();
        running.wait_for("workload spin");
        if tracer == "graph" {
            let other = json!({"name": "other", "tracer": "graph", "options": {"output": running.path("other"), "store": "compact", "mode": "discard", "ring_size": 16384}});
            running.client().call("session.create", other);
            let start = json!({"session": "other", "notrace": ["spin_*"]});
            running.client().call("start", start);
            running.type_text("q");
        } else {
            open_gate(&mut running);
        }
        let (ended, trace) = running.end();
        let printed = without_gate(ended.good().printed());
        let trace = match tracer {
            "graph" => trace.named("other"),
            _ => trace,
        };
        assert_eq!(counts(&trace), printed.called(), "{tracer}");
        let (formats, exports): (&[&str], &[&str]) = match tracer {
            "graph" => (
                &["counts", "graph", "callers", "slowest", "timeline"],
                &["folded", "perfetto", "trace-dat", "chrome"],
            ),
            _ => (
                &["counts", "function", "timeline"],
                &["perfetto", "trace-dat"],
            ),
        };
        let trace = assert_same(trace, formats, exports);
        assert_eq!(trace.uftrace(), printed.called(), "{tracer}");
        assert_eq!(trace.lost(), 0);
    }
}

#[test]
fn events_probes_and_the_values_of_calls_are_in_a_compact_trace() {
    let (ended, trace) = Guest::new("workload=events iterations=40 threads=1")
        .with(["--trace", "graph", "--filter", "events_*"])
        .with(["--event", "message_sent", "--args", "--retval"])
        .with(COMPACT)
        .output()
        .run();
    let _ = ended.good();
    let trace = assert_same(trace, &["values", "graph", "overview"], &["trace-dat"]);
    assert_eq!(trace.fields("message_sent").len(), 40);
    let (ended, trace) = Guest::new("workload=calls iterations=10")
        .with(["--trace", "nop", "--probe", "calls_leaf value"])
        .with(["--host-events"])
        .with(COMPACT)
        .output()
        .run();
    let leaves = ended.good().printed().calls["calls_leaf"];
    let trace = assert_same(trace, &["values", "function"], &["perfetto"]);
    let events = trace.events();
    let hits = events.iter().filter(|event| event.get("event").is_some());
    assert_eq!(hits.count() as u64, leaves);
    assert!(!trace.host_events().is_empty());
}

#[test]
fn a_killed_vmm_leaves_a_compact_trace_that_can_be_read() {
    let options = ["--trace", "graph", "--filter", "spin_*"];
    let guest = Guest::new("workload=list,spin").vcpus(2).with(options);
    let running = guest.with(COMPACT).output().start();
    // A step takes less than eight bytes, and every second one is of `spin_leaf` or more.
    let records = running.path("trace").join("records.exo");
    let length = || fs::metadata(&records).map_or(0, |file| file.len());
    until("records are written", || length() > 1_000_000);
    running.signal("-KILL");
    let (ended, trace) = running.end();
    assert_eq!(ended.code, None);
    let report = trace.report("overview");
    assert!(counts(&trace)["spin_leaf"] > 10_000, "{report}");
    let trace = converted(trace);
    assert_eq!(trace.side()["finished"], false);
    assert!(trace.uftrace()["spin_leaf"] > 10_000);
}

/// Who listens hears of the calls although they are not put together for the trace.
#[test]
fn a_tail_of_a_session_with_a_compact_trace_has_its_calls() {
    let options = ["--trace", "graph", "--filter", "spin_*"];
    let guest = Guest::new("workload=list,spin").with(options);
    let running = guest.with(COMPACT).output().start();
    running.wait_for("workload spin");
    let tail = running.ctl(&["tail", "--count", "50"]).good().stdout;
    assert!(tail.contains("spin_leaf"), "{tail}");
    let mut running = running;
    running.type_text("q");
    let (ended, trace) = running.end();
    let printed = ended.good().printed();
    assert!(counts(&trace)["spin_leaf"] <= printed.calls["spin_leaf"]);
}
