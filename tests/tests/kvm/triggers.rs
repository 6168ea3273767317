//! What is done when something happens in the guest: once it has, and no more often than was asked for.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tests::exact::gated;
use tests::{Client, Ended, Guest, Running, vmm, vmm_says};

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
    // There is always another one, also when the first is written.
    let dump = format!("spin_le*: dump {} x2", path("leaves").display());
    let mut running = between_gates(&[&command, &dump]);
    let mut client = running.client();
    // What is waited for is read however slow this host is: nothing else fills the ring.
    client.call("start", json!({"tracer": "graph", "filter": ["calls_*"]}));
    running.type_text("q");
    running.wait_for("checksum");
    client.wait_until("one fires", |status| fired(status) == [(1, 0), (0, 0)]);
    client.call("filter.add", json!({"filter": ["spin_*"]}));
    client.wait_until("both fire", |status| fired(status) == [(1, 0), (2, 0)]);
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
    for name in ["leaves", "leaves.2"] {
        let report = report(&path(name));
        assert!(report.good().stdout.contains("spin_leaf"), "{name}");
    }
    assert!(!path("leaves.3").exists());
    client.call("shutdown", Value::Null);
    let ended = running.end().0.good();
    assert!(ended.stderr.contains("spin_leaf at 0."), "{ended}");
}

/// What comes after a call that is waited for is not recorded, however late the host reads of it.
#[test]
fn recording_ends_at_once_with_the_record_that_is_waited_for() {
    for (trigger, written) in [
        // Entries of root, trunk, bough, branch, twig, leaf.
        ("calls_leaf: stop", 6),
        // And the leaf's return, another leaf, and the returns of that and of the twig.
        ("calls_twig > 0ns: stop", 10),
    ] {
        let guest = gated("calls,spin", "iterations=20").with(["--trigger", trigger]);
        let options = ["--trace", "graph", "--notrace", "spin_*"];
        let mut running = guest.with(options).start();
        running.wait_for("workload spin");
        let mut client = running.client();
        running.type_text("q");
        running.wait_for("checksum");
        let status = client.wait_until("it fires", |status| fired(status) == [(1, 0)]);
        assert_eq!(status["triggers"][0]["acts"], "at once");
        assert_eq!(Client::rings(&status, "written"), written, "{trigger}");
        assert_eq!(Client::rings(&status, "lost"), 0, "{trigger}");
        // As often as was asked for, whatever is recorded again.
        client.call("tracing-on", Value::Null);
        client.call("filter.set", json!({"filter": ["spin_*"]}));
        client.wait_until("it records", |status| {
            Client::rings(status, "written") > written
        });
        client.call("shutdown", Value::Null);
        let _ = running.end().0.good();
    }
}

/// A probe whose condition does not hold ends nothing; the first at which it holds ends all that the session records.
#[test]
fn recording_ends_at_once_where_the_condition_of_a_probe_holds() {
    let values = |probe: &str, trigger: Option<&str>| {
        let guest = Guest::new("workload=calls iterations=20");
        let guest = guest.with(["--probe", "calls_twig %rdi", "--probe", probe]);
        let guest = match trigger {
            Some(trigger) => guest.with(["--trigger", trigger]),
            None => guest,
        };
        let (ended, trace) = guest.output().run();
        let of = |name: &str| -> Vec<Value> {
            let fields = trace.fields(name);
            fields.iter().map(|fields| fields["rdi"].clone()).collect()
        };
        (ended.good(), of("calls_twig"), of("calls_leaf"))
    };
    let (_, twigs, leaves) = values("calls_leaf %rdi", None);
    let at = 20;
    let wanted = &leaves[at];
    assert!(!leaves[..at].contains(wanted));
    let probe = format!("calls_leaf %rdi if %rdi == {}", wanted.as_str().unwrap());
    let (ended, before, found) = values(&probe, Some("event calls_leaf: stop"));
    assert_eq!(found, std::slice::from_ref(wanted), "{ended}");
    // A twig has two leaves, and comes before them.
    assert_eq!(before, twigs[..=at / 2], "{ended}");
    assert!(ended.stderr.contains("nothing more is recorded"), "{ended}");
}

/// All vCPUs come by all the time: so often, and no more often, recording ends, and then never again.
#[test]
fn recording_ends_as_often_as_was_asked_for_whichever_vcpus_come_by() {
    const TIMES: u64 = 50;
    let trigger = format!("spin_leaf: stop x{TIMES}");
    let options = ["--trace", "function", "--mode", "overwrite"];
    let guest = Guest::new("workload=list,spin").vcpus(2).with(options);
    let mut running = guest.with(["--trigger", &trigger]).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let mut before = 0;
    while before < TIMES {
        let status = client.wait_until("it fires", |status| fired(status)[0].0 > before);
        let [(now, 0)] = fired(&status)[..] else {
            panic!("{status}");
        };
        // Each of them may have come by before recording ended for both.
        assert!(now <= before + 2, "{before} {status}");
        before = now;
        client.call("tracing-on", Value::Null);
    }
    assert_eq!(before, TIMES);
    let written = Client::rings(&client.status(), "written");
    let status = client.wait_until("it records on", |status| {
        Client::rings(status, "written") > written + 1_000_000
    });
    assert_eq!(fired(&status), [(TIMES, 0)]);
    client.call("shutdown", Value::Null);
    let _ = running.end().0.good();
}

/// The last of what there is, by the times of its records, when the guest has ended already; each call is in it, or lost.
#[test]
fn what_came_last_is_dumped_and_nothing_after_it_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (all, last) = (path("all"), path("last"));
    let guest = Guest::new("workload=calls iterations=20");
    let options = ["--trace", "graph", "--filter", "calls_*"];
    let whole = format!("calls_root > 0ns: dump {all} and stop");
    let nothing = format!("calls_root > 0ns: dump {last} last 0ns and stop");
    let triggers = ["--trigger", &whole, "--trigger", &nothing];
    let ended = guest.with(options).with(triggers).start().end().0.good();
    // All calls of the first root, and both ends of each: 63 calls.
    assert!(ended.stderr.contains("126 records in"), "{ended}");
    // Its own end, and what else was at that moment: a counter can count in steps.
    let steps = vmm_says(&["report", &all, "--format", "graph", "--json"]).good();
    let times: Vec<u64> = steps
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|step| ["call", "return"].iter().any(|kind| step["kind"] == *kind))
        .map(|step| step["time_ns"].as_u64().unwrap())
        .collect();
    let at_the_end = times.iter().filter(|time| **time == times[times.len() - 1]);
    let count = at_the_end.count();
    let said = format!(
        ": {count} record{} in {last}",
        if count == 1 { "" } else { "s" }
    );
    assert!(ended.stderr.contains(&said), "{said}: {ended}");
    let counts = report(Path::new(&all)).good().stdout;
    let leaves = counts.lines().find(|line| line.contains("calls_leaf"));
    assert!(leaves.is_some_and(|line| line.contains("32")), "{counts}");
}

/// A session that is made later has triggers of its own, which go with it.
#[test]
fn triggers_of_other_sessions_wait_in_them() {
    let mut running = between_gates(&[]);
    let mut client = running.client();
    let create = |trigger: &str| json!({"name": "more", "tracer": "graph", "options": {"trigger": [trigger]}});
    for (trigger, words) in [
        ("calls_root: fly", "column 13: 'fly' is no action"),
        ("nobody: stop", "'nobody'"),
        ("calls_leaf > 1us: stop x0", "x0"),
    ] {
        let refused = client.refused("session.create", create(trigger));
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!(client.status()["triggers"], Value::Null);
    client.call("session.create", create("calls_leaf: stop"));
    let status = client.status();
    assert_eq!(status["triggers"][0]["session"], "more");
    client.call("start", json!({"filter": ["calls_*"]}));
    let more = json!({"session": "more", "filter": ["calls_*"]});
    client.call("start", more);
    running.type_text("q");
    running.wait_for("checksum");
    let status = client.wait_until("it fires", |status| fired(status) == [(1, 0)]);
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    let state = |name: &str| {
        let of = sessions.iter().find(|one| one["name"] == name).unwrap();
        of["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (state("default"), state("more")),
        ("tracing".to_owned(), "switched-off".to_owned())
    );
    client.call("session.delete", json!({"session": "more"}));
    assert_eq!(client.status()["triggers"], Value::Null);
    client.call("shutdown", Value::Null);
    let _ = running.end().0.good();
}

/// Each trigger keeps what it has seen: however many a client asks for, of however many sessions, there are so many.
#[test]
fn clients_have_so_many_triggers_and_no_more() {
    let mut running = between_gates(&["calls_root: stop"]);
    let mut client = running.client();
    let create = |name: &str, count: usize| {
        let triggers = vec!["calls_leaf: stop"; count];
        json!({"name": name, "tracer": "graph", "options": {"trigger": triggers}})
    };
    let of_all = |status: &Value| status["triggers"].as_array().map_or(0, Vec::len);
    client.call("session.create", create("many", 250));
    for (name, count) in [("more", 6), ("most", 3000)] {
        let refused = client.refused("session.create", create(name, count));
        let words = format!("{count} triggers cannot wait beside the 251 that do: at most 256");
        assert!(refused.contains(&words), "{refused}");
    }
    assert_eq!(of_all(&client.status()), 251);
    client.call("session.create", create("more", 5));
    client.call("session.delete", json!({"session": "many"}));
    assert_eq!(of_all(&client.status()), 6);
    client.call("session.create", create("many", 250));
    client.call("shutdown", Value::Null);
    let _ = running.end().0.good();
}

/// A call that does not end is noticed before it does: here, because the guest is paused inside of it.
#[test]
fn a_call_that_has_not_ended_is_noticed_once() {
    const NOTICED: &str = " has not ended after ";
    // One function that takes its time: where more is recorded than is read in time, nobody knows what is open.
    // A call that was paused and is not noticed before it goes on takes too long all the same, and fires.
    let trigger = ["--trigger", "calls_root > 300ms: run true x1000000"];
    let guest = Guest::new("workload=list,calls iterations=1000000000").with(trigger);
    let options = ["--trace", "graph", "--filter", "calls_root"];
    let mut running = guest.with(options).start();
    running.wait_for("workload calls");
    let mut client = running.client();
    let uptime = |status: &Value| status["guest"]["uptime_ms"].as_u64().unwrap();
    let written = |status: &Value| {
        let rings = &status["tracing"]["sessions"][0]["rings"];
        rings[0]["written"].as_u64().unwrap()
    };
    let mut pauses = 0;
    while !running.said().contains(NOTICED) {
        // A guest that is paused as soon as it goes on is paused where it was.
        let before = written(&client.status());
        client.call("resume", Value::Null);
        client.wait_until("it goes on", |status| written(status) > before + 1_000);
        client.call("pause", Value::Null);
        pauses += 1;
        // Now and then it is between two calls, or inside of a stub: then the end of the call may be what was not written.
        let begin = uptime(&client.status());
        client.wait_until("it is noticed, or not", |status| {
            running.said().contains(NOTICED) || uptime(status) > begin + 1_000
        });
    }
    client.call("shutdown", Value::Null);
    let ended = running.end().0.good();
    // Of each pause one is open at most, and it is noticed once: no two were entered at the same time.
    let ns = |text: &str| text.replace('.', "").parse::<u64>().unwrap();
    let entered = ended.stderr.split(NOTICED).skip(1).map(|said| {
        let (open_us, rest) = said.split_once(" us at ").unwrap();
        let (at_s, _) = rest.split_once(" s ").unwrap();
        ns(at_s) - ns(open_us)
    });
    let entered: Vec<u64> = entered.collect();
    let calls: BTreeSet<u64> = entered.iter().copied().collect();
    assert_eq!(calls.len(), entered.len(), "{ended}");
    assert!(entered.len() <= pauses, "{pauses} pauses: {ended}");
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
fn a_call_that_takes_long_is_noticed_once_and_a_short_one_never() {
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
    let has = |what: &str| ended.stderr.contains(what);
    assert!(
        has("trigger 'calls_leaf > 1h: stop' has not fired"),
        "{ended}"
    );
    // Of a limit of nothing the reader may come by before the call has ended.
    assert!(
        has(" took ") || has("calls_root has not ended after"),
        "{ended}"
    );
}

#[test]
fn events_and_probes_fire_too() {
    // One thread: of several another could send before the first receives.
    let guest = Guest::new("workload=list,spin,events,spin iterations=20 threads=1");
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
        // Nothing comes after the first that is received. A command that still runs is not run again.
        fired[0] == (1, 0) && fired[1].0 == 2
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
    client.wait_until("all of them", |status| {
        let (times, failed) = fired(status)[0];
        assert!(times == failed && times <= 1_000_000);
        times == 1_000_000
    });
    client.call("shutdown", Value::Null);
    let ended = running.end().0.good();
    // Those of before are told one by one.
    assert!(
        ended.stderr.matches("no session 'nobody'").count() <= 16,
        "{ended}"
    );
    assert!(
        ended
            .stderr
            .contains("fired 1000000 times, 1000000 of them in vain"),
        "{ended}"
    );
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
    let ended = |options: &[&str]| {
        let mut run = vmm();
        run.args(["run", "--kernel"])
            .arg(tests::guest())
            .args(options);
        Ended::from(run.output().unwrap())
    };
    let refused = |options: &[&str], words: &[&str]| {
        let ended = ended(options);
        let line = ended.refused(100);
        for word in words {
            assert!(line.contains(word), "{options:?}: {line}");
        }
    };
    let graph = |trigger: &str, words: &[&str]| {
        refused(&["--trace", "graph", "--trigger", trigger], words);
    };
    graph("calls_root", &["no trigger", "WHAT: ACTION"]);
    graph("calls_root: fly", &["column 13: 'fly'", "dump DIR"]);
    graph("calls_root: dump a last soon", &["column 13", "'soon'"]);
    graph("calls_root > long: stop", &["'long'", "duration"]);
    graph("calls_root: stop x0", &["x0"]);
    graph("nobody: stop", &["'nobody'", "no function"]);
    graph("event nobody: stop", &["event nobody", "no event"]);
    graph("calls_root: pause", &["--control"]);
    graph("calls_root: start more", &["--control", "session"]);
    let there = tempfile::tempdir().unwrap();
    let dump = |name: &str| format!("calls_root: dump {}", there.path().join(name).display());
    graph(&dump("."), &["exists already"]);
    let missing = ended(&["--trace", "graph", "--trigger", &dump("no/such")]);
    assert!(missing.refused(106).contains("no/such"), "{missing}");
    // What is refused has replaced nothing, and made nothing.
    let old = there.path().join("old");
    let output = ["--trace", "graph", "--output", old.to_str().unwrap()];
    let refused_with = |more: &[&str], trigger: &str, words: &[&str]| {
        refused(&[&output, more, &["--trigger", trigger]].concat(), words);
    };
    refused_with(&[], &dump("."), &["exists already"]);
    refused_with(&["--force"], &dump("old"), &["exists already"]);
    assert!(!old.exists());
    fs::create_dir(&old).unwrap();
    fs::write(old.join("task.txt"), "an older trace").unwrap();
    refused_with(&["--force"], &dump("."), &["exists already"]);
    refused_with(&["--force"], "nobody: stop", &["'nobody'"]);
    refused_with(&["--force"], "event nobody: stop", &["event nobody"]);
    let kept = fs::read_to_string(old.join("task.txt")).unwrap();
    assert_eq!(kept, "an older trace");
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
