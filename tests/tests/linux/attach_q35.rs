//! `vmm attach` to a stock Linux under QEMU's usual machine, q35, with its firmware, without any file of its kernel: all
//! tracers, all functions, values, what it cannot have, and processors that come and go.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::{
    Client, Ended, Guest, Monitor, Running, kernels, linux, usual_or_long, vmm_says, with_file,
};

/// A shell in a QEMU of its own, that says when it has done a line.
struct Shell {
    qemu: Running,
    lines: usize,
    _folder: tempfile::TempDir,
}

impl Shell {
    fn start() -> Self {
        Self::start_of(&linux().0, "")
    }

    /// With this kernel, and these words on its command line.
    fn start_of(kernel: &Path, words: &str) -> Self {
        Self::start_with(kernel, words, "2")
    }

    /// And with these processors, as QEMU has them.
    fn start_with(kernel: &Path, words: &str, processors: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = "N=0; echo step up; while read line; do eval \"$line\"; N=$((N + 1)); echo did $N.; done";
        let initrd = with_file(folder.path(), "shell", script.as_bytes());
        let name = format!("exotrace-q35-{}", std::process::id());
        let qemu = Guest::linux_under_qemu_of(&name, kernel, words, "sh /shell", &initrd, 2);
        let qemu = qemu.with(["-M", "q35", "-smp", processors]).start();
        qemu.wait_for("step up");
        Self {
            qemu,
            lines: 0,
            _folder: folder,
        }
    }

    fn does(&mut self, line: &str) {
        self.begins(line);
        self.has_done();
    }

    fn begins(&mut self, line: &str) {
        self.qemu.type_text(&format!("{line}\n"));
        self.lines += 1;
    }

    fn has_done(&self) {
        self.qemu.wait_for(&format!("did {}.", self.lines));
    }
}

/// How many records a session has written.
fn written(status: &Value, name: &str) -> u64 {
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    let session = sessions.iter().find(|one| one["name"] == name).unwrap();
    let rings = session["rings"].as_array().unwrap();
    rings
        .iter()
        .filter_map(|ring| ring["written"].as_u64())
        .sum()
}

/// Attaches to the guest, has `what` done, and lets it go: its text is as before each time.
fn attached(shell: &mut Shell, what: impl FnOnce(&mut Shell, &mut Client, &Running)) -> Ended {
    let mut attached = Guest::attached(shell.qemu.pid(), None).start();
    let mut client = attached.client();
    let text = client.digest();
    what(shell, &mut client, &attached);
    assert_eq!(client.digest(), text);
    drop(client);
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, _) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    ended
}

/// How many windows its VMM has.
fn windows(shell: &Shell) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", shell.qemu.pid())).unwrap();
    maps.matches("exotrace").count()
}

/// Traces all functions while `line` is done.
fn all_functions(shell: &mut Shell, client: &mut Client, line: &str) {
    client.call("start", json!({"tracer": "graph"}));
    let status = client.status();
    let traced = status["tracing"]["sessions"][0]["traced"].as_u64();
    assert!(traced > Some(30_000), "{status}");
    shell.does(line);
    assert!(written(&client.status(), "default") > CALLS);
    client.call("stop", json!({}));
}

/// Traces all functions while `line` is done, and lets go: nothing is left, and the guest does `after`.
fn leaves_nothing(mut shell: Shell, line: &str, after: &str) {
    let ended = attached(&mut shell, |shell, client, _| {
        all_functions(shell, client, line)
    });
    assert_eq!(windows(&shell), 0, "{ended}");
    shell.does(after);
    shell.qemu.type_text("exit\n");
    let _ = shell.qemu.end();
}

/// `syscalls` calls this, and nothing else does.
const FUNCTION: &str = "__x64_sys_sched_get_priority_max";
const CALLS: u64 = 3210;

/// A session of one function counts its calls.
fn counted(shell: &mut Shell, client: &mut Client, name: &str, tracer: &str, clock: &str) -> u64 {
    let options = json!({"name": name, "tracer": tracer, "options": {"clock": clock}});
    client.call("session.create", options);
    client.call("start", json!({"session": name, "filter": [FUNCTION]}));
    shell.does(&format!("syscalls {CALLS}"));
    let counted = match tracer {
        "profile" => {
            let profile = client.call("profile", json!({"session": name}));
            let function = &profile["functions"][0];
            assert_eq!(function["name"], FUNCTION, "{profile}");
            function["hits"].as_u64().unwrap()
        }
        _ => written(&client.status(), name),
    };
    client.call("session.delete", json!({"session": name}));
    counted
}

#[test]
fn a_linux_of_a_usual_machine_is_traced_in_every_way_and_let_go_as_it_was() {
    let mut shell = Shell::start();
    let ended = attached(&mut shell, |shell, client, attached| {
        for (name, tracer, clock) in [("hits", "profile", "tsc"), ("paged", "function", "page")] {
            assert_eq!(counted(shell, client, name, tracer, clock), CALLS, "{name}");
        }
        // That would leave the guest.
        client.call("start", json!({"filter": [FUNCTION]}));
        let breakpoint = ["probe", "add", "--tactic", "5", "do_sys_openat2+5", "%rdi"];
        let said = attached.ctl(&breakpoint);
        assert_eq!(said.code, Some(100), "{said}");
        assert!(said.stderr.contains("tactic 5"), "{said}");
        client.call("stop", json!({}));
    });
    assert_eq!(windows(&shell), 0, "{ended}");
    // All there are, which nobody counts. An interrupt of a stub leaves its address on a stack, and calls that are noted down
    // leave it anywhere: its kernel returns by none of them.
    let work = format!("syscalls {CALLS}");
    leaves_nothing(shell, &work, &work);
}

/// A frame has room for what it does not write, that of `poll` for hundreds of bytes. In a kernel that does not clear it there stay
/// addresses of stubs, by which nobody returns. And of the machine's vCPUs the firmware has halted one in protected mode, which
/// that kernel does not start: nothing comes back from there.
#[test]
fn tasks_that_wait_and_vcpus_that_were_never_started_keep_nothing_of_ours() {
    const WAITING: &str = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 10000 | while read x; do :; done & done; \
                           until [ $(cat /proc/[0-9]*/stat | grep -c '(sh) S') -ge 11 ]; do :; done";
    let mut all = kernels(Some("suite")).into_iter();
    let old = all.find(|kernel| kernel.name == "old").unwrap();
    let old = (old.image(), old.boots_with);
    let of_today = (linux().0, String::new());
    for (kernel, words) in usual_or_long(vec![old.clone()], vec![old, of_today]) {
        let shell = Shell::start_of(&kernel, &format!("{words} maxcpus=1"));
        let work = format!("syscalls {CALLS}; ls / | cat > /dev/null");
        leaves_nothing(shell, &format!("{WAITING}; {work}"), &work);
    }
}

#[test]
fn a_linux_that_works_goes_on_however_often_it_is_let_go() {
    let times = usual_or_long(1, 2);
    let mut shell = Shell::start();
    // Tasks that begin and end, and wait for each other.
    shell.does("while :; do ls / | cat | wc -l > /dev/null; done & A=$!");
    let work = format!("syscalls {CALLS}; ls / | cat > /dev/null");
    let mut left = 0;
    for _ in 0..times {
        let ended = attached(&mut shell, |shell, client, _| {
            all_functions(shell, client, &work)
        });
        shell.does(&work);
        // Preempted in a stub, it may have to keep it; the next time finds it.
        left += windows(&shell);
        assert!(windows(&shell) <= 1, "{ended}");
    }
    println!("let go {times} times, with {left} windows left");
    shell.does("kill $A; wait");
    // A tracer that is killed leaves all its jumps and open calls.
    let mut attached = Guest::attached(shell.qemu.pid(), None).start();
    let mut client = attached.client();
    client.call("start", json!({"tracer": "graph"}));
    shell.does(&work);
    let pid = i32::try_from(attached.pid()).ok().and_then(Pid::from_raw);
    kill_process(pid.unwrap(), Signal::KILL).unwrap();
    let _ = attached.end();
    shell.does(&work);
    // What was in a stub then, or had been, may still lead to one; the text is whole after the first time.
    for time in 1.. {
        let restored = vmm_says(&["attach", &shell.qemu.pid().to_string(), "--restore"]);
        assert_eq!(restored.code, Some(0), "{restored}");
        println!("{time}: {restored}");
        assert!(
            time > 1 || restored.stderr.contains("restored"),
            "{restored}"
        );
        shell.does(&work);
        if windows(&shell) == 0 {
            break;
        }
        assert!(restored.stderr.contains("try again later"), "{restored}");
        assert!(time < 20, "it is never let go: {restored}");
    }
    shell.qemu.type_text("exit\n");
    let _ = shell.qemu.end();
}

/// Masks of processors, and calls that are made on each.
const EACH: [(&str, u64); 3] = [("4", 100), ("2", 20), ("1", 3)];

/// The device that QEMU plugs in for a processor that can still come.
fn pluggable(monitor: &mut Monitor) -> Value {
    let all = monitor.command("query-hotpluggable-cpus", &json!({}));
    let mut all = all.as_array().unwrap().iter();
    // From the last to the first one.
    let free = all.rfind(|one| one.get("qom-path").is_none()).unwrap();
    let mut device = free["props"].clone();
    device["driver"] = free["type"].clone();
    device["id"] = json!("late");
    device
}

/// The guest waits until a processor is there, or is not.
fn cpu_2(is_there: bool) -> String {
    let not = if is_there { "!" } else { "" };
    format!("while [ {not} -e /sys/devices/system/cpu/cpu2 ]; do sleep 0.1; done")
}

/// It was once neither held nor known to have no cell: its stubs would have written where nothing is.
#[test]
fn a_processor_that_is_plugged_in_or_pulled_out_while_a_guest_is_traced_does_no_harm() {
    let mut shell = Shell::start_with(&linux().0, "", "2,maxcpus=3");
    let mut monitor = shell.qemu.monitor();
    let device = pluggable(&mut monitor);
    let ended = attached(&mut shell, |shell, client, _| {
        client.call("start", json!({"tracer": "graph"}));
        assert_eq!(client.status()["tracing"]["cpu_strategy"], "gs");
        monitor.command("device_add", &device);
        shell.does(&cpu_2(true));
        shell.does("echo 1 >/sys/devices/system/cpu/cpu2/online");
        // All there are, on it and while text is changed.
        shell.does(&format!("taskset 4 syscalls {CALLS}"));
        client.call("stop", json!({}));
        for tracer in ["profile", "function", "graph"] {
            let options = json!({"name": "some", "tracer": tracer});
            client.call("session.create", options);
            shell.begins(&format!(
                "taskset 4 syscalls {CALLS}; taskset 1 syscalls {CALLS}"
            ));
            for _ in 0..10 {
                let filter = json!({"session": "some", "filter": ["vfs_*", "__x64_sys_*"]});
                client.call("start", filter);
                client.call("stop", json!({"session": "some"}));
            }
            shell.has_done();
            client.call("session.delete", json!({"session": "some"}));
        }
        let status = client.status();
        let vcpus = status["vcpus"].as_array().unwrap().iter();
        let states: Vec<_> = vcpus.filter_map(|vcpu| vcpu["state"].as_str()).collect();
        assert_eq!(states, ["running", "running", "running, not recorded"]);
        assert_eq!(counted_on(shell, client, &EACH), 23);
    });
    assert!(ended.stderr.contains("has got vCPU 2"), "{ended}");
    assert_eq!(windows(&shell), 0, "{ended}");
    // Who attaches anew records it, until it is pulled out.
    let ended = attached(&mut shell, |shell, client, _| {
        assert_eq!(counted_on(shell, client, &EACH), 123);
        monitor.command("device_del", &json!({"id": "late"}));
        shell.does(&cpu_2(false));
        assert_eq!(counted_on(shell, client, &EACH[1..]), 23);
        monitor.command("device_add", &device);
        shell.does(&cpu_2(true));
        shell.does("echo 1 >/sys/devices/system/cpu/cpu2/online");
        assert_eq!(counted_on(shell, client, &EACH), 123);
    });
    assert_eq!(windows(&shell), 0, "{ended}");
    shell.does("syscalls 10");
    shell.qemu.type_text("exit\n");
    let _ = shell.qemu.end();
}

/// How many calls a session has recorded of those that were made on processors of these masks.
fn counted_on(shell: &mut Shell, client: &mut Client, made: &[(&str, u64)]) -> u64 {
    client.call(
        "session.create",
        json!({"name": "on", "tracer": "function"}),
    );
    client.call("start", json!({"session": "on", "filter": [FUNCTION]}));
    let lines: Vec<_> = made
        .iter()
        .map(|(mask, calls)| format!("taskset {mask} syscalls {calls}"))
        .collect();
    shell.does(&lines.join("; "));
    let counted = written(&client.status(), "on");
    client.call("session.delete", json!({"session": "on"}));
    counted
}
