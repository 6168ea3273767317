//! What a run goes through that it has no part in: it is stopped for a while, what it writes to is taken away, or it is started
//! with signals that somebody wants to be another way.

use std::fs;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::{Value, json};
use tests::exact::{gated, without_gate};
use tests::{Client, Guest, Random, Running, scaled, until};

/// Longer than anybody who waits for a thread of ours would take for granted, once; and shorter than what is said to be late.
const LONG: Duration = Duration::from_secs(3);

/// Whether each thread stands still.
fn stands_still(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut states = threads.map(|thread| {
        let text = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        text.rsplit(") ").next().unwrap().chars().next()
    });
    states.all(|state| state == Some('T'))
}

/// Stops the process, for so long, and lets it go on.
fn stop(running: &Running, long: Duration) {
    running.signal("-STOP");
    until("all stand still", || stands_still(running.pid()));
    // Nobody is waited for: how long it lasts is what this is about.
    let (_nobody, never) = channel::<()>();
    let _ = never.recv_timeout(long);
    running.signal("-CONT");
}

/// No call is lost, nobody hangs, and who asked meanwhile is answered.
#[test]
fn a_run_that_is_stopped_for_seconds_goes_on_where_it_was() {
    let rest = format!("iterations={} threads=6 tick=200", scaled(4000));
    let guest_of = || gated("calls,threads,spin", &rest).vcpus(2);
    let mut untraced = guest_of().start();
    untraced.type_text("q");
    untraced.wait_for("checksum threads");
    untraced.type_text("q");
    let expected = without_gate(untraced.end().0.good().printed());
    let traced = ["--trace", "function", "--notrace", "spin_*"];
    let options = ["--mode", "lossless", "--ring-size", "64"];
    let mut running = guest_of().with(traced).with(options).output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    stop(&running, LONG);
    running.type_text("q");
    let mut random = Random::new();
    for _ in 0..scaled(40) {
        stop(&running, Duration::from_micros(random.next_u64() % 2000));
    }
    // This one is asked for something before it goes on.
    let asks = running.socket().to_owned();
    running.signal("-STOP");
    let asked = std::thread::spawn(move || {
        Client::connect(&asks).map(|mut client| client.ask("status", Value::Null))
    });
    stop(&running, LONG);
    let answered = asked.join().unwrap();
    assert!(
        !matches!(answered, Ok(Some(Err(_)))),
        "it was refused: {answered:?}"
    );
    client.wait_until("it records", |status| Client::rings(status, "written") > 0);
    running.wait_for("checksum threads");
    running.type_text("q");
    let (ended, trace) = running.end();
    let _ = ended.good();
    assert_eq!(trace.lost(), 0);
    assert_eq!(trace.counts(), expected.called());
}

/// The guest goes on, the end says what is missing, and the next run makes the directory anew.
#[test]
fn an_output_directory_that_is_removed_is_said_and_in_nobodys_way() {
    for store in ["uftrace", "compact"] {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        let output = trace.to_str().unwrap();
        let options = |store: &'static str| {
            let traced = ["--trace", "function", "--filter", "spin_*"];
            [&traced[..], &["--store", store]].concat()
        };
        let mut running = Guest::spinning(&[&options(store)[..], &["--output", output]].concat());
        let mut client = running.client();
        let has_read = |status: &Value| Client::rings(status, "read") > 0;
        client.wait_until("it writes", has_read);
        // Whoever makes a file just then is in the way of who removes them.
        until("it is removed", || fs::remove_dir_all(&trace).is_ok());
        let read = Client::rings(&client.status(), "read");
        client.wait_until("it goes on", |status| Client::rings(status, "read") > read);
        client.call("stop", json!({}));
        client.call("start", json!({"filter": ["spin_leaf"]}));
        running.type_text("q");
        let ended = running.end().0;
        assert_eq!(ended.code, Some(106), "{store}: {ended}");
        let said = format!("{output} is gone");
        assert!(ended.stderr.contains(&said), "{store}: {ended}");
        assert!(!ended.stderr.contains("readable"), "{store}: {ended}");
        ended.no_panic();
        assert!(!trace.exists(), "{store}");
        let traced = ["--trace", "function", "--output", output];
        let (ended, _) = Guest::new("workload=calls iterations=5").with(traced).run();
        let _ = ended.good();
        assert!(trace.join("exotrace.json").exists());
    }
}

/// A Python script that does this with its signals, and becomes the program that it is given.
fn becomes_after(this: &str) -> String {
    format!("import os, signal, sys; {this}; os.execv(sys.argv[1], sys.argv[1:])")
}

/// `nohup vmm run ... &` ended when its terminal was closed.
#[test]
fn a_hangup_that_is_ignored_from_the_start_ends_nothing() {
    let ignores = becomes_after("signal.signal(signal.SIGHUP, signal.SIG_IGN)");
    let guest = Guest::new("workload=list,spin").started_by(&ignores);
    let mut running = guest.start();
    running.wait_for("workload spin");
    running.signal("-HUP");
    running.type_text("q");
    let _ = running.end().0.good();
}

/// Nothing ran below a supervisor that had blocked one of those that end a run.
#[test]
fn signals_that_are_blocked_from_the_start_come_all_the_same() {
    let blocks = becomes_after("signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())");
    let guest = Guest::new("workload=list,spin").vcpus(2);
    let mut running = guest.started_by(&blocks).start();
    running.wait_for("workload spin");
    // A vCPU is called out of the guest by one, too.
    let mut client = running.client();
    client.call("pause", json!({}));
    client.call("resume", json!({}));
    running.signal("-TERM");
    let ended = running.end().0;
    assert_eq!(ended.code, Some(104), "{ended}");
    ended.no_panic();
}
