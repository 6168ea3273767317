//! Probes: arguments, what they lead to, and return values, compared with what a program in the guest did.

use serde_json::{Value, json};
use tests::{Ended, Guest};

/// What `opens` says of one attempt.
#[derive(Debug, PartialEq, Eq)]
struct Attempt {
    name: String,
    flags: i64,
    mode: i64,
    result: i64,
}

const ATTEMPTS: usize = 60;
/// What `openat` adds to the flags of every 64-bit program.
const O_LARGEFILE: i64 = 0x8000;

/// The lines `openat 77 NAME FLAGS MODE = RESULT`.
fn attempts(ended: &Ended) -> Vec<Attempt> {
    let lines = ended.stdout.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["openat", "77", name, flags, mode, "=", result] = words[..] else {
            return None;
        };
        let number = |text: &str| text.parse().unwrap();
        Some(Attempt {
            name: name.to_owned(),
            flags: number(flags),
            mode: number(mode),
            result: number(result),
        })
    });
    let found: Vec<Attempt> = lines.collect();
    assert_eq!(found.len(), ATTEMPTS, "{ended}");
    found
}

fn text(of: &Value) -> &str {
    of["text"]
        .as_str()
        .unwrap_or_else(|| panic!("{of} is no text"))
}

/// No debug information but the kernel's own BTF.
#[test]
fn probes_show_what_was_opened_and_with_what() {
    let probes = [
        "--probe",
        "do_sys_openat2 dfd filename:string how->flags how->mode if dfd == 77",
        "--probe",
        "vfs_open path->dentry->d_name.name:string",
    ];
    let script = format!("opens {ATTEMPTS}");
    let guest = Guest::linux(&script, None).vcpus(2).with(probes);
    let (ended, trace) = guest.output().run();
    let ended = ended.good();
    let attempts = attempts(&ended);
    let opens = trace.fields("do_sys_openat2");
    assert_eq!(opens.len(), ATTEMPTS);
    for (fields, attempt) in opens.iter().zip(&attempts) {
        assert_eq!(fields["dfd"], 77);
        assert_eq!(text(&fields["filename"]), attempt.name);
        assert_eq!(fields["how->flags"], json!(attempt.flags | O_LARGEFILE));
        assert_eq!(fields["how->mode"], json!(attempt.mode));
    }
    let all = trace.fields("vfs_open");
    let names: Vec<&str> = all
        .iter()
        .map(|fields| text(&fields["path->dentry->d_name.name"]))
        .filter(|name| name.starts_with("opened-"))
        .collect();
    let expected: Vec<&str> = attempts
        .iter()
        .filter(|attempt| attempt.result >= 0)
        .map(|attempt| &*attempt.name)
        .collect();
    assert_eq!(names, expected);
}

#[test]
fn the_graph_shows_arguments_and_the_value_that_came_back() {
    let options = [
        "--trace",
        "graph",
        "--filter",
        "do_sys_openat2",
        "--args",
        "--retval",
    ];
    let script = format!("opens {ATTEMPTS}");
    let guest = Guest::linux(&script, None).vcpus(2).with(options);
    let (ended, trace) = guest.output().run();
    let attempts = attempts(&ended.good());
    let graph = trace.report("graph");
    let lines = graph
        .lines()
        .filter(|line| line.contains("do_sys_openat2(dfd=77, "));
    let results: Vec<i64> = lines
        .map(|line| {
            let (_, value) = line.rsplit_once(" = ").unwrap_or_else(|| panic!("{line}"));
            let number = value.split([' ', ';', '*', '/']).next().unwrap();
            number.parse().unwrap_or_else(|_| panic!("{line}"))
        })
        .collect();
    let expected: Vec<i64> = attempts.iter().map(|attempt| attempt.result).collect();
    assert_eq!(results, expected, "{graph}");
}

/// The last resort in a kernel that knows nothing of us: two bytes that leave the guest, each time.
#[test]
fn a_breakpoint_leaves_the_guest_once_for_each_hit() {
    const CALLS: u64 = 300;
    let function = "__x64_sys_sched_get_priority_max";
    let guest = Guest::linux("", None).vcpus(2);
    let guest = guest.with(["--probe", &format!("{function} %rdi")]);
    let mut running = guest.output().start();
    running.wait_for("a shell on ttyS0");
    let place = format!("{function}+0x5 %rax:x64");
    let added = running.ctl(&["probe", "add", &place, "--tactic", "5"]);
    assert!(added.good().stdout.contains("5 (breakpoint)"));
    running.type_text(&format!("syscalls {CALLS}\n"));
    running.wait_for(&format!("made {CALLS}"));
    let list = running.client().call("probe.list", Value::Null);
    let hits: Vec<&Value> = list["probes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|probe| &probe["hits"])
        .collect();
    assert_eq!(hits, [&json!(CALLS), &json!(CALLS)], "{list}");
    assert_eq!(list["exits"], CALLS, "{list}");
    let removed = running.ctl(&["probe", "remove", "2"]);
    let _ = removed.good();
    running.type_text("syscalls 5\n");
    running.wait_for("made 5");
    let list = running.client().call("probe.list", Value::Null);
    assert_eq!(list["exits"], CALLS, "{list}");
    running.type_text("exit 0\n");
    let _ = running.end().0.good();
}
