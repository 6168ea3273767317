//! Profiles, beside tracers and switched off.

use serde_json::{Value, json};

use super::{CALL, Step, Stock};

/// The steps. This kernel has no profile of functions of its own: its package is built without.
pub const STEPS: &[Step] = &[
    Step {
        name: "func_profiler",
        asked: "has_profile() { test -e $T/function_profile_enabled; echo own $1 $?.; }
            has_profile func_profiler",
        show: func_profiler,
    },
    Step {
        name: "func_profile_stat",
        asked: "has_profile func_profile_stat",
        show: func_profile_stat,
    },
    Step {
        name: "fgraph_profiler",
        asked: "has_profile fgraph_profiler",
        show: fgraph_profiler,
    },
];

/// How often a profile has counted the call.
fn hits(stock: &mut Stock, session: &str) -> u64 {
    let profile = stock.client.call("profile", json!({"session": session}));
    let functions = profile["functions"].as_array().unwrap().iter();
    let mut of = functions.filter(|of| of["name"] == CALL);
    of.next().map_or(0, |of| of["hits"].as_u64().unwrap())
}

fn has_none_of_its_own(stock: &Stock, case: &str) {
    assert_eq!(stock.own(case), ["1"]);
}

fn func_profiler(stock: &mut Stock) {
    let options = json!({"mode": "discard", "ring_size": 8192});
    stock.trace("graph", "graph", options.clone(), &["*sched*"]);
    stock.trace("times", "profile", json!({}), &["__x64_sys_*"]);
    stock.trace("calls", "function", options, &["__x64_sys_*"]);
    stock.calls(70);
    assert_eq!(hits(stock, "times"), 70);
    let others = ["graph", "calls"].map(|name| stock.counts(name)[CALL]);
    assert_eq!(others, [70, 70]);
    stock.delete("times");
    has_none_of_its_own(stock, "func_profiler");
}

fn func_profile_stat(stock: &mut Stock) {
    stock.trace("times", "profile", json!({}), &[CALL]);
    stock.calls(50);
    assert_eq!(hits(stock, "times"), 50);
    let session = json!({"session": "times"});
    stock.client.call("tracing-off", session.clone());
    let before: Value = stock.client.call("profile", session.clone());
    stock.calls(50);
    let after = stock.client.call("profile", session.clone());
    assert_eq!(after["functions"], before["functions"], "it is off");
    stock.client.call("tracing-on", session);
    stock.calls(50);
    assert_eq!(hits(stock, "times"), 100);
    stock.delete("times");
    has_none_of_its_own(stock, "func_profile_stat");
}

fn fgraph_profiler(stock: &mut Stock) {
    let options = json!({"mode": "discard", "ring_size": 32768});
    stock.trace("times", "profile", json!({}), &[CALL]);
    stock.trace("graph", "graph", options, &[]);
    stock.calls(60);
    let profile = stock.client.call("profile", json!({"session": "times"}));
    let functions = profile["functions"].as_array().unwrap();
    assert_eq!(functions.len(), 1, "{profile}");
    assert_eq!(hits(stock, "times"), 60);
    let graph = stock.counts("graph");
    assert_eq!(graph[CALL], 60);
    assert!(graph.len() > 100, "{graph:?}");
    stock.delete("times");
    has_none_of_its_own(stock, "fgraph_profiler");
}
