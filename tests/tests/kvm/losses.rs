//! What a ring could not keep is counted, exactly, in both modes and wherever it is told.

use serde_json::{Value, json};
use tests::exact::{gated, open_gate, without_gate};
use tests::{Client, Guest, Printed};

const REST: &str = "iterations=30000 tick=200";
/// Records of a ring's last lap that late writers can have written over: some for each of four threads.
const LATE_AT_MOST: u64 = 16;

/// Runs into tiny rings; the second `spin` keeps the guest alive while the rings are looked at.
fn overflow(mode: &str, vcpus: u32) {
    let guest = gated("threads,spin", REST).vcpus(vcpus);
    let mut running = guest
        .with(["--mode", mode, "--ring-size", "4"])
        .output()
        .start();
    open_gate(&mut running);
    running.wait_for("checksum threads");
    let calls = 4 * 30_000 * 7;
    let status = running
        .client()
        .wait_until("has every call, read or lost", |status| {
            all_told(status, calls)
        });
    assert!(
        Client::rings(&status, "lost") > 0,
        "nothing was lost: {status}"
    );
    // What a mode never does. A writer that was away for a lap can be *abandoned* in either.
    let never = if mode == "discard" {
        "overwritten"
    } else {
        "discarded"
    };
    for count in [never, "invalid", "corrupt"] {
        assert_eq!(Client::rings(&status, count), 0, "{count}: {status}");
    }
    running.type_text("q");
    let (ended, trace) = running.end();
    let printed = without_gate(ended.good().printed());
    assert_eq!(printed.total(), calls);
    let delivered: u64 = trace.counts().values().sum();
    let told = |count| Client::rings(&status, count);
    assert_eq!(delivered + trace.lost(), calls);
    assert!(
        (told("read")..=told("read") + told("unread")).contains(&delivered),
        "{status}"
    );
    assert_eq!(
        trace.uftrace().values().sum::<u64>(),
        delivered,
        "uftrace report"
    );
    assert_no_more_than_called(&trace.counts(), &printed);
}

/// Every call is read or lost. A thread that was preempted before it wrote its record, and comes a lap later, can write
/// over one that nobody has read: that one may be there or not for all that anybody can tell, until the ring comes round.
fn all_told(status: &Value, calls: u64) -> bool {
    let [read, lost, unread] = ["read", "lost", "unread"].map(|count| Client::rings(status, count));
    unread <= LATE_AT_MOST && read + lost + unread == calls
}

/// A reader that nearly keeps up goes around a ring of 512 slots many times while a thread is preempted
/// between reserving its slot and writing it: the next lap once took the slot.
#[test]
fn discarding_leaves_a_preempted_writer_its_slot() {
    let iterations = u64::from(tests::scaled(2_000_000));
    let rest = format!("iterations={iterations} tick=50");
    let guest = Guest::new(&format!("workload=list,threads,spin {rest}"));
    let options = ["--trace", "function", "--filter", "threads_root"];
    let mut running = guest
        .with(options)
        .with(["--mode", "discard", "--ring-size", "4"])
        .output()
        .start();
    running.wait_for("checksum threads");
    let status = running
        .client()
        .wait_until("has every call, read or lost", |status| {
            all_told(status, 4 * iterations)
        });
    assert!(Client::rings(&status, "read") > 512, "{status}");
    assert_eq!(Client::rings(&status, "overwritten"), 0, "{status}");
    running.type_text("q");
    let _ = running.end().0.good();
}

fn assert_no_more_than_called(counts: &tests::Counts, printed: &Printed) {
    for (function, count) in counts {
        assert!(
            Some(count) <= printed.calls.get(function),
            "{function}: {counts:?}"
        );
    }
}

#[test]
fn overwrite_on_one_vcpu() {
    overflow("overwrite", 1);
}

#[test]
fn overwrite_on_two_vcpus() {
    overflow("overwrite", 2);
}

#[test]
fn discard_on_one_vcpu() {
    overflow("discard", 1);
}

#[test]
fn discard_on_two_vcpus() {
    overflow("discard", 2);
}

/// A flight recorder: nobody reads the rings, they hold the last records.
fn recorder(mode: &str) {
    let guest = gated("threads,spin", REST).vcpus(2);
    let mut running = guest.with(["--mode", mode, "--ring-size", "4"]).start();
    open_gate(&mut running);
    running.wait_for("checksum threads");
    let calls = 4 * 30_000 * 7;
    let mut client = running.client();
    let status = client.status();
    let written = Client::rings(&status, "written");
    if mode == "overwrite" {
        assert_eq!(written, calls, "{status}");
    } else {
        assert_eq!(written + Client::rings(&status, "lost"), calls, "{status}");
    }
    let dir = running.path("dump");
    let dumped = client.call("dump", json!({"dir": dir}));
    let number = |name| dumped[name].as_u64().unwrap();
    assert!(number("records") > 0, "{dumped}");
    assert!(
        number("records") <= 2 * 512,
        "more than the rings hold: {dumped}"
    );
    assert_eq!(
        number("records") + number("lost"),
        calls,
        "{dumped} {status}"
    );
    running.type_text("q");
    let (ended, trace) = running.end();
    let trace = trace.named("dump");
    let counts = trace.counts();
    assert_eq!(counts.values().sum::<u64>(), number("records"));
    assert_eq!(trace.lost(), number("lost"));
    assert_no_more_than_called(&counts, &ended.good().printed());
}

#[test]
fn overwrite_without_a_reader() {
    recorder("overwrite");
}

#[test]
fn discard_without_a_reader() {
    recorder("discard");
}
