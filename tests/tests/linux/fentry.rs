//! BPF programs at the entries of functions (fentry), and us: whoever comes first to a function has it.

use serde_json::{Value, json};
use tests::Client;

use crate::kernel::{kernel, straight};
use crate::shell::Shell;

/// Nothing but `keys` calls it, once each time.
const FUNCTION: &str = "do_sched_yield";
/// What calls that.
const CALLER: &str = "__x64_sys_sched_yield";

#[test]
fn a_function_with_a_bpf_program_is_theirs_and_all_else_is_ours() {
    let inside = straight(kernel(), FUNCTION)[0];
    let mut shell = Shell::start();
    let mut client = shell.client();
    let before = client.digest();
    // The quotes keep the echo of the line from being taken for what it prints.
    let steps = "echo 'at''tached'; read go; keys 100; echo 'half''way'; read go; keys 20";
    shell.begins(&format!("fentry {FUNCTION} sh -c \"{steps}\""));
    shell.running.wait_for("attached");
    let changed = client.call("start", json!({"filter": [FUNCTION, CALLER]}));
    assert_eq!(changed["traced"], 1, "{changed}");
    assert!(
        changed["skipped"].to_string().contains(FUNCTION),
        "{changed}"
    );
    let probe = format!("{inside} %rax:x64");
    client.call("probe.add", json!({"probes": [probe]}));
    shell.running.type_text("\n");
    shell.running.wait_for("halfway");
    let list = client.call("probe.list", Value::Null);
    assert_eq!(list["probes"][0]["hits"], 100, "{list}");
    let status = client.status();
    assert_eq!(Client::rings(&status, "written"), 100, "{status}");
    // We go first.
    client.call("stop", Value::Null);
    shell.running.type_text("\n");
    shell.is_done();
    assert_eq!(client.digest(), before);
    // They have let go: now it can be had.
    let changed = client.call("start", json!({"filter": [FUNCTION, CALLER]}));
    assert_eq!(changed["traced"], 2, "{changed}");
    client.call("stop", Value::Null);
    let (ended, _) = shell.end();
    assert!(ended.stdout.contains("fentry counted 120"), "{ended}");
}

/// As with the guest's own tracer: it finds bytes that it does not know, and says so.
#[test]
fn a_program_does_not_get_a_function_of_ours() {
    let mut shell = Shell::start();
    let mut client = shell.client();
    let before = client.digest();
    client.call("start", json!({"filter": [FUNCTION]}));
    shell.does(&format!("fentry {FUNCTION} keys 10"));
    shell.does("keys 100");
    let status = client.status();
    assert_eq!(Client::rings(&status, "written"), 100, "{status}");
    assert_eq!(status["tracing"]["frozen"], Value::Null, "{status}");
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), before);
    let (ended, _) = shell.end();
    assert!(ended.stdout.contains("is not to be had"), "{ended}");
}
