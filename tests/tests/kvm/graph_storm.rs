//! Graph tracing that is changed all the time, while calls are open whose returns are hooked: the
//! guest continues through stubs that nothing leads to any more.

use serde_json::{Value, json};
use tests::exact::{gated, untraced};
use tests::{scaled, stormy};

use crate::storm::storms;

const HOOKS: [&str; 3] = ["balanced", "jmp", "ret"];

#[test]
fn thousands_of_changes_of_a_graph_session_leave_every_result_and_byte_as_it_was() {
    let mut hooks = HOOKS.iter().cycle();
    let hook = || ["--return-hook", hooks.next().expect("an endless cycle")];
    storms(stormy(5000), hook, |client| {
        client.call("start", json!({"tracer": "graph", "notrace": ["spin_*"]}));
    });
}

/// Everything is detached while calls are open in every thread; they return through their stubs.
#[test]
fn calls_that_are_open_at_a_detach_return() {
    for hook in HOOKS {
        let rest = format!("iterations={} tick=200", scaled(20_000));
        let guest = || gated("threads,recursion,calls", &rest).vcpus(2);
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
