//! A stock Linux whose root attacks whoever watches it (`images/linux/hostile.c`). It can spoil its own trace and itself,
//! and no more.

use serde_json::{Value, json};
use tests::{Client, Guest, Running, is_long};

/// What memory may grow by while it attacks, in KiB: what it touches of the tracing memory, and of its own.
const GROWTH_MAX: u64 = 128 << 10;
/// So often something is asked for while it attacks, at most.
const ASKED: u32 = 20;
const SCRIPT: &str = "echo step ready; read line; hostile";

/// Memory that is in use, in KiB, and descriptors that are open.
fn taken(running: &Running) -> Option<(u64, usize)> {
    let of = |name: &str| format!("/proc/{}/{name}", running.pid());
    let status = std::fs::read_to_string(of("status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let memory = line.split_whitespace().nth(1)?.parse().ok()?;
    let descriptors = std::fs::read_dir(of("fd")).ok()?.count();
    Some((memory, descriptors))
}

/// Asks for one thing after the other as long as the guest lives, but not for ever, as one can be made to stand still; and
/// whether memory and descriptors stay level.
fn ask_until_it_ends(running: &Running, client: &mut Client, label: &str) {
    let before = taken(running);
    let session = json!({"session": "default"});
    for number in 0..ASKED {
        let (method, params) = match number % 6 {
            0 => ("filter.add", json!({"filter": ["vfs_*"]})),
            1 => ("tracing-off", session.clone()),
            2 => ("tracing-on", session.clone()),
            3 => ("filter.remove", json!({"filter": ["vfs_*"]})),
            4 => ("digest", Value::Null),
            _ => ("status", Value::Null),
        };
        // It may be refused, but not unanswered while the run goes on.
        if client.ask(method, params).is_none() || running.printed().contains("hostile survived") {
            return;
        }
        if let Some(((was, had), (is, has))) = before.zip(taken(running)) {
            let grown = is.saturating_sub(was);
            assert!(grown < GROWTH_MAX, "{label}: {grown} KiB more");
            assert!(has <= had + 2, "{label}: {has} descriptors, {had} before");
        }
    }
}

fn attack(seed: u64, words: &str, tracer: &str) {
    let label = format!("hostile {seed} {words}, {tracer}");
    let script = format!("{SCRIPT} {seed} {words}; read line");
    let options = ["--trace", tracer, "--ring-size", "64"];
    let guest = Guest::linux(&script, None).vcpus(2).with(options).output();
    let mut running = guest.start();
    running.wait_for("step ready");
    let mut client = running.client();
    let begun = std::time::Instant::now();
    running.type_text("\n");
    ask_until_it_ends(&running, &mut client, &label);
    // Whoever started it ends it, in whatever state the guest is.
    let _ = client.ask("shutdown", Value::Null);
    let (ended, trace) = running.end();
    ended.no_panic();
    let found = ended.stdout.contains("hostile at") && !ended.stdout.contains(", 0 pages");
    assert!(found, "{label}: nothing was attacked: {ended}");
    let survived = ended.stdout.contains("hostile survived");
    println!(
        "{label}: {survived}, status {:?}, {:?}",
        ended.code,
        begun.elapsed()
    );
    // In order, or by what the guest has done to itself: a reset, a panic, a crash, a status of its own.
    let code = ended.code.unwrap_or(-1);
    let is_its_own = (0..=98).contains(&code) || [102, 107].contains(&code);
    assert!(is_its_own, "{label}: {ended}");
    // What there is of the trace is read, whatever the guest wrote.
    let _ = trace.report("counts");
}

#[test]
fn a_linux_that_attacks_whoever_watches_it_spoils_its_own_trace_at_most() {
    let seeds = if is_long() { 1..=20 } else { 1..=1 };
    for seed in seeds {
        attack(seed, "300", "function");
        attack(seed, "300 text", "graph");
    }
}
