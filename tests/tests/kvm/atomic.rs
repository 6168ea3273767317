//! Text that is changed while every vCPU runs, by one exchange of a word each.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::exact::assert_traced_with;
use tests::{
    ATOMIC, Client, Guest, Running, guest, lives_to_see, promises_atomic, scaled, usual_or_long,
    vmm_says,
};
use vmm::trial::switching::{Effort, shown, switching};

use crate::live::exact_while_another_comes_and_goes;
use crate::storm::storms;

/// How many changes all storms together are to be where nobody waits for them (`make test-long`).
const CHANGES: u32 = 100_000;

/// A guest that spins, of which no text is changed in pauses that need not be.
fn spinning() -> Running {
    Guest::spinning(&ATOMIC)
}

/// How often all vCPUs were held, for whatever but to be asked for their page tables, as they are once a second.
fn held(client: &mut Client) -> u64 {
    let status = client.status();
    let pauses = status["pauses"]["parked"]["count"].as_u64().unwrap();
    pauses - status["tracing"]["looks"].as_u64().unwrap()
}

fn switched(client: &mut Client) -> Value {
    client.status()["tracing"]["switched"].clone()
}

#[test]
fn it_is_what_is_done_where_the_processor_promises_it_and_refused_elsewhere() {
    let mut running = Guest::spinning(&[]);
    let method = running.client().status()["tracing"]["patch_method"].clone();
    running.type_text("q");
    let _ = running.end().0.good();
    let kernel = guest();
    let kernel = kernel.to_str().expect("a path");
    let run = ["run", "--kernel", kernel, "--trace", "function"];
    let others = vmm_says(&[&run[..], &["--patch-method", "quiesce", "--unpromised"]].concat());
    let said = others.refused(100);
    assert!(said.contains("is about --patch-method atomic"), "{said}");
    let both = vmm_says(&[&run[..], &["--atomic"], &ATOMIC].concat());
    let said = both.refused(100);
    assert!(said.contains("leave one of them out"), "{said}");
    if promises_atomic() {
        assert_eq!(method, "atomic");
        return;
    }
    assert_eq!(method, "quiesce");
    let refused = vmm_says(&[&run[..], &["--patch-method", "atomic"]].concat());
    let said = refused.refused(100);
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in ["does not promise", "--patch-method quiesce", "--unpromised"] {
        assert!(said.contains(word), "{said}");
    }
}

/// What the default depends on, where it is promised: whoever has made the processor, so few changes go well.
#[test]
fn the_trial_before_a_run_is_brief_and_finds_nothing_wrong() {
    let since = Instant::now();
    let tried = shown().expect("a tiny VM");
    println!("{tried:?} in {:?}", since.elapsed());
    assert!(tried.is_right, "{tried:?}");
    assert!(tried.is_telling(), "{tried:?}");
}

/// Few changes show it on every processor, if only they are waited for: where they did not, each start of `vmm` took a second more.
#[test]
fn few_changes_are_passed_both_ways() {
    let effort = Effort {
        time: Duration::from_secs(4),
        ..Effort::BRIEF
    };
    for _ in 0..scaled(20) {
        let tried = switching(effort).expect("a tiny VM");
        assert!(tried.is_telling(), "{tried:?}");
    }
}

#[test]
fn a_storm_of_changes_leaves_every_result_and_every_byte_as_it_was() {
    let changes = usual_or_long(scaled(2000), CHANGES);
    storms(changes, || ATOMIC, |_| {});
}

#[test]
fn a_storm_of_changes_of_a_graph_session_does_too() {
    storms(
        scaled(500),
        || ATOMIC,
        |client| {
            client.call("start", json!({"tracer": "graph", "notrace": ["spin_*"]}));
        },
    );
}

#[test]
fn counts_are_exact_on_one_vcpu_and_on_two() {
    for vcpus in [1, 2] {
        assert_traced_with(
            &ATOMIC,
            "threads,smp,nops",
            "iterations=3000 tick=200",
            vcpus,
        );
    }
}

/// Who goes by takes the one stub or the other, and both record for the first session.
#[test]
fn a_session_misses_nothing_while_another_shares_its_functions() {
    lives_to_see(scaled(200_000), |life| {
        exact_while_another_comes_and_goes(&ATOMIC, life) > 10
    });
}

#[test]
fn one_of_ten_thousand_functions_is_switched_and_nobody_is_stopped() {
    let mut running = spinning();
    let mut client = running.client();
    let text = client.digest();
    let started = client.call("start", json!({"notrace": ["spin_leaf"]}));
    assert!(started["traced"].as_u64().unwrap() > 10_000, "{started}");
    let (begin, before) = (held(&mut client), switched(&mut client));
    let rounds = 100;
    for _ in 0..rounds {
        for (notrace, what) in [(json!([]), "patched"), (json!(["spin_leaf"]), "restored")] {
            let globs = json!({"filter": ["*"], "notrace": notrace});
            let changed = client.call("filter.set", globs);
            assert_eq!(changed[what], 1, "{changed}");
            assert_eq!(changed["pauses"], 0, "{changed}");
            assert_eq!(changed["pause_us"], 0.0, "{changed}");
        }
    }
    assert_eq!(held(&mut client), begin, "somebody was stopped");
    let after = switched(&mut client);
    let more = after["atomic"].as_u64().unwrap() - before["atomic"].as_u64().unwrap();
    assert_eq!(more, 2 * rounds, "{before} {after}");
    assert_eq!(after["stopped"], before["stopped"], "{after}");
    let shown = running.ctl(&["status"]).good().stdout;
    assert!(shown.contains("while the guest ran"), "{shown}");
    client.call("stop", json!({}));
    assert_eq!(client.digest(), text);
    running.type_text("q");
    let printed = running.end().0.good().printed();
    assert_eq!(printed.calls["spin_leaf"], 4 * printed.calls["spin_root"]);
}

/// The guest has a tracer of its own, so to speak, that minds what others have put there; so do we.
#[test]
fn a_guest_that_patches_the_same_sites_meanwhile_is_never_written_over() {
    let mut running = spinning();
    let mut client = running.client();
    let text = client.digest();
    running.type_text("p");
    running.wait_for("patching");
    let (mut left, mut made) = (0, 0);
    for _ in 0..scaled(300) {
        let started = client.call("start", json!({"filter": ["spin_*"]}));
        left += started["skipped"].as_array().map_or(0, Vec::len);
        made += started["patched"].as_u64().unwrap();
        let stopped = client.call("stop", json!({}));
        assert_eq!(stopped["restored"], started["patched"], "{stopped}");
    }
    running.type_text("p");
    running.wait_for("patched");
    assert_eq!(client.digest(), text);
    running.type_text("q");
    let printed = running.end().0.good().printed();
    let [changes, met, overwritten] =
        ["changes", "met", "overwritten"].map(|name| printed.counter(name).expect("a counter"));
    println!(
        "{made} sites patched, {left} left to the guest, which has made {changes} changes and met {met} of ours"
    );
    assert_eq!(overwritten, 0);
    assert!(changes > 0 && made > 0);
    assert_eq!(printed.calls["spin_leaf"], 4 * printed.calls["spin_root"]);
}

/// What the guest does changes at one moment: one jump by an exchange, several in a pause.
#[test]
fn one_dynamic_function_is_led_elsewhere_without_a_stop_and_two_at_one_moment() {
    let guest = Guest::new("workload=dynfunc threads=5 tick=200").vcpus(2);
    let mut running = guest.with(ATOMIC).start();
    running.wait_for("func3_first");
    let mut client = running.client();
    let text = client.digest();
    let to = |number: u32, which: &str| json!({"name": format!("func{number}"), "target": format!("func{number}_{which}")});
    for which in ["second", "third", "first"] {
        let two = json!({"changes": [to(2, which), to(3, which)]});
        assert_eq!(client.call("dynfunc.set", two)["pauses"], 1);
        let one = json!({"changes": [to(0, which)]});
        assert_eq!(client.call("dynfunc.set", one)["pauses"], 0);
    }
    assert_eq!(client.digest(), text);
    running.type_text("q");
    let _ = running.end().0.good();
}

/// The RAM of another VMM's guest is mapped here: nobody need hold its threads.
#[test]
fn a_guest_of_another_vmm_is_switched_while_it_runs() {
    let name = format!("exotrace-{}-words", std::process::id());
    let other = Guest::under_qemu(&name, "workload=list,spin", 2);
    let mut other = other
        .with(["-object", "memory-backend-memfd,id=m,size=256M,share=on"])
        .with(["-machine", "memory-backend=m"])
        .start();
    other.wait_for("workload spin");
    let attached = Guest::attached(other.pid(), Some(&guest()));
    let mut attached = attached.with(ATOMIC).start();
    let mut client = attached.client();
    let text = client.digest();
    client.call("start", json!({"filter": ["spin_*"]}));
    for _ in 0..50 {
        for filter in ["spin_leaf", "spin_*"] {
            let changed = client.call("filter.set", json!({"filter": [filter]}));
            assert_eq!(changed["pauses"], 0, "{changed}");
        }
    }
    assert_eq!(switched(&mut client)["stopped"], 0);
    client.call("stop", json!({}));
    assert_eq!(client.digest(), text);
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, _) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    other.type_text("q");
    let (ended, _) = other.end();
    // QEMU's way to say 0.
    assert_eq!(ended.code, Some(1), "{ended}");
    let printed = ended.printed();
    assert_eq!(printed.calls["spin_leaf"], 4 * printed.calls["spin_root"]);
}
