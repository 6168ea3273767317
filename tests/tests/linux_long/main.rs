//! A stock Linux under every function traced as a graph: minutes in the box, so `make test-long` runs it.
#![cfg(test)]

mod any;
mod demo;
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
