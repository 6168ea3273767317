//! Tracing that is changed all the time, from outside, while threads of every kind run.

use serde_json::{Value, json};
use tests::exact::{gated, untraced, without_gate};
use tests::{Client, Guest, Printed, Random, is_long, scaled};

pub const WORKLOADS: &str = "threads,smp,variadic_float,tail_calls,nops,recursion";

pub fn rest() -> String {
    format!("iterations={} tick=200", scaled(20_000))
}

/// How many changes the storm consists of where the processor executes it.
const TOGGLES: u32 = 2000;

/// Changes something at random. `None` when the guest has ended meanwhile. What does not fit the
/// state is refused, which is part of the storm.
fn toggle(client: &mut Client, random: &mut Random) -> Option<()> {
    let globs = [
        "threads_*",
        "smp_leaf",
        "smp_*",
        "rust_*",
        "fentry_*",
        "mcount_*",
        "patchable_*",
    ];
    let more = [
        "tail_calls_*",
        "*_empty",
        "recursion_step",
        "*_varargs",
        "*",
        "*_leaf",
    ];
    let glob = *random.pick(&[&globs[..], &more[..]].concat());
    let one = json!({"filter": [glob]});
    let (method, params) = match random.next_u64() % 12 {
        0..=2 => ("start", one),
        3 | 4 => ("stop", Value::Null),
        5 => ("filter.add", one),
        6 => ("filter.remove", one),
        7 => (
            "filter.set",
            json!({"filter": [glob], "notrace": ["many_*"]}),
        ),
        8 => ("filter.clear", Value::Null),
        9 => ("tracing-off", Value::Null),
        10 => ("tracing-on", Value::Null),
        _ => {
            client.ask("pause", Value::Null)?.unwrap();
            client.ask("start", one)?.ok();
            ("resume", Value::Null)
        }
    };
    if let Err(error) = client.ask(method, params)? {
        let message = error["message"].as_str().unwrap();
        let expected = ["started", "glob", "not in", "filter", "nothing"];
        assert!(
            expected.iter().any(|word| message.contains(word)),
            "{method} {glob}: {message}"
        );
    }
    Some(())
}

/// Takes everything out again and looks at the guest's text.
fn assert_restored(client: &mut Client, digest: &str) -> Option<()> {
    // Refused when nothing is traced just now.
    let _ = client.ask("stop", Value::Null)?;
    let now = client.ask("digest", Value::Null)?.unwrap();
    assert_eq!(now["sha256"], digest, "the text is not what it was");
    let functions = client.ask("functions", Value::Null)?.unwrap();
    let functions = functions["functions"].as_array().unwrap();
    let patched = functions
        .iter()
        .find(|function| function["state"] == "patched");
    assert_eq!(patched, None);
    Some(())
}

/// One guest's worth of storm, after `first`. Returns how many toggles it took until the guest ended.
pub fn storm(
    random: &mut Random,
    guest: Guest,
    first: impl FnOnce(&mut Client),
    expected: &Printed,
) -> u32 {
    let mut running = guest.start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    first(&mut client);
    running.type_text("q");
    let mut toggles = 0;
    let mut go_on = Some(());
    while go_on.is_some() {
        go_on = toggle(&mut client, random);
        toggles += 1;
        if toggles % 50 == 0 && go_on.is_some() {
            go_on = assert_restored(&mut client, &digest);
        }
    }
    let (ended, _) = running.end();
    ended.no_panic();
    assert_eq!(
        &without_gate(ended.good().printed()),
        expected,
        "after {toggles} toggles"
    );
    toggles
}

/// So many changes by this method and more, of as many guests as it takes; each begins with `first`.
pub fn storms(method: &[&str; 2], changes: u32, first: impl Fn(&mut Client)) {
    let mut random = Random::new();
    // A guest that lives longer sees more of them.
    let life = scaled(20_000) * if is_long() { 50 } else { 1 };
    let guest = || gated(WORKLOADS, &format!("iterations={life} tick=200")).vcpus(2);
    let expected = untraced(guest());
    let (mut made, mut guests) = (0, 0);
    while made < changes {
        let mode = *random.pick(&["overwrite", "discard"]);
        let guest = guest()
            .with(*method)
            .with(["--mode", mode, "--ring-size", "64"]);
        let of_this = storm(&mut random, guest, &first, &expected);
        assert!(of_this > 0, "a guest ended before its first change");
        made += of_this;
        guests += 1;
        if is_long() {
            println!("{made} changes of {guests} guests");
        }
    }
    println!("{made} changes of {guests} guests");
}

#[test]
fn two_thousand_toggles_leave_every_result_and_every_byte_as_it_was() {
    let mut random = Random::new();
    let expected = untraced(gated(WORKLOADS, &rest()).vcpus(2));
    let wanted = scaled(TOGGLES);
    let (mut toggles, mut guests) = (0, 0);
    while toggles < wanted {
        let mode = *random.pick(&["overwrite", "discard"]);
        let guest = gated(WORKLOADS, &rest()).vcpus(2);
        let guest = guest.with(["--mode", mode, "--ring-size", "64"]);
        toggles += storm(&mut random, guest, |_| {}, &expected);
        guests += 1;
        assert!(
            guests < wanted / 4,
            "guests end after {toggles} toggles in {guests} guests"
        );
    }
    println!("{toggles} toggles of {guests} guests");
}

/// While `spin` runs nothing ends: the same, with the digest at its end.
#[test]
fn a_storm_over_a_guest_that_does_not_end_is_undone_by_stop() {
    let mut random = Random::new();
    let mut running = gated("calls", "iterations=10 threads=5 tick=200")
        .vcpus(2)
        .start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    for _ in 0..scaled(200) {
        let glob = *random.pick(&["spin_*", "spin_leaf", "spin_root", "*"]);
        let (method, params) = match random.next_u64() % 3 {
            0 => ("start", json!({"filter": [glob]})),
            1 => ("filter.set", json!({"filter": [glob]})),
            _ => ("stop", Value::Null),
        };
        // Refused when it does not fit the state.
        let _ = client.ask(method, params).expect("the guest runs");
    }
    assert_restored(&mut client, &digest).expect("the guest runs");
    running.type_text("q");
    let printed = running.end().0.good().printed();
    assert_eq!(printed.calls["spin_leaf"], 4 * printed.calls["spin_root"]);
}
