//! Several sessions at once: each traces what it was asked to, whatever the others do.

use serde_json::{Value, json};
use tests::exact::{assert_exact, gated, untraced, without_gate};
use tests::{Client, Guest, Random, Trace, scaled, stormy};

const DISCARD: [&str; 4] = ["--mode", "discard", "--ring-size", "16384"];

fn session<'a>(status: &'a Value, name: &str) -> &'a Value {
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    let found = sessions.iter().find(|session| session["name"] == name);
    found.unwrap_or_else(|| panic!("no session {name}: {status}"))
}

fn rings(session: &Value, number: &str) -> u64 {
    let rings = session["rings"].as_array().unwrap();
    rings
        .iter()
        .map(|ring| ring[number].as_u64().unwrap())
        .sum()
}

/// The same functions, an overlapping part of them, and other rings: each session counts exactly.
#[test]
fn two_sessions_on_the_same_functions_have_each_the_exact_counts() {
    for vcpus in [1, 2] {
        let rest = format!("iterations={} tick=200", scaled(10_000));
        let workloads = "calls,threads,smp,tail_calls,variadic_float";
        let expected = untraced(gated(workloads, &rest).vcpus(vcpus));
        let guest = gated(workloads, &rest).vcpus(vcpus).with(DISCARD);
        let mut running = guest.output().start();
        running.wait_for("workload spin");
        let mut client = running.client();
        let digest = client.digest();
        let create = json!({"name": "other", "options": {
            "mode": "discard", "ring_size": 8192, "output": running.path("other")}});
        client.call("session.create", create);
        let everything = json!({"notrace": ["spin_*"]});
        client.call("start", everything);
        let part = json!({"session": "other", "filter": ["threads_*", "smp_*"]});
        client.call("start", part);
        running.type_text("q");
        let (ended, trace) = running.end();
        let printed = without_gate(ended.good().printed());
        assert_eq!(printed, expected, "tracing changed what the guest computes");
        assert_exact(&trace, &printed);
        let mut selected = printed.called();
        selected.retain(|name, _| name.starts_with("threads_") || name.starts_with("smp_"));
        let other: Trace = trace.named("other");
        assert_eq!((other.counts(), other.lost()), (selected.clone(), 0));
        assert_eq!(other.uftrace(), selected);
        assert!(!digest.is_empty());
    }
}

/// It became what it was asked to be all the same, and the next start was that of a profile, with nothing in the trace.
#[test]
fn a_tracer_that_is_refused_leaves_the_session_as_it_was() {
    let count = scaled(1000);
    let mut running = gated("calls", &format!("iterations={count}"))
        .with(DISCARD)
        .output()
        .start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let refused = client.refused("start", json!({"tracer": "profile"}));
    assert!(refused.contains("writes no trace"), "{refused}");
    client.call("start", json!({"notrace": ["spin_*"]}));
    let status = client.status();
    assert_eq!(
        session(&status, "default")["tracer"],
        "function",
        "{status}"
    );
    running.type_text("q");
    let (ended, trace) = running.end();
    assert_exact(&trace, &without_gate(ended.good().printed()));
}

/// With the clock page counts are exact, times never run back, and what the page's thread missed is
/// told.
#[test]
fn a_session_that_is_timed_by_the_clock_page_counts_the_same() {
    let count = scaled(10_000);
    for vcpus in [1, 2] {
        let cmdline = format!("workload=threads,smp,calls iterations={count} tick=200");
        let options = [
            "--trace", "function", "--clock", "page", "--mode", "discard",
        ];
        let guest = Guest::new(&cmdline).vcpus(vcpus).with(options);
        let guest = guest.with(["--ring-size", "16384", "--clock-period", "200"]);
        let (ended, trace) = guest.output().run();
        assert_exact(&trace, &ended.good().printed());
        let side = std::fs::read(trace.path().join("exotrace.json")).unwrap();
        let side: Value = serde_json::from_slice(&side).unwrap();
        assert_eq!(side["clock_period_ns"], 200);
        let totals = side["totals"].as_array().unwrap();
        assert!(totals.iter().all(|vcpu| vcpu["reordered"] == 0), "{side}");
    }
}

#[test]
fn the_clock_page_is_kept_while_a_session_needs_it() {
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    let page = |status: &Value| status["tracing"]["clock_page"].clone();
    client.call("start", json!({"filter": ["spin_leaf"]}));
    assert_eq!(page(&client.status()), Value::Null);
    for (name, period) in [("slow", 1000), ("fast", 50)] {
        let options = json!({"clock": "page", "clock_period": period});
        client.call("session.create", json!({"name": name, "options": options}));
        assert_eq!(session(&client.status(), name)["clock_period_ns"], period);
    }
    assert_eq!(page(&client.status()), Value::Null, "nothing needs it yet");
    client.call("start", json!({"session": "slow", "filter": ["spin_*"]}));
    assert_eq!(page(&client.status())["period_ns"], 1000);
    client.call("start", json!({"session": "fast", "filter": ["spin_*"]}));
    assert_eq!(page(&client.status())["period_ns"], 50);
    client.wait_until("all record", |status| {
        let names = ["default", "slow", "fast"];
        names
            .iter()
            .all(|name| rings(session(status, name), "written") > 1000)
    });
    let dump = running.path("dump");
    client.call("dump", json!({"session": "fast", "dir": dump}));
    client.call("stop", json!({"session": "fast"}));
    assert_eq!(page(&client.status())["period_ns"], 1000);
    client.call("session.delete", json!({"session": "fast"}));
    client.call("session.delete", json!({"session": "slow"}));
    assert_eq!(page(&client.status()), Value::Null);
    let refused = |options: Value, words: &str| {
        let mut client = tests::Client::connect(running.socket()).unwrap();
        let create = json!({"name": "x", "options": options});
        let message = client.refused("session.create", create);
        assert!(message.contains(words), "{message}");
    };
    refused(
        json!({"clock": "page", "clock_period": 5}),
        "--clock-period 5",
    );
    refused(
        json!({"clock": "page", "clock_cpu": 1000}),
        "--clock-cpu 1000",
    );
    running.type_text("q");
    let (ended, trace) = running.end();
    let _ = ended.good();
    assert!(trace.named("dump").report("function").contains("spin_leaf"));
}

#[test]
fn a_session_that_goes_leaves_the_others_alone() {
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    let text = client.digest();
    client.call("start", json!({"filter": ["spin_*"]}));
    let one = client.digest();
    client.call("session.create", json!({"name": "second"}));
    client.call(
        "start",
        json!({"session": "second", "filter": ["spin_leaf"]}),
    );
    client.wait_until("both record", |status| {
        ["default", "second"]
            .iter()
            .all(|name| rings(session(status, name), "written") > 1000)
    });
    let status = client.status();
    assert_eq!(session(&status, "second")["traced"], 1);
    assert_eq!(session(&status, "default")["traced"], 3);
    assert_eq!(status["tracing"]["patched"], 3);
    client.call("tracing-off", json!({"session": "second"}));
    let status = client.status();
    assert_eq!(session(&status, "second")["state"], "switched-off");
    assert_eq!(session(&status, "default")["state"], "tracing");
    let deleted = client.call("session.delete", json!({"session": "second"}));
    assert_eq!(deleted["session"], "second");
    assert!(deleted["stopped"].is_object(), "it ran: {deleted}");
    assert_eq!(
        client.digest(),
        one,
        "the first one's stubs are there again"
    );
    let before = rings(session(&client.status(), "default"), "written");
    client.wait_until("the other goes on", |status| {
        rings(session(status, "default"), "written") > before
    });
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), text);
    let deleted = client.call("session.delete", json!({"session": "default"}));
    assert!(
        deleted.get("stopped").is_none(),
        "it did not run: {deleted}"
    );
    running.type_text("q");
    let _ = running.end().0.good();
}

#[test]
fn what_is_wrong_with_a_session_is_said_in_one_line() {
    let mut running = Guest::spinning(&[]);
    drop(running.client());
    let text = running.ctl(&["digest"]).good().stdout;
    running.refuses(&["session", "create", "default"], &["'default'", "already"]);
    running.refuses(&["session", "create", "a b"], &["'a b'", "letters"]);
    running.refuses(
        &["session", "create", "x", "--tracer", "strace"],
        &["strace", "graph"],
    );
    running.refuses(
        &["session", "create", "x", "--ring-size", "5"],
        &["--ring-size", "power of two"],
    );
    running.refuses(
        &["session", "create", "x", "--ring-size", "262144"],
        &["--ring-size 262144", "512 MiB", "--ring-size 131072"],
    );
    running.refuses(
        &["session", "create", "x", "--clock", "sun"],
        &["sun", "tsc"],
    );
    running.refuses(&["session", "delete", "x"], &["'x'", "default"]);
    running.refuses(&["--session", "x", "start"], &["no session 'x'"]);
    running.refuses(&["--session", "x", "stop"], &["no session 'x'"]);
    running.refuses(&["--session", "x", "tracing-off"], &["no session 'x'"]);
    running.refuses(&["--session", "x", "filter", "clear"], &["no session 'x'"]);
    let _ = running.ctl(&["session", "create", "x"]).good();
    running.refuses(
        &["--session", "x", "start", "--filter", "spin_["],
        &["spin_["],
    );
    let never = running.path("never").display().to_string();
    running.refuses(
        &["--session", "x", "dump", &never],
        &["'x'", "not been started"],
    );
    let _ = running
        .ctl(&["--session", "x", "start", "--filter", "spin_leaf"])
        .good();
    running.refuses(&["--session", "x", "start"], &["'x'", "started already"]);
    running.refuses(
        &["--session", "x", "profile"],
        &["'x'", "only a profile session"],
    );
    running.refuses(
        &[
            "session", "create", "y", "--tracer", "profile", "--output", &never,
        ],
        &["'y'", "no trace"],
    );
    let _ = running.ctl(&["--session", "x", "stop"]).good();
    running.refuses(
        &["--session", "x", "start", "--tracer", "graph"],
        &["'x'", "function session", "session create"],
    );
    for number in 2..16 {
        let _ = running
            .ctl(&["session", "create", &number.to_string()])
            .good();
    }
    running.refuses(
        &["session", "create", "last"],
        &["'last'", "16", "delete one"],
    );
    let list = running.ctl(&["session", "list"]).good().stdout;
    assert_eq!(list.matches("session  ").count(), 16, "{list}");
    let _ = running
        .ctl(&["--session", "x", "start", "--filter", "spin_leaf"])
        .good();
    let deleted = running.ctl(&["session", "delete", "x"]).good().stdout;
    assert!(deleted.contains("stopped first"), "{deleted}");
    assert_eq!(running.ctl(&["thaw"]).good().stdout, "it was not frozen\n");
    assert_eq!(running.ctl(&["digest"]).good().stdout, text);
}

/// What `profile` says, as hits per function; each function's times make sense.
fn hits(client: &mut Client, name: &str) -> tests::Counts {
    let profile = client.call("profile", json!({"session": name}));
    let functions = profile["functions"].as_array().unwrap();
    for function in functions {
        let time = |which: &str| function[which].as_u64().unwrap();
        assert!(time("self_ns") <= time("total_ns"), "{function}");
        // A function that is entered by tail jumps only spends its caller's time.
        let is_timed = !function["name"].as_str().unwrap().contains("tail");
        assert!(time("total_ns") > 0 || !is_timed, "{function}");
    }
    let hits = functions.iter().map(|function| {
        let name = function["name"].as_str().unwrap().to_owned();
        (name, function["hits"].as_u64().unwrap())
    });
    hits.collect()
}

/// Counters in the guest: exact under preemption and migration, with every way to hook returns, and
/// beside a graph session on the same functions.
#[test]
fn a_profile_counts_exactly() {
    let rest = format!("iterations={} tick=200", scaled(5000));
    let workloads = "calls,threads,smp,tail_calls,c_mcount,variadic_float,spin";
    for (vcpus, hook, beside) in [
        (1, "balanced", false),
        (2, "jmp", true),
        (2, "ret", false),
        (2, "balanced", true),
    ] {
        let mut running = gated(workloads, &rest).vcpus(vcpus).start();
        running.wait_for("workload spin");
        let mut client = running.client();
        let text = client.digest();
        let options = json!({"return_hook": hook});
        let create = json!({"name": "p", "tracer": "profile", "options": options});
        client.call("session.create", create);
        let everything = json!({"session": "p", "notrace": ["spin_*"]});
        client.call("start", everything);
        if beside {
            client.call(
                "start",
                json!({"tracer": "graph", "filter": ["threads_*", "calls_*"]}),
            );
        }
        running.type_text("q");
        running.wait_for("checksum variadic_float");
        let found = hits(&mut client, "p");
        let shown = running.ctl(&["--session", "p", "top", "--count", "2", "--interval", "10"]);
        assert_eq!(shown.good().stdout.matches("FUNCTION").count(), 2);
        client.call("session.delete", json!({"session": "p"}));
        let _ = client.ask("stop", Value::Null);
        assert_eq!(client.digest(), text);
        running.type_text("q");
        let printed = without_gate(running.end().0.good().printed());
        assert_eq!(found, printed.called(), "{vcpus} {hook} {beside}");
    }
}

/// How many changes the storm consists of where the processor executes it, and the workloads under
/// it.
const CHANGES: u32 = 5000;
const WORKLOADS: &str = "threads,smp,variadic_float,tail_calls,nops,recursion";

fn rest() -> String {
    format!("iterations={} tick=200", scaled(20_000))
}

/// Changes something at random; refusals are part of it. `None` when the guest has ended.
fn change(client: &mut Client, random: &mut Random) -> Option<()> {
    let globs = [
        "threads_*",
        "smp_*",
        "*_leaf",
        "recursion_step",
        "tail_calls_*",
        "*_varargs",
    ];
    let name = format!("s{}", random.next_u64() % 6);
    let glob = *random.pick(&globs);
    let one = json!({"session": name, "filter": [glob]});
    let tracer = *random.pick(&["function", "graph", "profile"]);
    let ring_size = *random.pick(&[64, 256]);
    let options = json!({"mode": random.pick(&["overwrite", "discard"]), "ring_size": ring_size});
    let (method, params) = match random.next_u64() % 10 {
        0 | 1 => (
            "session.create",
            json!({"name": name, "tracer": tracer, "options": options}),
        ),
        2 => ("session.delete", json!({"session": name})),
        3..=5 => ("start", one),
        6 => ("stop", json!({"session": name})),
        7 => ("filter.set", one),
        8 => ("filter.add", one),
        _ => {
            let method = *random.pick(&["tracing-on", "tracing-off"]);
            (method, json!({"session": name}))
        }
    };
    if let Err(error) = client.ask(method, params)? {
        let message = error["message"].as_str().unwrap();
        let expected = ["started", "session", "glob", "filter", "tracing memory"];
        assert!(
            expected.iter().any(|word| message.contains(word)) && !message.contains("stub"),
            "{method} {name} {glob}: {message}"
        );
    }
    Some(())
}

/// Deletes all of the storm's sessions: the text is as the one that stays has made it.
fn delete_all(client: &mut Client, digest: &str) -> Option<()> {
    for number in 0..6 {
        let session = json!({"session": format!("s{number}")});
        // Refused when it is not there.
        let _ = client.ask("session.delete", session)?;
    }
    let now = client.ask("digest", Value::Null)?.unwrap();
    assert_eq!(now["sha256"], digest, "the text is not what it was");
    Some(())
}

#[test]
fn sessions_that_come_and_go_at_random_disturb_nothing() {
    let mut random = Random::new();
    let expected = untraced(gated(WORKLOADS, &rest()).vcpus(2));
    let wanted = stormy(CHANGES);
    let (mut changes, mut guests) = (0, 0);
    while changes < wanted {
        let guest = gated(WORKLOADS, &rest()).vcpus(2);
        let guest = guest.with(["--mode", "discard", "--ring-size", "65536"]);
        let mut running = guest.output().start();
        running.wait_for("workload spin");
        let mut client = running.client();
        // One session traces everything from beginning to end, whatever the others do.
        client.call("start", json!({"notrace": ["spin_*"]}));
        let digest = client.digest();
        running.type_text("q");
        let mut go_on = Some(());
        while go_on.is_some() {
            go_on = change(&mut client, &mut random);
            changes += 1;
            if changes % 60 == 0 && go_on.is_some() {
                go_on = delete_all(&mut client, &digest);
            }
        }
        let (ended, trace) = running.end();
        ended.no_panic();
        let printed = without_gate(ended.good().printed());
        assert_eq!(printed, expected, "after {changes} changes");
        assert_exact(&trace, &printed);
        guests += 1;
        assert!(guests < wanted / 4, "{changes} changes in {guests} guests");
    }
    println!("{changes} changes of {guests} guests");
}
