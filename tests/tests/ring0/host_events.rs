//! What the host's own kernel says of a guest that another VMM runs: it is asked where a usual KVM executes it.

use serde_json::json;
use tests::Guest;
use tests::exact::{gated, without_gate};
use tests::host_side::{assert_calls_inside, counts, reasons};

/// The instances of the kernel's tracer that are ours: others trace this host as well.
fn instances() -> Vec<String> {
    let found = std::fs::read_dir("/sys/kernel/tracing/instances").expect("a tracefs");
    let names = found.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("exotrace-")).collect()
}

/// The same of a guest of our own: its threads are named as they begin.
#[test]
fn the_hosts_kernel_tells_of_a_guest_of_ours() {
    for (who, said) in [("--host-events=kernel", false), ("--host-events", true)] {
        of_a_guest_of_ours(who, said);
    }
}

fn of_a_guest_of_ours(who: &str, said: bool) {
    let (ended, trace) = Guest::new("workload=calls iterations=100")
        .vcpus(2)
        .with(["--trace", "graph", "--filter", "calls_*", who])
        .output()
        .run();
    let ended = ended.good();
    let line = "host events: told by the host's kernel";
    assert_eq!(ended.stderr.contains(line), said, "{ended}");
    let printed = ended.printed();
    let [_, both] = trace.trace_cmd_with_host();
    let seen = assert_calls_inside(&both);
    assert_eq!((seen.calls, seen.vcpus), (printed.total(), 2));
    let events = trace.host_events();
    let reasons = reasons(&events);
    for reason in ["port_write", "interrupt"] {
        assert!(reasons.contains_key(reason), "{reasons:?}");
    }
    assert_eq!(instances(), Vec::<String>::new());
}

/// No kernel knows of hidden waits: what threads tell is not lost after the first.
#[test]
fn the_threads_tell_of_a_guest_that_does_not_see_all_time() {
    let (ended, trace) = Guest::new("workload=calls iterations=100")
        .with(["--trace", "graph", "--filter", "calls_*", "--host-events"])
        .with(["--mode", "lossless", "--wait-time", "hidden"])
        .output()
        .run();
    let ended = ended.good();
    let line = "told by the threads of the vCPUs (no kernel knows of hidden waits)";
    assert!(ended.stderr.contains(line), "{ended}");
    let events = trace.host_events();
    let reasons = reasons(&events);
    assert!(!reasons.contains_key("interrupt"), "{reasons:?}");
    assert!(reasons.contains_key("port_write"), "{reasons:?}");
}

/// Every call is between an entry and the next exit; exits that no VMM sees are among them, and nothing stays behind.
#[test]
fn the_hosts_kernel_tells_of_the_guest_of_another_vmm() {
    let mut other = gated("calls,spin", "iterations=100").vcpus(2).start();
    other.wait_for("workload spin");
    // What was left by a tracer that was killed: no process has this number.
    let left = "/sys/kernel/tracing/instances/exotrace-4194305";
    std::fs::create_dir(left).expect("root");
    let attached = Guest::attached(other.pid(), Some(&tests::guest()));
    let options = ["--trace", "graph", "--filter", "calls_*", "--host-events"];
    let mut attached = attached.with(options).output().start();
    let mut client = attached.client();
    // It is answered when all is begun.
    client.status();
    let ours = format!("exotrace-{}", attached.pid());
    assert_eq!(instances(), [ours]);
    other.type_text("q");
    other.wait_for("checksum");
    client.call("shutdown", json!(null));
    let (ended, trace) = attached.end();
    let _ = ended.good();
    assert_eq!(instances(), Vec::<String>::new());
    other.type_text("q");
    let printed = without_gate(other.end().0.good().printed());
    let events = trace.host_events();
    let [_, both] = trace.trace_cmd_with_host();
    let seen = assert_calls_inside(&both);
    assert_eq!(seen.calls, printed.total());
    assert_eq!(seen.vcpus, 2);
    let reasons = reasons(&events);
    // Its console; and what interrupts its host.
    for reason in ["port_write", "interrupt"] {
        assert!(reasons.contains_key(reason), "{reasons:?}");
    }
    let exits: u64 = reasons.values().sum();
    let other = reasons.get("other").copied().unwrap_or_default();
    assert!(other * 10 < exits, "they have no name: {reasons:?}");
    assert_eq!(counts(&events)["host:kvm_exit"], exits);
}
