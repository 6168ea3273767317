//! What a session is told to trace, on the bundled guest: which functions, on which vCPUs; and what it says when it cannot.

use serde_json::{Value, json};
use tests::exact::{gated, without_gate};
use tests::{Client, Counts, Guest, Running};

/// The names of what is traced, and the globs as they read back.
fn traced(client: &mut Client) -> (Vec<String>, Value) {
    let all = client.call("functions", json!({"glob": "spin_*"}));
    let all = all["functions"].as_array().unwrap().iter();
    let patched = all.filter(|one| one["state"] == "patched");
    let mut names: Vec<String> = patched
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    let globs = client.status()["tracing"]["sessions"][0]["filter"].clone();
    (names, globs)
}

/// Appended, taken out, cleared and read back, one after the other. What waits for modules needs a guest that has some:
/// `func_mod_trace`.
#[test]
fn func_set_ftrace_file() {
    const ALL: [&str; 3] = ["spin_branch", "spin_leaf", "spin_root"];
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    let digest = client.digest();
    client.call("start", json!({"filter": ["spin_leaf"]}));
    let functions = client.call("functions", json!({"glob": "spin_*"}));
    assert_eq!(functions["functions"].as_array().unwrap().len(), ALL.len());
    let mut change = |verb: &str, glob: &str, names: &[&str], globs: Value| {
        client.call(verb, json!({"filter": [glob]}));
        let expected: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(traced(&mut client), (expected, globs), "{verb} {glob}");
    };
    let others = ["spin_branch", "spin_root"];
    change("filter.add", "spin_*", &ALL, json!(["spin_leaf", "spin_*"]));
    change(
        "filter.add",
        "!spin_leaf",
        &others,
        json!(["spin_*", "!spin_leaf"]),
    );
    change(
        "filter.add",
        "spin_leaf",
        &ALL,
        json!(["spin_*", "spin_leaf"]),
    );
    change("filter.set", "spin_r*", &["spin_root"], json!(["spin_r*"]));
    change(
        "filter.add",
        "spin_?ea?",
        &ALL[1..],
        json!(["spin_r*", "spin_?ea?"]),
    );
    change(
        "filter.add",
        "!*root",
        &["spin_leaf"],
        json!(["spin_r*", "spin_?ea?", "!*root"]),
    );
    change(
        "filter.remove",
        "!*root",
        &ALL[1..],
        json!(["spin_r*", "spin_?ea?"]),
    );
    // What would leave nothing, and what means nothing, changes nothing.
    for (glob, words) in [
        ("!spin_*", "leaves no function"),
        ("spin_laef", "spin_leaf"),
        ("[", "bad glob"),
    ] {
        let said = client.refused("filter.add", json!({"filter": [glob]}));
        assert!(said.contains(words), "{glob}: {said}");
    }
    assert_eq!(traced(&mut client).1, json!(["spin_r*", "spin_?ea?"]));
    client.call("filter.clear", Value::Null);
    assert_eq!(traced(&mut client).1, json!([]));
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let _ = running.end().0.good();
}

/// The records of each vCPU of a session.
fn written(status: &Value, session: &str) -> Vec<u64> {
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    let of = sessions.iter().find(|one| one["name"] == session).unwrap();
    let rings = of["rings"].as_array().unwrap().iter();
    rings
        .map(|ring| ring["written"].as_u64().unwrap())
        .collect()
}

/// The functions of `smp` are called on every vCPU, by threads that stay there. Two traces of the same calls, one of both vCPUs
/// and one of the second, and a profile of it.
#[test]
fn func_cpumask() {
    let guest = gated("smp,spin", "iterations=200 tick=200").vcpus(2);
    let guest = guest.with(["--mode", "discard", "--ring-size", "16384"]);
    let mut running: Running = guest.output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.call("start", json!({"filter": ["smp_*"]}));
    let options = json!({"mode": "discard", "only_vcpus": [1], "output": running.path("second")});
    client.call(
        "session.create",
        json!({"name": "second", "options": options}),
    );
    client.call(
        "session.create",
        json!({"name": "times", "tracer": "profile"}),
    );
    for session in ["second", "times"] {
        client.call("start", json!({"session": session, "filter": ["smp_*"]}));
    }
    client.call("vcpus.set", json!({"session": "times", "vcpus": [1]}));
    let said = client.refused("vcpus.set", json!({"vcpus": [2]}));
    assert!(said.contains("there is no vCPU 2"), "{said}");
    running.type_text("q");
    running.wait_for("checksum smp");
    let status = client.status();
    let only = &status["tracing"]["sessions"][1]["only_vcpus"];
    assert_eq!(*only, json!({"vcpus": [1], "by": "stub"}), "{status}");
    let (all, second) = (written(&status, "default"), written(&status, "second"));
    assert!(all[0] > 0 && all[1] > 0, "{status}");
    assert_eq!(second, [0, all[1]], "{status}");
    assert_eq!(Client::rings(&status, "lost"), 0, "{status}");
    let profile = client.call("profile", json!({"session": "times"}));
    let hits = profile["functions"].as_array().unwrap().iter();
    let hits = hits.map(|of| of["hits"].as_u64().unwrap());
    assert_eq!(hits.sum::<u64>(), all[1]);
    // Of the gate, on both: what is told later is so from then on.
    client.call("filter.add", json!({"filter": ["spin_leaf"]}));
    client.call("vcpus.set", json!({"vcpus": [0]}));
    let before = written(&client.status(), "default");
    client.wait_until("records on vCPU 0", |status| {
        written(status, "default")[0] > before[0]
    });
    let late = written(&client.status(), "default")[1] - before[1];
    // It can have been between its call and its record.
    assert!(late <= 1, "{late}");
    let changed = client.call("vcpus.clear", Value::Null);
    assert_eq!(changed, json!({"changed": true}));
    client.wait_until("records on vCPU 1", |status| {
        written(status, "default")[1] > before[1] + 1
    });
    running.type_text("q");
    let (ended, trace) = running.end();
    let called = without_gate(ended.good().printed()).called();
    let half: Counts = called
        .into_iter()
        .map(|(name, count)| (name, count / 2))
        .collect();
    let second = trace.named("second");
    assert_eq!((second.counts(), second.lost()), (half, 0));
    let overview = second.report("overview");
    assert!(overview.contains("on vCPU 1 only"), "{overview}");
}

/// What was asked wrongly can be asked for: by another client, later, with the place in the text.
#[test]
fn tracing_error_log() {
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    client.call("start", json!({"tracer": "nop"}));
    client.refused("probe.add", json!({"probes": ["spin_leaf %rdi %rdj"]}));
    client.refused(
        "filter.add",
        json!({"filter": ["nobody"], "session": "none"}),
    );
    drop(client);
    let mut other = running.client();
    let told = other.call("errors", Value::Null);
    let errors = told["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 2, "{told}");
    assert_eq!(errors[0]["method"], "probe.add");
    let mark = json!({"text": "spin_leaf %rdi %rdj", "column": 16});
    assert_eq!(errors[0]["data"], mark, "{told}");
    assert!(
        errors[1]["message"].as_str().unwrap().contains("'none'"),
        "{told}"
    );
    assert!(errors[1].get("data").is_none(), "{told}");
    let shown = running.ctl(&["errors", "--clear"]).good().stdout;
    let marked = "\n    spin_leaf %rdi %rdj\n                   ^\n";
    assert!(shown.contains(marked), "{shown}");
    let shown = running.ctl(&["errors"]).good().stdout;
    assert_eq!(shown, "no error\n");
    running.type_text("q");
    let _ = running.end().0.good();
}
