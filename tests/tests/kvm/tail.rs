//! Who listens to a session hears exactly what was recorded, and disturbs nobody.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};
use tests::exact::{gated, open_gate, without_gate};
use tests::{Client, Guest, patience, vmm};

/// Few enough that nothing is missed by who takes nothing until the end.
const CALLS: &str = "iterations=60 tick=200";
const WORKLOADS: &str = "calls,threads,smp,tail_calls";

/// What a client is told until the end: every event, and how many it has missed.
fn all_told(client: &mut Client) -> (Vec<Value>, u64) {
    let mut events = Vec::new();
    let mut unread = 0;
    while let Some((method, mut params)) = client.told() {
        assert_eq!(params["session"], "default");
        if method == "ended" {
            return (events, unread + params["unread"].as_u64().unwrap());
        }
        assert_eq!(method, "events");
        let some = params["events"].take();
        for event in some.as_array().unwrap() {
            if event["kind"] == "unread" {
                unread += event["count"].as_u64().unwrap();
            }
            events.push(event.clone());
        }
    }
    panic!("it ended without a word");
}

fn counts(events: &[Value], kind: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for event in events.iter().filter(|event| event["kind"] == kind) {
        let function = event["function"].as_str().unwrap().to_owned();
        *counts.entry(function).or_default() += 1;
    }
    counts
}

/// Each vCPU's are in the order of time. So are all together, but for calls without returns: who was preempted between
/// reading the clock and taking a place comes late, with the time that was read.
fn assert_in_order(events: &[Value], is_whole: bool) {
    let mut latest: BTreeMap<u64, u64> = BTreeMap::new();
    for event in events {
        let [time_ns, vcpu] = ["time_ns", "vcpu"].map(|of| event[of].as_u64().unwrap());
        let latest_ns = latest.entry(if is_whole { 0 } else { vcpu }).or_default();
        assert!(time_ns >= *latest_ns, "{event} after {latest_ns}");
        *latest_ns = time_ns;
    }
}

/// Also where nothing is written, and from before the first record on.
#[test]
fn what_is_told_is_what_the_guest_has_called() {
    for (tracer, kind, is_written, vcpus) in [
        ("function", "entry", false, 1),
        ("function", "entry", true, 2),
        ("graph", "call", false, 2),
        ("graph", "call", true, 1),
    ] {
        let guest = gated(&format!("{WORKLOADS},spin"), CALLS).vcpus(vcpus);
        let guest = if is_written { guest.output() } else { guest };
        let mut running = guest.start();
        running.wait_for("workload spin");
        let mut client = running.client();
        let subscribed = client.call("subscribe", Value::Null);
        assert_eq!(subscribed["session"], "default");
        let start = json!({"tracer": tracer, "notrace": ["spin_*"]});
        client.call("start", start);
        running.type_text("q");
        running.wait_for("checksum tail_calls");
        // Who listens to a session that ends has all the time there is; at the end of a run nobody has.
        client.call("session.delete", json!({"session": "default"}));
        let (events, unread) = all_told(&mut client);
        running.type_text("q");
        let (ended, trace) = running.end();
        let printed = without_gate(ended.good().printed());
        assert_eq!(unread, 0);
        assert_eq!(counts(&events, kind), printed.called(), "{tracer}");
        if tracer == "graph" {
            // Those that never return are open at the end.
            let returned: u64 = counts(&events, "return").values().sum();
            assert!(returned > printed.total() / 2, "{returned}");
        }
        assert_in_order(&events, tracer == "graph");
        if is_written {
            assert_eq!((trace.uftrace(), trace.lost()), (printed.called(), 0));
        }
    }
}

/// As text, by the command: the same calls, and it ends with the session.
#[test]
fn ctl_tail_shows_them_until_the_end() {
    let mut running = gated("calls,spin", "iterations=20").start();
    running.wait_for("workload spin");
    let few = running.ctl(&["tail", "--session", "nobody"]);
    assert!(few.refused(100).contains("no session"), "{few}");
    let mut tail = vmm();
    tail.arg("ctl").arg("--control").arg(running.socket());
    let mut tail = tail
        .arg("tail")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let header = lines.next().unwrap().unwrap();
    assert!(header.contains("FUNCTION CALLS"), "{header}");
    open_gate(&mut running);
    running.wait_for("checksum calls");
    let default = json!({"session": "default"});
    running.client().call("session.delete", default);
    let text: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(tail.wait().unwrap().success());
    running.type_text("q");
    let (ended, _) = running.end();
    let printed = without_gate(ended.good().printed());
    let of = |name: &str| {
        let is_it = |line: &&String| line.ends_with(&format!("|  {name}"));
        text.iter().filter(is_it).count() as u64
    };
    for (name, count) in &printed.called() {
        assert_eq!(of(name), *count, "{name}");
    }
    assert_eq!(text.len() as u64, printed.total());
}

/// It is told what it has missed, the guest and everybody else go on, and what is written has all.
#[test]
fn who_listens_and_does_not_read_disturbs_nobody() {
    let mut running = Guest::spinning(&[]);
    let mut silent = UnixStream::connect(running.socket()).unwrap();
    let subscribe = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"subscribe\"}\n";
    silent.write_all(subscribe.as_bytes()).unwrap();
    let mut client = running.client();
    client.call("start", json!({"tracer": "graph", "filter": ["spin_*"]}));
    // More than any queue holds.
    let read = |status: &Value| Client::rings(status, "read");
    let first = client.wait_until("it is read for who listens", |status| {
        read(status) > 1 << 20
    });
    client.wait_until("it goes on", |status| read(status) > 2 * read(&first));
    // Others hear, meanwhile.
    let tail = running.ctl(&["tail", "--json", "--count", "1000"]);
    let tail = tail.good();
    let told = tail.stdout.lines();
    let told: Vec<Value> = told
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let is_call = |event: &&Value| matches!(event["kind"].as_str(), Some("call" | "return"));
    assert_eq!(told.iter().filter(is_call).count(), 1000);
    let names = counts(&told, "call");
    assert!(names.keys().all(|name| name.starts_with("spin_")));
    // It takes up again, and is told of the gap when it comes to it.
    silent.set_read_timeout(Some(patience())).unwrap();
    let missed = BufReader::new(silent).lines().find_map(|line| {
        let told: Value = serde_json::from_str(&line.expect("it is told")).unwrap();
        let events = told["params"]["events"].as_array()?;
        let unread = events.iter().find(|event| event["kind"] == "unread")?;
        unread["count"].as_u64()
    });
    assert!(missed > Some(0), "{missed:?}");
    client.call("shutdown", Value::Null);
    let _ = running.end().0.good();
}

/// Also to who comes after others have gone: each is told what events are called.
#[test]
fn events_have_their_names_for_everybody() {
    const SENT: u64 = 80;
    let guest = Guest::new("workload=list,spin,events,spin,events,spin iterations=20");
    let mut running = guest.with(["--event", "message_sent"]).start();
    running.wait_for("workload spin");
    for time in 1..=2 {
        let mut client = running.client();
        client.call("subscribe", Value::Null);
        running.type_text("q");
        running.wait_for_times("checksum events", time);
        let mut count = 0;
        while count < SENT {
            let (method, params) = client.told().expect("it goes on");
            assert_eq!(method, "events");
            let events = params["events"].as_array().unwrap();
            for event in events.iter().filter(|event| event["kind"] == "event") {
                assert_eq!(event["event"], "message_sent");
                assert!(event["fields"]["size"].is_u64(), "{event}");
                count += 1;
            }
        }
        assert_eq!(count, SENT);
        drop(client);
        // Meanwhile the reader sees that nobody listens; where it does not, the same one is told twice, which is right, too.
        (0..20).for_each(|_| drop(running.client().digest()));
    }
    running.client().call("shutdown", Value::Null);
    let _ = running.end().0.good();
}

#[test]
fn what_has_no_records_cannot_be_listened_to_and_what_the_service_can_is_asked() {
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    client.call("session.create", json!({"name": "p", "tracer": "profile"}));
    let refused = client.refused("subscribe", json!({"session": "p"}));
    assert!(refused.contains("'p'"), "{refused}");
    let version = client.call("version", Value::Null);
    assert_eq!(version["protocol"], 1);
    let has = |list: &str, name: &str| {
        let names = version[list].as_array().unwrap();
        assert!(names.contains(&json!(name)), "{version}");
    };
    has("methods", "subscribe");
    has("notifications", "events");
    // A session that is deleted is the end of who listens to it.
    client.call("session.create", json!({"name": "other"}));
    client.call("subscribe", json!({"session": "other"}));
    client.call("start", json!({"session": "other", "filter": ["spin_*"]}));
    client.call("session.delete", json!({"session": "other"}));
    let mut last = None;
    while last != Some("ended".to_owned()) {
        last = client.told().map(|(method, _)| method);
        assert!(last.is_some());
    }
    client.call("shutdown", Value::Null);
    let _ = running.end().0.good();
}
