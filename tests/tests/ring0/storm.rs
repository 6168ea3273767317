//! Toggling while ring 0 runs: results and bytes stay what they were.

use serde_json::{Value, json};
use tests::exact::{gated, untraced, without_gate};

#[test]
fn toggling_leaves_every_result_and_every_byte_as_it_was() {
    let guest = || gated("threads,smp,tail_calls", "ring=0 iterations=2000").vcpus(2);
    let expected = untraced(guest());
    let mut running = guest().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    for filter in ["spin_*", "*", "spin_leaf"].iter().cycle().take(30) {
        client.call("start", json!({"filter": [filter]}));
        client.call("stop", Value::Null);
    }
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let requests = [
        ("start", json!({"filter": ["threads_*", "smp_*"]})),
        ("stop", Value::Null),
    ];
    let mut changes = 0;
    for (method, params) in requests.iter().cycle() {
        // Until the guest has ended.
        let Some(reply) = client.ask(method, params.clone()) else {
            break;
        };
        reply.unwrap();
        changes += 1;
    }
    println!("{changes} changes");
    assert!(changes > 0, "the guest had ended");
    assert_eq!(without_gate(running.end().0.good().printed()), expected);
}
