//! Processors that Linux takes offline and back online, or starts long after it has booted.

use serde_json::{Value, json};
use tests::{Client, Guest};

/// A system call that nothing but the program `syscalls` makes.
const FUNCTION: &str = "__x64_sys_sched_get_priority_max";
const CPU: &str = "C=/sys/devices/system/cpu/cpu1/online";

fn strategy(client: &mut Client) -> Value {
    client.status()["tracing"]["cpu_strategy"].clone()
}

/// Function tracing and graph, the latter switched on and off by text changes, while a processor comes and goes.
#[test]
fn a_processor_that_goes_and_comes_loses_nothing() {
    let script = format!(
        "{CPU}; echo step booted; read line; \
         for i in 1 2 3 4 5 6; do echo 0 >$C; syscalls 400; echo 1 >$C; taskset 2 syscalls 600; done; \
         echo step over; read line"
    );
    let trace = [
        "--trace", "function", "--mode", "discard", "--filter", FUNCTION,
    ];
    let guest = Guest::linux(&script, None).vcpus(2).with(trace).output();
    let mut running = guest.start();
    running.wait_for("step booted");
    let mut client = running.client();
    assert_eq!(strategy(&mut client), "gs");
    let graph = json!({"name": "graph", "tracer": "graph"});
    client.call("session.create", graph);
    running.type_text("\n");
    for _ in 0..30 {
        let filter = json!({"session": "graph", "filter": ["vfs_*", "cpu_*", FUNCTION]});
        client.call("start", filter);
        client.call("stop", json!({"session": "graph"}));
    }
    running.wait_for("step over");
    assert_eq!(strategy(&mut client), "gs");
    assert_eq!(client.status()["tracing"]["frozen"], Value::Null);
    drop(client);
    running.type_text("\n");
    let (ended, trace) = running.end();
    let ended = ended.good();
    assert_eq!(ended.stdout.matches("made 600").count(), 6, "{ended}");
    let counts: Vec<_> = trace.uftrace().into_iter().collect();
    assert_eq!(counts, [(FUNCTION.to_owned(), 6000)]);
}

/// The base of a processor that has never run is known from the kernel's own list.
#[test]
fn a_processor_that_first_comes_after_the_attach_has_a_ring_of_its_own() {
    let script = format!(
        "{CPU}; cat $C; for i in 1 2; do echo 1 >$C; taskset 2 syscalls 700; echo 0 >$C; \
         syscalls 300; done; echo step over; read line"
    );
    for tracer in ["function", "graph"] {
        let trace = ["--trace", tracer, "--mode", "discard", "--filter", FUNCTION];
        let guest = Guest::linux_with("maxcpus=1", &script, None);
        let mut running = guest.vcpus(2).with(trace).output().start();
        running.wait_for("step over");
        assert_eq!(strategy(&mut running.client()), "gs");
        running.type_text("\n");
        let (ended, trace) = running.end();
        let ended = ended.good();
        assert_eq!(ended.stdout.matches("made 700").count(), 2, "{ended}");
        let counts: Vec<_> = trace.uftrace().into_iter().collect();
        assert_eq!(counts, [(FUNCTION.to_owned(), 2000)], "{tracer}");
    }
}
