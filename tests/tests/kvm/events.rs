//! Tracepoints of the guest: enabled and disabled from outside, recorded with their fields.

use std::collections::BTreeMap;
use std::fs;

use image::Image;
use serde_json::{Value, json};
use tests::exact::gated;
use tests::{Client, Ended, Guest, Random, in_the_box, lives_to_see, patched_by};

/// A line `WORD NAME COUNT` of the guest, or `WORD COUNT`.
fn said(ended: &Ended, words: &str) -> u64 {
    let line = ended
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix(words));
    let line = line.unwrap_or_else(|| panic!("the guest says nothing of {words}: {ended}"));
    line.trim().parse().expect("a number")
}

/// How often the guest has passed each tracepoint.
fn passes(ended: &Ended) -> BTreeMap<String, u64> {
    let names = ["message_sent", "message_received", "message_parts"];
    let of = |name: &str| (name.to_owned(), said(ended, &format!("passes {name} ")));
    names.into_iter().map(of).collect()
}

/// Events of this name in the trace.
fn named<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    let is_it = |line: &&Value| line["event"] == name;
    lines.iter().filter(is_it).collect()
}

fn number(line: &Value, field: &str) -> u64 {
    line["fields"][field].as_u64().expect("a number")
}

fn signed(line: &Value, field: &str) -> i64 {
    line["fields"][field].as_i64().expect("a number")
}

/// The fields of `message_parts` are the parts of one value.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "that is how the guest makes them"
)]
fn assert_parts_fit(line: &Value) {
    let all = number(line, "g");
    let parts = [
        ("a", all as u8 as u64),
        ("c", all as u16 as u64),
        ("e", all as u32 as u64),
    ];
    for (field, value) in parts {
        assert_eq!(number(line, field), value, "{line}");
    }
    let parts = [
        ("b", all as i8 as i64),
        ("d", all as i16 as i64),
        ("f", all as i32 as i64),
        ("h", all as i64),
    ];
    for (field, value) in parts {
        assert_eq!(signed(line, field), value, "{line}");
    }
}

fn iterations() -> u64 {
    if in_the_box() { 500 } else { 4000 }
}

/// Threads that are preempted and migrated pass tracepoints: each pass is recorded once, with the right
/// values.
#[test]
fn every_pass_is_recorded_with_its_values() {
    let cmdline = format!(
        "workload=events iterations={} threads=5 tick=200",
        iterations()
    );
    let all = [
        "--event",
        "message_sent",
        "--event",
        "message_received",
        "--event",
        "message_parts",
    ];
    let guest = Guest::new(&cmdline).vcpus(2).with(all);
    let guest = guest
        .with(["--mode", "discard", "--ring-size", "16384"])
        .output();
    let (ended, trace) = guest.run();
    let ended = ended.good();
    assert_eq!(trace.lost(), 0);
    assert_eq!(
        trace.counts(),
        passes(&ended),
        "nothing but events is recorded"
    );
    let lines = trace.events();
    let sent = named(&lines, "message_sent");
    let sizes = sent
        .iter()
        .fold(0u64, |sum, line| sum.wrapping_add(number(line, "size")));
    assert_eq!(sizes, said(&ended, "sizes "));
    let received = named(&lines, "message_received");
    let waited = received.iter().fold(0u64, |sum, line| {
        sum.wrapping_add(signed(line, "waited").unsigned_abs())
    });
    assert_eq!(waited, sizes);
    assert!(
        received
            .iter()
            .all(|line| line["fields"]["more"].is_boolean())
    );
    let image = Image::parse(&fs::read(tests::guest()).unwrap()).unwrap();
    let carrier = image.symbols.address_of("events_carry").unwrap();
    let carrier = carrier.to_string();
    assert!(
        received
            .iter()
            .all(|line| line["fields"]["had"] == *carrier)
    );
    let shown = trace.report("function");
    assert!(shown.contains(&format!(" had={carrier}\n")), "{shown}");
    named(&lines, "message_parts")
        .into_iter()
        .for_each(assert_parts_fit);
}

#[test]
fn every_pass_is_recorded_through_the_iterator_too() {
    let cmdline = format!("workload=events iterations={} tick=200", iterations());
    let guest = Guest::new(&cmdline)
        .vcpus(2)
        .with(["--event", "message_sent"]);
    let guest = guest.with(["--dispatch", "iterator", "--mode", "discard"]);
    let (ended, trace) = guest.with(["--ring-size", "16384"]).output().run();
    let passed = passes(&ended.good())["message_sent"];
    assert_eq!(trace.counts()["message_sent"], passed);
    assert_eq!(trace.lost(), 0);
}

/// Calls while callbacks come and go at random: a pass calls both or none, wherever its thread was
/// preempted.
#[test]
fn callbacks_that_are_switched_together_are_called_together() {
    switched_together("quiesce");
}

#[test]
fn callbacks_that_are_switched_together_live_are_called_together() {
    switched_together("live");
}

/// They are no one write, so all vCPUs are stopped for them: else one would be called without the other.
#[test]
fn callbacks_that_are_switched_together_where_words_are_exchanged_are_called_together() {
    switched_together("atomic");
}

fn switched_together(method: &'static str) {
    let iterations = if in_the_box() { 5_000 } else { 2_000_000 };
    lives_to_see(iterations, |iterations| {
        are_switched_together(method, iterations)
    });
}

/// Through a guest's life of so many iterations; whether they were switched while it passed them.
fn are_switched_together(method: &'static str, iterations: u32) -> bool {
    let rest = format!("iterations={iterations} threads=5 tick=200");
    let mut random = Random::new();
    let guest = gated("events", &rest).vcpus(2);
    let mut running = guest.with(patched_by(method)).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    let both = json!({"events": ["message_sent"], "callbacks": ["sent_count", "sent_sum"]});
    let other = json!({"events": ["message_received"], "callbacks": ["received_count"]});
    client.call("events.enable", both.clone());
    assert_eq!(
        client.call("events.list", Value::Null)["events"][0]["state"],
        "iterator"
    );
    client.call("events.disable", both.clone());
    running.type_text("q");
    let (mut changes, mut looks) = (0, 0);
    loop {
        let method = *random.pick(&["events.enable", "events.disable"]);
        let change = if random.next_u64().is_multiple_of(3) {
            &other
        } else {
            &both
        };
        match client.ask(method, change.clone()) {
            Some(reply) => _ = reply.unwrap(),
            None => break,
        }
        changes += 1;
        if changes % 8 == 0 {
            let Some(now) = digest_without(&mut client, &[&both, &other]) else {
                break;
            };
            assert_eq!(now, digest, "after {changes} changes");
            looks += 1;
        }
    }
    let ended = running.end().0.good();
    let printed = ended.printed();
    let [count, sum] = ["sent_count", "sent_sum"].map(|name| printed.calls[name]);
    assert_eq!(count, sum, "after {changes} changes");
    let passed = passes(&ended)["message_sent"];
    assert!(count <= passed, "{count} of {passed}");
    println!("{changes} changes, {looks} looks, {count} of {passed} passes called back");
    changes > 10 && looks > 0 && 0 < count && count < passed
}

/// The digest of the guest's text without these callbacks. `None` when the guest has ended.
fn digest_without(client: &mut Client, callbacks: &[&Value]) -> Option<String> {
    for off in callbacks {
        client.ask("events.disable", (*off).clone())?.unwrap();
    }
    let now = client.ask("digest", Value::Null)?.unwrap();
    Some(now["sha256"].as_str().unwrap().to_owned())
}

/// A session and a function of the guest at the same tracepoint: the iterator calls both, each time.
#[test]
fn a_session_and_callbacks_share_a_tracepoint() {
    session_and_callbacks_share("quiesce", iterations(), 0);
}

/// While another event is enabled and disabled, and another callback comes to the tracepoint and goes, without a
/// stop, nothing is missed.
#[test]
fn a_session_and_callbacks_miss_nothing_while_others_come_and_go_live() {
    // As many passes as fit into the ring of one vCPU, however late its reader is; how many changes a guest lives to
    // see depends on the host, so several are tried.
    let mut changes = 0;
    for _ in 0..20 {
        changes += session_and_callbacks_share("live", 4 * iterations(), u32::MAX);
        if changes > 10 {
            break;
        }
    }
    println!("{changes} changes");
    assert!(changes > 4, "the guests ended too early");
}

/// Returns how many changes were made while the guest passed the tracepoint, at most `changes`.
fn session_and_callbacks_share(method: &str, iterations: u64, changes: u32) -> u32 {
    let rest = format!("iterations={iterations} threads=5 tick=200");
    let options = ["--mode", "discard", "--ring-size", "16384"];
    let mut running = gated("events", &rest)
        .vcpus(2)
        .with(options)
        .with(["--patch-method", method])
        .output()
        .start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    let state = |client: &mut Client| client.call("events.list", Value::Null)["events"][0].clone();
    assert_eq!(state(&mut client)["state"], "nop");
    client.call("events.enable", json!({"events": ["message_sent"]}));
    assert_eq!(state(&mut client)["state"], "direct");
    assert_eq!(state(&mut client)["callbacks"], json!(["session default"]));
    let callback = json!({"events": ["message_sent"], "callbacks": ["sent_count"]});
    client.call("events.enable", callback.clone());
    assert_eq!(state(&mut client)["state"], "iterator");
    assert_eq!(
        state(&mut client)["callbacks"],
        json!(["session default", "sent_count"])
    );
    let again = client.call("events.enable", callback);
    assert_eq!(again["events"], json!([]), "nothing had to be changed");
    assert_ne!(client.digest(), digest);
    running.type_text("q");
    let others = [
        json!({"events": ["message_sent"], "callbacks": ["sent_sum"]}),
        json!({"events": ["message_received"], "callbacks": ["received_count"]}),
    ];
    let mut made = 0;
    let methods = ["events.enable", "events.disable"].into_iter().cycle();
    for method in methods.take(changes as usize) {
        let mut asked = others.iter().map(|other| client.ask(method, other.clone()));
        if !asked.all(|reply| reply.is_some_and(|reply| reply.is_ok())) {
            break;
        }
        made += 1;
    }
    let (ended, trace) = running.end();
    let ended = ended.good();
    let passed = passes(&ended)["message_sent"];
    assert_eq!(ended.printed().calls["sent_count"], passed);
    let recorded = trace.counts()["message_sent"];
    assert_eq!(recorded + trace.lost(), passed);
    assert_eq!(trace.lost(), 0);
    made
}

#[test]
fn what_a_full_ring_refuses_is_counted() {
    let cmdline = format!(
        "workload=events iterations={} threads=5 tick=200",
        10 * iterations()
    );
    let guest = Guest::new(&cmdline)
        .vcpus(2)
        .with(["--event", "message_parts"]);
    let mut running = guest
        .with(["--mode", "discard", "--ring-size", "4"])
        .start();
    let mut client = running.client();
    let status = loop {
        match client.ask("status", Value::Null) {
            Some(Ok(status)) if running_events(&status) => break status,
            Some(_) => {}
            None => panic!("the guest ended before its ring was full"),
        }
    };
    let session = &status["tracing"]["sessions"][0];
    assert_eq!(session["events"], json!(["message_parts"]), "{session}");
    drop(client);
    let _ = running.end().0.good();
}

/// Whether a ring has refused events, and holds no more than it can.
fn running_events(status: &Value) -> bool {
    let rings = status["tracing"]["sessions"][0]["event_rings"].as_array();
    let full = |ring: &Value| {
        let [written, discarded] =
            ["written", "discarded"].map(|name| ring[name].as_u64().unwrap());
        assert!(written <= 512, "{ring}");
        discarded > 0
    };
    rings.is_some_and(|rings| rings.iter().any(full))
}

/// Without an output, a dump has everything that was recorded or says how much is lost.
#[test]
fn recorded_and_lost_are_all_passes() {
    for (mode, size) in [("discard", "4"), ("overwrite", "4"), ("overwrite", "64")] {
        let rest = format!("iterations={} threads=5 tick=200", iterations());
        let options = ["--mode", mode, "--ring-size", size];
        let mut running = gated("events,spin", &rest).vcpus(2).with(options).start();
        running.wait_for("workload spin");
        let mut client = running.client();
        client.call("start", json!({"tracer": "nop"}));
        client.call(
            "events.enable",
            json!({"events": ["message_parts", "message_sent"]}),
        );
        running.type_text("q");
        running.wait_for("checksum events");
        let dir = running.path("dumped");
        let dumped = client.call("dump", json!({"dir": dir}));
        let both = dumped["records"].as_u64().unwrap() + dumped["lost"].as_u64().unwrap();
        running.type_text("q");
        let (ended, trace) = running.end();
        let ended = ended.good();
        let passed = passes(&ended);
        assert_eq!(
            both,
            passed["message_parts"] + passed["message_sent"],
            "{mode} {size}"
        );
        let trace = trace.named("dumped");
        let lines = trace.events();
        let held = named(&lines, "message_parts");
        assert!(!held.is_empty());
        held.into_iter().for_each(assert_parts_fit);
    }
}

#[test]
fn reports_and_exports_show_events_where_they_happened() {
    let guest = Guest::new("workload=events iterations=20 threads=1");
    let options = [
        "--trace",
        "graph",
        "--filter",
        "events_*",
        "--event",
        "message_sent",
    ];
    let (ended, trace) = guest.with(options).output().run();
    let ended = ended.good();
    let passed = passes(&ended)["message_sent"];
    assert_eq!(trace.uftrace()["events_pass"], passed);
    assert_eq!(trace.counts()["message_sent"], passed);

    let graph = trace.report("graph");
    let entered = graph.find("events_pass() {").expect("a call");
    let after = graph[entered..].lines().nth(1).unwrap();
    assert!(
        after.contains("|    /* message_sent: from=0 to="),
        "{graph}"
    );
    let shown = trace.report("function");
    assert!(shown.contains(": message_sent: from=0 to="), "{shown}");
    let chrome: Value = serde_json::from_str(&trace.export("chrome")).unwrap();
    let events = chrome["traceEvents"].as_array().unwrap();
    let instants: Vec<_> = events
        .iter()
        .filter(|event| event["name"] == "message_sent")
        .collect();
    assert_eq!(instants.len() as u64, passed);
    assert!(instants[0]["args"]["size"].is_u64(), "{}", instants[0]);
    let replay = trace.uftrace_says(&["replay", "--event-full"]);
    let comments = replay.matches("message_sent: from=0 to=").count();
    assert_eq!(comments as u64, passed, "{replay}");
}

/// Its tui would end, and its replay show nothing, without a call that has returned.
#[test]
fn uftrace_shows_events_alone() {
    let guest = Guest::new("workload=events iterations=20 threads=1");
    let (ended, trace) = guest.with(["--event", "message_sent"]).output().run();
    let passed = passes(&ended.good())["message_sent"];
    let replay = trace.uftrace_says(&["replay", "--event-full"]);
    assert!(replay.contains("(no calls) {"), "{replay}");
    let comments = replay.matches("message_sent: from=0 to=").count();
    assert_eq!(comments as u64, passed, "{replay}");
    // The graph of the one task, then the report, then the end.
    let tui = trace.uftrace_draws("\rRq");
    for words in ["TOTAL TIME : FUNCTION", "SELF TIME", "(no calls)"] {
        assert!(tui.contains(words), "{tui}");
    }
    for view in ["graph", "report"] {
        assert!(trace.uftrace_says(&[view]).contains("(no calls)"), "{view}");
    }
    let chrome = trace.uftrace_says(&["dump", "--chrome"]);
    serde_json::from_str::<Value>(&chrome).expect("uftrace writes JSON");
    assert_eq!(trace.counts()["message_sent"], passed);
    assert!(!trace.report("counts").contains("(no calls)"));
}

#[test]
fn stop_disables_and_start_enables_again() {
    let mut running = gated("events,spin", "iterations=100 threads=1").start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    client.call("start", json!({"filter": ["events_*"]}));
    client.call(
        "events.enable",
        json!({"events": ["message_sent", "message_parts"]}),
    );
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), digest);
    client.call("start", json!({"filter": ["events_*"]}));
    running.type_text("q");
    running.wait_for("checksum events");
    client.call("events.disable", json!({"events": ["message_parts"]}));
    let rings = &client.status()["tracing"]["sessions"][0]["event_rings"];
    assert_eq!(rings[0]["written"], 200, "{rings}");
    client.call("session.delete", json!({"session": "default"}));
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let _ = running.end().0.good();
}

#[test]
fn what_cannot_be_is_refused_in_one_line_and_changes_nothing() {
    let mut running = Guest::new("workload=list,spin").start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    let sent = || json!(["message_sent"]);
    let no_session = json!({"events": sent()});
    let said = client.refused("events.enable", no_session.clone());
    assert!(
        said.contains("tracing has not been started in session 'default'"),
        "{said}"
    );
    let said = client.refused("events.enable", json!({"events": sent(), "session": "x"}));
    assert!(said.contains("there is no session 'x'"), "{said}");
    client.call("session.create", json!({"name": "p", "tracer": "profile"}));
    client.call("start", json!({"session": "p", "filter": ["spin_leaf"]}));
    let said = client.refused("events.enable", json!({"events": sent(), "session": "p"}));
    assert!(said.contains("session 'p' is a profile session"), "{said}");
    client.call("stop", json!({"session": "p"}));
    client.call("start", json!({"tracer": "nop"}));
    let cases = [
        (
            json!({"events": ["message_sent", "nope"]}),
            "there is no event 'nope'; there are: message_",
        ),
        (
            json!({"events": sent(), "callbacks": ["received_count"]}),
            "'received_count' takes the fields of message_received, not those of message_sent",
        ),
        (
            json!({"events": sent(), "callbacks": ["sent_sum", "calls_leaf"]}),
            "'calls_leaf' is no callback of message_sent; these are: sent_count, sent_sum",
        ),
    ];
    for (change, message) in cases {
        let said = client.refused("events.enable", change);
        assert!(said.contains(message), "{said}");
    }
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let _ = running.end().0.good();

    let (ended, _) = Guest::new("workload=list").with(["--event", "nope"]).run();
    let line = ended.refused(100);
    assert!(line.contains("there is no event 'nope'"), "{line}");
}
