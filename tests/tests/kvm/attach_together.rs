//! Two `vmm attach` that come to the same guest in the same moment: one of them has it.

use std::process::Command;

use serde_json::Value;
use tests::mortal::held_at;
use tests::{Guest, Running, guest, vmm};

/// One that has the guest for a moment.
fn first(of: &Running) -> Command {
    let mut command = vmm();
    command.args(["attach", &of.pid().to_string(), "--duration", "0.01"]);
    command.args(["--trace", "graph", "--filter", "calls_*"]);
    command.arg("--kernel").arg(guest());
    command
}

/// Whether it was let attach.
fn answers(tracer: &mut Running) -> bool {
    let client = tracer.connected();
    let status = client.and_then(|mut client| client.ask("status", Value::Null));
    matches!(status, Some(Ok(_)))
}

/// The first one stands still at each of its first steps, has seen that nobody is there in some of them, and goes on when
/// the second one has the guest.
#[test]
fn of_two_tracers_that_come_together_one_is_refused() {
    let mut other = Guest::spinning(&[]);
    let text = other.client().digest();
    let mut refused = 0;
    for step in 1..40 {
        let held = held_at(&mut first(&other), step).expect("more steps");
        let mut second = Guest::attached(other.pid(), Some(&guest())).start();
        let is_there = answers(&mut second);
        let ended = held.let_go().wait_with_output().unwrap();
        if is_there {
            assert_eq!(ended.status.code(), Some(100), "{step}: {ended:?}");
            refused += 1;
        }
        let _ = second.ctl(&["shutdown"]);
        let _ = second.end();
    }
    assert!(refused > 0, "the second one never had the guest");
    assert_eq!(other.client().digest(), text);
    other.type_text("q");
    let _ = other.end().0.good();
}
