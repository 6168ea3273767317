//! The guest's own function tracer and ours on the same kernel: whoever comes first to a function has it.

use serde_json::{Value, json};
use tests::{Client, Guest};

/// What the guest does at each step; it waits for a line before each. While its tracer is on, reading the
/// trace would never end: each read is traced.
const STEPS: &str = "\
    cd /sys/kernel/tracing; \
    on() { echo $1 >set_ftrace_filter; echo function >current_tracer; echo said $?; }; \
    off() { echo nop >current_tracer; echo >set_ftrace_filter; echo 1 >tracing_on; }; \
    saw() { echo 0 >tracing_on; echo guest saw $(grep -c $1 trace); }; \
    use() { cat /proc/version >/dev/null; }; \
    on vfs_read; echo step one; read line; \
    use; saw vfs_read; echo step two; read line; \
    off; echo step three; read line; \
    on vfs_open; use; saw vfs_open; off; echo step four; read line; \
    on vfs_read; dmesg | grep -e 'ftrace failed' -e 'actual:'; echo step five; read line";

fn traced(changed: &Value) -> u64 {
    changed["traced"].as_u64().unwrap()
}

/// Has the guest do the next step, and waits until it has.
fn next(running: &mut tests::Running, step: &str) {
    running.type_text("\n");
    running.wait_for(step);
}

fn start(client: &mut Client) -> Value {
    client.call("start", json!({"filter": ["vfs_read", "vfs_write"]}))
}

#[test]
fn whoever_comes_first_to_a_function_has_it() {
    let mut running = Guest::linux(STEPS, None).vcpus(2).start();
    running.wait_for("step one");
    let mut client = running.client();

    // The guest first: its function is foreign to us and stays its own; the other one is ours.
    let changed = start(&mut client);
    assert_eq!(traced(&changed), 1, "{changed}");
    let skipped = changed["skipped"].to_string();
    assert!(
        skipped.contains("vfs_read") && !skipped.contains("vfs_write"),
        "{changed}"
    );
    next(&mut running, "step two");
    client.call("stop", Value::Null);

    // It lets go: now both are ours.
    next(&mut running, "step three");
    let before = client.digest();
    let changed = start(&mut client);
    assert_eq!(traced(&changed), 2, "{changed}");

    // We first: the guest traces other functions as ever. At one of ours it finds bytes that it does not
    // know, says so, leaves them, and switches its tracer off for good, as it does whenever that happens.
    next(&mut running, "step four");
    next(&mut running, "step five");
    let status = client.status();
    assert_eq!(status["tracing"]["frozen"], Value::Null, "{status}");
    assert_eq!(traced(&client.call("stop", Value::Null)), 0);
    assert_eq!(client.digest(), before, "every site is as it was");

    running.type_text("\n");
    let (ended, _) = running.end();
    let ended = ended.good();
    let saw = ended
        .stdout
        .lines()
        .filter_map(|line| line.trim().strip_prefix("guest saw "));
    let saw: Vec<u32> = saw.map(|count| count.parse().unwrap()).collect();
    assert!(
        matches!(saw[..], [read, open] if read > 0 && open > 0),
        "{ended}"
    );
    assert!(ended.stdout.contains("ftrace failed to modify"), "{ended}");
    assert!(ended.stdout.contains("actual:   e9:"), "{ended}");
}
