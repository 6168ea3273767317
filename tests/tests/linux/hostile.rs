//! A stock Linux whose root attacks whoever watches it (`images/linux/hostile.c`), from outside of its kernel and by a module
//! (`images/linux/hostile_module.c`). It can spoil its own trace and itself, and no more.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Client, Ended, Guest, Running, is_long, usual_or_long};

/// What memory may grow by while it attacks, in KiB: what it touches of the tracing memory, and of its own.
const GROWTH_MAX: u64 = 128 << 10;
/// So often something is asked for while it attacks, at most.
const ASKED: u32 = 20;
/// As long as that one attack follows the other in `make test-long`.
const LONG: Duration = Duration::from_mins(30);
const SCRIPT: &str = "echo step ready; read line; hostile";
/// What a kernel lives with as long as it is undone, and can say so. (Of ports the serial line's are some, and of a `panic_cpu`
/// without a panic whoever watches sees a panic.)
const UNDONE: &str = "module undone tables tasks modules lstar gs";

/// Memory that is in use, in KiB, and descriptors that are open.
#[derive(Debug, Clone, Copy)]
struct Taken {
    memory: u64,
    descriptors: usize,
}

impl Taken {
    fn by(running: &Running) -> Option<Self> {
        let of = |name: &str| format!("/proc/{}/{name}", running.pid());
        let status = std::fs::read_to_string(of("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        let memory = line.split_whitespace().nth(1)?.parse().ok()?;
        let descriptors = std::fs::read_dir(of("fd")).ok()?.count();
        Some(Self {
            memory,
            descriptors,
        })
    }
}

/// What came of an attack, as far as it went.
#[derive(Debug, Default)]
struct Cost {
    answered: u32,
    /// KiB more than before it, at most.
    grown: u64,
    descriptors: usize,
}

/// Asks for one thing after the other as long as the guest lives, but not for ever, as one can be made to stand still; and
/// whether memory and descriptors stay level.
fn ask_until_it_ends(running: &Running, client: &mut Client, label: &str) -> Cost {
    let before = Taken::by(running);
    let session = json!({"session": "default"});
    let mut cost = Cost::default();
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
        if client.ask(method, params).is_none() {
            break;
        }
        cost.answered += 1;
        if running.printed().contains("hostile survived") {
            break;
        }
        if let Some((was, is)) = before.zip(Taken::by(running)) {
            cost.grown = cost.grown.max(is.memory.saturating_sub(was.memory));
            cost.descriptors = is.descriptors;
            assert!(cost.grown < GROWTH_MAX, "{label}: {cost:?}, {was:?}");
            assert!(
                is.descriptors <= was.descriptors + 2,
                "{label}: {cost:?}, {was:?}"
            );
        }
    }
    cost
}

/// One attack with these words, from its beginning to the end of the run; on one vCPU nobody ends it before its own end. Returns that,
/// and how much was answered meanwhile.
fn attack(seed: u64, words: &str, tracer: &str, vcpus: u32) -> (Ended, u32) {
    let label = format!("hostile {seed} {words}, {tracer}");
    let script = format!("{SCRIPT} {seed} {words}; read line");
    let options = ["--trace", tracer, "--ring-size", "64"];
    let guest = Guest::linux(&script, None).vcpus(vcpus);
    let guest = guest.with(options).output();
    let mut running = guest.start();
    running.wait_for("step ready");
    let mut client = running.client();
    let begun = Instant::now();
    running.type_text("\n");
    if words.contains("module") {
        running.wait_for("hostile module on processor");
    }
    let cost = ask_until_it_ends(&running, &mut client, &label);
    if vcpus == 1 {
        running.wait_for("hostile survived");
    }
    // Whoever started it ends it, in whatever state the guest is.
    let _ = client.ask("shutdown", Value::Null);
    let (ended, trace) = running.end();
    ended.no_panic();
    let found = ended.stdout.contains("hostile at") && !ended.stdout.contains(", 0 pages");
    assert!(found, "{label}: nothing was attacked: {ended}");
    let survived = ended.stdout.contains("hostile survived");
    println!(
        "{label}: {survived}, status {:?}, {cost:?}, {:?}",
        ended.code,
        begun.elapsed()
    );
    // In order, or by what the guest has done to itself: a reset, a panic, a crash, a status of its own.
    let code = ended.code.unwrap_or(-1);
    let is_its_own = (0..=98).contains(&code) || [102, 107].contains(&code);
    assert!(is_its_own, "{label}: {ended}");
    // What there is of the trace is read, whatever the guest wrote.
    let _ = trace.report("counts");
    (ended, cost.answered)
}

/// How often a module did each of the things that it was told to, on the processor where it did it least.
fn done_by_a_module(ended: &Ended) -> Vec<(String, u64)> {
    let lines = ended.stdout.lines();
    let lines = lines.filter_map(|line| line.split_once("hostile module did "));
    let mut least: Vec<(String, u64)> = Vec::new();
    for (_, counts) in lines {
        for count in counts.trim().split(", ") {
            let (count, name) = count.split_once(' ').unwrap_or_default();
            let count: u64 = count.parse().unwrap_or_default();
            match least.iter_mut().find(|(of, _)| of == name) {
                Some((_, least)) => *least = count.min(*least),
                None => least.push((name.to_owned(), count)),
            }
        }
    }
    least
}

/// The worst of them once, or one after the other with other seeds for as long as a long test takes.
fn attack_with(words: &str) {
    let worst = format!("{words} text");
    // One that destroys its guest at once shows nothing of what is answered.
    let mut answered = (1..5).map(|seed| attack(seed, &worst, "graph", 2).1);
    assert!(answered.any(|answered| answered > 0), "nothing was asked");
    let begun = Instant::now();
    for seed in 2.. {
        if !is_long() || begun.elapsed() > LONG / 2 {
            break;
        }
        let _ = attack(seed, words, "function", 2);
        let _ = attack(seed, &worst, "graph", 2);
    }
}

#[test]
fn a_linux_that_attacks_whoever_watches_it_spoils_its_own_trace_at_most() {
    attack_with(usual_or_long("150", "300"));
}

#[test]
fn a_module_that_attacks_whoever_watches_it_spoils_its_own_trace_at_most() {
    attack_with(usual_or_long("150 module", "300 module"));
}

/// So that it is known to have attacked. On one vCPU: another one would see what is about to be undone.
#[test]
fn a_module_that_undoes_what_it_attacks_comes_to_its_end() {
    let (ended, answered) = attack(1, &format!("400 {UNDONE}"), "function", 1);
    assert!(answered > 0, "{ended}");
    let least = done_by_a_module(&ended);
    for name in UNDONE.split(' ').skip(2) {
        let count = least.iter().find(|(of, _)| of == name);
        assert!(
            count.is_some_and(|(_, count)| *count > 0),
            "{name}: {ended}"
        );
    }
}
