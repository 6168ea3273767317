//! `vmm attach` to a VMM whose system calls are filtered, as those of Firecracker are, and of QEMU under libvirt.

use tests::{Client, Guest, Running, guest, vmm_says};

/// As libvirt starts QEMU.
const SANDBOX: [&str; 2] = [
    "-sandbox",
    "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
];

fn is_filtered(of: &Running) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", of.pid())).unwrap();
    status.lines().any(|line| line == "Seccomp:\t2")
}

/// Traced for a moment, and let go.
fn traced(of: &Running) {
    assert!(is_filtered(of));
    let attached = Guest::attached(of.pid(), Some(&guest()));
    let options = ["--trace", "function", "--filter", "spin_root"];
    let mut attached = attached.with(options).start();
    let mut client = attached.client();
    client.wait_until("traced", |status| Client::rings(status, "written") > 1000);
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, _) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(is_filtered(of));
}

/// What is called in its name would end it.
#[test]
fn a_vmm_that_its_filter_would_kill_lives() {
    let script = include_str!("attach_filtered.py");
    let cmdline = "workload=list,spin";
    let mut other = Guest::new(cmdline).vcpus(2).started_by(script).start();
    other.wait_for("workload spin");
    let said = vmm_says(&["doctor", "--attach", &other.pid().to_string()]);
    assert!(said.stdout.contains("This guest can be traced"), "{said}");
    let text = other.client().digest();
    traced(&other);
    assert_eq!(other.client().digest(), text);
    other.type_text("q");
    let _ = other.end().0.good();
}

#[test]
fn a_qemu_in_its_sandbox_is_traced() {
    let name = format!("exotrace-sandbox-{}", std::process::id());
    let qemu = Guest::under_qemu(&name, "workload=list,spin", 2);
    let mut qemu = qemu.with(SANDBOX).start();
    qemu.wait_for("workload spin");
    traced(&qemu);
    qemu.type_text("q");
    assert_eq!(qemu.end().0.code, Some(1));
}
