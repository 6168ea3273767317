//! A stock Linux, on one guest for all cases: a boot takes longer than all of them.
//!
//! Its own tracer is asked first: the same questions, as far as it can be asked them. Then tracefs is unmounted, and everything else is done from
//! outside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};
use tests::conformance::{Ground, asked_of_the_kernel, shown_on};
use tests::{Client, patience, vmm_says};

use crate::shell::Shell;

/// The guest, and what its own tracer has said.
struct Stock {
    shell: Shell,
    client: Client,
    /// What its own tracer has said, by case: a text for each line.
    own: BTreeMap<String, Vec<String>>,
}

/// A step, with the name of its case.
type Step = (&'static str, fn(&mut Stock));

macro_rules! steps {
    ($($name:ident),+ $(,)?) => { [$((stringify!($name), $name as fn(&mut Stock))),+] };
}

/// Each glob, and the regular expression that is meant by it.
const GLOBS: [(&str, &str); 8] = [
    ("*schedule", "schedule$"),
    ("*schedule*", "schedule"),
    ("schedule*", "^schedule"),
    ("*pin*lock", "pin.*lock$"),
    ("mutex*try*", "^mutex.*try"),
    ("sch*ule", "^sch.*ule$"),
    ("[Ss]y[Ss]_*", "^[Ss]y[Ss]_"),
    ("sch?dule", "^sch.dule$"),
];

/// What the kernel's own tracer is asked, by case, beside the globs: each prints `own CASE ANSWER.`, and leaves nothing behind.
const ASKED: [(&str, &str); 5] = [
    (
        "fgraph_filter",
        "echo schedule >$T/set_ftrace_filter; echo function_graph >$T/current_tracer; ls / | cat; echo 0 >$T/tracing_on; \
         echo own fgraph_filter $(grep -oE '[a-z_0-9]+[(][)]' $T/trace | sort -u).; \
         echo nop >$T/current_tracer; echo 1 >$T/tracing_on; echo >$T/set_ftrace_filter",
    ),
    (
        "fgraph_retval",
        "echo 'r:returned mem_read value=$retval:s32' >$T/kprobe_events; echo 1 >$T/events/kprobes/returned/enable; \
         dd if=/proc/self/mem of=/dev/null bs=1 count=1; echo 0 >$T/events/kprobes/returned/enable; \
         echo own fgraph_retval $(grep -o 'value=.*' $T/trace).; echo >$T/kprobe_events; echo >$T/trace",
    ),
    (
        "func_filter_stacktrace",
        "echo version_proc_show:stacktrace:1 >$T/set_ftrace_filter; cat /proc/version; \
         echo own func_filter_stacktrace $(grep '^ => [a-z_]' $T/trace | cut -c5-).; \
         echo '!version_proc_show:stacktrace:1' >$T/set_ftrace_filter; echo >$T/trace",
    ),
    (
        "func_mod_trace",
        "F=/proc/sys/fs/binfmt_misc; found=; echo version_proc_show >$T/set_ftrace_filter; \
         echo 'bm_status_*:mod:binfmt_misc' >>$T/set_ftrace_filter; echo function >$T/current_tracer; \
         for n in 1 2; do echo >$T/trace; COMES; READ; found=\"$found $(grep -c 'bm_status_read <-' $T/trace)\"; GOES; done; \
         echo own func_mod_trace$found.; \
         echo nop >$T/current_tracer; echo >$T/set_ftrace_filter",
    ),
    (
        "kprobe_module",
        "echo 'p:later binfmt_misc:bm_status_read' >$T/kprobe_events; echo 1 >$T/events/kprobes/later/enable; \
         for n in 1 2 3; do COMES; READ; GOES; done; \
         echo own kprobe_module $(awk '$1 == \"later\" { print $2 }' $T/kprobe_profile).; \
         echo 0 >$T/events/kprobes/later/enable; echo >$T/kprobe_events",
    ),
];

/// What is called when somebody reads what version the kernel is.
const SHOWN: &str = "version_proc_show";

/// What a shell has printed after `own CASE`, by case.
fn answers(printed: &str) -> BTreeMap<String, Vec<String>> {
    let mut own: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let lines = printed.lines();
    let said = lines.filter_map(|line| line.trim().strip_prefix("own ")?.strip_suffix('.'));
    for line in said {
        let (case, answer) = line.split_once(' ').unwrap_or((line, ""));
        own.entry(case.to_owned())
            .or_default()
            .push(answer.to_owned());
    }
    own
}

impl Stock {
    fn start() -> Self {
        let mut shell = Shell::start();
        let client = shell.client();
        shell.does("cp $T/available_filter_functions /tmp/functions");
        for (glob, expression) in GLOBS {
            shell.does(&format!(
                "echo '{glob}' >$T/set_ftrace_filter; \
                 echo own func_filter_glob $(grep -vc '^#' $T/set_ftrace_filter) $(grep -cE '{expression}' /tmp/functions)."
            ));
        }
        shell.does("echo >$T/set_ftrace_filter");
        for (_, line) in ASKED {
            let line = line
                .replace("COMES", MODULE_COMES)
                .replace("READ", MODULE_IS_READ);
            shell.does(&line.replace("GOES", MODULE_GOES));
        }
        shell.does("umount $T; echo mounted $(grep -c tracefs /proc/mounts).");
        let printed = shell.running.printed();
        assert!(printed.contains("mounted 0."), "{printed}");
        let own = answers(&printed);
        println!("the kernel's own tracer: {own:?}");
        Self { shell, client, own }
    }

    /// What the kernel's own tracer has said of a case.
    fn own(&self, case: &str) -> Vec<&str> {
        let said = self.own.get(case).into_iter().flatten();
        said.map(String::as_str).collect()
    }

    /// A session of its own for a step, started.
    fn trace(&mut self, name: &str, tracer: &str, options: Value, filter: &[&str]) -> Value {
        let create = json!({"name": name, "tracer": tracer, "options": options});
        self.client.call("session.create", create);
        let start = json!({"session": name, "filter": filter});
        self.client.call("start", start)
    }

    fn probe(&mut self, session: &str, probes: &[&str]) {
        let add = json!({"session": session, "probes": probes});
        self.client.call("probe.add", add);
    }

    /// What a session has recorded, as a trace; the session is gone then.
    fn recorded(&mut self, name: &str) -> PathBuf {
        let dir = self.shell.running.path(&format!("dump-{name}"));
        self.client
            .call("dump", json!({"session": name, "dir": dir}));
        self.client.call("session.delete", json!({"session": name}));
        dir
    }

    /// What an event has captured, in a trace.
    fn fields(&mut self, name: &str, event: &str) -> Vec<Value> {
        let mut found = Vec::new();
        for file in fs::read_dir(self.recorded(name)).unwrap() {
            let path = file.unwrap().path();
            let is_events = path.extension().is_some_and(|end| end == "jsonl");
            let text = if is_events {
                fs::read_to_string(path).unwrap()
            } else {
                String::new()
            };
            let lines = text
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap());
            let own = lines.filter(|line| line["event"] == event);
            found.extend(own.map(|line| line["fields"].clone()));
        }
        found
    }

    /// What a trace reports.
    fn report(&mut self, name: &str, format: &str) -> String {
        let dir = self.recorded(name);
        let report = ["report", dir.to_str().unwrap(), "--format", format];
        vmm_says(&report).good().stdout
    }
}

/// The names of the functions in a table of counts.
fn functions(table: &str) -> Vec<&str> {
    let rows = table.lines().filter(|line| !line.starts_with('#')).skip(1);
    rows.filter_map(|line| line.split_whitespace().last())
        .collect()
}

#[test]
fn a_kernel_whose_tracefs_is_not_mounted() {
    let steps: [Step; 12] = steps![
        func_filter_glob,
        fgraph_filter,
        fgraph_retval,
        func_filter_pid,
        func_filter_notrace_pid,
        func_mod_trace,
        add_remove_btfarg,
        btf_probe_event,
        btf_typecast_accepted,
        fprobe_args_vfs,
        kprobe_module,
        func_filter_stacktrace,
    ];
    let names: BTreeSet<&str> = steps.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, shown_on(Ground::Linux).into_iter().collect());
    let asked = ASKED
        .iter()
        .map(|(case, _)| *case)
        .chain(["func_filter_glob"]);
    let asked: BTreeSet<&str> = asked.collect();
    assert_eq!(asked, asked_of_the_kernel().into_iter().collect());
    let mut stock = Stock::start();
    let digest = stock.client.digest();
    // One that fails is no reason not to know of the others.
    let mut failed = Vec::new();
    for (name, step) in steps {
        println!("step {name}");
        if catch_unwind(AssertUnwindSafe(|| step(&mut stock))).is_err() {
            failed.push(name);
        }
    }
    assert_eq!(failed, [""; 0]);
    assert_eq!(stock.client.digest(), digest);
    let status = stock.client.status();
    assert_eq!(status["tracing"]["frozen"], Value::Null, "{status}");
    drop(stock.client);
    let _ = stock.shell.end();
}

/// What must never be traced is left out here, and said; some of it is in theirs.
fn func_filter_glob(stock: &mut Stock) {
    let numbers = |line: &&str| -> [u64; 2] {
        let (theirs, expression) = line.split_once(' ').unwrap();
        [theirs, expression].map(|number| number.parse().unwrap())
    };
    let theirs: Vec<[u64; 2]> = stock.own("func_filter_glob").iter().map(numbers).collect();
    assert_eq!(theirs.len(), GLOBS.len());
    stock.trace("globs", "function", json!({}), &["schedule"]);
    for ((glob, _), [theirs, expression]) in GLOBS.iter().zip(theirs) {
        assert_eq!(theirs, expression, "{glob}: their own tracer");
        let set = json!({"session": "globs", "filter": [glob]});
        let changed = stock.client.call("filter.set", set);
        let skipped = changed["skipped"].as_array().unwrap().iter();
        let denied =
            skipped.filter(|one| one["reason"].as_str().unwrap().starts_with("never traced"));
        let denied = denied.count() as u64;
        let traced = changed["traced"].as_u64().unwrap();
        println!("{glob}: {traced} are traced, {denied} never are, {theirs} are theirs");
        assert!(traced > 0 && traced <= theirs, "{glob}: {changed}");
        assert!(theirs - traced <= denied, "{glob}: {changed}");
    }
    stock
        .client
        .call("session.delete", json!({"session": "globs"}));
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

/// A system call that nothing else makes.
const CALL: &str = "__x64_sys_sched_get_priority_max";

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

fn func_mod_trace(stock: &mut Stock) {
    const FUNCTION: &str = "bm_status_read";
    let glob = "mod:binfmt_misc:bm_status_*";
    // What is there matches neither: one is refused, and says how to wait; the other one waits.
    let refused = json!({"filter": ["bm_status_reed"]});
    let said = stock.client.refused("start", refused);
    assert!(said.contains("`mod:*:bm_status_reed` waits"), "{said}");
    let started = stock.trace("module", "function", json!({}), &[glob]);
    assert_eq!(started["traced"], 0, "{started}");
    stock.shell.does("F=/proc/sys/fs/binfmt_misc");
    for _ in 0..2 {
        stock
            .shell
            .does(&format!("{MODULE_COMES}; {MODULE_IS_READ}; {MODULE_GOES}"));
    }
    let table = stock.report("module", "counts");
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["2", FUNCTION], "{table}");
    // Theirs is asked before the module goes, after which its functions have no names. It has a filter for a module once.
    assert_eq!(stock.own("func_mod_trace"), ["1 0"]);
}

/// The module comes, is read from, and goes.
const MODULE_COMES: &str = "insmod /modules/binfmt_misc.ko; mount -t binfmt_misc none $F";
const MODULE_IS_READ: &str = "dd if=$F/status of=/dev/null bs=4096 count=1";
const MODULE_GOES: &str = "umount $F; rmmod binfmt_misc";

/// The file is read twice: what it says, and that there is no more.
fn kprobe_module(stock: &mut Stock) {
    stock.trace("later", "nop", json!({}), &[]);
    let text = "mod:binfmt_misc:bm_status_read size=$arg3:u64";
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
        let deadline = Instant::now() + patience();
        while states(stock) != wanted {
            assert!(Instant::now() < deadline, "{:?}", states(stock));
        }
    };
    stock.shell.does("F=/proc/sys/fs/binfmt_misc");
    for round in 0..3 {
        stock.shell.does(MODULE_COMES);
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
        stock.shell.does(MODULE_IS_READ);
        stock.shell.does(MODULE_GOES);
        until(stock, &waiting);
    }
    let found = stock.fields("later", "bm_status_read");
    assert_eq!(found, vec![json!({"size": 4096}); 3]);
    assert_eq!(stock.own("kprobe_module"), ["3"]);
}

fn add_remove_btfarg(stock: &mut Stock) {
    stock.trace("args", "nop", json!({}), &[]);
    let refused = json!({"session": "args", "probes": ["vfs_read nothing"]});
    let said = stock.client.refused("probe.add", refused);
    assert!(said.contains("there is no variable `nothing`"), "{said}");
    stock.probe("args", &["vfs_read $args if count == 77"]);
    stock
        .shell
        .does("dd if=/proc/version of=/dev/null bs=77 count=1");
    let found = stock.fields("args", "vfs_read");
    assert_eq!(found.len(), 1, "{found:?}");
    let names: BTreeSet<&str> = found[0]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(names, BTreeSet::from(["buf", "count", "file", "pos"]));
    assert_eq!(found[0]["count"], 77, "{found:?}");
}

fn btf_probe_event(stock: &mut Stock) {
    stock.trace("chain", "nop", json!({}), &[]);
    let chain = "number=file->f_path.dentry->d_inode->i_ino";
    stock.probe("chain", &[&format!("vfs_read {chain} if count == 78")]);
    stock
        .shell
        .does("echo some text >/tmp/chained; echo number $(ls -i /tmp/chained)");
    stock
        .shell
        .does("dd if=/tmp/chained of=/dev/null bs=78 count=1");
    let printed = stock.shell.running.printed();
    let said = printed
        .lines()
        .find_map(|line| line.trim().strip_prefix("number "));
    let number: u64 = said.unwrap().split(' ').next().unwrap().parse().unwrap();
    let found = stock.fields("chain", "vfs_read");
    assert_eq!(found, [json!({"number": number})]);
}

/// One inode, by five ways; one task, by four.
fn btf_typecast_accepted(stock: &mut Stock) {
    stock.trace("casts", "nop", json!({}), &[]);
    let said = |stock: &mut Stock, probe: &str| {
        let refused = json!({"session": "casts", "probes": [probe]});
        stock.client.refused("probe.add", refused)
    };
    let error = said(stock, "vfs_read (inod)$arg1->i_ino");
    assert!(
        error.contains("column 11: there is no structure `inod`"),
        "{error}"
    );
    let error = said(stock, "vfs_read this_cpu_read(jiffies)");
    assert!(
        error.contains("column 24: `jiffies`: is no variable of which"),
        "{error}"
    );
    stock.probe(
        "casts",
        &["vfs_read a=(file)$arg1->f_path.dentry->d_inode->i_ino \
           b=((struct file *)%rdi)->f_path.dentry->d_inode->i_ino \
           c=(inode,i_data)(file->f_mapping)->i_ino \
           d=(dentry,d_name.name)(&file->f_path.dentry->d_name.name)->d_inode->i_ino \
           e=file->f_path.dentry->d_inode->i_ino \
           p=$current->pid comm=$current->comm q=this_cpu_read(runqueues).curr->pid \
           r=this_cpu_ptr(runqueues)->curr->pid s=((struct task_struct *)$current)->tgid \
           if count == 81 && $current->comm == \"dd\""],
    );
    stock
        .shell
        .does("echo some text >/tmp/cast; echo number $(ls -i /tmp/cast)");
    stock
        .shell
        .does("sh -c 'echo process $$.; exec dd if=/tmp/cast of=/dev/null bs=81 count=1'");
    let printed = stock.shell.running.printed();
    let after = |word: &str| -> u64 {
        let mut said = printed.lines().rev();
        let found = said.find_map(|line| line.trim().strip_prefix(word));
        let end = |char: char| !char.is_ascii_digit();
        found.unwrap().split(end).next().unwrap().parse().unwrap()
    };
    let (inode, process) = (after("number "), after("process "));
    let found = stock.fields("casts", "vfs_read");
    assert_eq!(found.len(), 1, "{found:?}");
    for name in ["a", "b", "c", "d", "e"] {
        assert_eq!(found[0][name], inode, "{name}: {found:?}");
    }
    for name in ["p", "q", "r", "s"] {
        assert_eq!(found[0][name], process, "{name}: {found:?}");
    }
    assert_eq!(found[0]["comm"]["text"], "dd", "{found:?}");
}

fn fprobe_args_vfs(stock: &mut Stock) {
    const NAME: &str = "a-file-of-this-name";
    stock.trace("names", "nop", json!({}), &[]);
    let dentry = "vfs_open name=path->dentry->d_name.name:string";
    let file = "vfs_read name=file->f_path.dentry->d_name.name:string if count == 79";
    stock.probe("names", &[dentry, file]);
    stock.shell.does(&format!("echo some text >/tmp/{NAME}"));
    stock
        .shell
        .does(&format!("dd if=/tmp/{NAME} of=/dev/null bs=79 count=1"));
    let dir = stock.recorded("names");
    let events = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let events = events.filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let text: String = events
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    for event in ["vfs_open", "vfs_read"] {
        let named = format!(r#""event":"{event}","fields":{{"name":{{"text":"{NAME}"}}}}"#);
        assert!(text.contains(&named), "{event}: {text}");
    }
}
