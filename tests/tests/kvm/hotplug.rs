//! vCPUs that are started after tracing was attached.

use serde_json::json;
use tests::Guest;
use tests::exact::{EVERYTHING, assert_exact, without_gate};

/// Attached before the boot vCPU has started the others, and before it has a GS base itself.
#[test]
fn a_vcpu_that_starts_after_the_attach_has_a_ring_of_its_own() {
    let workloads = "workload=list,spin,smp,threads iterations=2000 tick=500";
    let guest = Guest::new(workloads).vcpus(3).with(EVERYTHING).output();
    let early = ["--attach-at", "boot_vcpu_main", "--notrace", "spin_*"];
    let mut running = guest.with(early).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let tracing = client.status()["tracing"].clone();
    assert_eq!(tracing["cpu_strategy"], "gs", "{tracing}");
    // A change looks at every vCPU: all have the bases that they were expected to get.
    client.call("filter.add", json!({"notrace": ["calls_*"]}));
    drop(client);
    running.type_text("q");
    let (ended, trace) = running.end();
    let printed = without_gate(ended.good().printed());
    assert_exact(&trace, &printed);
    let report = trace.report("function");
    for vcpu in ["[000]", "[001]", "[002]"] {
        assert!(report.contains(vcpu), "nothing was recorded on {vcpu}");
    }
}
