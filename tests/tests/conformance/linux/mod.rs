//! A stock Linux, on one guest for all cases: a boot takes longer than all of them.
//!
//! Its own tracer is asked first: the same questions, as far as it can be asked them. Then tracefs is unmounted, and everything else is done from
//! outside.

mod filters;
mod modules;
mod places;
mod profiles;
mod readers;
mod stacks;
mod syntax;
mod tasks;
mod tracers;
mod triggers;
mod types;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};
use tests::conformance::{Ground, asked_of_the_kernel, shown_on};
use tests::{Client, Counts, look_again, patience, vmm_says};

use crate::shell::Shell;

/// The guest, and what its own tracer has said.
pub struct Stock {
    shell: Shell,
    client: Client,
    /// What its own tracer has said, by case: a text for each line.
    own: BTreeMap<String, Vec<String>>,
    /// Each is in a directory of its own.
    dumps: u32,
}

/// A system call that nothing makes but the program `syscalls`.
const CALL: &str = "__x64_sys_sched_get_priority_max";

/// A case.
pub struct Step {
    name: &'static str,
    /// What the kernel's own tracer is asked, in lines for the shell: they print `own CASE ANSWER.`, and leave nothing behind.
    asked: &'static str,
    show: fn(&mut Stock),
}

/// What several of them do.
const FUNCTIONS: &str = r#"F=/proc/sys/fs/binfmt_misc
    CALL=__x64_sys_sched_get_priority_max
    comes() { insmod /modules/binfmt_misc.ko; mount -t binfmt_misc none $F; }
    is_read() { dd if=$F/status of=/dev/null bs=4096 count=1; }
    goes() { umount $F; rmmod binfmt_misc; }
    taken() { echo "p:x $1" >$T/kprobe_events 2>/dev/null; }
    asks() { name=$1; shift; for line in "$@"; do taken "$line" && said=taken || said=refused; echo "own $name $line: $said."; done; echo >$T/kprobe_events; }
    records() { echo >$T/trace; echo "p:x $1" >$T/kprobe_events; echo 1 >$T/events/kprobes/x/enable; eval "$2"; echo 0 >$T/events/kprobes/x/enable; cat $T/trace >/tmp/recorded; echo >$T/kprobe_events; }
    cp $T/available_filter_functions /tmp/functions"#;

/// All of them, in the order in which they are shown.
fn steps() -> Vec<&'static Step> {
    let all = [
        filters::STEPS,
        tracers::STEPS,
        profiles::STEPS,
        triggers::STEPS,
        readers::STEPS,
        tasks::STEPS,
        modules::STEPS,
        values::STEPS,
        types::STEPS,
        syntax::STEPS,
        places::STEPS,
        stacks::STEPS,
    ];
    all.into_iter().flatten().collect()
}

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
        let asked = steps().into_iter().flat_map(|step| step.asked.lines());
        for line in FUNCTIONS.lines().chain(asked) {
            shell.does(line.trim());
        }
        shell.does("umount $T; echo mounted $(grep -c tracefs /proc/mounts).");
        let printed = shell.running.printed();
        assert!(printed.contains("mounted 0."), "{printed}");
        let own = answers(&printed);
        println!("the kernel's own tracer: {own:#?}");
        Self {
            shell,
            client,
            own,
            dumps: 0,
        }
    }

    /// What the kernel's own tracer has said of a case.
    fn own(&self, case: &str) -> Vec<&str> {
        let said = self.own.get(case).into_iter().flatten();
        said.map(String::as_str).collect()
    }

    /// Which lines of a case it has refused, if that is what it was asked.
    fn refused_by_it(&self, case: &str) -> Vec<&str> {
        let said = self.own(case).into_iter();
        said.filter_map(|line| line.strip_suffix(": refused"))
            .collect()
    }

    /// The probes of a session.
    fn probes(&mut self, session: &str) -> Vec<Value> {
        let listed = self.client.call("probe.list", Value::Null);
        let all = listed["probes"].as_array().unwrap().iter();
        let own = all.filter(|probe| probe["session"] == session);
        own.cloned().collect()
    }

    /// The end of a session whose records nobody reads.
    fn delete(&mut self, session: &str) {
        let delete = json!({"session": session});
        self.client.call("session.delete", delete);
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
        self.dumps += 1;
        let dir = self.shell.running.path(&format!("dump-{}", self.dumps));
        self.client
            .call("dump", json!({"session": name, "dir": dir}));
        self.delete(name);
        dir
    }

    /// Asks until it is so: nobody is told when the host has done what it does later.
    fn until(&mut self, what: &str, is_so: impl Fn(&mut Self) -> bool) {
        let deadline = Instant::now() + patience();
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}");
            look_again();
        }
    }

    /// What an event has captured, in a trace.
    fn fields(&mut self, name: &str, event: &str) -> Vec<Value> {
        let all = self.events(name).into_iter();
        all.filter_map(|(of, fields)| (of == event).then_some(fields))
            .collect()
    }

    /// What all events have captured, each with its name, in a trace.
    fn events(&mut self, name: &str) -> Vec<(String, Value)> {
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
            let named = lines.filter_map(|line| {
                Some((line["event"].as_str()?.to_owned(), line["fields"].clone()))
            });
            found.extend(named);
        }
        found
    }

    /// What a session has recorded so often, none of it lost; the session is gone then.
    fn counts(&mut self, name: &str) -> Counts {
        let dir = self.recorded(name);
        counts_of(&dir)
    }

    /// Has a program make a system call that nothing else makes so often: [`CALL`].
    fn calls(&mut self, count: u64) {
        self.shell.does(&format!("syscalls {count}"));
    }

    /// What a trace reports.
    fn report(&mut self, name: &str, format: &str) -> String {
        let dir = self.recorded(name);
        let report = ["report", dir.to_str().unwrap(), "--format", format];
        vmm_says(&report).good().stdout
    }
}

/// What a trace has so often, none of it lost.
fn counts_of(dir: &Path) -> Counts {
    let report = ["report", dir.to_str().unwrap(), "--format", "counts"];
    let table = vmm_says(&report).good().stdout;
    assert!(table.contains(", 0 lost"), "{table}");
    let csv = vmm_says(&[&report[..], &["--csv"]].concat()).good().stdout;
    let mut rows = csv.lines().map(|row| row.split(',').collect::<Vec<_>>());
    let heads = rows.next().unwrap();
    let column = |name: &str| heads.iter().position(|head| *head == name).unwrap();
    let (name, count) = (column("function"), column("calls"));
    rows.map(|row| (row[name].to_owned(), row[count].parse().unwrap()))
        .collect()
}

/// A session of the status.
fn session<'a>(status: &'a Value, name: &str) -> &'a Value {
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    sessions.iter().find(|one| one["name"] == name).unwrap()
}

/// What the rings of a session have had written, each.
fn written(status: &Value, name: &str) -> Vec<u64> {
    let rings = session(status, name)["rings"].as_array().unwrap().iter();
    rings
        .map(|ring| ring["written"].as_u64().unwrap())
        .collect()
}

/// The names of the functions in a table of counts.
fn functions(table: &str) -> Vec<&str> {
    let rows = table.lines().filter(|line| !line.starts_with('#')).skip(1);
    rows.filter_map(|line| line.split_whitespace().last())
        .collect()
}

#[test]
fn a_kernel_whose_tracefs_is_not_mounted() {
    let steps = steps();
    let names: BTreeSet<&str> = steps.iter().map(|step| step.name).collect();
    assert_eq!(names, shown_on(Ground::Linux).into_iter().collect());
    let asked = steps.iter().filter(|step| !step.asked.is_empty());
    let asked: BTreeSet<&str> = asked.map(|step| step.name).collect();
    assert_eq!(asked, asked_of_the_kernel().into_iter().collect());
    let mut stock = Stock::start();
    let digest = stock.client.digest();
    // One that fails is no reason not to know of the others.
    let mut failed = Vec::new();
    for Step { name, show, .. } in steps {
        println!("step {name}");
        if catch_unwind(AssertUnwindSafe(|| show(&mut stock))).is_err() {
            failed.push(*name);
        }
    }
    assert_eq!(failed, [""; 0]);
    assert_eq!(stock.client.digest(), digest);
    let status = stock.client.status();
    assert_eq!(status["tracing"]["frozen"], Value::Null, "{status}");
    drop(stock.client);
    let _ = stock.shell.end();
}
