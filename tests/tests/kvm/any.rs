//! Functions without patch sites (`--any`): their first instructions are displaced, several at once where they are short.

use serde_json::{Value, json};
use tests::exact::{gated_bare, untraced, without_gate};
use tests::{Client, Guest, Random, bare_guest, scaled, vmm_says};

use crate::storm::storm;

const WORKLOADS: &str = "calls,threads,smp,recursion,events";

fn rest() -> String {
    format!("iterations={} tick=200", scaled(10_000))
}

#[test]
fn every_function_has_a_tactic_or_a_reason() {
    let image = bare_guest();
    let listing = vmm_says(&[
        "sites".as_ref(),
        "--any".as_ref(),
        image.as_os_str(),
        "--json".as_ref(),
    ])
    .good();
    let listing: Value = serde_json::from_str(&listing.stdout).unwrap();
    let any = &listing["any"];
    let sum = |of: &str| {
        let counts = any[of].as_object().unwrap();
        counts
            .values()
            .map(|one| one.as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(
        sum("by_tactic") + sum("by_reason"),
        listing["totals"]["untraceable"].as_u64().unwrap()
    );
    assert!(any["by_tactic"]["tactic 3 (several)"].as_u64().unwrap() > 1000);
    for entry in any["functions"].as_array().unwrap() {
        assert!(
            entry["tactic"].is_null() != entry["reason"].is_null(),
            "{entry}"
        );
    }
}

/// Two vCPUs, threads that are preempted every 200 µs: counts are the guest's own, and so are results.
fn traced_exactly(tracer: &str) {
    let guest = || gated_bare(WORKLOADS, &rest()).vcpus(2);
    let expected = untraced(guest());
    let options = ["--mode", "discard", "--ring-size", "65536"];
    let mut running = guest().with(options).output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    let params = json!({"tracer": tracer, "notrace": ["spin_*"]});
    client.call("start", params);
    assert_ne!(client.digest(), digest);
    running.type_text("q");
    let (ended, trace) = running.end();
    let printed = without_gate(ended.good().printed());
    assert_eq!(printed, expected, "tracing changed what the guest computes");
    let counts = trace.uftrace();
    assert_eq!(trace.lost(), 0);
    for (function, calls) in printed.called() {
        assert_eq!(counts.get(&function), Some(&calls), "{function}");
    }
}

#[test]
fn calls_are_counted_exactly() {
    traced_exactly("function");
}

#[test]
fn graphs_are_exact() {
    traced_exactly("graph");
}

/// Threads are preempted in the middle of what is displaced, and nobody loses a byte or a result.
#[test]
fn a_storm_leaves_every_result_and_every_byte_as_it_was() {
    let mut random = Random::new();
    let guest = || gated_bare(WORKLOADS, &rest()).vcpus(2);
    let expected = untraced(guest());
    let wanted = scaled(200);
    let mut changes = 0;
    while changes < wanted {
        let guest = guest().with(["--mode", "overwrite", "--ring-size", "64"]);
        let first = |client: &mut Client| {
            client.call("start", json!({"tracer": "graph", "notrace": ["spin_*"]}));
        };
        changes += storm(&mut random, guest, first, &expected);
    }
    println!("{changes} changes");
}

#[test]
fn without_any_such_functions_are_not_traceable() {
    let guest = Guest::new("workload=calls").with(["--trace", "function"]);
    let refused = guest.with(["--filter", "base_leaf"]).run().0;
    assert!(refused.refused(100).contains("no patch site"));
}
