//! What is traced is what was asked for, from when on it was asked for.

use serde_json::{Value, json};
use tests::exact::{gated, open_gate, without_gate};
use tests::{Client, Counts, Guest, Trace};

const CALLS: &str = "workload=calls iterations=100";

fn traced(options: &[&str]) -> (Counts, Trace) {
    let mut guest = Guest::new(CALLS)
        .with(["--trace", "function", "--mode", "discard"])
        .output();
    for option in options {
        guest = guest.with([*option]);
    }
    let (ended, trace) = guest.run();
    let said = ended.good().stderr;
    assert!(said.contains(" functions are traced\n"), "{said}");
    (trace.counts(), trace)
}

fn names(counts: &Counts) -> Vec<&str> {
    counts.keys().map(String::as_str).collect()
}

#[test]
fn filters_and_notrace_select_what_they_match() {
    let (counts, _) = traced(&["--filter", "calls_t*"]);
    assert_eq!(names(&counts), ["calls_trunk", "calls_twig"]);
    let (counts, _) = traced(&[
        "--filter",
        "calls_*",
        "--notrace",
        "*_t*",
        "--notrace",
        "*leaf",
    ]);
    assert_eq!(
        names(&counts),
        ["calls_bough", "calls_branch", "calls_root"]
    );
    let (counts, trace) = traced(&["--filter", "calls_root", "--filter", "calls_leaf"]);
    assert_eq!(
        counts,
        [("calls_leaf", 3200), ("calls_root", 100)]
            .map(owned)
            .into()
    );
    assert_eq!(trace.uftrace(), counts);
}

fn owned((name, count): (&str, u64)) -> (String, u64) {
    (name.to_owned(), count)
}

#[test]
fn filters_of_a_running_session_change_what_is_recorded() {
    let mut running = gated("calls,spin,calls,spin", "iterations=100")
        .with(["--mode", "discard", "--ring-size", "1024"])
        .output()
        .start();
    open_gate(&mut running);
    running.wait_for("checksum calls");
    let mut client = running.client();
    client.call(
        "filter.set",
        json!({"filter": ["calls_leaf", "calls_root"]}),
    );
    client.call("filter.remove", json!({"filter": ["calls_root"]}));
    client.call("filter.add", json!({"filter": ["calls_twig"]}));
    running.type_text("q");
    let (ended, trace) = {
        let status = client.wait_until("reads the second round", |status| {
            Client::rings(status, "read") == 6300 + 4800
        });
        assert_eq!(
            status["tracing"]["sessions"][0]["filter"],
            json!(["calls_leaf", "calls_twig"])
        );
        running.type_text("q");
        running.end()
    };
    let _ = ended.good();
    let counts = trace.counts();
    let twice = ["calls_leaf", "calls_twig"];
    for (function, once) in [
        ("calls_leaf", 3200),
        ("calls_twig", 1600),
        ("calls_root", 100),
    ] {
        let times = if twice.contains(&function) { 2 } else { 1 };
        assert_eq!(counts[function], times * once, "{function}: {counts:?}");
    }
}

#[test]
fn the_quick_switch_stops_records_without_touching_text() {
    let mut running = gated("calls,spin,calls,spin", "iterations=100")
        .with(["--mode", "discard", "--ring-size", "1024"])
        .output()
        .start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.call("start", json!({"filter": ["calls_*"]}));
    let patched = client.digest();
    client.call("tracing-off", Value::Null);
    assert_eq!(client.digest(), patched, "the switch patches nothing");
    running.type_text("q");
    running.wait_for("checksum calls");
    let status = client.status();
    assert_eq!(status["tracing"]["state"], "switched-off");
    let counted = ["written", "read", "lost"].map(|number| Client::rings(&status, number));
    assert_eq!(
        counted,
        [0, 0, 0],
        "what is not recorded is not lost: {status}"
    );
    client.call("tracing-on", Value::Null);
    running.type_text("q");
    client.wait_until("reads the second round", |status| {
        Client::rings(status, "read") == 6300
    });
    running.type_text("q");
    let (ended, trace) = running.end();
    let _ = ended.good();
    assert_eq!(trace.counts()["calls_leaf"], 3200);
    assert_eq!(trace.lost(), 0);
}

#[test]
fn pauses_nest_with_changes_of_tracing() {
    let mut running = Guest::new("workload=list,spin").vcpus(2).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let before = client.digest();
    client.call("pause", Value::Null);
    client.call("start", json!({"filter": ["spin_*"]}));
    let status = client.status();
    assert_eq!(status["guest"]["state"], "paused");
    assert_eq!(
        Client::rings(&status, "written"),
        0,
        "nothing runs: {status}"
    );
    assert_ne!(client.digest(), before);
    client.call("resume", Value::Null);
    client.wait_until("records", |status| Client::rings(status, "written") > 1000);
    client.call("pause", Value::Null);
    let paused = Client::rings(&client.status(), "written");
    client.call("filter.set", json!({"filter": ["spin_leaf"]}));
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), before, "detached while paused");
    assert_eq!(
        Client::rings(&client.status(), "written"),
        paused,
        "still paused"
    );
    client.call("resume", Value::Null);
    assert_eq!(client.digest(), before);
    client.call("start", json!({"filter": ["spin_leaf"]}));
    client.wait_until("records again", |status| {
        Client::rings(status, "written") > paused
    });
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), before);
    running.type_text("q");
    let _ = running.end().0.good();
}

#[test]
fn tracing_begins_at_the_attach_point() {
    let options = [
        "--trace", "function", "--filter", "calls_*", "--mode", "discard",
    ];
    let at = |symbol| {
        let guest = Guest::new(CALLS)
            .with(options)
            .with(["--attach-at", symbol])
            .output();
        let (ended, trace) = guest.run();
        let _ = ended.good();
        trace.counts()
    };
    assert_eq!(at("workloads_ready")["calls_leaf"], 3200);
}

/// The first instruction for which its text is mapped where it was linked: no stack, no GS base, no other vCPU yet.
#[test]
fn tracing_begins_with_the_first_instruction_in_the_high_half() {
    for vcpus in [1, 2] {
        let guest = || {
            let words = "workload=calls,threads,smp,spin iterations=200 threads=4 tick=300";
            Guest::new(words).vcpus(vcpus)
        };
        let spins = |guest: Guest| {
            let mut running = guest.start();
            running.wait_for("checksum smp");
            let digest = running.client().digest();
            (running, digest)
        };
        let (mut untraced, expected) = spins(guest());
        untraced.type_text("q");
        let of_untraced = without_gate(untraced.end().0.good().printed());
        let options = [
            "--trace",
            "graph",
            "--mode",
            "lossless",
            "--ring-size",
            "64",
        ];
        let guest = guest().with(options).with(["--attach-at", "boot_high"]);
        let (mut running, changed) = spins(guest.output());
        assert_ne!(changed, expected, "it is traced");
        running.client().call("stop", Value::Null);
        assert_eq!(running.client().digest(), expected);
        running.type_text("q");
        let (ended, trace) = running.end();
        let printed = without_gate(ended.good().printed());
        assert_eq!(printed, of_untraced);
        let called = printed.called();
        let mut traced = trace.uftrace();
        traced.retain(|name, _| !name.starts_with("spin_"));
        assert_eq!(traced, called);
        assert_eq!(trace.lost(), 0);
    }
}

/// Before that the guest runs where nothing of it is mapped as it was linked.
#[test]
fn an_attach_point_before_the_text_is_mapped_says_so() {
    let guest = Guest::new(CALLS).with(["--trace", "graph", "--attach-at", "start_physical"]);
    let (ended, _) = guest.run();
    assert_ne!(ended.code, Some(0), "{ended}");
    let told = "page tables map nothing at";
    assert!(ended.stderr.contains(told), "{ended}");
}

/// An attach point that the guest does not come to is no error of the guest's, and is told. Who has a script is told by the status.
#[test]
fn an_attach_point_that_is_never_reached_is_named_at_the_end() {
    let at_the_end = |guest: Guest, code| {
        let guest = guest.with(["--trace", "function", "--attach-at", "recursion_step"]);
        let (ended, trace) = guest.output().run();
        assert_eq!(ended.code, Some(code), "{ended}");
        let told = ended.stderr.lines().next().unwrap_or_default();
        for words in ["recursion_step", "did not get to the attach point"] {
            assert!(told.contains(words), "{ended}");
        }
        assert!(trace.counts().is_empty());
        ended.no_panic();
    };
    at_the_end(Guest::new("workload=list"), 105);
    at_the_end(Guest::new("workload=spin").with(["--timeout", "3"]), 103);
}
