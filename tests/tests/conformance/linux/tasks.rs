//! Calls of some tasks.

use serde_json::{Value, json};
use tests::Client;

use super::{CALL, Step, Stock, written};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "func_filter_pid",
        asked: "family() { mkfifo /tmp/$1; (read x </tmp/$1; syscalls $2; exec syscalls $3) & }
            of_tasks() { echo 0 >$T/tracing_on; echo own $1 $(grep -c \"$CALL <-\" $T/trace).; echo >$T/trace; echo 1 >$T/tracing_on; }
            echo $CALL >$T/set_ftrace_filter; echo function >$T/current_tracer
            for forks in 0 1; do echo $forks >$T/options/function-fork; family one 20 300; echo $! >$T/set_ftrace_pid; family two 7 100; \
            echo >/tmp/one; echo >/tmp/two; wait; rm /tmp/one /tmp/two; of_tasks func_filter_pid; done
            echo >$T/set_ftrace_pid",
        show: func_filter_pid,
    },
    Step {
        name: "func_filter_notrace_pid",
        asked: "for forks in 0 1; do echo $forks >$T/options/function-fork; family one 20 300; echo $! >$T/set_ftrace_notrace_pid; family two 7 100; \
            echo >/tmp/one; echo >/tmp/two; wait; rm /tmp/one /tmp/two; of_tasks func_filter_notrace_pid; done
            echo >$T/set_ftrace_notrace_pid; echo 0 >$T/options/function-fork; echo nop >$T/current_tracer; echo >$T/set_ftrace_filter",
        show: func_filter_notrace_pid,
    },
];

impl Stock {
    /// Begins a shell that waits, and then has other programs make the call so often, and makes it itself so often; its number.
    fn family(&mut self, name: &str, children: u64, own: u64) -> String {
        self.shell.does(&format!(
            "mkfifo /tmp/{name}; (read x </tmp/{name}; syscalls {children}; exec syscalls {own}) & echo {name} is $!."
        ));
        let printed = self.shell.running.printed();
        let mut lines = printed.lines().rev();
        let said = lines.find_map(|line| line.trim().strip_prefix(&format!("{name} is ")));
        said.unwrap().trim_end_matches('.').to_owned()
    }

    /// A trace of the call by a session with these options.
    fn trace_calls(&mut self, name: &str, mut options: Value) {
        options["mode"] = json!("discard");
        self.trace(name, "function", options, &[CALL]);
    }

    /// How many calls a session has, which is gone then; none was lost.
    fn counted(&mut self, name: &str) -> u64 {
        let status = self.client.status();
        assert_eq!(Client::rings(&status, "lost"), 0, "{status}");
        let written = written(&status, name).iter().sum();
        self.client.call("session.delete", json!({"session": name}));
        written
    }
}

fn func_filter_pid(stock: &mut Stock) {
    let (one, _) = (stock.family("one", 20, 300), stock.family("two", 7, 100));
    stock.trace_calls("one", json!({"only_tasks": [one]}));
    stock.trace_calls("theirs", json!({"only_tasks": [one], "follow_forks": true}));
    stock.trace_calls("named", json!({"only_tasks": ["syscalls"]}));
    stock.trace_calls("later", json!({}));
    let set = json!({"session": "later", "tasks": [one], "follow_forks": true});
    stock.client.call("tasks.set", set);
    stock
        .shell
        .does("echo >/tmp/one; echo >/tmp/two; wait; rm /tmp/one /tmp/two");
    let counted = ["one", "theirs", "named", "later"].map(|name| stock.counted(name));
    assert_eq!(counted, [300, 320, 427, 320]);
    assert_eq!(stock.own("func_filter_pid"), ["300", "320"]);
    stock.shell.does(
        "mkdir /tmp/groups; mount -t cgroup2 none /tmp/groups; mkdir -p /tmp/groups/some/below; \
         echo $$ >/tmp/groups/some/below/cgroup.procs",
    );
    stock.trace_calls("group", json!({"only_tasks": ["cgroup:/some"]}));
    stock
        .shell
        .does("syscalls 11; echo $$ >/tmp/groups/cgroup.procs; syscalls 13; umount /tmp/groups");
    assert_eq!(stock.counted("group"), 11);
}

fn func_filter_notrace_pid(stock: &mut Stock) {
    let (one, _) = (stock.family("one", 20, 300), stock.family("two", 7, 100));
    stock.trace_calls("not", json!({"not_tasks": [one]}));
    stock.trace_calls("nor", json!({"not_tasks": [one], "follow_forks": true}));
    stock
        .shell
        .does("echo >/tmp/one; echo >/tmp/two; wait; rm /tmp/one /tmp/two");
    assert_eq!(["not", "nor"].map(|name| stock.counted(name)), [127, 107]);
    assert_eq!(stock.own("func_filter_notrace_pid"), ["127", "107"]);
}
