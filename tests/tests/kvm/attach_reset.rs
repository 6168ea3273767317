//! A guest of another VMM that is reset while it is traced: noticed, said, and nothing of ours is left; `--follow` goes on with
//! what starts next.

use std::collections::BTreeSet;

use serde_json::json;
use tests::{Client, Guest, Running, guest};

fn qemu(name: &str) -> Running {
    let name = format!("exotrace-{name}-{}", std::process::id());
    let qemu = Guest::under_qemu(&name, "workload=list,spin", 2).start();
    qemu.wait_for("workload spin");
    qemu
}

/// What the VMM has mapped of ours.
fn left_in(qemu: &Running) -> BTreeSet<String> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", qemu.pid())).unwrap();
    let ours = maps.lines().filter(|line| line.contains("exotrace"));
    ours.map(str::to_owned).collect()
}

fn is_traced(client: &mut Client) {
    client.wait_until("traced", |status| Client::rings(status, "written") > 0);
}

fn reset(qemu: &Running) {
    let done = qemu.monitor().command("system_reset", &json!({}));
    assert_eq!(done, json!({}));
}

#[test]
fn a_reset_ends_the_trace_and_leaves_nothing() {
    let mut qemu = qemu("reset");
    for (round, tracer) in ["function", "graph"].into_iter().enumerate() {
        let attached = Guest::attached(qemu.pid(), Some(&guest()));
        let options = ["--trace", tracer, "--filter", "spin_*"];
        let mut attached = attached.with(options).output().start();
        is_traced(&mut attached.client());
        assert!(!left_in(&qemu).is_empty());
        reset(&qemu);
        let (ended, trace) = attached.end();
        assert_eq!(ended.code, Some(0), "{ended}");
        assert!(ended.stderr.contains("was loaded anew"), "{ended}");
        assert!(trace.counts().values().sum::<u64>() > 0, "{tracer}");
        assert_eq!(left_in(&qemu), BTreeSet::new(), "{tracer}: {ended}");
        // It starts as if nobody had been there.
        qemu.wait_for_times("workload spin", round + 2);
    }
    qemu.type_text("q");
    assert_eq!(qemu.end().0.code, Some(1));
}

#[test]
fn whoever_follows_traces_what_starts_after_the_reset() {
    let mut qemu = qemu("follow");
    let attached = Guest::attached(qemu.pid(), Some(&guest()));
    let options = ["--trace", "function", "--filter", "spin_*", "--follow"];
    let mut attached = attached.with(options).output().start();
    for _ in 0..2 {
        let mut client = attached.client();
        is_traced(&mut client);
        reset(&qemu);
        client.is_left();
    }
    is_traced(&mut attached.client());
    attached.client().call("stop", json!({}));
    let third = attached.path("trace.3");
    assert!(third.is_dir(), "{}", third.display());
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    assert_eq!(attached.end().0.code, Some(0));
    qemu.type_text("q");
    assert_eq!(qemu.end().0.code, Some(1));
}
