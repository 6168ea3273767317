//! Kernels whose functions are displaced that have no site: not instrumented, assembly, what exceptions and the scheduler
//! call.

use serde_json::json;
use tests::{Guest, kernels};

const SCRIPT: &str = "echo step up; read line; \
    while read line; do ls -lR /proc /sys >/tmp/list 2>/dev/null; syscalls 1000; \
    for i in 1 2 3; do (exit $i); done; echo step worked $line.; done";

#[test]
fn a_kernel_lives_on_with_every_function_displaced_that_can_be() {
    lives_on(Guest::linux(SCRIPT, None), 40_000);
}

/// Each compiler and release puts other code at the beginning of functions, and changes it in other ways.
#[test]
fn kernels_of_other_ages_live_on_with_every_function_displaced_that_can_be() {
    for kernel in kernels(None) {
        println!("{} ({})", kernel.name, kernel.boots_with);
        let image = kernel.image();
        // 5.10 has the fewest, 38,400.
        let guest = Guest::linux_of(&image, &kernel.boots_with, SCRIPT, None);
        lives_on(guest, 38_000);
    }
}

fn lives_on(guest: Guest, at_least: u64) {
    let mut running = guest.vcpus(2).with(["--any"]).start();
    running.wait_for("step up");
    let mut client = running.client();
    let text = client.digest();
    running.type_text("\n");
    for (number, tracer) in ["function", "graph"].into_iter().enumerate() {
        client.call("session.create", json!({"name": tracer, "tracer": tracer}));
        let started = client.call("start", json!({"session": tracer}));
        let traced = started["traced"].as_u64().unwrap();
        println!("{tracer}: {traced} functions, not {}", started["skipped"]);
        assert!(traced > at_least, "{started}");
        running.type_text(&format!("{number}\n"));
        running.wait_for(&format!("step worked {number}."));
        let stopped = client.call("stop", json!({"session": tracer}));
        assert_eq!(stopped["restored"], traced, "{stopped}");
        assert_eq!(client.digest(), text, "{tracer}");
    }
}
