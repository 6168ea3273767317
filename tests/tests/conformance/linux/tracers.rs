//! Graphs and profiles.

use serde_json::json;

use super::{CALL, Step, Stock, functions};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "fgraph_multi",
        asked: "mkdir $T/instances/one; echo function_graph >$T/instances/one/current_tracer; echo own fgraph_multi $?.; rmdir $T/instances/one",
        show: fgraph_multi,
    },
    Step {
        name: "fgraph_filter",
        asked: "echo schedule >$T/set_ftrace_filter; echo function_graph >$T/current_tracer; ls / | cat; echo 0 >$T/tracing_on; \
         echo own fgraph_filter $(grep -oE '[a-z_0-9]+[(][)]' $T/trace | sort -u).; \
         echo nop >$T/current_tracer; echo 1 >$T/tracing_on; echo >$T/set_ftrace_filter",
        show: fgraph_filter,
    },
    Step {
        name: "fgraph_retval",
        asked: "echo 'r:returned mem_read value=$retval:s32' >$T/kprobe_events; echo 1 >$T/events/kprobes/returned/enable; \
         dd if=/proc/self/mem of=/dev/null bs=1 count=1; echo 0 >$T/events/kprobes/returned/enable; \
         echo own fgraph_retval $(grep -o 'value=.*' $T/trace).; echo >$T/kprobe_events; echo >$T/trace",
        show: fgraph_retval,
    },
];

/// The one without a filter is there before the others come, and until they are gone.
fn fgraph_multi(stock: &mut Stock) {
    let users = [("one", "sched"), ("two", "lock"), ("three", "rcu")];
    let of_size = |size: u32| json!({"mode": "discard", "ring_size": size});
    let all = stock.trace("all", "graph", of_size(32768), &[]);
    assert!(all["traced"].as_u64().unwrap() > 30_000, "{all}");
    for (name, part) in users {
        stock.trace(name, "graph", of_size(8192), &[&format!("*{part}*")]);
    }
    stock.calls(40);
    let each = users.map(|(name, part)| (part, stock.counts(name)));
    let all = stock.counts("all");
    assert_eq!(all.get(CALL), Some(&40), "{all:?}");
    for (part, own) in each {
        let is_call = CALL.contains(part).then_some(&40);
        assert_eq!(own.get(CALL), is_call, "{part}: {own:?}");
        assert!(own.len() > 10, "{part}: {own:?}");
        for (name, count) in own {
            assert!(name.contains(part), "{part}: {name}");
            assert!(
                all.get(&name).is_some_and(|all| *all >= count),
                "{name}: {count}"
            );
        }
    }
    // A second one is refused by this kernel.
    assert_eq!(stock.own("fgraph_multi"), ["1"]);
}

fn fgraph_filter(stock: &mut Stock) {
    stock.trace("graph", "graph", json!({}), &["schedule"]);
    stock.shell.does("keys 20");
    let table = stock.report("graph", "counts");
    assert_eq!(functions(&table), ["schedule"], "{table}");
    assert_eq!(stock.own("fgraph_filter"), ["schedule()"]);
}

/// Memory at address 0 of a program is not there to be read: EIO.
fn fgraph_retval(stock: &mut Stock) {
    stock.trace("retval", "graph", json!({"retval": true}), &["mem_read"]);
    stock.probe("retval", &["mem_read%return $retval hex=$retval:x64"]);
    stock
        .shell
        .does("dd if=/proc/self/mem of=/dev/null bs=1 count=1");
    let graph = stock.report("retval", "graph");
    assert!(graph.contains("} /* mem_read = -5 */"), "{graph}");
    assert!(
        graph.contains("retval=-5 hex=0xfffffffffffffffb"),
        "{graph}"
    );
    assert_eq!(stock.own("fgraph_retval"), ["value=-5"]);
}
