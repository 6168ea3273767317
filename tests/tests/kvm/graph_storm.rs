//! Graph tracing that is changed all the time, while calls are open whose returns are hooked: the
//! guest continues through stubs that nothing leads to any more.

use serde_json::{Value, json};
use tests::exact::{gated, untraced};
use tests::{Random, scaled};

use crate::storm::{WORKLOADS, rest, storm};

const HOOKS: [&str; 3] = ["balanced", "jmp", "ret"];

/// Guests one after the other until there were so many changes.
fn storms(changes: u32) {
    let mut random = Random::new();
    let guest = || gated(WORKLOADS, &rest()).vcpus(2);
    let expected = untraced(guest());
    let mut made = 0;
    for hook in HOOKS.iter().cycle() {
        if made >= changes {
            break;
        }
        let mode = *random.pick(&["overwrite", "discard"]);
        let guest = guest().with(["--mode", mode, "--ring-size", "64", "--return-hook", hook]);
        println!("{hook}, {mode}");
        let first = |client: &mut tests::Client| {
            client.call("start", json!({"tracer": "graph", "notrace": ["spin_*"]}));
        };
        let of_this = storm(&mut random, guest, first, &expected);
        assert!(of_this > 0, "a guest ended before its first change");
        made += of_this;
    }
    println!("{made} changes");
}

#[test]
fn five_thousand_changes_of_a_graph_session_leave_every_result_and_byte_as_it_was() {
    storms(scaled(5000));
}

/// Everything is detached while calls are open in every thread; they return through their stubs.
#[test]
fn calls_that_are_open_at_a_detach_return() {
    for hook in HOOKS {
        let guest = || gated("threads,recursion,calls", &rest()).vcpus(2);
        let expected = untraced(guest());
        let mut running = guest().with(["--return-hook", hook]).start();
        running.wait_for("workload spin");
        let mut client = running.client();
        let digest = client.digest();
        for _ in 0..scaled(20) {
            client.call("start", json!({"tracer": "graph"}));
            let before = client.status();
            let before = tests::Client::rings(&before, "written");
            client.wait_until("the graph is recorded", |status| {
                tests::Client::rings(status, "written") > before
            });
            client.call("stop", Value::Null);
            assert_eq!(client.digest(), digest, "{hook}");
        }
        running.type_text("q");
        let printed = running.end().0.good().printed();
        assert_eq!(tests::exact::without_gate(printed), expected, "{hook}");
    }
}
