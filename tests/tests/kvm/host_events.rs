//! `run --host-events`: what the host did with the vCPUs, beside what the guest did on them.

use std::path::Path;

use serde_json::Value;
use tests::host_side::{assert_calls_inside, counts, reasons};
use tests::{Guest, Printed, Trace, vmm_says};

/// A guest on two vCPUs, with what the host did.
fn traced(tracer: &str) -> (Printed, Trace) {
    let (ended, trace) = Guest::new("workload=calls iterations=500")
        .vcpus(2)
        .with(["--trace", tracer, "--filter", "calls_*"])
        .with(["--host-events=threads"])
        .output()
        .run();
    (ended.good().printed(), trace)
}

/// What trace-cmd reads is what we have written; and a vCPU records nothing that is not in the guest.
#[test]
fn trace_cmd_shows_host_and_guest_as_one_and_calls_only_between_entry_and_exit() {
    for tracer in ["function", "graph"] {
        let (printed, trace) = traced(tracer);
        let events = trace.host_events();
        let ours = counts(&events);
        let [alone, both] = trace.trace_cmd_with_host();
        for (event, count) in &ours {
            let name = event.strip_prefix("host:").expect("its name");
            let theirs = alone
                .lines()
                .filter(|line| line.contains(&format!(": {name}:")));
            assert_eq!(theirs.count() as u64, *count, "{event}");
        }
        let seen = assert_calls_inside(&both);
        assert_eq!(seen.calls, printed.total(), "{tracer}");
        assert_eq!(seen.vcpus, 2, "{tracer}");
    }
}

/// What the guest prints goes through a port, a byte each time, and so does what it tells us at its end.
#[test]
fn an_exit_says_why_and_every_report_has_it() {
    let (_, trace) = traced("graph");
    let events = trace.host_events();
    let reasons = reasons(&events);
    assert!(reasons["port_write"] > 0, "{reasons:?}");
    let counted = trace.report_with("values", &["--json"]);
    let counted: Value = serde_json::from_str(&counted).expect("JSON");
    let total = |name: &str| counts(&events)[name];
    let said = counted.to_string();
    for name in ["host:kvm_entry", "host:kvm_exit"] {
        assert!(said.contains(name), "{said}");
        let in_side = &trace.side()["events"]["events"][name];
        assert_eq!(in_side, &Value::from(total(name)));
    }
    assert!(trace.export("chrome").contains("host:kvm_exit"));
    assert!(
        trace
            .report("graph")
            .contains("/* host:kvm_exit: reason=port_write rip=0x")
    );
    let path = trace.path();
    let path = path.to_str().expect("a path");
    let said = vmm_says(&["export", path, "--format", "chrome", "--host", "host"]);
    assert!(
        said.refused(100).contains("--host: only trace-dat"),
        "{said}"
    );
}

/// Who tells is the kernel only where it can (`ring0` has it where it can, but for a guest that does not see all time).
#[test]
fn who_tells_is_said_when_nobody_was_named() {
    let (ended, trace) = Guest::new("workload=calls iterations=5")
        .with(["--trace", "graph", "--filter", "calls_*", "--host-events"])
        .output()
        .run();
    let ended = ended.good();
    let told = match kernel_tells() {
        // By whom depends on who runs this test.
        true => "host events: told by the",
        false => {
            "host events: told by the threads of the vCPUs (the KVM of this host tells nothing"
        }
    };
    assert!(ended.stderr.contains(told), "{ended}");
    assert!(!trace.host_events().is_empty());
}

fn kernel_tells() -> bool {
    let is_usual = |name: &&str| Path::new("/sys/module").join(name).exists();
    ["kvm_amd", "kvm_intel"].iter().any(is_usual)
}

#[test]
fn what_was_not_asked_for_is_not_told() {
    let (ended, trace) = Guest::new("workload=calls iterations=5")
        .with(["--trace", "graph", "--filter", "calls_*"])
        .output()
        .run();
    let _ = ended.good();
    assert_eq!(trace.host_events(), Vec::<Value>::new());
}

/// Where it does not execute guests as usual, or nobody may ask it, that is said in one line and nothing runs.
#[test]
fn a_host_whose_kernel_tells_nothing_is_named() {
    if kernel_tells() {
        // The suite `ring0` asks it.
        return;
    }
    let kernel = tests::guest();
    let kernel = kernel.to_str().expect("a path");
    let run = [
        "run",
        "--kernel",
        kernel,
        "--trace",
        "graph",
        "--host-events=kernel",
    ];
    let refused = vmm_says(&run);
    let why = "the KVM of this host tells nothing";
    assert!(refused.refused(100).contains(why), "{refused}");
    let mut other = Guest::spinning(&[]);
    let pid = other.pid().to_string();
    let attach = [
        "attach",
        &pid,
        "--kernel",
        kernel,
        "--trace",
        "graph",
        "--host-events",
    ];
    let refused = vmm_says(&attach);
    assert!(refused.refused(100).contains("kvm_amd"), "{refused}");
    other.type_text("q");
    let _ = other.end().0.good();
}
