//! What is done when something happens in the guest: once it has, and no more often than was asked for.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tests::exact::gated;
use tests::{Client, Ended, Guest, Running, vmm};

/// A graph of `calls` between two gates, with these triggers.
fn between_gates(triggers: &[&str]) -> Running {
    let mut guest = gated("calls,spin", "iterations=20");
    for trigger in triggers {
        guest = guest.with(["--trigger", *trigger]);
    }
    let running = guest.start();
    running.wait_for("workload spin");
    running
}

/// Begins to trace, and lets the guest call until the second gate.
fn to_second_gate(running: &mut Running, client: &mut Client) {
    client.call("start", json!({"tracer": "graph", "notrace": ["spin_*"]}));
    running.type_text("q");
    running.wait_for("checksum");
}

/// How often each trigger has fired, and in vain.
fn fired(status: &Value) -> Vec<(u64, u64)> {
    let list = status["triggers"].as_array().unwrap();
    let number = |one: &Value, name: &str| one[name].as_u64().unwrap();
    let one = |one: &Value| (number(one, "fired"), number(one, "failed"));
    list.iter().map(one).collect()
}

fn report(directory: &Path) -> Ended {
    let mut report = vmm();
    report.arg("report").arg(directory);
    let report = report.args(["--format", "counts"]).output();
    Ended::from(report.expect("vmm report starts"))
}

/// A command that was given at the start runs on this host, once, and is told when; what is dumped can be read.
#[test]
fn commands_run_and_rings_are_dumped_as_often_as_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let ran = path("ran");
    let command = format!(
        "calls_trunk: run echo $EXOTRACE_TIME_NS \"$EXOTRACE_TRIGGER\" >> {}",
        ran.display()
    );
    let dump = format!("calls_tw*: dump {} x2", path("twigs").display());
    let mut running = between_gates(&[&command, &dump, "calls_leaf: stop", "calls_root: stop"]);
    let mut client = running.client();
    to_second_gate(&mut running, &mut client);
    let all = [(1, 0), (2, 0), (1, 0), (1, 0)];
    client.wait_until("they fire", |status| fired(status) == all);
    // It is one process after the other.
    let text = loop {
        let text = fs::read_to_string(&ran).unwrap_or_default();
        if text.ends_with('\n') {
            break text;
        }
        client.status();
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words[0].parse::<u64>().unwrap() > 0, "{text}");
    assert_eq!(words[1..4], ["calls_trunk:", "run", "echo"]);
    assert_eq!(text.lines().count(), 1, "{text}");
    for name in ["twigs", "twigs.2"] {
        let report = report(&path(name));
        assert!(report.good().stdout.contains("calls_twig"), "{name}");
    }
    assert!(!path("twigs.3").exists());
    let written = |client: &mut Client| Client::rings(&client.status(), "written");
    let before = written(&mut client);
    client.call("filter.set", json!({"filter": ["spin_*"]}));
    assert_eq!(written(&mut client), before, "nothing more is recorded");
    client.call("shutdown", Value::Null);
    let ended = running.end().0.good();
    assert!(ended.stderr.contains("calls_twig at 0."), "{ended}");
}

#[test]
fn the_guest_is_paused_and_other_sessions_are_started() {
    let triggers = [
        "calls_root: start more",
        "calls_root: pause",
        "calls_bough: start nobody",
    ];
    let mut running = between_gates(&triggers);
    let mut client = running.client();
    let create = json!({"name": "more", "options": {"mode": "discard"}});
    client.call("session.create", create);
    client.call(
        "start",
        json!({"tracer": "function", "filter": ["calls_*"]}),
    );
    running.type_text("q");
    let status = client.wait_until("it is paused", |status| {
        status["guest"]["state"] == "paused"
    });
    assert_eq!(fired(&status)[..2], [(1, 0), (1, 0)]);
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    let more = sessions.iter().find(|one| one["name"] == "more").unwrap();
    assert_eq!(more["state"], "tracing");
    assert_eq!(client.call("resume", Value::Null)["changed"], true);
    running.wait_for("checksum");
    client.wait_until("it fires in vain", |status| fired(status)[2] == (1, 1));
    client.call("shutdown", Value::Null);
    let ended = running.end().0.good();
    assert!(ended.stderr.contains("no session 'nobody'"), "{ended}");
}

#[test]
fn a_call_that_takes_long_is_noticed_when_it_ends() {
    let guest = gated("calls,spin", "iterations=20");
    let long = [
        "--trigger",
        "calls_leaf > 1h: stop",
        "--trigger",
        "calls_* > 0ns: stop",
    ];
    let options = ["--trace", "graph", "--notrace", "spin_*"];
    let mut running = guest.with(long).with(options).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    running.type_text("q");
    running.wait_for("checksum");
    client.wait_until("it fires", |status| fired(status)[1] == (1, 0));
    client.call("shutdown", Value::Null);
    let ended = running.end().0.good();
    let has = |what: &str| assert!(ended.stderr.contains(what), "no '{what}': {ended}");
    has("trigger 'calls_leaf > 1h: stop' has not fired");
    has(" took ");
}

#[test]
fn events_and_probes_fire_too() {
    let guest = Guest::new("workload=list,spin,events,spin iterations=20");
    let events = ["--event", "message_sent", "--event", "message_received"];
    let triggers = [
        "--trigger",
        "event message_received: stop",
        "--trigger",
        "event message_*: run true x3",
    ];
    let mut running = guest.with(events).with(triggers).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    running.type_text("q");
    running.wait_for("checksum");
    client.wait_until("they fire", |status| {
        let fired = fired(status);
        // A command that still runs is not run again.
        fired[0] == (1, 0) && fired[1].0 == 3
    });
    client.call("shutdown", Value::Null);
    let _ = running.end().0.good();
}

/// A guest that gives occasions all the time is served as slowly as it takes, and so is everybody else.
#[test]
fn a_million_occasions_keep_nobody_from_being_served() {
    let trigger = ["--trigger", "spin_leaf: start nobody x1000000"];
    let guest = Guest::new("workload=list,spin").with(trigger);
    let mut running = guest.with(["--trace", "function"]).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.wait_until("it fires", |status| {
        let (times, failed) = fired(status)[0];
        assert!(times == failed && times <= 1_000_000);
        times > 1000
    });
    client.call("shutdown", Value::Null);
    let ended = running.end().0.good();
    // Those of before are told one by one.
    assert!(
        ended.stderr.matches("no session 'nobody'").count() == 16,
        "{ended}"
    );
    assert!(ended.stderr.contains("of them in vain"), "{ended}");
}

/// Of a guest that somebody else runs, too, and who listens hears of it.
#[test]
fn guests_of_others_have_triggers_and_listeners() {
    let mut other = Guest::spinning(&[]);
    let attached = Guest::attached(other.pid(), Some(&tests::guest()));
    let stop = ["--trigger", "spin_root: stop"];
    let mut attached = attached.with(stop).start();
    let mut client = attached.client();
    // Before there is anything to hear.
    client.call("subscribe", Value::Null);
    client.call("start", json!({"tracer": "graph", "filter": ["spin_*"]}));
    client.wait_until("it fires", |status| fired(status) == [(1, 0)]);
    let (method, params) = client.told().expect("it is told");
    assert_eq!(method, "events");
    let events = params["events"].as_array().unwrap();
    let is_ours = |event: &Value| {
        let function = event["function"].as_str();
        function.is_none_or(|name| name.starts_with("spin_"))
    };
    assert!(!events.is_empty() && events.iter().all(is_ours));
    client.call("shutdown", Value::Null);
    let ended = attached.end().0.good();
    assert!(ended.stderr.contains("nothing more is recorded"), "{ended}");
    other.type_text("q");
    let _ = other.end().0.good();
}

#[test]
fn what_can_never_be_is_refused() {
    let refused = |options: &[&str], words: &[&str]| {
        let mut run = vmm();
        run.args(["run", "--kernel"])
            .arg(tests::guest())
            .args(options);
        let ended = Ended::from(run.output().unwrap());
        let line = ended.refused(100);
        for word in words {
            assert!(line.contains(word), "{options:?}: {line}");
        }
    };
    let graph = |trigger: &str, words: &[&str]| {
        refused(&["--trace", "graph", "--trigger", trigger], words);
    };
    graph("calls_root", &["no trigger", "WHAT: ACTION"]);
    graph("calls_root: fly", &["'fly'", "dump DIR"]);
    graph("calls_root > long: stop", &["'long'", "duration"]);
    graph("calls_root: stop x0", &["x0"]);
    graph("nobody: stop", &["'nobody'", "no function"]);
    graph("event nobody: stop", &["event nobody", "no event"]);
    graph("calls_root: pause", &["--control"]);
    let slow = "calls_root > 1us: stop";
    refused(&["--trace", "function", "--trigger", slow], &["graph"]);
    refused(
        &["--trace", "graph", "--clock", "none", "--trigger", slow],
        &["clock"],
    );
    refused(&["--trigger", "calls_root: stop"], &["--trace"]);
    refused(
        &["--trace", "profile", "--trigger", "calls_root: stop"],
        &["profile"],
    );
}
