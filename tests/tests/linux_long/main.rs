//! A stock Linux under every function traced as a graph: minutes in the box, so `make test-long` runs it.
#![cfg(test)]

mod start;

use serde_json::{Value, json};
use tests::Guest;

const SCRIPT: &str = "\
    fork() { i=0; while [ $i -lt $1 ]; do /bin/true; i=$((i + 1)); done; }; \
    echo step untraced; read line; \
    fork 300; echo step forked; read line; \
    fork 100; echo step detached; read line; \
    ls -lR /proc >/tmp/list 2>/dev/null; echo step listed $(wc -l </tmp/list)";

/// Attached, detached in the middle of the work, attached again, and switched off while it is traced.
#[test]
fn three_runs_of_three_with_every_function_hooked() {
    for run in 1..=3 {
        let mut running = Guest::linux(SCRIPT, None)
            .vcpus(2)
            .with(["--timeout", "900"])
            .start();
        running.wait_for("step untraced");
        let mut client = running.client();
        let before = client.digest();
        let started = client.call("start", json!({"tracer": "graph"}));
        let traced = started["traced"].as_u64().unwrap();
        assert!(traced > 30_000, "{traced} functions are traced");
        running.type_text("\n");
        running.wait_for("step forked");
        let stopped = client.call("stop", Value::Null);
        assert_eq!(stopped["restored"], traced);
        assert_eq!(client.digest(), before, "run {run}");
        running.type_text("\n");
        running.wait_for("step detached");
        assert_eq!(client.call("start", Value::Null)["traced"], traced);
        running.type_text("\n");
        let (ended, _) = running.end();
        let ended = ended.good();
        let listed = ended
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("step listed "));
        assert!(
            listed.unwrap().trim().parse::<u32>().unwrap() > 5000,
            "{ended}"
        );
        println!(
            "run {run}: {traced} functions, {} and {} pauses",
            started["pauses"], stopped["pauses"]
        );
    }
}

/// Those without a site too: not instrumented, assembly, what exceptions and the scheduler call, each by displacing its first
/// instructions.
#[test]
fn a_kernel_lives_on_with_every_function_displaced_that_can_be() {
    let script = "echo step up; read line; \
        while read line; do ls -lR /proc /sys >/tmp/list 2>/dev/null; syscalls 1000; \
        for i in 1 2 3; do (exit $i); done; echo step worked $line.; done";
    let mut running = Guest::linux(script, None).vcpus(2).with(["--any"]).start();
    running.wait_for("step up");
    let mut client = running.client();
    let text = client.digest();
    running.type_text("\n");
    for (number, tracer) in ["function", "graph"].into_iter().enumerate() {
        client.call("session.create", json!({"name": tracer, "tracer": tracer}));
        let started = client.call("start", json!({"session": tracer}));
        let traced = started["traced"].as_u64().unwrap();
        println!("{tracer}: {traced} functions, not {}", started["skipped"]);
        assert!(traced > 40_000, "{started}");
        running.type_text(&format!("{number}\n"));
        running.wait_for(&format!("step worked {number}."));
        let stopped = client.call("stop", json!({"session": tracer}));
        assert_eq!(stopped["restored"], traced, "{stopped}");
        assert_eq!(client.digest(), text, "{tracer}");
    }
}
