//! The control socket, as `vmm ctl` and as clients of others see it.

use std::process::Command;

use serde_json::{Value, json};
use tests::users::{nobody_runs, open_to_all};
use tests::{Client, Ended, Guest, Running, Trace, patience};

#[test]
fn a_client_that_is_not_ours_can_do_everything_and_break_nothing() {
    let mut running = Guest::spinning(&[]);
    drop(running.client());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kvm/control_client.py");
    let client = include_str!("control_client.py");
    let output = Command::new("python3")
        .args(["-c", client])
        .args([running.socket().to_owned(), running.path("")])
        .arg(patience().as_secs().to_string())
        .output()
        .expect("python3 is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
    let socket = running.socket().to_owned();
    let (ended, _) = running.end();
    ended.no_panic();
    assert!(!socket.exists(), "the socket is left behind");
    assert_eq!(ended.good().stderr, "");
}

/// The mode of the socket's file is not all that keeps others out.
#[test]
fn another_user_that_can_open_the_socket_is_not_answered() {
    const ASK: &str = "import socket
client = socket.socket(socket.AF_UNIX)
client.connect('control')
said = b''
try:
    client.sendall(b'{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"status\"}\\n')
    client.shutdown(socket.SHUT_WR)
    while more := client.recv(65536): said += more
except OSError: pass
print(len(said))";
    let mut running = Guest::spinning(&[]);
    drop(running.client());
    let (folder, socket) = (running.path(""), running.socket());
    assert!(socket.ends_with("control"));
    open_to_all(&folder, 0o711);
    open_to_all(socket, 0o666);
    let ask = ["python3", "-c", ASK];
    assert_eq!(nobody_runs(&folder, &ask).good().stdout, "0\n");
    // Whose it is would have been.
    let mut ours = Command::new(ask[0]);
    let ours = ours.args(&ask[1..]).current_dir(&folder).output();
    assert_ne!(Ended::from(ours.unwrap()).good().stdout, "0\n");
    running.client().call("shutdown", Value::Null);
    let ended = running.end().0.good();
    let told = "a control client of another user was turned away";
    assert_eq!(ended.stderr.matches(told).count(), 1, "{ended}");
}

/// Each verb of `vmm ctl`: its text says what was done, `--json` is the raw result.
#[test]
fn every_verb_of_ctl_speaks_text_and_json() {
    let mut running = Guest::spinning(&[]);
    drop(running.client());
    let dump = running.path("dump");
    let dump = dump.to_str().unwrap();
    let verbs: [(&[&str], &str); 17] = [
        (&["status"], "guest    running"),
        (&["functions", "spin_*"], "available spin_root"),
        (
            &["start", "--filter", "spin_*", "--notrace", "spin_leaf"],
            "2 patched",
        ),
        (&["functions", "spin_*"], "patched   spin_root"),
        (&["filter", "add", "spin_leaf"], "0 patched"),
        (&["filter", "set", "spin_leaf"], "1 patched, 2 restored"),
        (
            &["filter", "add", "spin_root", "--notrace", "smp_*"],
            "1 patched",
        ),
        (&["filter", "remove", "spin_leaf"], "1 restored"),
        (&["filter", "clear"], "patched"),
        (&["tracing-off"], "tracing is off"),
        (&["tracing-on"], "tracing is on"),
        (&["pause"], "paused"),
        (&["status"], "guest    paused"),
        (&["resume"], "running"),
        (&["dump", dump], "records"),
        (&["stop"], "restored"),
        (&["digest"], "\n"),
    ];
    for (verb, says) in verbs {
        let said = running.ctl(verb).good();
        assert!(said.stdout.contains(says), "{verb:?}: {said}");
        assert_eq!(said.stderr, "", "{verb:?}");
    }
    let status = running.ctl(&["status", "--json"]).good();
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(status["guest"]["state"], "running");
    assert_eq!(status["tracing"]["state"], "off");
    assert!(
        status["pauses"]["parked"]["count"].as_u64().unwrap() >= 6,
        "{status}"
    );
    assert!(
        running
            .ctl(&["shutdown"])
            .good()
            .stdout
            .contains("shutting down")
    );
    assert_eq!(running.end().0.code, Some(0));
}

#[test]
fn refusals_name_what_is_wrong_and_change_nothing() {
    let mut running = Guest::spinning(&[]);
    drop(running.client());
    let before = running.ctl(&["digest"]).good().stdout;
    running.refuses(&["stop"], &["not been started"]);
    running.refuses(&["filter", "clear"], &["not been started"]);
    let never = running.path("never").display().to_string();
    running.refuses(&["dump", &never], &["not been started"]);
    running.refuses(
        &["start", "--filter", "spin_rot"],
        &["spin_rot", "spin_root"],
    );
    running.refuses(&["start", "--filter", "spin_["], &["spin_["]);
    running.refuses(&["functions", "spin_rot"], &["spin_rot", "spin_root"]);
    let _ = running.ctl(&["start", "--filter", "spin_root"]).good();
    running.refuses(&["start"], &["started already"]);
    running.refuses(&["filter", "add", "spin_laef"], &["spin_laef", "spin_leaf"]);
    running.refuses(&["filter", "remove", "smp_*"], &["smp_*"]);
    let there = running.path("");
    running.refuses(
        &["dump", there.to_str().unwrap()],
        &[there.to_str().unwrap().trim_end_matches('/')],
    );
    let status = running.ctl(&["status", "--json"]).good();
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(status["tracing"]["patched"], 1);
    assert_eq!(
        status["tracing"]["sessions"][0]["filter"],
        json!(["spin_root"])
    );
    let _ = running.ctl(&["stop"]).good();
    assert_eq!(running.ctl(&["digest"]).good().stdout, before);
}

/// The trace that `dump` wrote, once the guest has ended.
fn dumped(running: Running) -> Trace {
    running.end().1.named("dump")
}

/// Most of a ring was written over while it was copied once. What is not recorded meanwhile is counted.
#[test]
fn a_dump_has_the_whole_rings_of_a_guest_that_goes_on() {
    const SLOTS: u64 = 2 * (64 << 10) / 8;
    let options = ["--mode", "overwrite", "--ring-size", "64K"];
    let mut running = Guest::spinning(&options);
    let mut client = running.client();
    client.call("start", json!({"filter": ["spin_*"]}));
    let full = |status: &Value| {
        let rings = status["tracing"]["sessions"][0]["rings"].as_array();
        rings.is_some_and(|rings| {
            rings
                .iter()
                .all(|ring| ring["written"].as_u64() > Some(SLOTS))
        })
    };
    client.wait_until("has full rings", full);
    let dump = client.call("dump", json!({"dir": running.path("dump")}));
    // A stub that had reserved a slot and not written it yet holds no more than that one up.
    let records = dump["records"].as_u64().unwrap();
    assert!(records <= SLOTS && records + 16 > SLOTS, "{dump}");
    let status = client.status();
    assert_eq!(dump["in_stubs"], 0, "{dump}");
    assert_eq!(
        dump["missed"],
        Client::rings(&status, "discarded"),
        "{dump} {status}"
    );
    let written = Client::rings(&status, "written");
    client.wait_until("records again", |status| {
        Client::rings(status, "written") > written
    });
    let live = client.call("dump", json!({"dir": running.path("live"), "live": true}));
    assert_eq!(live["missed"], 0, "{live}");
    client.call("shutdown", Value::Null);
    let trace = dumped(running);
    assert_eq!(trace.counts().values().sum::<u64>(), records);
}

#[test]
fn a_dump_of_a_running_guest_opens_everywhere() {
    for mode in ["overwrite", "discard"] {
        let mut running = Guest::spinning(&["--mode", mode, "--ring-size", "64"]);
        let mut client = running.client();
        client.call("start", json!({"filter": ["spin_*"]}));
        client.wait_until("has records", |status| {
            Client::rings(status, "written") > 9000
        });
        let dump = client.call("dump", json!({"dir": running.path("dump")}));
        client.call("shutdown", Value::Null);
        let trace = dumped(running);
        let counts = trace.counts();
        assert_eq!(
            counts.keys().collect::<Vec<_>>(),
            ["spin_branch", "spin_leaf", "spin_root"]
        );
        assert_eq!(
            Some(counts.values().sum()),
            dump["records"].as_u64(),
            "{mode}"
        );
        assert_eq!(counts, trace.uftrace(), "{mode}");
        assert!(trace.report("function").contains("spin_leaf"), "{mode}");
    }
}
