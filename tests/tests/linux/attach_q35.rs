//! `vmm attach` to a stock Linux under QEMU's usual machine, q35, with its firmware, without any file of its kernel: all
//! tracers, all functions, values, and what it cannot have.

use serde_json::{Value, json};
use tests::{Client, Guest, Running, with_file};

/// A shell in a QEMU of its own, that says when it has done a line.
struct Shell {
    qemu: Running,
    lines: usize,
    _folder: tempfile::TempDir,
}

impl Shell {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script =
            "N=0; echo up; while read line; do eval \"$line\"; N=$((N + 1)); echo did $N.; done";
        let initrd = with_file(folder.path(), "shell", script.as_bytes());
        let qemu = Guest::linux_under_qemu("exotrace-q35", "sh /shell", &initrd, 2);
        let qemu = qemu.with(["-M", "q35"]).start();
        qemu.wait_for("up");
        Self {
            qemu,
            lines: 0,
            _folder: folder,
        }
    }

    fn does(&mut self, line: &str) {
        self.qemu.type_text(&format!("{line}\n"));
        self.lines += 1;
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
fn attached(shell: &mut Shell, what: impl FnOnce(&mut Shell, &mut Client, &Running)) {
    let mut attached = Guest::attached(shell.qemu.pid(), None).start();
    let mut client = attached.client();
    let text = client.digest();
    what(shell, &mut client, &attached);
    assert_eq!(client.digest(), text);
    drop(client);
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, _) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
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
    attached(&mut shell, |shell, client, attached| {
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
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", shell.qemu.pid())).unwrap();
    let ours = maps.lines().filter(|line| line.contains("exotrace"));
    assert_eq!(ours.count(), 0, "{maps}");
    // All there are, which nobody counts. An interrupt of a stub leaves its address on a stack, where it may stay.
    attached(&mut shell, |shell, client, _| {
        client.call("start", json!({"tracer": "graph"}));
        let status = client.status();
        let traced = status["tracing"]["sessions"][0]["traced"].as_u64();
        assert!(traced > Some(30_000), "{status}");
        shell.does(&format!("syscalls {CALLS}"));
        assert!(written(&client.status(), "default") > CALLS);
        client.call("stop", json!({}));
    });
    shell.does(&format!("syscalls {CALLS}"));
    shell.qemu.type_text("exit\n");
    let _ = shell.qemu.end();
}
