//! Threads make no system call but those of their lists.

use std::fs;

use tests::forced::{force_call, threads};
use tests::{Guest, Running, guest, until, vmm_says};

/// `socket`: nobody's.
const FORBIDDEN: u64 = 41;
/// All that there are, as they are named; `vmm` is the main one.
const THREADS: [&str; 8] = [
    "vmm", "vcpu0", "console", "drain", "look", "clock", "signals", "watchdog",
];

/// Those of `vmm attach` that are held: all but the main one, which holds another process.
const ATTACHED: [&str; 5] = ["drain", "look", "clock", "signals", "watchdog"];

/// A guest that is traced with everything that has a thread, of which each has got so far that `/proc` says this of it.
fn traced(options: &[&str], mode: char) -> Running {
    let all = [
        "--trace", "function", "--filter", "spin_*", "--clock", "page",
    ];
    let guest = Guest::spinning(&[&all[..], options].concat());
    wait_for_all(&guest, &THREADS, mode);
    guest
}

fn wait_for_all(of: &Running, threads: &[&str], mode: char) {
    let is_there = |found: &[(String, char)], name: &str| {
        let mut found = found.iter();
        found.any(|(one, its)| one == name && *its == mode)
    };
    until("every thread is there", || {
        let found = held(of);
        threads.iter().all(|name| is_there(&found, name))
    });
}

/// Who traces the guest of another process.
fn attached(to: &Running) -> Guest {
    let all = [
        "--trace", "function", "--filter", "spin_*", "--clock", "page",
    ];
    Guest::attached(to.pid(), Some(&guest())).with(all)
}

/// What `/proc` says of each thread: 2 where it is held to a list.
fn held(guest: &Running) -> Vec<(String, char)> {
    let of = |(thread, name)| {
        let status = format!("/proc/{}/task/{thread}/status", guest.pid());
        let status = fs::read_to_string(status).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Seccomp:"))?;
        Some((name, line.trim().chars().next()?))
    };
    threads(guest.pid()).into_iter().filter_map(of).collect()
}

#[test]
fn a_forbidden_call_of_any_thread_ends_the_process_with_a_line_that_names_both() {
    for name in THREADS {
        let guest = traced(&[], '2');
        force_call(guest.pid(), name, FORBIDDEN);
        let ended = guest.end().0;
        assert_eq!(ended.code, Some(109), "{name}: {ended}");
        let line = format!("vmm: the thread {name} has made the system call socket (41)");
        assert!(ended.stderr.contains(&line), "{name}: {ended}");
    }
}

/// Its first argument is an address, and no list has it so.
#[test]
fn a_call_that_is_on_the_list_with_one_argument_alone_ends_the_process_with_another() {
    const PRCTL: u64 = 157;
    let guest = traced(&[], '2');
    force_call(guest.pid(), "drain", PRCTL);
    let ended = guest.end().0;
    assert_eq!(ended.code, Some(109), "{ended}");
    let line = "vmm: the thread drain has made the system call prctl (157)";
    assert!(ended.stderr.contains(line), "{ended}");
}

/// Those are not that start what a user has named for a trigger.
#[test]
fn every_thread_is_held_to_its_list_unless_that_is_not_wanted() {
    for (options, expected) in [(&[][..], '2'), (&["--no-seccomp"], '0')] {
        let mut guest = traced(options, expected);
        for (name, mode) in held(&guest) {
            let of_kvm = name.starts_with("kvm");
            let starts = name.ends_with("commands");
            let expected = if starts { '0' } else { expected };
            assert!(of_kvm || mode == expected, "{name}: {mode}");
        }
        guest.type_text("q");
        let _ = guest.end().0.good();
    }
}

/// What it leaves in the guest then is given back by the next one.
#[test]
fn threads_of_who_attaches_are_held_too_and_the_main_one_is_not() {
    let mut other = Guest::spinning(&[]);
    let text = other.client().digest();
    let not = attached(&other).with(["--no-seccomp"]).start();
    wait_for_all(&not, &ATTACHED, '0');
    assert_eq!(not.ctl(&["shutdown"]).code, Some(0));
    let _ = not.end().0.good();
    for name in ATTACHED {
        let attached = attached(&other).start();
        wait_for_all(&attached, &ATTACHED, '2');
        // A thread that has just begun is neither held yet nor named.
        until("nobody else is free", || {
            let found = held(&attached).into_iter();
            let is_free =
                |(name, mode): &(String, char)| *mode == '0' && !name.ends_with("commands");
            let free: Vec<_> = found.filter(is_free).map(|(name, _)| name).collect();
            free == ["vmm"]
        });
        force_call(attached.pid(), name, FORBIDDEN);
        let ended = attached.end().0;
        assert_eq!(ended.code, Some(109), "{name}: {ended}");
        let line = format!("vmm: the thread {name} has made the system call socket (41)");
        assert!(ended.stderr.contains(&line), "{name}: {ended}");
        let pid = other.pid().to_string();
        let _ = vmm_says(&["attach", &pid, "--restore"]).good();
        assert_eq!(other.client().digest(), text, "{name}");
    }
    other.type_text("q");
    let _ = other.end().0.good();
}
