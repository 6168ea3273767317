//! Kernels of other ages than the suite's: traced from the attach point on, switched off and on, counted exactly; and by
//! task, as each of them keeps its own of the current one.

use serde_json::{Value, json};
use tests::{Client, Guest, kernels};

/// A system call that nothing but the program `syscalls` makes.
const FUNCTION: &str = "__x64_sys_sched_get_priority_max";
/// Calls in each of its parts: while it is traced since the boot, while it is not, and while it is again.
const CALLS: u64 = 1000;
const SCRIPT: &str = "\
    echo step booted; read line; \
    syscalls 1000; echo step first; read line; \
    syscalls 1000; echo step second; read line; \
    syscalls 1000; echo step third; read line; \
    dmesg | grep -e '[B]UG:' -e '[O]ops'; uname -r";

#[test]
fn kernels_of_the_suite_are_traced_from_their_start_and_count_exactly() {
    for kernel in kernels(Some("suite")) {
        println!("{} ({})", kernel.name, kernel.boots_with);
        counts_exactly(Guest::linux_of(
            &kernel.image(),
            &kernel.boots_with,
            SCRIPT,
            None,
        ));
    }
}

fn counts_exactly(guest: Guest) {
    let guest = guest
        .vcpus(2)
        .with(["--trace", "graph", "--mode", "discard"]);
    let guest = guest.with(["--filter", FUNCTION, "--filter", "vfs_*"]);
    let mut running = guest.output().start();
    running.wait_for("step booted");
    let mut client = running.client();
    let mut next = |step: &str| {
        running.type_text("\n");
        running.wait_for(step);
    };
    next("step first");
    let traced = client.status()["tracing"]["sessions"][0]["traced"].clone();
    client.call("stop", Value::Null);
    let untraced = client.digest();
    let of_tasks = ["only_tasks", "not_tasks"];
    for name in of_tasks {
        let options = json!({name: ["syscalls"], "mode": "discard"});
        client.call("session.create", json!({"name": name, "options": options}));
        client.call("start", json!({"session": name, "filter": [FUNCTION]}));
    }
    next("step second");
    let status = client.status();
    for (name, expected) in of_tasks.into_iter().zip([CALLS, 0]) {
        let sessions = status["tracing"]["sessions"].as_array().unwrap();
        let of = sessions.iter().find(|one| one["name"] == name).unwrap();
        let rings = of["rings"].as_array().unwrap().iter();
        let written: u64 = rings.map(|ring| ring["written"].as_u64().unwrap()).sum();
        assert_eq!(written, expected, "{name}: {status}");
        client.call("session.delete", json!({"session": name}));
    }
    let filter = json!({"filter": [FUNCTION, "vfs_*"]});
    let again = client.call("start", filter)["traced"].clone();
    assert_eq!(again, traced);
    assert_ne!(client.digest(), untraced);
    next("step third");
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), untraced, "every site is as it was");
    let status = client.status();
    assert_eq!(status["tracing"]["frozen"], json!(null), "{status}");
    assert_eq!(Client::rings(&status, "lost"), 0, "{status}");
    drop(client);
    next("reboot: Power down");
    let (ended, trace) = running.end();
    let ended = ended.good();
    for trouble in ["BUG:", "Oops"] {
        assert!(!ended.stdout.contains(trouble), "{ended}");
    }
    let counts = trace.uftrace();
    assert_eq!(counts.get(FUNCTION), Some(&(2 * CALLS)), "{counts:?}");
    assert!(counts.contains_key("vfs_read"), "{counts:?}");
    assert_eq!(trace.lost(), 0);
}
