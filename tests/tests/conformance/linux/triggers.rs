//! What is done at a hit.

use serde_json::{Value, json};

use super::{CALL, Step, Stock, session, written};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "func_traceonoff_triggers",
        asked: "is_on() { echo own func_traceonoff_triggers $(cat $T/tracing_on).; }
            echo $CALL:traceoff:1 >$T/set_ftrace_filter; is_on; syscalls 1; is_on; echo 1 >$T/tracing_on; syscalls 1; is_on
            echo !$CALL:traceoff:0 >>$T/set_ftrace_filter; echo >$T/trace",
        show: func_traceonoff_triggers,
    },
    Step {
        name: "func_event_triggers",
        asked: "E=$T/events/sched/sched_process_exec; is_on() { echo own func_event_triggers $(cut -c1 $E/enable).; }
            echo $CALL:enable_event:sched:sched_process_exec:1 >$T/set_ftrace_filter; is_on; syscalls 1; is_on; echo 0 >$E/enable; syscalls 1; is_on
            echo !$CALL:enable_event:sched:sched_process_exec:0 >>$T/set_ftrace_filter; echo 0 >$E/enable; echo >$T/trace",
        show: func_event_triggers,
    },
];

/// A session with these triggers, started on the call.
fn watch(stock: &mut Stock, name: &str, triggers: &[String]) {
    let options = json!({"trigger": triggers});
    stock.trace(name, "function", options, &[CALL]);
}

fn func_traceonoff_triggers(stock: &mut Stock) {
    for name in ["off", "on"] {
        stock.trace(name, "function", json!({"mode": "discard"}), &[CALL]);
    }
    stock.client.call("tracing-off", json!({"session": "on"}));
    let triggers = ["off off x1", "on on x1"].map(|what| format!("{CALL}: tracing-{what}"));
    watch(stock, "watch", &triggers);
    stock.calls(1);
    stock.client.wait_until("both are done", |status| {
        let state = |name| session(status, name)["state"].clone();
        state("off") == "switched-off" && state("on") == "tracing"
    });
    // Both were done as often as they were to be: nothing of it happens again.
    stock.client.call("tracing-on", json!({"session": "off"}));
    let before = stock.client.status();
    stock.calls(30);
    let after = stock.client.status();
    for name in ["off", "on"] {
        let sum = |status: &Value| written(status, name).iter().sum::<u64>();
        assert_eq!(sum(&after) - sum(&before), 30, "{name}: {after}");
    }
    for name in ["off", "on", "watch"] {
        stock.delete(name);
    }
    assert_eq!(stock.own("func_traceonoff_triggers"), ["1", "0", "1"]);
}

/// The event is a probe's: this kernel declares none to who looks from outside.
fn func_event_triggers(stock: &mut Stock) {
    stock.trace("told", "nop", json!({}), &[]);
    stock.probe("told", &[&format!("{CALL} %rdi")]);
    let state = |stock: &mut Stock| {
        let listed = stock.client.call("probe.list", Value::Null);
        let all = listed["probes"].as_array().unwrap();
        let told = all.iter().find(|probe| probe["session"] == "told").unwrap();
        (told["id"].clone(), told["state"].clone())
    };
    let (id, _) = state(stock);
    stock.client.call("probe.disable", json!({"ids": [id]}));
    let events = |status: &Value| -> u64 {
        let rings = session(status, "told")["event_rings"].as_array();
        let rings = rings.into_iter().flatten();
        rings.map(|ring| ring["written"].as_u64().unwrap()).sum()
    };
    let (on, off) = (
        format!("{CALL}: enable {CALL} in told x1"),
        format!("{CALL}: disable {CALL} in told x1"),
    );
    watch(stock, "begin", &[on]);
    stock.calls(1);
    stock.until("it is recorded", |stock| state(stock).1 == "on");
    let before = events(&stock.client.status());
    stock.calls(30);
    assert_eq!(events(&stock.client.status()) - before, 30);
    watch(stock, "end", &[off]);
    stock.calls(1);
    stock.until("it is recorded no more", |stock| {
        state(stock).1 == "disabled"
    });
    let before = events(&stock.client.status());
    stock.calls(30);
    assert_eq!(events(&stock.client.status()), before);
    for name in ["told", "begin", "end"] {
        stock.delete(name);
    }
    assert_eq!(stock.own("func_event_triggers"), ["0", "1", "0"]);
}
