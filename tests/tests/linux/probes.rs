//! Probes: arguments, what they lead to, and return values, compared with what a program in the guest did.

use serde_json::{Value, json};
use tests::Guest;

/// The last resort in a kernel that knows nothing of us: two bytes that leave the guest, each time.
#[test]
fn a_breakpoint_leaves_the_guest_once_for_each_hit() {
    const CALLS: u64 = 300;
    let function = "__x64_sys_sched_get_priority_max";
    let guest = Guest::linux("", None).vcpus(2);
    let mut running = guest.with(["--probe", &format!("{function} %rdi")]).start();
    running.wait_for("a shell on ttyS0");
    let place = format!("{function}+0x5 %rax:x64");
    let added = running.ctl(&["probe", "add", &place, "--tactic", "5"]);
    assert!(added.good().stdout.contains("5 (breakpoint)"));
    running.type_text(&format!("syscalls {CALLS}\n"));
    running.wait_for(&format!("made {CALLS}"));
    let list = running.client().call("probe.list", Value::Null);
    let hits: Vec<&Value> = list["probes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|probe| &probe["hits"])
        .collect();
    assert_eq!(hits, [&json!(CALLS), &json!(CALLS)], "{list}");
    assert_eq!(list["exits"], CALLS, "{list}");
    let removed = running.ctl(&["probe", "remove", "2"]);
    let _ = removed.good();
    running.type_text("syscalls 5\n");
    running.wait_for("made 5");
    let list = running.client().call("probe.list", Value::Null);
    assert_eq!(list["exits"], CALLS, "{list}");
    running.type_text("exit 0\n");
    let _ = running.end().0.good();
}
