//! What is recorded, and what was asked wrongly, read while it goes on.

use serde_json::json;

use super::{CALL, Step, Stock, counts_of, session};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "tracing_error_log",
        asked: "echo >$T/error_log; echo 'p:wrong vfs_read %rdi %rdj' >$T/kprobe_events
            echo own tracing_error_log $(grep Command $T/error_log).; echo own tracing_error_log $(grep -v Command $T/error_log | sed 's:.*] ::' | tr ^ =).
            echo >$T/error_log; echo own tracing_error_log $(grep -c . $T/error_log).",
        show: tracing_error_log,
    },
    Step {
        name: "snapshot",
        asked: "echo $CALL >$T/set_ftrace_filter; echo function >$T/current_tracer; syscalls 40; echo 1 >$T/snapshot; syscalls 20
            echo own snapshot $(grep -c \"$CALL <-\" $T/snapshot) $(grep -c \"$CALL <-\" $T/trace).
            echo 0 >$T/snapshot; echo nop >$T/current_tracer; echo >$T/trace; echo >$T/set_ftrace_filter",
        show: snapshot,
    },
    Step {
        name: "trace_pipe",
        asked: "echo $CALL >$T/set_ftrace_filter; echo function >$T/current_tracer; (syscalls 300 &) | cat
            echo own trace_pipe $(grep -m 200 -c \"$CALL <-\" $T/trace_pipe).
            echo nop >$T/current_tracer; echo >$T/trace; echo >$T/set_ftrace_filter",
        show: trace_pipe,
    },
];

/// By another client, later, with the place in the text.
fn tracing_error_log(stock: &mut Stock) {
    const PROBE: &str = "vfs_read %rdi %rdj";
    let _ = stock.shell.running.ctl(&["errors", "--clear"]).good();
    stock.trace("wrong", "nop", json!({}), &[]);
    let wrong = json!({"session": "wrong", "probes": [PROBE]});
    stock.client.refused("probe.add", wrong);
    let shown = stock
        .shell
        .running
        .ctl(&["errors", "--clear"])
        .good()
        .stdout;
    assert!(
        shown.contains("\n    vfs_read %rdi %rdj\n                  ^\n"),
        "{shown}"
    );
    let shown = stock.shell.running.ctl(&["errors"]).good().stdout;
    assert_eq!(shown, "no error\n");
    stock.delete("wrong");
    // Words are divided by one blank here, so that the mark has lost its place.
    let own = [
        "Command: p:wrong vfs_read %rdi %rdj",
        "trace_kprobe: error: Invalid register name =",
        "0",
    ];
    assert_eq!(stock.own("tracing_error_log"), own);
}

/// What is recorded later is in the trace, and not in the snapshot.
fn snapshot(stock: &mut Stock) {
    stock.trace("goes-on", "function", json!({"mode": "discard"}), &[CALL]);
    stock.calls(40);
    let dir = stock.shell.running.path("snapshot");
    let dump = json!({"session": "goes-on", "dir": dir, "live": true});
    let dumped = stock.client.call("dump", dump);
    assert_eq!(dumped["records"], 40, "{dumped}");
    let status = stock.client.status();
    assert_eq!(session(&status, "goes-on")["state"], "tracing", "{status}");
    stock.calls(20);
    assert_eq!(stock.counts("goes-on")[CALL], 60);
    assert_eq!(counts_of(&dir)[CALL], 40);
    // Theirs takes what was recorded away from the trace.
    assert_eq!(stock.own("snapshot"), ["40 20"]);
}

/// What comes is told as it comes, while it is recorded all the same.
fn trace_pipe(stock: &mut Stock) {
    stock.trace("stream", "function", json!({}), &[CALL]);
    let mut client = stock.shell.client();
    client.call("subscribe", json!({"session": "stream"}));
    stock.calls(300);
    let mut told = 0;
    while told < 300 {
        let (method, params) = client.told().unwrap();
        let events = params["events"].as_array().into_iter().flatten();
        let entries = events.filter(|event| event["kind"] == "entry" && event["function"] == CALL);
        told += entries.count();
        assert_eq!(method, "events", "{params}");
    }
    assert_eq!(stock.counts("stream")[CALL], 300);
    assert_eq!(stock.own("trace_pipe"), ["200"]);
}
