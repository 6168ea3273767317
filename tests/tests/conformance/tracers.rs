//! Tracers beside each other, on the bundled guest.

use serde_json::{Value, json};
use tests::exact::{gated, without_gate};
use tests::{Client, Counts, Guest, Running, Trace};

const DISCARD: [&str; 4] = ["--mode", "discard", "--ring-size", "16384"];
const REST: &str = "iterations=100 tick=200";

/// A session with a trace of its own, started on what one glob matches.
fn start(running: &Running, client: &mut Client, name: &str, tracer: &str, glob: &str) {
    let options = match tracer {
        "profile" => json!({}),
        _ => json!({"mode": "discard", "ring_size": 8192, "output": running.path(name)}),
    };
    let create = json!({"name": name, "tracer": tracer, "options": options});
    client.call("session.create", create);
    client.call("start", json!({"session": name, "filter": [glob]}));
}

/// What a profile has counted.
fn hits(client: &mut Client, session: &str) -> Counts {
    let profile = client.call("profile", json!({"session": session}));
    let functions = profile["functions"].as_array().unwrap().iter();
    let counted = functions.map(|of| {
        let name = of["name"].as_str().unwrap().to_owned();
        (name, of["hits"].as_u64().unwrap())
    });
    counted.collect()
}

fn only(of: &Counts, is_meant: impl Fn(&str) -> bool) -> Counts {
    let mut of = of.clone();
    of.retain(|name, _| is_meant(name));
    of
}

/// Everything but the gate, by the default session.
fn start_all(client: &mut Client, tracer: &str) {
    let all = json!({"tracer": tracer, "notrace": ["spin_*"]});
    client.call("start", all);
}

#[test]
fn fgraph_multi() {
    let guest = gated("calls,threads", REST).vcpus(2).with(DISCARD);
    let mut running = guest.output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    type IsMeant = fn(&str) -> bool;
    let users: [(&str, &str, IsMeant); 3] = [
        ("one", "calls_b*", |name| name.starts_with("calls_b")),
        ("two", "*s_leaf", |name| name.ends_with("s_leaf")),
        ("three", "threads_*", |name| name.starts_with("threads_")),
    ];
    for (name, glob, _) in users {
        start(&running, &mut client, name, "graph", glob);
    }
    start_all(&mut client, "graph");
    running.type_text("q");
    let (ended, trace) = running.end();
    let called = without_gate(ended.good().printed()).called();
    assert_eq!((trace.uftrace(), trace.lost()), (called.clone(), 0));
    let mut trace: Trace = trace;
    for (name, glob, is_meant) in users {
        trace = trace.named(name);
        let own = only(&called, is_meant);
        assert!(own.len() > 1 && own.len() < called.len(), "{glob}: {own:?}");
        assert_eq!((trace.uftrace(), trace.lost()), (own, 0), "{glob}");
    }
}

#[test]
fn func_profiler() {
    let guest = gated("calls,threads,spin", REST).vcpus(2).with(DISCARD);
    let mut running = guest.output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    start(&running, &mut client, "graph", "graph", "calls_*");
    client.call(
        "session.create",
        json!({"name": "times", "tracer": "profile"}),
    );
    let all = json!({"session": "times", "notrace": ["spin_*"]});
    client.call("start", all);
    start_all(&mut client, "function");
    running.type_text("q");
    running.wait_for("checksum threads");
    let counted = hits(&mut client, "times");
    running.type_text("q");
    let (ended, trace) = running.end();
    let called = without_gate(ended.good().printed()).called();
    assert_eq!(counted, called, "the profile");
    assert_eq!((trace.counts(), trace.lost()), (called.clone(), 0));
    let graph = trace.named("graph");
    let calls = only(&called, |name| name.starts_with("calls_"));
    assert_eq!((graph.uftrace(), graph.lost()), (calls, 0), "the graph");
}

#[test]
fn func_profile_stat() {
    let mut running = gated("calls,spin,calls,spin,calls,spin", REST).start();
    let mut client = running.client();
    running.wait_for("workload spin");
    start(&running, &mut client, "times", "profile", "calls_*");
    // Has one round of calls made, and says what is counted after it.
    let mut rounds = 0;
    let mut round = |running: &mut Running, client: &mut Client| {
        running.type_text("q");
        rounds += 1;
        running.wait_for_times("checksum calls", rounds);
        hits(client, "times")
    };
    let first = round(&mut running, &mut client);
    assert_eq!(first["calls_leaf"], 3200, "{first:?}");
    client.call("tracing-off", json!({"session": "times"}));
    assert_eq!(round(&mut running, &mut client), first, "it is off");
    client.call("tracing-on", json!({"session": "times"}));
    let last = round(&mut running, &mut client);
    let twice = first.iter().map(|(name, count)| (name.clone(), 2 * count));
    assert_eq!(last, twice.collect::<Counts>());
    running.type_text("q");
    let _ = running.end().0.good();
}

#[test]
fn fgraph_profiler() {
    let guest = gated("calls,spin", REST).with(DISCARD);
    let mut running = guest.output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    start(&running, &mut client, "times", "profile", "calls_leaf");
    start_all(&mut client, "graph");
    running.type_text("q");
    running.wait_for_times("checksum calls", 1);
    let counted = hits(&mut client, "times");
    running.type_text("q");
    let (ended, trace) = running.end();
    let called = without_gate(ended.good().printed()).called();
    assert_eq!(counted, only(&called, |name| name == "calls_leaf"));
    assert_eq!((trace.uftrace(), trace.lost()), (called, 0));
}

/// What is recorded after a snapshot is in the trace, and not in the snapshot.
#[test]
fn snapshot() {
    let guest = gated("calls,spin,calls,spin", REST).with(DISCARD);
    let mut running = guest.output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.call("start", json!({"filter": ["calls_*"]}));
    running.type_text("q");
    running.wait_for_times("checksum calls", 1);
    let snapshot = running.path("snapshot");
    let dumped = client.call("dump", json!({"dir": snapshot, "live": true}));
    assert_eq!(dumped["records"], 6300, "{dumped}");
    let session = |status: &Value| status["tracing"]["sessions"][0]["state"].clone();
    assert_eq!(session(&client.status()), "tracing");
    running.type_text("q");
    running.wait_for_times("checksum calls", 2);
    running.type_text("q");
    let (ended, trace) = running.end();
    let called = without_gate(ended.good().printed()).called();
    assert_eq!((trace.counts(), trace.lost()), (called, 0));
    assert_eq!(trace.counts()["calls_leaf"], 2 * 3200);
    assert_eq!(trace.named("snapshot").counts()["calls_leaf"], 3200);
}

/// What comes is told as it comes, while it is recorded all the same.
#[test]
fn trace_pipe() {
    let mut running = Guest::spinning(&["--trace", "function", "--filter", "spin_*"]);
    let mut client = running.client();
    let mut written = 0;
    for _ in 0..2 {
        let told = running.ctl(&["tail", "--count", "200", "--json"]).good();
        let lines = told.stdout.lines();
        let events: Vec<Value> = lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let is_entry = |event: &&Value| event["kind"] == "entry";
        let entries: Vec<&Value> = events.iter().filter(is_entry).collect();
        assert!(entries.len() > 100, "{told}");
        for entry in entries {
            let function = entry["function"].as_str().unwrap();
            assert!(function.starts_with("spin_"), "{entry}");
        }
        let now = Client::rings(&client.status(), "written");
        assert!(now > written, "{now} after {written}");
        written = now;
    }
    running.type_text("q");
    let _ = running.end().0.good();
}
