//! Sessions that record only some tasks, or all but some: by number, name, process, cgroup, and with those that they make.
//! Each program makes a system call so often that nothing else makes, so each session must have exactly so many calls.

use serde_json::{Value, json};
use tests::Client;

use crate::shell::Shell;

/// What each of those calls enters.
const CALL: &str = "__x64_sys_sched_get_priority_max";

/// `gate NAME COUNT` begins a task that waits for `go NAME`, becomes `syscalls COUNT`, and says its number. `make` is
/// another name of the same program.
const GATES: &str = "gate() { mkfifo /tmp/$1; (read x </tmp/$1; exec syscalls $2) & echo \"$1 is $!.\"; }; \
    go() { echo >/tmp/$1; }; cp /bin/syscalls /bin/make-calls";

struct Machine {
    shell: Shell,
    client: Client,
}

impl Machine {
    fn start() -> Self {
        let mut shell = Shell::start();
        let client = shell.client();
        shell.does(GATES);
        Self { shell, client }
    }

    /// Begins a task that waits for its turn; says its number.
    fn gate(&mut self, name: &str, count: u64) -> String {
        self.shell.does(&format!("gate {name} {count}"));
        self.number_of(name)
    }

    fn number_of(&self, name: &str) -> String {
        let printed = self.shell.running.printed();
        let mut lines = printed.lines().rev();
        let said = lines.find_map(|line| line.trim().strip_prefix(&format!("{name} is ")));
        said.unwrap().trim_end_matches('.').to_owned()
    }

    fn trace(&mut self, session: &str, tracer: &str, options: Value) {
        let create = json!({"name": session, "tracer": tracer, "options": options});
        self.client.call("session.create", create);
        self.client
            .call("start", json!({"session": session, "filter": [CALL]}));
    }

    /// How many records each of these sessions has; none of them has lost any.
    fn written<const N: usize>(&mut self, sessions: [&str; N]) -> [u64; N] {
        let status = self.client.status();
        assert_eq!(Client::rings(&status, "lost"), 0, "{status}");
        let all = status["tracing"]["sessions"].as_array().unwrap();
        sessions.map(|name| {
            let of = all.iter().find(|one| one["name"] == name).unwrap();
            let rings = of["rings"].as_array().unwrap().iter();
            rings.map(|ring| ring["written"].as_u64().unwrap()).sum()
        })
    }

    fn end(mut self) {
        let status = self.client.status();
        assert_eq!(status["tracing"]["frozen"], Value::Null, "{status}");
        drop(self.client);
        let _ = self.shell.end();
    }
}

#[test]
fn only_a_task_or_all_but_it_by_number_name_and_process() {
    let mut on = Machine::start();
    let digest = on.client.digest();
    let (one, two) = (on.gate("one", 300), on.gate("two", 200));
    let kept = |mut options: Value| {
        options["mode"] = json!("discard");
        options
    };
    on.trace("all", "function", kept(json!({})));
    on.trace("only", "function", kept(json!({"only_tasks": [one]})));
    on.trace("not", "function", kept(json!({"not_tasks": [one]})));
    on.trace("graph", "graph", kept(json!({"only_tasks": [two]})));
    on.trace(
        "process",
        "graph",
        kept(json!({"not_tasks": [format!("process:{two}")]})),
    );
    on.trace("named", "function", kept(json!({"only_tasks": ["sysc*"]})));
    on.trace(
        "others",
        "function",
        kept(json!({"not_tasks": ["syscalls"]})),
    );
    on.trace("nobody", "function", kept(json!({"only_tasks": ["sysc"]})));
    on.trace("times", "profile", json!({"only_tasks": [one]}));
    on.shell.does("go one; go two; wait; make-calls 50");
    let written = on.written(["all", "only", "not", "graph", "process"]);
    assert_eq!(written, [550, 300, 250, 2 * 200, 2 * 350]);
    let written = on.written(["named", "others", "nobody"]);
    assert_eq!(written, [500, 50, 0]);
    let profile = on.client.call("profile", json!({"session": "times"}));
    assert_eq!(profile["functions"][0]["hits"], 300, "{profile}");
    let status = on.client.status();
    let shown = &status["tracing"]["sessions"][2]["tasks"];
    let said = json!({"only": [one], "follow_forks": false, "by": "stub"});
    assert_eq!(*shown, said, "{status}");
    for session in [
        "all", "only", "not", "graph", "process", "named", "others", "nobody", "times",
    ] {
        on.client
            .call("session.delete", json!({"session": session}));
    }
    assert_eq!(on.client.digest(), digest);
    on.end();
}

#[test]
fn what_is_named_changes_while_it_is_traced() {
    let mut on = Machine::start();
    let (one, two) = (on.gate("one", 30), on.gate("two", 20));
    let three = on.gate("three", 10);
    on.trace("default-like", "graph", json!({"mode": "discard"}));
    let of = |tasks: &[&str]| json!({"session": "default-like", "tasks": tasks});
    // From all to one, by name as well, to none.
    for changed in [true, false] {
        let told = on.client.call("tasks.set", of(&[&one]));
        assert_eq!(told["changed"], changed, "{told}");
        assert_eq!(told["pauses"].as_u64() > Some(0), changed, "{told}");
    }
    on.shell.does("go one; make-calls 5; syscalls 5");
    assert_eq!(on.written(["default-like"]), [60]);
    on.client.call("tasks.add", of(&["make-calls", &two]));
    on.shell.does("go two; make-calls 5; syscalls 5");
    assert_eq!(on.written(["default-like"]), [60 + 40 + 10]);
    let said = on.client.refused("tasks.remove", of(&["nobody"]));
    assert!(said.contains("names no task 'nobody'"), "{said}");
    on.client.call("tasks.remove", of(&["make-calls"]));
    let shown = on
        .client
        .call("tasks.show", json!({"session": "default-like"}));
    assert_eq!(
        shown,
        json!({"only": [one, two], "follow_forks": false, "by": "stub"})
    );
    on.shell.does("make-calls 5");
    assert_eq!(on.written(["default-like"]), [110]);
    let mut not = of(&[&three]);
    not["not"] = json!(true);
    on.client.call("tasks.set", not);
    on.shell.does("go three; make-calls 5; wait");
    assert_eq!(on.written(["default-like"]), [120]);
    on.client
        .call("tasks.clear", json!({"session": "default-like"}));
    on.shell.does("syscalls 5");
    assert_eq!(on.written(["default-like"]), [130]);
    on.end();
}

#[test]
fn forks_are_followed_when_told_so_and_a_number_can_be_named_before_its_task() {
    let mut on = Machine::start();
    // A shell of its own, whose children are other programs.
    on.shell.does("mkfifo /tmp/tree; sh -c 'read x </tmp/tree; make-calls 7; (sh -c \"syscalls 11; true\"; true); true' & echo tree is $!.");
    let tree = on.number_of("tree");
    let options = |tasks: &str, follows: bool| json!({"mode": "discard", "only_tasks": [tasks], "follow_forks": follows});
    on.trace("alone", "function", options(&tree, false));
    on.trace("theirs", "function", options(&tree, true));
    let others = json!({"mode": "discard", "not_tasks": [tree], "follow_forks": true});
    on.trace("others", "graph", others);
    on.shell.does("echo >/tmp/tree; wait; syscalls 3");
    assert_eq!(on.written(["alone", "theirs", "others"]), [0, 18, 6]);
    // Nobody has this number yet.
    let next: u64 = on.gate("last", 1).parse().unwrap();
    on.shell.does("go last; wait");
    let coming = format!("{}", next + 3);
    on.trace("coming", "function", options(&coming, true));
    on.shell
        .does("for count in 2 3 5 7; do syscalls $count & echo task$count is $!.; wait; done");
    let counts = [2, 3, 5, 7].map(|count| (count, on.number_of(&format!("task{count}"))));
    let named = counts.iter().find(|(_, number)| *number == coming);
    let (count, _) = named.expect("the number that was named is one of those");
    assert_eq!(on.written(["coming"]), [*count]);
    let said = on
        .client
        .refused("tasks.set", json!({"session": "coming", "tasks": ["a?b"]}));
    assert!(said.contains("one *, at its end"), "{said}");
    on.end();
}

#[test]
fn a_cgroup_and_what_is_below_it() {
    let mut on = Machine::start();
    on.shell.does(
        "mkdir /tmp/cg; mount -t cgroup2 none /tmp/cg; mkdir -p /tmp/cg/a/b /tmp/cg/c; \
         in_group() { mkfifo /tmp/$1; (read p x </proc/self/stat; echo $p >/tmp/cg/$2/cgroup.procs; \
         read x </tmp/$1; exec syscalls $3) & }; \
         in_group below a/b 20; in_group within a 10; in_group beside c 5; in_group nowhere . 3",
    );
    let options = |tasks: &[&str]| json!({"mode": "discard", "only_tasks": tasks});
    on.trace("a", "function", options(&["cgroup:/a"]));
    on.trace("b", "graph", options(&["cgroup:/a/b"]));
    on.trace("two", "function", options(&["cgroup:/a/b", "cgroup:/c"]));
    on.trace("all", "function", options(&["cgroup:/"]));
    on.trace(
        "others",
        "function",
        json!({"mode": "discard", "not_tasks": ["cgroup:/a"]}),
    );
    let missing = options(&["cgroup:/a/d"]);
    on.client.call(
        "session.create",
        json!({"name": "none", "options": missing}),
    );
    let said = on.client.refused("start", json!({"session": "none"}));
    assert!(said.contains("no cgroup '/a/d'"), "{said}");
    on.shell
        .does("for gate in below within beside nowhere; do echo >/tmp/$gate; done; wait");
    let written = on.written(["a", "b", "two", "all", "others"]);
    assert_eq!(written, [30, 2 * 20, 25, 38, 8]);
    on.end();
}

/// A program that is executed has another name when the call ends that executed it: it is in the graph as a whole, whether one
/// session traces it or two.
#[test]
fn a_task_that_takes_another_name_ends_what_it_has_begun() {
    let mut on = Machine::start();
    let start = |on: &mut Machine, session: &str, options: Value| {
        let create = json!({"name": session, "tracer": "graph", "options": options});
        on.client.call("session.create", create);
        let filter = json!({"session": session, "filter": ["__x64_sys_execve"]});
        on.client.call("start", filter);
    };
    start(
        &mut on,
        "execs",
        json!({"mode": "discard", "only_tasks": ["sh"]}),
    );
    on.shell.does("syscalls 1; make-calls 1");
    assert_eq!(on.written(["execs"]), [2 * 2]);
    start(&mut on, "all", json!({"mode": "discard"}));
    start(
        &mut on,
        "others",
        json!({"mode": "discard", "not_tasks": ["sh"]}),
    );
    on.shell.does("syscalls 1; make-calls 1; make-calls 1");
    assert_eq!(on.written(["execs", "all", "others"]), [2 * 5, 2 * 3, 0]);
    on.end();
}

/// How many events a session has.
fn events(status: &Value, session: &str) -> u64 {
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    let of = sessions.iter().find(|one| one["name"] == session).unwrap();
    let rings = of["event_rings"].as_array().unwrap().iter();
    rings
        .map(|ring| {
            assert_eq!(ring["lost"], 0, "{status}");
            ring["written"].as_u64().unwrap()
        })
        .sum()
}

#[test]
fn probes_are_asked_as_functions_are() {
    let mut on = Machine::start();
    let (one, two) = (on.gate("one", 30), on.gate("two", 20));
    let probes = [CALL.to_owned(), format!("{CALL}%return")];
    for (session, options) in [
        (
            "first",
            json!({"mode": "discard", "probe": probes, "only_tasks": [one]}),
        ),
        ("later", json!({"mode": "discard", "probe": probes})),
    ] {
        let create = json!({"name": session, "tracer": "nop", "options": options});
        on.client.call("session.create", create);
        on.client.call("start", json!({"session": session}));
    }
    let set = json!({"session": "later", "tasks": ["make-calls", two]});
    on.client.call("tasks.set", set);
    on.shell
        .does("go one; go two; wait; make-calls 5; syscalls 3");
    let status = on.client.status();
    assert_eq!(events(&status, "first"), 2 * 30, "{status}");
    assert_eq!(events(&status, "later"), 2 * 25, "{status}");
    on.client.call("tasks.clear", json!({"session": "later"}));
    on.shell.does("syscalls 3");
    let status = on.client.status();
    assert_eq!(events(&status, "later"), 2 * 28, "{status}");
    on.end();
}
