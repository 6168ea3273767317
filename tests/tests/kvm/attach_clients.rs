//! Clients of an attachment are as bounded as those of a run.

use serde_json::json;
use tests::{Guest, guest};

use crate::places::refuses_outside;

/// What it does to another process takes more than landlock lets a process do; its clients are as bounded.
#[test]
fn clients_of_an_attachment_are_bounded_as_well() {
    let name = format!("exotrace-places-{}", std::process::id());
    let mut other = Guest::under_qemu(&name, "workload=list,spin", 1).start();
    other.wait_for("workload spin");
    let kernel = guest();
    let attached = Guest::attached(other.pid(), Some(&kernel));
    let mut running = attached
        .with(["--trace", "function", "--filter", "spin_*"])
        .start();
    let mut client = running.client();
    refuses_outside(&running);
    let dumped = client.call("dump", json!({"dir": running.path("inside")}));
    assert_eq!(dumped["dir"], json!(running.path("inside")));
    client.call("shutdown", json!({}));
    let _ = running.end().0.good();
    other.type_text("q");
    assert_eq!(other.end().0.code, Some(1));
}
