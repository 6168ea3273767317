//! Sessions that record only some threads of the bundled guest, which are known by their numbers: those of a workload are 1 to 4,
//! and wander between two vCPUs.

use serde_json::{Value, json};
use tests::exact::gated;
use tests::{Client, Running};

const SESSIONS: [&str; 5] = ["default", "graph", "others", "both", "nobody"];

fn written(status: &Value, session: &str) -> u64 {
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    let of = sessions.iter().find(|one| one["name"] == session).unwrap();
    let rings = of["rings"].as_array().unwrap().iter();
    rings.map(|ring| ring["written"].as_u64().unwrap()).sum()
}

#[test]
fn only_a_thread_or_all_but_it() {
    let guest = gated("threads,spin", "iterations=200 threads=4 tick=200").vcpus(2);
    let guest = guest.with(["--mode", "discard", "--only-tasks", "2"]);
    let mut running: Running = guest.output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    client.call("start", json!({"filter": ["threads_*"]}));
    for (name, tracer, which, tasks) in [
        ("graph", "graph", "only_tasks", json!(["2"])),
        ("others", "graph", "not_tasks", json!(["2"])),
        ("both", "function", "only_tasks", json!(["1", "3"])),
        ("nobody", "function", "only_tasks", json!(["40"])),
        ("times", "profile", "not_tasks", json!(["2", "3"])),
    ] {
        let options = json!({"mode": "discard", which: tasks});
        let create = json!({"name": name, "tracer": tracer, "options": options});
        client.call("session.create", create);
        client.call("start", json!({"session": name, "filter": ["threads_*"]}));
    }
    let named = json!({"session": "both", "tasks": ["sh"]});
    let said = client.refused("tasks.set", named);
    assert!(said.contains("known by number only: 'sh'"), "{said}");
    let followed = json!({"session": "both", "tasks": ["1"], "follow_forks": true});
    let said = client.refused("tasks.set", followed);
    assert!(
        said.contains("forks of this guest cannot be followed"),
        "{said}"
    );
    running.type_text("q");
    running.wait_for("checksum threads");
    let status = client.status();
    assert_eq!(Client::rings(&status, "lost"), 0, "{status}");
    let profile = client.call("profile", json!({"session": "times"}));
    for session in SESSIONS.iter().chain(&["times"]) {
        client.call("stop", json!({"session": session}));
    }
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let (ended, trace) = running.end();
    let ended = ended.good();
    let calls = ended.printed().calls;
    let of_threads = calls
        .iter()
        .filter(|(name, _)| name.starts_with("threads_"));
    let each: u64 = of_threads.map(|(_, calls)| calls / 4).sum();
    assert!(each > 0);
    let all = SESSIONS.map(|session| written(&status, session));
    assert_eq!(all, [each, 2 * each, 2 * 3 * each, 2 * each, 0], "{status}");
    let hits = profile["functions"].as_array().unwrap().iter();
    let hits = hits.map(|of| of["hits"].as_u64().unwrap());
    assert_eq!(hits.sum::<u64>(), 2 * each);
    drop(trace);
}
