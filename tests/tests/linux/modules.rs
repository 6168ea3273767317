//! Functions of modules: they come, are traced exactly, go, and come again.

use serde_json::{Value, json};
use tests::{Client, Guest, Running};

/// What the guest does at each step; it waits for a line before each but the first. `dd` reads once.
const STEPS: &str = "\
    F=/proc/sys/fs/binfmt_misc; \
    come() { insmod /modules/binfmt_misc.ko && mount -t binfmt_misc none $F; }; \
    use() { for i in $(seq $1); do dd if=$F/status of=/dev/null bs=4096 count=1 2>/dev/null; done; }; \
    go() { umount $F && rmmod binfmt_misc; }; \
    echo step booted; read line; \
    come; echo step loaded; read line; \
    use 5; echo step used; read line; \
    go; echo step unloaded; read line; \
    come; echo step again; read line; \
    use 3; go; echo step over; read line";

const FUNCTION: &str = "bm_status_read";
const GLOB: &str = "mod:binfmt_misc:bm_status_*";

/// Has the guest do the next step, and waits until it has.
fn next(running: &mut Running, step: &str) {
    running.type_text("\n");
    running.wait_for(step);
}

/// The functions of the module that are listed, with their states.
fn listed(client: &mut Client) -> Vec<(String, String)> {
    let listed = client.call("functions", json!({"glob": GLOB}));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let functions = listed["functions"].as_array().unwrap();
    functions
        .iter()
        .map(|function| (text(&function["name"]), text(&function["state"])))
        .filter(|(name, _)| name == FUNCTION)
        .collect()
}

#[test]
fn functions_of_a_module_are_traced_while_it_is_loaded() {
    // The root comes with the module, as the function does.
    let root = ["--graph-function", GLOB];
    let trace = ["--trace", "graph", "--filter", GLOB];
    let guest = Guest::linux(STEPS, None).vcpus(2).with(trace).with(root);
    let mut running = guest.output().start();
    running.wait_for("step booted");
    let mut client = running.client();
    assert_eq!(listed(&mut client), []);
    let patched = [(FUNCTION.to_owned(), "patched".to_owned())];
    next(&mut running, "step loaded");
    assert_eq!(listed(&mut client), patched);
    next(&mut running, "step used");
    next(&mut running, "step unloaded");
    assert_eq!(listed(&mut client), []);
    assert_eq!(client.status()["tracing"]["patched"], 0);
    next(&mut running, "step again");
    assert_eq!(listed(&mut client), patched);
    next(&mut running, "step over");
    assert_eq!(listed(&mut client), []);
    assert_eq!(client.status()["tracing"]["frozen"], Value::Null);
    drop(client);
    running.type_text("\n");
    let (ended, trace) = running.end();
    ended.no_panic();
    let counts: Vec<_> = trace.uftrace().into_iter().collect();
    assert_eq!(counts, [(FUNCTION.to_owned(), 8)]);
}

/// What the guest does: the file system of the module is mounted as soon as it is loaded.
const AT_ONCE: &str = "\
    F=/proc/sys/fs/binfmt_misc; \
    echo step booted; read line; \
    insmod /modules/binfmt_misc.ko && mount -t binfmt_misc none $F; \
    echo step loaded; read line";

/// The module is announced by the guest's own function that is about to call its init function: nothing is late.
#[test]
fn a_module_is_traced_from_its_first_call_on() {
    let trace = ["--trace", "function", "--filter", "mod:binfmt_misc:*"];
    let guest = Guest::linux(AT_ONCE, None).vcpus(2).with(trace);
    let mut running = guest.output().start();
    running.wait_for("step booted");
    let mut client = running.client();
    let status = client.status();
    // Told by a stub that is no user's.
    assert_eq!(status["tracing"]["patched"], 0, "{status}");
    next(&mut running, "step loaded");
    let status = client.status();
    let session = &status["tracing"]["sessions"][0];
    assert!(session["traced"].as_u64() > Some(1), "{status}");
    assert_eq!(session["late_modules"], Value::Null, "{status}");
    assert_eq!(session["waiting_modules"], Value::Null, "{status}");
    assert_eq!(status["tracing"]["frozen"], Value::Null);
    client.call("stop", Value::Null);
    assert_eq!(client.status()["tracing"]["patched"], 0);
    drop(client);
    running.type_text("\n");
    let (ended, trace) = running.end();
    ended.no_panic();
    let counts = trace.counts();
    for once in ["bm_init_fs_context", "bm_fill_super"] {
        assert_eq!(counts.get(once), Some(&1), "{counts:?}");
    }
}
