//! A guest that attacks whoever watches it: the doorbell without end on every vCPU, notices that lie, words all over the
//! window, aimed at heads, limits, counts and records, and at random, wrong page table entries
//! (`guest/control/src/hostile/mod.rs`). It can spoil its own trace and no more.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::io::ioctl_fionread;
use serde_json::{Value, json};
use tests::{Client, Guest, Running, guest, patience, scaled, starts_vmm, vmm};

/// What memory may grow by while it attacks, in KiB.
const GROWTH_MAX: u64 = 64 << 10;
/// Rounds of attacks, of so many deeds each.
const ROUNDS: usize = 4;
const DEEDS: u32 = 1000;

#[test]
fn the_function_tracer_bears_a_hostile_guest() {
    attacks([1, 0x5eed], 4, &["--trace", "function"]);
}

#[test]
fn the_graph_tracer_bears_a_hostile_guest() {
    attacks([2, 77], 4, &["--trace", "graph"]);
}

#[test]
fn the_profiler_bears_a_hostile_guest() {
    attacks([3, 1234], 4, &["--trace", "profile"]);
}

#[test]
fn events_bear_a_hostile_guest() {
    let both = ["--event", "message_sent", "--event", "message_parts"];
    attacks([4, 99], 4, &both);
}

/// Who changes heads and limits of a ring that is waited for has its own vCPUs wait.
#[test]
fn a_lossless_session_bears_a_hostile_guest() {
    attacks([6, 0xdead], 4, &["--mode", "lossless", "--trace", "graph"]);
}

#[test]
fn sixteen_vcpus_that_ring_without_end_hold_up_nobody() {
    attacks([5], 16, &["--trace", "function"]);
}

/// Attacks by these seeds. They can destroy the guest before all was asked, and that is no test of what is answered: if all of them do,
/// by others until one does not.
fn attacks<const N: usize>(seeds: [u64; N], vcpus: u32, tracer: &[&str]) {
    let mut have_survived = 0;
    for (number, seed) in seeds.into_iter().chain(7..11).enumerate() {
        if number < N || have_survived == 0 {
            have_survived += u32::from(attack(seed, vcpus, tracer));
        }
    }
    println!("{have_survived} guests have survived");
    assert!(have_survived > 0, "no guest has lived until all was asked");
}

/// Attacks by this seed, and what is asked of `vmm` meanwhile and afterwards. Whether the guest has lived until all was asked: also,
/// where attacks are aimed, until they had hit.
fn attack(seed: u64, vcpus: u32, tracer: &[&str]) -> bool {
    let line = match vcpus {
        // Threads that ring only; one deed is many rings.
        16 => format!(
            "workload=hostile seed={seed} iterations={} threads=1",
            scaled(DEEDS) / 20
        ),
        _ => format!("workload=hostile seed={seed} iterations={}", scaled(DEEDS)),
    };
    let guest = Guest::new(&line).vcpus(vcpus).with(["--ring-size", "64"]);
    let guest = tracer
        .iter()
        .fold(guest, |guest, option| guest.with([*option]));
    let guest = match tracer {
        [.., "profile"] => guest.with(["--filter", "spin_*"]),
        [.., "message_parts"] => guest.output(),
        _ => guest
            .with(["--filter", "spin_*", "--filter", "events_*"])
            .output(),
    };
    let mut running = guest.start();
    running.wait_for("hostile seed");
    let mut client = running.client();
    let before = resident(&running);
    let aims = vcpus < 16 && matches!(tracer, [.., "function"]);
    let survived = until_round(&running, &mut client, ROUNDS) && (!aims || until_hit(&mut client));
    if survived {
        // What is asked now is answered: that is what the attacks were to prevent.
        check_counts(&client.status());
        let grown = resident(&running).saturating_sub(before);
        assert!(grown < GROWTH_MAX, "seed {seed}: {grown} KiB more");
        client.call("shutdown", Value::Null);
    }
    let (ended, _trace) = running.end();
    ended.no_panic();
    // A guest that has destroyed itself has a status of its own.
    let code = ended.code.unwrap_or(-1);
    assert!(
        code == 0 || !survived && (0..=99).contains(&code),
        "seed {seed}: {ended}"
    );
    survived
}

/// Asks for one thing after the other until the guest has done its rounds; whether it has lived that long.
fn until_round(running: &Running, client: &mut Client, rounds: usize) -> bool {
    let deadline = Instant::now() + patience();
    let session = json!({"session": "default"});
    for number in 0.. {
        let dump = running.path(&format!("dump-{number}"));
        let (method, params) = match number % 8 {
            0 => ("filter.add", json!({"filter": ["calls_*"]})),
            1 => ("dump", json!({"dir": dump})),
            2 => ("tracing-off", session.clone()),
            3 => ("tracing-on", session.clone()),
            4 => ("filter.remove", json!({"filter": ["calls_*"]})),
            5 => ("digest", Value::Null),
            _ => ("status", Value::Null),
        };
        // It may be refused, but not unanswered.
        if client.ask(method, params).is_none() {
            return false;
        }
        if running.printed().matches("hostile round").count() >= rounds {
            return true;
        }
        assert!(
            Instant::now() < deadline,
            "no {rounds} rounds: {}",
            running.printed()
        );
    }
    false
}

/// Waits until the attacks have hit what they are aimed at, which is seen when it is read: on a busy host some rounds later. Whether
/// the guest has lived that long.
fn until_hit(client: &mut Client) -> bool {
    let deadline = Instant::now() + patience();
    while let Some(status) = client.ask("status", Value::Null) {
        let status = status.expect("a status");
        let is_hit = |count: &&str| Client::rings(&status, count) > 0;
        if ["corrupt", "invalid"].iter().all(is_hit) {
            return true;
        }
        assert!(Instant::now() < deadline, "nothing is hit: {status}");
        tests::look_again();
    }
    false
}

/// Whatever stands in cells and rings, each position is in one count at most.
fn check_counts(status: &Value) {
    let sessions = status["tracing"]["sessions"].as_array().expect("sessions");
    let rings = sessions
        .iter()
        .filter_map(|session| session["rings"].as_array());
    for ring in rings.flatten() {
        let count = |name: &str| u128::from(ring[name].as_u64().expect("a count"));
        let seen = ["read", "overwritten", "abandoned", "invalid"].map(count);
        assert!(seen.iter().sum::<u128>() <= count("written"), "{ring}");
    }
}

/// Memory of `vmm` and its guest that is in use, in KiB.
fn resident(running: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid()));
    let status = status.expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

#[test]
fn a_second_signal_ends_a_run_that_cannot_finish() {
    a_second_signal_ends(vmm());
}

/// As a script's shell starts what it puts into the background.
#[test]
fn a_second_signal_ends_a_run_that_was_to_ignore_it() {
    let mut ignoring = starts_vmm("sh");
    let script = r#"trap "" INT; exec "$0" "$@""#;
    ignoring.args(["-c", script]).arg(vmm().get_program());
    a_second_signal_ends(ignoring);
}

/// Nobody reads the messages of a run of `vmm`, so the thread that finishes it waits for room in a pipe.
fn a_second_signal_ends(mut vmm: Command) {
    let mut child = vmm
        .args(["run", "--kernel"])
        .arg(guest())
        .args(["--cmdline", "workload=hostile threads=1", "--vcpus", "2"])
        .env("RUST_LOG", "debug")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("vmm starts");
    let messages = child.stderr.take().expect("its stderr");
    let deadline = Instant::now() + patience();
    let full = |bytes: u64| bytes > 60_000;
    while !full(ioctl_fionread(&messages).expect("a pipe")) {
        assert!(Instant::now() < deadline, "it says too little");
        tests::look_again();
    }
    let deadline = Instant::now() + patience();
    let pid = child.id().to_string();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        assert!(Instant::now() < deadline, "signals do not end it");
        let _ = Command::new("kill").args(["-INT", &pid]).status();
    };
    // By the signal, if it could not do so by itself.
    assert!(
        status.signal() == Some(2) || status.code() == Some(104),
        "{status}"
    );
}
