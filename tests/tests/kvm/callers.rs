//! Traces of functions that say where each call was made.

use serde_json::{Value, json};
use tests::exact::gated;
use tests::{Guest, vmm_says};

/// Who calls whom in the workload `calls`, and how often for each of its iterations.
const PAIRS: [(&str, &str, u64); 5] = [
    ("calls_trunk", "calls_root", 2),
    ("calls_bough", "calls_trunk", 4),
    ("calls_branch", "calls_bough", 8),
    ("calls_twig", "calls_branch", 16),
    ("calls_leaf", "calls_twig", 32),
];
const ITERATIONS: u64 = 500;

/// The rows of `--format callers`: function, caller, calls.
fn pairs(report: &str) -> Vec<(String, String, u64)> {
    let report: Value = serde_json::from_str(report).unwrap();
    let rows = report["callers"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let row = |row: &Value| {
        let calls = row["calls"].as_u64().unwrap();
        (text(&row["function"]), text(&row["caller"]), calls)
    };
    rows.map(row).collect()
}

fn assert_pairs(report: &str, label: &str) {
    let seen = pairs(report);
    for (function, caller, times) in PAIRS {
        let of_function: Vec<_> = seen.iter().filter(|(one, ..)| one == function).collect();
        let expected = (function.to_owned(), caller.to_owned(), times * ITERATIONS);
        assert_eq!(of_function, [&expected], "{label}");
    }
    let roots = seen
        .iter()
        .filter(|(function, ..)| function == "calls_root");
    let roots: u64 = roots.map(|(_, _, calls)| calls).sum();
    assert_eq!(roots, ITERATIONS, "{label}");
}

#[test]
fn every_call_says_who_made_it_in_both_stores() {
    let cmdline = format!("workload=calls iterations={ITERATIONS} tick=200");
    for store in ["uftrace", "compact"] {
        let options = ["--trace", "function", "--callers", "--mode", "discard"];
        let guest = Guest::new(&cmdline).vcpus(2).with(options);
        let (ended, trace) = guest.with(["--store", store]).output().run();
        assert_eq!(ended.code, Some(0), "{ended}");
        let report = trace.report_with("callers", &["--json"]);
        assert_pairs(&report, store);
        let lines = trace.report("function");
        let calls = lines
            .lines()
            .filter(|line| line.ends_with("calls_leaf <-calls_twig"));
        assert_eq!(calls.count() as u64, 32 * ITERATIONS, "{store}");
        if store == "uftrace" {
            // uftrace, too, knows the name that belongs to the address.
            let replayed = trace.uftrace_says(&["replay"]);
            let calls = replayed
                .lines()
                .filter(|line| line.contains("calls_leaf(&calls_twig)"));
            assert_eq!(calls.count() as u64, 32 * ITERATIONS);
        } else {
            assert!(trace.trace_cmd().contains("calls_leaf"));
        }
    }
}

/// Where a site stands after the prologue, it is not the word under the stack pointer that says who called.
#[test]
fn calls_say_who_made_them_wherever_sites_stand() {
    for build in ["fentry", "mcount", "patchable"] {
        let cmdline = format!("workload=c_{build} iterations={ITERATIONS}");
        let filter = format!("{build}_*");
        let options = ["--trace", "function", "--callers", "--mode", "discard"];
        let guest = Guest::new(&cmdline).with(options);
        let (ended, trace) = guest.with(["--filter", &filter]).output().run();
        assert_eq!(ended.code, Some(0), "{ended}");
        let seen = pairs(&trace.report_with("callers", &["--json"]));
        for (function, caller, times) in [
            ("leaf", "branch", 6),
            ("branch", "root", 2),
            ("recurse", "recurse", 9),
            ("recurse", "root", 1),
            ("tail_jump", "root", 1),
        ] {
            let [function, caller] = [function, caller].map(|name| format!("{build}_{name}"));
            let expected = (function, caller, times * ITERATIONS);
            assert!(seen.contains(&expected), "{expected:?} in {seen:?}");
        }
    }
}

/// The stubs of another session hook the returns of the same functions: calls say who made them all the same.
#[test]
fn beside_a_graph_calls_say_who_made_them() {
    let rest = format!("iterations={ITERATIONS} tick=200");
    let mut running = gated("calls", &rest).vcpus(2).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    for (session, tracer, callers) in [("calls", "function", true), ("graph", "graph", false)] {
        let options = json!({
            "callers": callers,
            "mode": "discard",
            "ring_size": "16M",
            "output": running.path(session),
        });
        let make = json!({"name": session, "tracer": tracer, "options": options});
        client.call("session.create", make);
        let start = json!({"session": session, "filter": ["calls_*"]});
        client.call("start", start);
    }
    running.type_text("q");
    let (ended, trace) = running.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    for session in ["calls", "graph"] {
        let report = vmm_says(&[
            "report".as_ref(),
            trace.path().with_file_name(session).as_os_str(),
            "--format".as_ref(),
            "callers".as_ref(),
            "--json".as_ref(),
        ]);
        assert_pairs(&report.good().stdout, session);
    }
}

#[test]
fn what_cannot_say_who_made_a_call_refuses_to_be_asked() {
    for tracer in ["graph", "profile", "nop"] {
        let guest = Guest::new("workload=none").with(["--trace", tracer, "--callers"]);
        let (ended, _) = guest.run();
        let said = ended.refused(100);
        assert!(
            said.contains("callers is for the function tracer"),
            "{said}"
        );
    }
    let (ended, trace) = Guest::new("workload=calls iterations=1")
        .with(["--trace", "function", "--filter", "calls_*"])
        .output()
        .run();
    assert_eq!(ended.code, Some(0), "{ended}");
    let refused = vmm_says(&[
        "report",
        trace.path().to_str().unwrap(),
        "--format",
        "callers",
    ]);
    let said = refused.refused(100);
    assert!(
        said.contains("record it with --trace graph, or with --callers"),
        "{said}"
    );
}
