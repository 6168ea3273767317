//! What is done at a hit, on the bundled guest.

use serde_json::{Value, json};
use tests::exact::gated;
use tests::{Client, Running};

/// A session of the status.
fn session<'a>(status: &'a Value, name: &str) -> &'a Value {
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    sessions.iter().find(|one| one["name"] == name).unwrap()
}

/// What the rings of a session have had written.
fn written(status: &Value, name: &str, rings: &str) -> u64 {
    let rings = session(status, name)[rings]
        .as_array()
        .into_iter()
        .flatten();
    rings.map(|ring| ring["written"].as_u64().unwrap()).sum()
}

/// A session with these triggers, started on a function.
fn watch(client: &mut Client, name: &str, function: &str, triggers: &[&str]) {
    let options = json!({"trigger": triggers});
    client.call("session.create", json!({"name": name, "options": options}));
    client.call("start", json!({"session": name, "filter": [function]}));
}

/// Has the guest go through the next round of its workload, the `number`-th.
fn round(running: &mut Running, workload: &str, number: usize) {
    running.type_text("q");
    running.wait_for_times(&format!("checksum {workload}"), number);
}

/// What is recorded ends, and begins, at a hit: as often as was asked for, whatever comes later.
#[test]
fn func_traceonoff_triggers() {
    let mut running = gated("calls,spin,calls,spin", "iterations=100").start();
    running.wait_for("workload spin");
    let mut client = running.client();
    for name in ["off", "on"] {
        client.call("session.create", json!({"name": name}));
        client.call("start", json!({"session": name, "filter": ["calls_leaf"]}));
    }
    client.call("tracing-off", json!({"session": "on"}));
    let triggers = [
        "calls_root: tracing-off off",
        "calls_root: tracing-on on x1",
    ];
    watch(&mut client, "watch", "calls_root", &triggers);
    round(&mut running, "calls", 1);
    let status = client.wait_until("both are done", |status| {
        let state = |name| session(status, name)["state"].clone();
        state("off") == "switched-off" && state("on") == "tracing"
    });
    let fired = status["triggers"].as_array().unwrap().iter();
    let fired: Vec<&Value> = fired.map(|one| &one["fired"]).collect();
    assert_eq!(fired, [&json!(1), &json!(1)], "{status}");
    // Both were done as often as they were to be: nothing of it happens again.
    client.call("tracing-on", json!({"session": "off"}));
    let before = client.status();
    round(&mut running, "calls", 2);
    let after = client.status();
    for name in ["off", "on"] {
        let more = written(&after, name, "rings") - written(&before, name, "rings");
        assert_eq!(more, 3200, "{name}: {after}");
    }
    let said = client.refused(
        "session.create",
        json!({"name": "x", "options": {"trigger": ["f: tracing-on"]}}),
    );
    assert!(said.contains("tracing-on SESSION"), "{said}");
    running.type_text("q");
    let _ = running.end().0.good();
}

/// An event is recorded from a hit on, and from another hit on no more.
#[test]
fn func_event_triggers() {
    let mut running = gated(
        "events,spin,events,spin,events,spin,events,spin",
        "iterations=50 threads=1",
    )
    .start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.call("session.create", json!({"name": "told", "tracer": "nop"}));
    client.call("start", json!({"session": "told"}));
    let enable = ["events_pass: enable message_sent in told x1"];
    watch(&mut client, "begin", "events_pass", &enable);
    round(&mut running, "events", 1);
    client.wait_until("it is recorded", |status| {
        session(status, "told")["events"] == json!(["message_sent"])
    });
    let before = client.status();
    round(&mut running, "events", 2);
    let after = client.status();
    let count = |status: &Value| written(status, "told", "event_rings");
    assert_eq!(count(&after) - count(&before), 50, "{after}");
    let disable = ["events_pass: disable message_sent in told"];
    watch(&mut client, "end", "events_pass", &disable);
    round(&mut running, "events", 3);
    let before = client.wait_until("it is recorded no more", |status| {
        session(status, "told")["events"].is_null()
    });
    round(&mut running, "events", 4);
    assert_eq!(count(&client.status()), count(&before));
    running.type_text("q");
    let _ = running.end().0.good();
}
