//! The exactness check: what a trace shows is what the guest says of itself.

use serde_json::json;

use crate::guest::{Guest, Running};
use crate::output::Printed;
use crate::trace::Trace;

/// What comes before the workloads under test: `list` prints when the guest is ready, `spin` holds
/// it until a `q` is typed. So tracing is on before their first call, without any breakpoint.
const GATE: &str = "workload=list,spin";

/// Function tracing from the attach point on with room for everything that a test calls.
pub const EVERYTHING: [&str; 6] = [
    "--trace",
    "function",
    "--mode",
    "discard",
    "--ring-size",
    "16384",
];

/// A guest that waits before `workloads` until [`open_gate`].
#[must_use]
pub fn gated(workloads: &str, rest: &str) -> Guest {
    Guest::new(&format!("{GATE},{workloads} {rest}"))
}

/// The same of the guest without patch sites.
#[must_use]
pub fn gated_bare(workloads: &str, rest: &str) -> Guest {
    Guest::bare(&format!("{GATE},{workloads} {rest}"))
}

/// Starts to trace everything but the gate, then lets the guest continue.
pub fn open_gate(guest: &mut Running) {
    guest.wait_for("workload spin");
    guest.client().call("start", json!({"notrace": ["spin_*"]}));
    guest.type_text("q");
}

/// The guest's own words without the gate's counts.
#[must_use]
pub fn without_gate(mut printed: Printed) -> Printed {
    printed
        .calls
        .retain(|function, _| !function.starts_with("spin_"));
    printed
}

/// Runs `guest` untraced, and returns what it printed.
///
/// # Panics
/// When it does not end well.
#[must_use]
pub fn untraced(guest: Guest) -> Printed {
    let mut running = guest.start();
    running.type_text("q");
    without_gate(running.end().0.good().printed())
}

/// Checks that a complete trace shows what the guest printed: uftrace says so, and so do we.
///
/// # Panics
/// When not.
pub fn assert_exact(trace: &Trace, printed: &Printed) {
    assert!(printed.total() > 0, "the guest called nothing");
    assert_eq!(trace.lost(), 0);
    assert_eq!(trace.counts(), printed.called(), "vmm report");
    assert_eq!(trace.uftrace(), printed.called(), "uftrace report");
}

/// Traces `workloads` on `vcpus` vCPUs from their start on: the counts are the guest's own, and the
/// checksums are those of a run that is not traced.
///
/// # Panics
/// When not.
pub fn assert_traced_exactly(workloads: &str, rest: &str, vcpus: u32) {
    assert_traced_with(&["--patch-method", "quiesce"], workloads, rest, vcpus);
}

/// The same with an option of `vmm run` and its value.
///
/// # Panics
/// When not.
pub fn assert_traced_with(option: &[&str; 2], workloads: &str, rest: &str, vcpus: u32) {
    let guest = || gated(workloads, rest).vcpus(vcpus);
    let expected = untraced(guest());
    let options = ["--mode", "discard", "--ring-size", "32768"];
    let mut running = guest().with(options).with(*option).output().start();
    open_gate(&mut running);
    let (ended, trace) = running.end();
    let printed = without_gate(ended.good().printed());
    assert_eq!(printed, expected, "tracing changed what the guest computes");
    assert_exact(&trace, &printed);
}

/// What threads on two vCPUs that are preempted have called, and a trace of it by this tracer.
///
/// # Panics
/// When the guest does not end well.
#[must_use]
pub fn on_two_vcpus(tracer: &str) -> (Printed, Trace) {
    let (ended, trace) = Guest::new("workload=threads,smp iterations=200 threads=4 tick=300")
        .vcpus(2)
        .with(["--trace", tracer])
        .output()
        .run();
    (ended.good().printed(), trace)
}

/// What a guest on two vCPUs has printed, and a trace of it that has lost most: nothing gives way in rings of 4 KiB.
///
/// # Panics
/// When the guest does not end well.
#[must_use]
pub fn lossy() -> (Printed, Trace) {
    let guest = gated("threads,spin", "iterations=3000 tick=200").vcpus(2);
    let mut running = guest
        .with(["--mode", "discard", "--ring-size", "4"])
        .output()
        .start();
    open_gate(&mut running);
    running.wait_for("checksum threads");
    running.type_text("q");
    let (ended, trace) = running.end();
    (without_gate(ended.good().printed()), trace)
}

/// The trace of a guest that declares events, 40 of one kind among its calls.
///
/// # Panics
/// When the guest does not end well.
#[must_use]
pub fn with_events() -> Trace {
    let (ended, trace) = Guest::new("workload=events iterations=40 threads=1")
        .with(["--trace", "graph", "--filter", "events_*"])
        .with(["--event", "message_sent"])
        .output()
        .run();
    let _ = ended.good();
    trace
}
