//! Calls of some tasks.

use serde_json::{Value, json};
use tests::Client;

use super::{Step, Stock};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "func_filter_pid",
        asked: "",
        show: func_filter_pid,
    },
    Step {
        name: "func_filter_notrace_pid",
        asked: "",
        show: func_filter_notrace_pid,
    },
];

/// A system call that nothing else makes.
pub const CALL: &str = "__x64_sys_sched_get_priority_max";

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
    fn calls(&mut self, name: &str, mut options: Value) {
        options["mode"] = json!("discard");
        self.trace(name, "function", options, &[CALL]);
    }

    /// How many calls a session has, which is gone then; none was lost.
    fn counted(&mut self, name: &str) -> u64 {
        let status = self.client.status();
        assert_eq!(Client::rings(&status, "lost"), 0, "{status}");
        let sessions = status["tracing"]["sessions"].as_array().unwrap();
        let of = sessions.iter().find(|one| one["name"] == name).unwrap();
        let rings = of["rings"].as_array().unwrap().iter();
        let written = rings.map(|ring| ring["written"].as_u64().unwrap()).sum();
        self.client.call("session.delete", json!({"session": name}));
        written
    }
}

fn func_filter_pid(stock: &mut Stock) {
    let (one, _) = (stock.family("one", 20, 300), stock.family("two", 7, 100));
    stock.calls("one", json!({"only_tasks": [one]}));
    stock.calls("theirs", json!({"only_tasks": [one], "follow_forks": true}));
    stock.calls("named", json!({"only_tasks": ["syscalls"]}));
    stock.calls("later", json!({}));
    let set = json!({"session": "later", "tasks": [one], "follow_forks": true});
    stock.client.call("tasks.set", set);
    stock
        .shell
        .does("echo >/tmp/one; echo >/tmp/two; wait; rm /tmp/one /tmp/two");
    let counted = ["one", "theirs", "named", "later"].map(|name| stock.counted(name));
    assert_eq!(counted, [300, 320, 427, 320]);
    stock.shell.does(
        "mkdir /tmp/groups; mount -t cgroup2 none /tmp/groups; mkdir -p /tmp/groups/some/below; \
         echo $$ >/tmp/groups/some/below/cgroup.procs",
    );
    stock.calls("group", json!({"only_tasks": ["cgroup:/some"]}));
    stock
        .shell
        .does("syscalls 11; echo $$ >/tmp/groups/cgroup.procs; syscalls 13; umount /tmp/groups");
    assert_eq!(stock.counted("group"), 11);
}

fn func_filter_notrace_pid(stock: &mut Stock) {
    let (one, _) = (stock.family("one", 20, 300), stock.family("two", 7, 100));
    stock.calls("not", json!({"not_tasks": [one]}));
    stock.calls("nor", json!({"not_tasks": [one], "follow_forks": true}));
    stock
        .shell
        .does("echo >/tmp/one; echo >/tmp/two; wait; rm /tmp/one /tmp/two");
    assert_eq!(["not", "nor"].map(|name| stock.counted(name)), [127, 107]);
}
