//! Text that is changed while the guest runs: breakpoint, rest, first byte.

use serde_json::json;
use tests::elf::{Kernels, bare};
use tests::exact::{assert_exact, assert_traced_with, gated, open_gate, without_gate};
use tests::{Guest, lives_to_see, scaled, vmm_says};

use crate::storm::storms;

const LIVE: [&str; 2] = ["--patch-method", "live"];

#[test]
fn a_storm_of_live_changes_leaves_every_result_and_every_byte_as_it_was() {
    storms(scaled(1000), || LIVE, |_| {});
}

#[test]
fn a_storm_of_live_changes_of_a_graph_session_does_too() {
    storms(
        scaled(400),
        || LIVE,
        |client| {
            client.call("start", json!({"tracer": "graph", "notrace": ["spin_*"]}));
        },
    );
}

#[test]
fn counts_are_exact_on_one_vcpu_and_on_two() {
    for vcpus in [1, 2] {
        assert_traced_with(&LIVE, "threads,smp,nops", "iterations=3000 tick=200", vcpus);
    }
}

/// A call that meets the breakpoint goes back to it, so a session that traces a function all the time
/// misses none while another one comes to it and leaves it.
#[test]
fn a_session_misses_nothing_while_another_shares_its_functions() {
    lives_to_see(scaled(200_000), |life| {
        exact_while_another_comes_and_goes(&LIVE, life) > 10
    });
}

/// Counts exactly through a guest's life of so many iterations; returns how often the other session came
/// or left.
pub fn exact_while_another_comes_and_goes(method: &[&str; 2], iterations: u32) -> u32 {
    let guest = gated("smp", &format!("iterations={iterations} tick=200"));
    let options = ["--mode", "discard", "--ring-size", "65536"];
    let mut running = guest.vcpus(2).with(*method).with(options).output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.call(
        "session.create",
        json!({"name": "other", "options": {"ring_size": 64}}),
    );
    open_gate(&mut running);
    let mut changes = 0;
    let requests = [
        ("start", json!({"session": "other", "filter": ["smp_*"]})),
        ("stop", json!({"session": "other"})),
    ];
    for (method, params) in requests.iter().cycle() {
        // Until the guest has ended.
        let Some(reply) = client.ask(method, params.clone()) else {
            break;
        };
        reply.unwrap();
        changes += 1;
    }
    let (ended, trace) = running.end();
    println!("{iterations} iterations: {changes} changes");
    assert_exact(&trace, &without_gate(ended.good().printed()));
    changes
}

/// Each pause changes all of it at one moment, which live does not.
#[test]
fn live_is_refused_where_one_moment_was_asked_for() {
    let kernel = tests::guest();
    let kernel = kernel.to_str().expect("a path");
    let run = ["run", "--kernel", kernel, "--trace", "function", "--atomic"];
    let refused = vmm_says(&[&run[..], &LIVE].concat());
    assert_eq!(refused.code, Some(100), "{refused}");
    assert!(
        refused.stderr.contains("leave one of them out"),
        "{refused}"
    );
}

/// This guest's text runs in two rings: in which an instruction does, that is displaced into the window, is seen only while
/// vCPUs are stopped.
#[test]
fn what_displaces_an_instruction_waits_for_a_pause() {
    let mut running = Guest::spinning(&LIVE);
    let mut client = running.client();
    let text = client.digest();
    let add = |client: &mut tests::Client, spec: String, tactic| {
        client.ask("probe.add", json!({"probes": [spec], "tactic": tactic}))
    };
    client.call("start", json!({"tracer": "nop"}));
    let pauses = |reply: serde_json::Value| reply["pauses"].as_u64().expect("a count");
    let first = add(&mut client, "spin_leaf %rdi".to_owned(), 1);
    // The rings; the site itself is written live.
    assert_eq!(pauses(first.expect("the guest runs").unwrap()), 1);
    let displaced = (5..64).find_map(|offset| {
        let spec = format!("spin_root+{offset:#x} %rdi");
        add(&mut client, spec, 2).expect("the guest runs").ok()
    });
    let displaced = displaced.expect("an instruction of five bytes");
    assert_eq!(pauses(displaced), 1);
    client.call("stop", json!({}));
    assert_eq!(client.digest(), text);
    running.type_text("q");
    let printed = running.end().0.good().printed();
    assert_eq!(printed.calls["spin_leaf"], 4 * printed.calls["spin_root"]);
}

#[test]
fn live_is_refused_where_nobody_serves_breakpoints() {
    let kernels = Kernels::new();
    // `hlt`, without a symbol that anybody knows.
    let kernel = kernels.write("bare.elf", &bare(&[0xf4]));
    let kernel = kernel.to_str().expect("a path");
    let refused = vmm_says(&["run", "--kernel", kernel, "--patch-method", "live"]);
    assert_eq!(refused.code, Some(100), "{refused}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
    assert!(
        refused
            .stderr
            .contains("nobody would serve its breakpoints, for this kernel has no `breakpoints_from_outside` and th"),
        "{refused}"
    );
}

/// Threads in ring 0: the guest itself says that it cannot.
#[test]
fn live_is_refused_where_the_guest_says_so() {
    let guest = Guest::new("workload=spin ring=0").with(LIVE);
    let (ended, _) = guest
        .with(["--trace", "function", "--filter", "spin_*"])
        .run();
    assert_ne!(ended.code, Some(0), "{ended}");
    assert!(
        ended
            .stderr
            .contains("`breakpoints_from_outside` is 0x8000000000000000"),
        "{ended}"
    );
}
