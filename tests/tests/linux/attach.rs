//! `vmm attach` to a stock Linux of another VMM, without any file of its kernel.

use std::time::Instant;

use serde_json::{Value, json};
use tests::{
    Client, Guest, Running, guest, linux, look_again, patience, usual_or_long, vmm_says, with_file,
};

use crate::shell::Shell;

fn attach(to: &Running, options: &[&str]) -> Running {
    let attached = Guest::attached(to.pid(), None);
    let one = |attached: Guest, option: &&str| attached.with([*option]);
    let mut attached = options.iter().fold(attached, one).output().start();
    attached.client().status();
    attached
}

#[test]
fn system_calls_are_counted_exactly_and_the_text_is_given_back() {
    let mut shell = Shell::start();
    let text = shell.client().digest();
    let function = "__x64_sys_sched_get_priority_max";
    for tracer in ["function", "graph"] {
        let options = ["--trace", tracer, "--mode", "discard", "--filter", function];
        let attached = attach(&shell.running, &options);
        assert_ne!(
            shell.client().digest(),
            text,
            "{tracer}: nothing was changed"
        );
        shell.does("syscalls 12345");
        assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
        let (ended, trace) = attached.end();
        assert_eq!(ended.code, Some(0), "{ended}");
        let counts: Vec<_> = trace.uftrace().into_iter().collect();
        assert_eq!(counts, [(function.to_owned(), 12345)], "{tracer}: {ended}");
        assert_eq!(shell.client().digest(), text, "{tracer}");
    }
    let _ = shell.end();
}

/// Where the current task is, this kernel's types say, which are found in its memory, too.
#[test]
fn only_the_calls_of_some_tasks_are_recorded() {
    let mut shell = Shell::start();
    let text = shell.client().digest();
    let function = "__x64_sys_sched_get_priority_max";
    shell.does("cp /bin/syscalls /bin/make-calls");
    for (only, expected) in [("--only-tasks", 70), ("--not-tasks", 5)] {
        let options = [
            "--trace", "function", "--mode", "discard", "--filter", function, only, "syscalls",
        ];
        let attached = attach(&shell.running, &options);
        shell.does("syscalls 70; make-calls 5");
        assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
        let (ended, trace) = attached.end();
        assert_eq!(ended.code, Some(0), "{ended}");
        let counts: Vec<_> = trace.uftrace().into_iter().collect();
        assert_eq!(counts, [(function.to_owned(), expected)], "{only}: {ended}");
        assert_eq!(trace.lost(), 0);
        assert_eq!(shell.client().digest(), text, "{only}");
    }
    let _ = shell.end();
}

#[test]
fn the_graph_of_an_open_is_that_of_every_function() {
    let mut shell = Shell::start();
    let text = shell.client().digest();
    let options = ["--trace", "graph", "--graph-function", "do_sys_openat2"];
    let attached = attach(&shell.running, &options);
    shell.does("cat /proc/version");
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, trace) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    let graph = trace.report("graph");
    let mut rest = graph.as_str();
    for child in [
        "|  do_sys_openat2() {",
        "|    getname",
        "|    do_filp_open() {",
        "|      path_openat() {",
        "|    fd_install",
        "|  }",
    ] {
        let at = rest.find(child);
        rest = &rest[at.unwrap_or_else(|| panic!("no '{child}' in order: {graph}"))..];
    }
    assert_eq!(shell.client().digest(), text);
    shell.does("cat /proc/version");
    let _ = shell.end();
}

/// Under QEMU the kernel moves itself (KASLR), and nobody tells us where.
#[test]
fn a_linux_of_qemu_is_traced_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo step up; while read line; do eval $line; echo did $line; done";
    let initrd = with_file(folder.path(), "shell", script.as_bytes());
    let name = format!("exotrace-linux-{}", std::process::id());
    let mut qemu = Guest::linux_under_qemu(&name, "sh /shell", &initrd, 2).start();
    // Not a word that the kernel may have in its own lines: it is "up" that comes in "soft lockup", which a busy host makes it say.
    qemu.wait_for("step up");
    let listed = vmm_says(&["ps", "--guest"]);
    let row = listed.stdout.lines().find(|row| row.contains(&name));
    let row = row.unwrap_or_else(|| panic!("{listed}"));
    assert!(row.contains("512 MiB") && row.contains("Linux 6."), "{row}");
    let function = "__x64_sys_sched_get_priority_max";
    let file = linux().0;
    let usual = [
        ("function", 12345, None),
        ("graph", 1234, Some(file.as_path())),
    ];
    let long = [
        ("graph", 1234, None),
        ("function", 234, Some(file.as_path())),
    ];
    for (tracer, calls, file) in usual.into_iter().chain(long).take(usual_or_long(2, 4)) {
        let attached = Guest::attached(qemu.pid(), file).with(["--filter", function]);
        let attached = attached.with(["--trace", tracer, "--mode", "discard"]);
        let mut attached = attached.output().start();
        attached.client().status();
        qemu.type_text(&format!("syscalls {calls}\n"));
        qemu.wait_for(&format!("did syscalls {calls}"));
        assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
        let (ended, trace) = attached.end();
        assert_eq!(ended.code, Some(0), "{ended}");
        let counts: Vec<_> = trace.uftrace().into_iter().collect();
        assert_eq!(counts, [(function.to_owned(), calls)], "{tracer}: {ended}");
    }
    // The bundled guest's kernel is another one.
    let (pid, other) = (qemu.pid().to_string(), guest());
    let other = other.to_str().unwrap();
    let said = vmm_says(&["attach", &pid, "--kernel", other, "--trace", "function"]);
    assert_ne!(said.code, Some(0), "{said}");
    let attached = attach(&qemu, &["--trace", "graph"]);
    qemu.type_text("cat /proc/version\n");
    qemu.wait_for("did cat");
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, _) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    qemu.type_text("exit\n");
    let _ = qemu.end();
}

/// The functions of the module that are listed as patched.
fn patched(client: &mut Client, glob: &str) -> usize {
    let listed = client.call("functions", json!({"glob": glob}));
    let functions = listed["functions"].as_array().unwrap();
    let patched = functions.iter().filter(|one| one["state"] == "patched");
    patched.count()
}

/// Asks until as many are patched as `enough` wants.
fn until(client: &mut Client, glob: &str, enough: impl Fn(usize) -> bool) {
    let deadline = Instant::now() + patience();
    loop {
        let patched = patched(client, glob);
        if enough(patched) {
            return;
        }
        assert!(Instant::now() < deadline, "{glob}: {patched} are patched");
        look_again();
    }
}

/// Types, probes, modules and the end: all that a file of the kernel would tell comes from the guest's memory.
#[test]
fn values_modules_and_a_panic_of_a_linux_of_qemu_are_seen_without_a_file() {
    const OPENS: usize = 12;
    const MODULE: &str = "mod:binfmt_misc:bm_status_*";
    const COME: &str = "insmod /modules/binfmt_misc.ko && mount -t binfmt_misc none $F";
    const USE: &str = "dd if=$F/status of=/dev/null bs=4096 count=1 2>/dev/null";
    let folder = tempfile::tempdir().unwrap();
    let script = "F=/proc/sys/fs/binfmt_misc; N=0; echo step up; while read line; do eval \"$line\"; N=$((N + 1)); echo did $N.; done";
    let initrd = with_file(folder.path(), "shell", script.as_bytes());
    let name = format!("exotrace-values-{}", std::process::id());
    let mut qemu = Guest::linux_under_qemu(&name, "sh /shell", &initrd, 2).start();
    qemu.wait_for("step up");
    let mut lines = 0;
    let mut does = |qemu: &mut Running, line: &str| {
        qemu.type_text(&format!("{line}\n"));
        lines += 1;
        qemu.wait_for(&format!("did {lines}."));
    };
    let mut attached = attach(
        &qemu,
        &[
            "--trace",
            "graph",
            "--filter",
            "do_sys_openat2",
            "--filter",
            MODULE,
            "--args",
            "--retval",
            "--probe",
            "vfs_open name=path->dentry->d_name.name:string",
        ],
    );
    let mut client = attached.client();
    does(&mut qemu, &format!("opens {OPENS}"));
    assert_eq!(patched(&mut client, MODULE), 0);
    for _ in 0..2 {
        does(&mut qemu, COME);
        until(&mut client, MODULE, |patched| patched > 0);
        does(&mut qemu, USE);
        does(&mut qemu, "umount $F && rmmod binfmt_misc");
        until(&mut client, MODULE, |patched| patched == 0);
    }
    assert_eq!(client.status()["tracing"]["frozen"], Value::Null);
    drop(client);
    // Time enough for somebody who looks from outside.
    does(&mut qemu, "echo 10 >/proc/sys/kernel/panic");
    qemu.type_text("echo c >/proc/sysrq-trigger\n");
    let (ended, trace) = attached.end();
    // Whether the guest resets itself is between it and its VMM: an emulated one can fail at it (images/README.md).
    drop(qemu);
    for word in ["the guest's kernel panics", "last 20 calls of each vCPU"] {
        assert!(ended.stderr.contains(word), "no '{word}': {ended}");
    }
    let graph = trace.report("graph");
    let opens = graph
        .lines()
        .filter(|line| line.contains("do_sys_openat2(dfd=77, "));
    assert_eq!(opens.clone().count(), OPENS, "{graph}");
    // Every third file does not exist: ENOENT.
    let missing = opens.filter(|line| line.ends_with(") = -2;"));
    assert_eq!(missing.count(), OPENS / 3, "{graph}");
    let counts = trace.uftrace();
    assert_eq!(counts.get("bm_status_read"), Some(&2), "{counts:?}");
    let names = trace.fields("vfs_open");
    let name = |fields: &Value| fields["name"]["text"].clone();
    assert!(
        names.iter().any(|fields| name(fields) == "status"),
        "{graph}"
    );
}
