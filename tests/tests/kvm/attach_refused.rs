//! Guests that `vmm attach` does not trace, each told in one line, with nothing of ours left in it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tests::users::nobody_says;
use tests::{Guest, bare_guest, foreign_kernel, guest, vmm_says};

use crate::attach::{attach, digest, left_in, other};

#[test]
fn what_is_no_guest_is_refused_in_one_line() {
    let kernel = guest();
    let kernel = kernel.to_str().unwrap();
    let own = std::process::id().to_string();
    let trace = ["--trace", "function", "--kernel", kernel];
    for (target, word) in [
        ("2147483647", "no process"),
        (own.as_str(), "no KVM virtual machine"),
        ("nobody-is-called-so", "nobody-is-called-so"),
    ] {
        let said = vmm_says(&[&["attach", target], &trace[..]].concat());
        assert!(said.refused(100).contains(word), "{said}");
    }
    // Said before anybody is looked at, or held.
    for (filter, why) in [
        ("spin_one[", "bad glob 'spin_one['"),
        ("no_such_function", "no function matches 'no_such_function'"),
    ] {
        let said = vmm_says(&[&["attach", &own], &trace[..], &["--filter", filter]].concat());
        assert!(said.refused(100).contains(why), "{said}");
    }
    let lossless = ["--mode", "lossless", "--output", "never"];
    let said = vmm_says(&[&["attach", &own], &trace[..], &lossless].concat());
    let why = "--mode lossless: the vCPUs of another VMM";
    assert!(said.refused(100).contains(why), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let output = ["--output", folder.path().to_str().unwrap()];
    let said = vmm_says(&[&["attach", &own], &trace[..], &output].concat());
    assert!(said.refused(100).contains("exists already"), "{said}");
}

/// Somebody else holds all threads of a process by ptrace, until this is dropped.
struct Debugger(Child);

fn debugged(pid: &str) -> Debugger {
    const SEIZE: &str = "import ctypes, os, sys
libc = ctypes.CDLL(None)
for thread in os.listdir(f'/proc/{sys.argv[1]}/task'): libc.ptrace(0x4206, int(thread), 0, 0)
print('held', flush=True)
sys.stdin.read()";
    let mut python = Command::new("python3");
    python.args(["-c", SEIZE, pid]).stdin(Stdio::piped());
    let mut python = python.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let said = BufReader::new(python.stdout.as_mut().unwrap()).read_line(&mut line);
    assert_eq!((said.unwrap(), line.as_str()), (5, "held\n"));
    Debugger(python)
}

impl Drop for Debugger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Each kind of guest that cannot be traced, told in one line by who wants to, and by who asks why.
#[test]
fn a_guest_that_can_be_traced_is_told_from_one_that_cannot() {
    let other = other();
    let (pid, before) = (other.pid().to_string(), left_in(&other));
    let tried = vmm_says(&["doctor", "--attach", &pid]);
    assert_eq!(tried.code, Some(0), "{tried}");
    assert!(
        tried.stdout.contains("This guest can be traced."),
        "{tried}"
    );
    assert_eq!(left_in(&other), before, "{tried}");
    let refused = |needle: &str| {
        let tried = vmm_says(&["doctor", "--attach", &pid, "--json"]);
        assert_eq!(tried.code, Some(1), "{tried}");
        let report: serde_json::Value = serde_json::from_str(&tried.stdout).unwrap();
        let last = report["checks"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["verdict"], "missing", "{last}");
        assert!(last["name"].as_str().unwrap().contains(needle), "{last}");
    };
    let attached = attach(&other, &[]);
    refused("nobody else");
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let _ = attached.end();
    let debugger = debugged(&pid);
    refused("ptrace");
    let kernel = guest();
    let kernel = kernel.to_str().unwrap();
    let said = vmm_says(&["attach", &pid, "--trace", "function", "--kernel", kernel]);
    let who = format!("process {} traces it", debugger.0.id());
    assert!(said.refused(100).contains(&who), "{said}");
    assert_eq!(left_in(&other), before, "{said}");
    drop(debugger);
    assert_eq!(vmm_says(&["doctor", "--attach", &pid]).code, Some(0));
}

/// A guest that has not started yet executes no 64-bit code; one that is no Linux has no kernel that could be read.
#[test]
fn a_guest_without_a_kernel_that_is_known_is_refused_and_has_nothing_of_ours() {
    let name = format!("exotrace-unstarted-{}", std::process::id());
    let unstarted = Guest::under_qemu(&name, "workload=list,spin", 2);
    let unstarted = unstarted.with(["-S"]).start();
    drop(unstarted.monitor());
    let running = other();
    for (of, needle) in [(&unstarted, "64-bit"), (&running, "IA32_LSTAR")] {
        let (pid, before) = (of.pid().to_string(), left_in(of));
        let said = vmm_says(&["attach", &pid, "--trace", "function"]);
        assert!(said.refused(100).contains(needle), "{said}");
        assert_eq!(left_in(of), before, "{said}");
    }
}

/// It was said that its memory was not found, and that the VMM was to be started otherwise.
#[test]
fn a_guest_that_its_own_vmm_has_traced_is_refused_with_who_traces_it() {
    let mut other = other();
    let mut client = other.client();
    client.call("start", json!({"filter": ["many_0001"]}));
    client.call("stop", Value::Null);
    drop(client);
    let (pid, file) = (other.pid().to_string(), guest());
    let file = file.to_str().unwrap();
    let said = vmm_says(&["attach", &pid, "--kernel", file, "--trace", "function"]);
    assert_eq!(said.code, Some(100), "{said}");
    assert!(said.stderr.contains("trace it by its --control"), "{said}");
    other.type_text("q");
    let _ = other.end().0.good();
}

/// The file must be of the kernel that runs: another build of it is another kernel, and so is a kernel of somebody else.
#[test]
fn another_kernels_file_is_refused_and_nothing_of_ours_is_left() {
    let mut running = other();
    let (pid, before) = (running.pid().to_string(), left_in(&running));
    let text = digest(&mut running);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("seen");
    let output = ["--output", output.to_str().unwrap()];
    for kernel in [bare_guest(), foreign_kernel("prefix")] {
        let kernel = kernel.to_str().unwrap();
        let attach = ["attach", &pid, "--trace", "function", "--kernel", kernel];
        let said = vmm_says(&[&attach[..], &output].concat());
        assert_eq!(said.code, Some(105), "{said}");
        said.no_panic();
        assert!(
            said.stderr
                .contains("another kernel runs than that of the file"),
            "{said}"
        );
        assert_eq!(left_in(&running), before, "{said}");
        // A trace that nobody has begun would be in the way of the next attempt.
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{said}");
    }
    assert_eq!(digest(&mut running), text);
}

/// What is asked for is known once the guest's functions are, which is after its trace was begun.
#[test]
fn a_trace_that_comes_to_nothing_after_it_was_begun_is_taken_away() {
    let running = other();
    let (pid, before, file) = (running.pid().to_string(), left_in(&running), guest());
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("seen");
    let attach = [
        "attach",
        &pid,
        "--kernel",
        file.to_str().unwrap(),
        "--trace",
        "function",
        "--filter",
        "no_such_function_*",
        "--output",
        output.to_str().unwrap(),
    ];
    for force in [&[][..], &["--force"]] {
        let said = vmm_says(&[&attach[..], force].concat());
        assert!(said.code != Some(0), "{said}");
        said.no_panic();
        assert!(said.stderr.contains("no_such_function_"), "{said}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{said}");
        assert_eq!(left_in(&running), before, "{said}");
    }
    // What is in the way of a forced one is said before the guest is held.
    std::fs::create_dir(&output).unwrap();
    std::fs::write(output.join("notes.txt"), "mine").unwrap();
    let said = vmm_says(&[&attach[..], &["--force"]].concat());
    assert!(said.code != Some(0), "{said}");
    assert!(said.stderr.contains("notes.txt"), "{said}");
    assert!(!said.stderr.contains("attached to"), "{said}");
}

#[test]
fn whoever_may_not_look_at_the_vmm_is_told_what_it_takes() {
    let other = other();
    let pid = other.pid().to_string();
    let said = nobody_says(&["attach", &pid, "--trace", "function"]);
    assert!(said.refused(100).contains("CAP_SYS_PTRACE"), "{said}");
}
