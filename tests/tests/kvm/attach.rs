//! `vmm attach`: the guest of another VMM is traced, and let go as it was. The other VMM is `vmm run` in another process.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::exact::{EVERYTHING, gated, untraced, without_gate};
use tests::{Client, Ended, Guest, Random, Running, guest, scaled, vmm_says};

/// A VMM whose guest spins until a `q` is typed.
pub fn other() -> Running {
    Guest::spinning(&[])
}

/// Somebody attached to it, ready for `vmm ctl`.
pub fn attach(to: &Running, options: &[&str]) -> Running {
    let one = |attached: Guest, option: &&str| attached.with([*option]);
    let attached = Guest::attached(to.pid(), Some(&guest()));
    let mut attached = options.iter().fold(attached, one).start();
    attached.client().status();
    attached
}

/// What the process has mapped and open.
pub fn left_in(process: &Running) -> (BTreeSet<String>, BTreeSet<PathBuf>) {
    let proc = PathBuf::from(format!("/proc/{}", process.pid()));
    let maps = std::fs::read_to_string(proc.join("maps")).unwrap();
    let ours = maps.lines().filter(|line| line.contains("exotrace"));
    let entries = std::fs::read_dir(proc.join("fd")).unwrap();
    let targets = entries.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    let files = targets.filter(|target| target.to_string_lossy().contains("memfd"));
    (ours.map(str::to_owned).collect(), files.collect())
}

pub fn digest(of: &mut Running) -> String {
    of.client().digest()
}

fn send(to: &Running, signal: Signal) {
    let pid = Pid::from_raw(to.pid().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn traced_exactly(tracer: &str, workloads: &str, rest: &str) {
    let guest_of = || gated(workloads, rest).vcpus(2);
    let expected = untraced(guest_of());
    let mut other = guest_of().start();
    other.wait_for("workload spin");
    // Holds all records of either vCPU: how fast they are read does not matter.
    let options = ["--mode", "discard", "--ring-size", "65536"];
    let attached = Guest::attached(other.pid(), Some(&guest()));
    let mut attached = attached.with(options).output().start();
    let wanted = json!({"tracer": tracer, "notrace": ["spin_*"]});
    attached.client().call("start", wanted);
    other.type_text("q");
    let (ended, _) = other.end();
    let printed = without_gate(ended.good().printed());
    assert_eq!(printed, expected, "tracing changed what the guest computes");
    let (ended, trace) = attached.end();
    let _ = ended.good();
    assert!(printed.total() > 0, "the guest called nothing");
    assert_eq!(trace.lost(), 0, "{tracer}");
    assert_eq!(trace.uftrace(), printed.called(), "{tracer}");
}

#[test]
fn every_call_is_in_the_trace_whatever_runs_where() {
    let rest = format!("iterations={} threads=6 tick=200", scaled(1000));
    for tracer in ["function", "graph"] {
        traced_exactly(tracer, "calls,threads,smp,recursion,tail_calls", &rest);
    }
}

#[test]
fn a_guest_that_is_let_go_has_nothing_of_ours() {
    let mut other = other();
    let text = digest(&mut other);
    let before = left_in(&other);
    for tracer in ["function", "graph", "profile"] {
        // Nobody calls these now: nothing can be inside.
        let options = ["--trace", tracer, "--filter", "calls_*"];
        let attached = attach(&other, &options);
        assert_ne!(digest(&mut other), text, "{tracer}: nothing was changed");
        assert_ne!(left_in(&other), before, "{tracer}: there is no window");
        assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
        let (ended, _) = attached.end();
        assert_eq!(ended.code, Some(0), "{ended}");
        assert_eq!(digest(&mut other), text, "{tracer}");
        assert_eq!(left_in(&other), before, "{tracer}");
    }
    other.type_text("q");
    let _ = other.end().0.good();
}

/// It stayed so, and the list of who is called kept the window: less was given back than after a tracer that was killed.
#[test]
fn what_was_led_elsewhere_by_hand_leads_back() {
    let mut other = other();
    let text = digest(&mut other);
    let before = left_in(&other);
    let mut attached = attach(&other, &["--trace", "function", "--filter", "calls_*"]);
    let mut client = attached.client();
    client.call("stop", json!({}));
    assert_eq!(digest(&mut other), text);
    let both = json!({"events": ["message_sent"], "callbacks": ["sent_count", "sent_sum"]});
    client.call("events.enable", both);
    let change = json!({"name": "func1", "target": "func1_second"});
    client.call("dynfunc.set", json!({"changes": [change]}));
    assert_ne!(digest(&mut other), text);
    drop(client);
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, _) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    assert_eq!(digest(&mut other), text, "{ended}");
    assert_eq!(left_in(&other), before, "{ended}");
    other.type_text("q");
    let _ = other.end().0.good();
}

#[test]
fn a_guest_that_calls_all_the_time_has_its_text_back() {
    let mut other = other();
    let text = digest(&mut other);
    for tracer in ["graph", "function"] {
        let attached = attach(&other, &["--trace", tracer]);
        let status = attached.ctl(&["status"]);
        assert!(status.stdout.contains("functions"), "{status}");
        assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
        let (ended, _) = attached.end();
        assert_eq!(ended.code, Some(0), "{ended}");
        assert_eq!(digest(&mut other), text, "{tracer}");
    }
    other.type_text("q");
    let _ = other.end().0.good();
}

/// QEMU knows nothing of us: all functions come and go, every call is in the trace, and it is named by what it calls its
/// guest.
#[test]
fn a_guest_of_qemu_is_traced_exactly() {
    let rest = format!("iterations={} threads=6 tick=200", scaled(2000));
    let cmdline = format!("workload=list,spin,calls,threads,smp {rest}");
    for tracer in ["function", "graph"] {
        let name = format!("exotrace-{}-{tracer}", std::process::id());
        let mut qemu = Guest::under_qemu(&name, &cmdline, 2).start();
        qemu.wait_for("workload spin");
        assert!(vmm_says(&["ps"]).stdout.contains(&name));
        let attached = Guest::attached(qemu.pid(), Some(&guest()));
        let options = ["--mode", "discard", "--ring-size", "32768"];
        let mut attached = attached.with(options).output().start();
        let wanted = json!({"tracer": tracer, "notrace": ["spin_*"]});
        attached.client().call("start", wanted);
        qemu.type_text("q");
        let (ended, _) = qemu.end();
        // The guest's status, doubled, and one more.
        assert_eq!(ended.code, Some(1), "{ended}");
        let printed = without_gate(ended.printed());
        let (ended, trace) = attached.end();
        assert_eq!(ended.code, Some(0), "{ended}");
        assert!(printed.total() > 0, "the guest called nothing");
        assert_eq!(trace.lost(), 0, "{tracer}");
        assert_eq!(trace.uftrace(), printed.called(), "{tracer}");
    }
}

#[test]
fn a_guest_of_qemu_is_let_go_as_it_was() {
    let name = format!("exotrace-{}", std::process::id());
    let mut qemu = Guest::under_qemu(&name, "workload=list,spin", 2).start();
    qemu.wait_for("workload spin");
    let before = left_in(&qemu);
    let mut text = None;
    // Few functions: the firmware leaves numbers in the guest's memory that look like addresses (docs/attach.md).
    for filter in ["calls_*", "many_00??"] {
        let attached = Guest::attached(qemu.pid(), Some(&guest()));
        let mut attached = attached.start();
        let digest = attached.client().digest();
        // What the tracer before has left.
        assert_eq!(*text.get_or_insert(digest.clone()), digest);
        for _ in 0..scaled(50) {
            let wanted = json!({"tracer": "graph", "filter": [filter]});
            attached.client().call("start", wanted);
            attached.client().call("stop", json!({}));
        }
        assert_eq!(attached.client().digest(), digest);
        assert_ne!(left_in(&qemu), before, "there is no window");
        assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
        let (ended, _) = attached.end();
        assert_eq!(ended.code, Some(0), "{ended}");
        assert_eq!(left_in(&qemu), before, "{filter}: {ended}");
    }
    qemu.type_text("q");
    assert_eq!(qemu.end().0.code, Some(1));
}

/// No thread of QEMU executes a vCPU of it then, and which one will is not known.
#[test]
fn a_guest_that_its_monitor_has_stopped_is_traced_when_it_continues() {
    let name = format!("exotrace-stopped-{}", std::process::id());
    let mut qemu = Guest::under_qemu(&name, "workload=list,spin", 2).start();
    qemu.wait_for("workload spin");
    let mut monitor = qemu.monitor();
    let mut tell = |command: &str| monitor.command(command, &json!({}));
    let before = left_in(&qemu);
    tell("stop");
    let attached = Guest::attached(qemu.pid(), Some(&guest()));
    let options = ["--trace", "function", "--filter", "spin_leaf"];
    let mut attached = attached.with(options).start();
    let mut client = attached.client();
    let written = |client: &mut Client| Client::rings(&client.status(), "written");
    assert_eq!(written(&mut client), 0);
    // The second time it is stopped while we are there.
    for _ in 0..2 {
        tell("cont");
        let seen = written(&mut client);
        client.wait_until("traced", |status| Client::rings(status, "written") > seen);
        tell("stop");
        client.call("stop", json!({}));
        client.call(
            "start",
            json!({"tracer": "function", "filter": ["spin_leaf"]}),
        );
    }
    tell("cont");
    client.call("stop", json!({}));
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, _) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    // A function tracer leaves no return address anywhere; what a stale word keeps there is said.
    assert!(
        left_in(&qemu) == before || ended.stderr.contains("still lead"),
        "{ended}"
    );
    qemu.type_text("q");
    assert_eq!(qemu.end().0.code, Some(1));
}

/// Sessions, filters and pauses while it runs: what the guest counts is not disturbed.
#[test]
fn changes_at_random_do_no_harm() {
    let mut other = other();
    let mut attached = attach(&other, &[]);
    let mut random = Random::new();
    let mut client = attached.client();
    client.call("start", json!({"tracer": "graph", "filter": ["spin_root"]}));
    for _ in 0..scaled(60) {
        let glob = random.pick(&["spin_*", "spin_leaf", "calls_*", "*"]);
        let filter = json!({"filter": [glob]});
        match *random.pick(&["filter.set", "filter.add", "pause", "resume"]) {
            method @ ("pause" | "resume") => client.call(method, json!({})),
            method => client.call(method, filter),
        };
    }
    client.call("resume", json!({}));
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    assert_eq!(attached.end().0.code, Some(0));
    other.type_text("q");
    let _ = other.end().0.good();
}

/// Three thousand pauses, two thousand changes: QEMU lives, and its guest computes what it computes untraced.
#[test]
fn qemu_is_not_harmed_by_thousands_of_pauses_and_changes() {
    let rest = format!("iterations={} threads=6 tick=200", scaled(1000));
    let expected = untraced(gated("calls,threads,smp", &rest).vcpus(2));
    let name = format!("exotrace-storm-{}", std::process::id());
    let cmdline = format!("workload=list,spin,calls,threads,smp {rest}");
    let mut qemu = Guest::under_qemu(&name, &cmdline, 2).start();
    qemu.wait_for("workload spin");
    let mut attached = Guest::attached(qemu.pid(), Some(&guest())).start();
    let mut client = attached.client();
    let text = client.digest();
    for _ in 0..scaled(3000) {
        client.call("pause", json!({}));
        client.call("resume", json!({}));
    }
    let mut random = Random::new();
    client.call("start", json!({"tracer": "graph", "filter": ["spin_root"]}));
    for _ in 0..scaled(2000) {
        let glob = random.pick(&["spin_*", "spin_leaf", "calls_*", "threads_*"]);
        client.call("filter.set", json!({"filter": [glob]}));
    }
    client.call("stop", json!({}));
    assert_eq!(client.digest(), text);
    client.call("start", json!({"tracer": "graph", "notrace": ["spin_*"]}));
    qemu.type_text("q");
    let (ended, _) = qemu.end();
    assert_eq!(ended.code, Some(1), "{ended}");
    assert_eq!(without_gate(ended.printed()), expected);
    assert_eq!(attached.end().0.code, Some(0));
}

/// Gives back what was left in the guest.
fn restore(of: &Running) -> String {
    let restored = vmm_says(&["attach", &of.pid().to_string(), "--restore"]);
    assert_eq!(restored.code, Some(0), "{restored}");
    restored.stderr
}

#[test]
fn what_a_tracer_left_that_was_killed_is_given_back() {
    let mut other = other();
    let text = digest(&mut other);
    let before = left_in(&other);
    for (number, tracer) in ["function", "graph", "profile"].iter().enumerate() {
        // Nobody calls these now: nothing can be inside.
        let attached = attach(&other, &["--trace", tracer, "--filter", "many_*"]);
        send(&attached, Signal::KILL);
        let _ = attached.end();
        assert_ne!(digest(&mut other), text, "{tracer}: nothing was left");
        assert_ne!(left_in(&other), before, "{tracer}: no window was left");
        if number == 0 {
            // Whoever comes next does it, before anything else.
            let attached = attach(&other, &[]);
            assert_eq!(digest(&mut other), text, "{tracer}");
            assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
            assert_eq!(attached.end().0.code, Some(0));
        } else {
            assert!(restore(&other).contains("restored"));
        }
        assert_eq!(digest(&mut other), text, "{tracer}");
        assert_eq!(left_in(&other), before, "{tracer}");
    }
    assert!(restore(&other).contains("nobody has left anything"));
    other.type_text("q");
    let _ = other.end().0.good();
}

/// A user who was impatient did not know that jumps had stayed.
#[test]
fn who_is_ended_by_a_second_signal_says_how_what_is_left_is_given_back() {
    const TRIES: u32 = 20;
    let mut other = other();
    let text = digest(&mut other);
    let is_said = (0..TRIES).any(|_| {
        let attached = attach(&other, &["--trace", "graph", "--filter", "many_*"]);
        // Both are there when it continues. The first lets the guest go, and may be done with that before the second is heard.
        for signal in [Signal::STOP, Signal::INT, Signal::TERM, Signal::CONT] {
            send(&attached, signal);
        }
        let (ended, _) = attached.end();
        let restores = format!("`vmm attach {} --restore`", other.pid());
        let says = ended.stderr.contains(&restores);
        // It may be ended when all has been given back.
        let is_given_back = || left_in(&other).0 == BTreeSet::new();
        match ended.code {
            Some(0) => assert!(!says, "{ended}"),
            _ => assert!(says || is_given_back(), "{ended}"),
        }
        says
    });
    assert!(
        is_said,
        "the first signal was always seen to before the second"
    );
    let _ = restore(&other);
    assert_eq!(digest(&mut other), text);
    other.type_text("q");
    let _ = other.end().0.good();
}

/// All functions, while they are called; three times without anybody who comes after. What the guest counts is right.
#[test]
fn a_tracer_that_is_killed_harms_nobody() {
    let rest = format!("iterations={} threads=6 tick=200", scaled(1000));
    let guest_of = || gated("calls,threads,smp", &rest).vcpus(2);
    let expected = untraced(guest_of());
    let mut other = guest_of().start();
    other.wait_for("workload spin");
    let text = digest(&mut other);
    for signal in [Signal::KILL, Signal::KILL, Signal::TERM, Signal::KILL] {
        let attached = attach(&other, &["--trace", "graph"]);
        send(&attached, signal);
        let _ = attached.end();
    }
    let _ = restore(&other);
    assert_eq!(digest(&mut other), text);
    other.type_text("q");
    let (ended, _) = other.end();
    assert_eq!(without_gate(ended.good().printed()), expected);
}

#[test]
fn a_second_tracer_is_refused_while_the_first_lives() {
    let other = other();
    let first = attach(&other, &[]);
    let (pid, kernel) = (other.pid().to_string(), guest());
    let second = ["attach", &pid, "--kernel", kernel.to_str().unwrap()];
    let second = [&second[..], &["--trace", "function", "--duration", "0.1"]].concat();
    assert!(vmm_says(&second).refused(100).contains("somebody else"));
    // A dead one holds nothing.
    send(&first, Signal::KILL);
    let _ = first.end();
    let said = vmm_says(&second);
    assert_eq!(said.code, Some(0), "{said}");
}

#[test]
fn the_end_of_the_vmm_ends_the_trace_well() {
    for (is_killed, code, said) in [
        (false, 0, "has ended, and the guest with it"),
        (true, 102, "was killed by SIGKILL, and the guest with it"),
    ] {
        let other = other();
        let mut options = EVERYTHING.to_vec();
        options.extend(["--filter", "spin_root"]);
        let attached = attach(&other, &options);
        match is_killed {
            true => send(&other, Signal::KILL),
            false => assert_eq!(other.ctl(&["shutdown"]).code, Some(0)),
        }
        let (ended, _) = attached.end();
        assert_eq!(ended.code, Some(code), "{ended}");
        assert!(ended.stderr.contains(said), "{ended}");
        drop(other);
    }
}

#[test]
fn a_vmm_that_is_stopped_stays_so() {
    let other = other();
    send(&other, Signal::STOP);
    let options = ["--trace", "function", "--filter", "calls_*"];
    let attached = attach(&other, &options);
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, _) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(ended.stderr.contains("is stopped (SIGSTOP)"), "{ended}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", other.pid())).unwrap();
    assert!(status.contains("State:\tT"), "{status}");
    send(&other, Signal::CONT);
    assert_eq!(left_in(&other).0, BTreeSet::new(), "{ended}");
}

/// Nobody has asked for them: they would be in no count.
#[test]
fn pauses_that_only_look_are_counted() {
    let mut other = other();
    let mut attached = attach(&other, &[]);
    let mut client = attached.client();
    client.call("start", json!({"filter": ["spin_leaf"]}));
    let at_window = |status: &Value| status["tracing"]["looks"].as_u64().unwrap();
    let at_kernel = |status: &Value| status["pauses"]["kernel_looks"]["count"].as_u64().unwrap();
    let others = |status: &Value| {
        let all = status["pauses"]["released"]["count"].as_u64().unwrap();
        all - at_window(status) - at_kernel(status)
    };
    let before = client.status();
    let after = client.wait_until("each looks twice more", |status| {
        at_window(status) >= at_window(&before) + 2 && at_kernel(status) >= at_kernel(&before) + 2
    });
    assert_eq!(others(&after), others(&before), "{after}");
    let shown = attached.ctl(&["status"]).good().stdout;
    assert!(
        shown.contains(" to see whether the kernel still runs: p50 "),
        "{shown}"
    );
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let _ = attached.end();
    other.type_text("q");
    let _ = other.end().0.good();
}

#[test]
fn the_guests_of_this_host_are_listed() {
    let other = Guest::spinning(&["--memory", "320"]);
    let pid = other.pid().to_string();
    let row = |of: &Ended| {
        let mut lines = of.stdout.lines();
        let line = lines.find(|line| line.split_whitespace().next() == Some(&pid));
        let words = line.unwrap_or_default().split_whitespace();
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let listed = vmm_says(&["ps"]);
    let expected = [pid.as_str(), "vmm", "-", "2", "320", "MiB", "-"];
    assert_eq!(row(&listed), expected, "{listed}");
    // Nothing of it is a Linux, and nothing of ours is left by the look.
    let before = left_in(&other);
    let looked = vmm_says(&["ps", "--guest"]);
    assert_eq!(row(&looked)[4..7], ["320", "MiB", "not"], "{looked}");
    assert!(looked.stderr.contains("was held for"), "{looked}");
    assert_eq!(left_in(&other), before);
    let json = vmm_says(&["ps", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let mut all = all.as_array().unwrap().iter();
    let own = all.find(|guest| guest["pid"] == other.pid()).unwrap();
    assert_eq!((&own["vmm"], &own["vcpus"]), (&json!("vmm"), &json!(2)));
    let memory = json!({"bytes": 320 << 20, "is_guess": false});
    assert_eq!((&own["memory"], &own["guest"]), (&memory, &json!(null)));
}
