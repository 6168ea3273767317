//! Modules that come and go.

use serde_json::{Value, json};

use super::{Step, Stock};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "func_mod_trace",
        asked: "found=; echo version_proc_show >$T/set_ftrace_filter; \
         echo 'bm_status_*:mod:binfmt_misc' >>$T/set_ftrace_filter; echo function >$T/current_tracer; \
         for n in 1 2; do echo >$T/trace; comes; is_read; found=\"$found $(grep -c 'bm_status_read <-' $T/trace)\"; goes; done; \
         echo own func_mod_trace$found.; \
         echo nop >$T/current_tracer; echo >$T/set_ftrace_filter",
        show: func_mod_trace,
    },
    Step {
        name: "kprobe_module",
        asked: "echo 'p:later binfmt_misc:bm_status_read' >$T/kprobe_events; echo 1 >$T/events/kprobes/later/enable; \
         echo stacktrace:1 >$T/events/kprobes/later/trigger; echo >$T/trace; \
         for n in 1 2 3; do comes; is_read; cp $T/trace /tmp/later-$n; goes; done; \
         echo '!stacktrace:1' >$T/events/kprobes/later/trigger; \
         echo own kprobe_module $(grep '^ => [a-z_]' /tmp/later-1 | cut -c5-).; \
         echo own kprobe_module $(awk '$1 == \"later\" { print $2 }' $T/kprobe_profile).; \
         echo 0 >$T/events/kprobes/later/enable; echo >$T/kprobe_events",
        show: kprobe_module,
    },
];

fn func_mod_trace(stock: &mut Stock) {
    const FUNCTION: &str = "bm_status_read";
    let glob = "mod:binfmt_misc:bm_status_*";
    // What is there matches neither: one is refused, and says how to wait; the other one waits.
    let refused = json!({"filter": ["bm_status_reed"]});
    let said = stock.client.refused("start", refused);
    assert!(said.contains("`mod:*:bm_status_reed` waits"), "{said}");
    let started = stock.trace("module", "function", json!({}), &[glob]);
    assert_eq!(started["traced"], 0, "{started}");
    for _ in 0..2 {
        stock.shell.does("comes; is_read; goes");
    }
    let table = stock.report("module", "counts");
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["2", FUNCTION], "{table}");
    // Theirs is asked before the module goes, after which its functions have no names. It has a filter for a module once.
    assert_eq!(stock.own("func_mod_trace"), ["1 0"]);
}

/// The file is read twice: what it says, and that there is no more.
fn kprobe_module(stock: &mut Stock) {
    stock.trace("later", "nop", json!({}), &[]);
    let text = "mod:binfmt_misc:bm_status_read size=$arg3:u64 $stack";
    stock.probe(
        "later",
        &[text, "binfmt_misc:bm_status_read%return $retval"],
    );
    let states = |stock: &mut Stock| -> Vec<String> {
        let listed = stock.client.call("probe.list", Value::Null);
        let all = listed["probes"].as_array().unwrap().iter();
        let own = all.filter(|probe| probe["session"] == "later");
        own.map(|probe| format!("{} {}", probe["id"], probe["state"].as_str().unwrap()))
            .collect()
    };
    let waiting = states(stock);
    assert_eq!(waiting.len(), 2);
    assert!(
        waiting.iter().all(|one| one.ends_with(" waiting")),
        "{waiting:?}"
    );
    let set: Vec<String> = waiting
        .iter()
        .map(|one| one.replace("waiting", "on"))
        .collect();
    // Nobody is told when a look has seen a module.
    let until = |stock: &mut Stock, wanted: &[String]| {
        stock.until("a look sees it", |stock| states(stock) == wanted);
    };
    for round in 0..3 {
        stock.shell.does("comes");
        until(stock, &set);
        // What has come is not traced by a session that traces no functions.
        let status = stock.client.status();
        let sessions = status["tracing"]["sessions"].as_array().unwrap();
        let later = sessions.iter().find(|one| one["name"] == "later").unwrap();
        assert_eq!(later["traced"], 0, "{later}");
        if round == 0 {
            let refused = json!({"session": "later", "probes": ["mod:binfmt_misc:bm_staus_read"]});
            let said = stock.client.refused("probe.add", refused);
            assert!(said.contains("did you mean `bm_status_read`"), "{said}");
        }
        stock.shell.does("is_read");
        stock.shell.does("goes");
        until(stock, &waiting);
    }
    let found = stock.fields("later", "bm_status_read");
    assert_eq!(found.len(), 3, "{found:?}");
    let [callers, hits] = stock.own("kprobe_module")[..] else {
        panic!("{:?}", stock.own);
    };
    // What serves the probe is not in ours.
    let (_, callers) = callers.split_once("kprobe_ftrace_handler ").unwrap();
    // Its own tables say what is above a function of a module, also after it has gone.
    for fields in &found {
        assert_eq!(fields["size"], 4096, "{fields}");
        let stack = &fields["stack"];
        assert_eq!(stack["truncated"], Value::Null, "{stack}");
        let names = stack["stack"].as_array().unwrap().iter();
        let names = names.map(|name| name.as_str().unwrap().split('+').next().unwrap());
        assert_eq!(names.collect::<Vec<_>>().join(" "), callers);
    }
    assert_eq!(hits, "3");
}
