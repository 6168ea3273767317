//! Stacks at a hit.

use serde_json::{Value, json};

use super::{Step, Stock};

/// The steps.
pub const STEPS: &[Step] = &[Step {
    name: "func_filter_stacktrace",
    asked: "echo version_proc_show:stacktrace:1 >$T/set_ftrace_filter; cat /proc/version; \
         echo own func_filter_stacktrace $(grep '^ => [a-z_]' $T/trace | cut -c5-).; \
         echo '!version_proc_show:stacktrace:1' >$T/set_ftrace_filter; echo >$T/trace",
    show: func_filter_stacktrace,
}];

/// What is called when somebody reads what version the kernel is.
const SHOWN: &str = "version_proc_show";

/// Nobody's return is hooked, then that of most callers: the callers are the same, to the byte.
fn func_filter_stacktrace(stock: &mut Stock) {
    let stack = |stock: &mut Stock, session: &str| -> Vec<String> {
        stock.probe(session, &[&format!("{SHOWN} $stack")]);
        stock.shell.does("cat /proc/version");
        let found = stock.fields(session, SHOWN);
        assert_eq!(found.len(), 1, "{found:?}");
        let stack = &found[0]["stack"];
        assert_eq!(stack["truncated"], Value::Null, "{stack}");
        let names = stack["stack"].as_array().unwrap().iter();
        names
            .map(|name| name.as_str().unwrap().to_owned())
            .collect()
    };
    stock.trace("plain", "nop", json!({}), &[]);
    let refused = json!({"session": "plain", "probes": [format!("{SHOWN}%return $stack")]});
    let said = stock.client.refused("probe.add", refused);
    assert!(
        said.contains("`$stack`: is walked from inside of a function"),
        "{said}"
    );
    let plain = stack(stock, "plain");
    let name = |one: &String| one.split('+').next().unwrap().to_owned();
    let names: Vec<String> = plain.iter().map(name).collect();
    println!("stack: {plain:?}");
    assert_eq!(stock.own("func_filter_stacktrace"), [names.join(" ")]);
    assert_eq!(plain[0], SHOWN);
    let callers = [
        "seq_read_iter",
        "generic_file_splice_read",
        "splice_direct_to_actor",
        "do_splice_direct",
        "do_sendfile",
        SHOWN,
    ];
    let hooked = names.iter().filter(|name| callers.contains(&name.as_str()));
    assert!(hooked.count() >= 4, "{names:?}");
    let traced: Vec<&str> = callers
        .into_iter()
        .filter(|one| names.iter().any(|name| name == one))
        .collect();
    stock.trace("hooked", "graph", json!({}), &traced);
    assert_eq!(stack(stock, "hooked"), plain);
}
