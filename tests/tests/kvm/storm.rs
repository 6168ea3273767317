//! Tracing that is changed all the time, from outside, while threads of every kind run.

use serde_json::{Value, json};
use tests::exact::{gated, untraced, without_gate};
use tests::{Client, Guest, Printed, Random, scaled, usual_or_long};

/// What a guest does meanwhile, in more threads than it has vCPUs.
pub struct Load {
    workloads: &'static str,
    /// Of each of its threads, where the processor executes them.
    iterations: u32,
}

/// All workloads that end by themselves, but for benchmarks, which print times, and for those that take away what
/// tracing stands on (`init` its text, `all_tables` the window). What loads modules, builds page tables or calls each of
/// ten thousand functions takes some hundred times as long for an iteration as the others.
const LOADS: [Load; 2] = [
    Load {
        workloads: "threads,smp,clock,calls,recursion,tail_calls,nops,variadic_float,\
                    c_fentry,c_mcount,c_patchable,marks,values,locks,events,messages",
        iterations: 5000,
    },
    Load {
        workloads: "modules,many,tables",
        iterations: 50,
    },
];

impl Load {
    fn guest(&self) -> Guest {
        // One that lives longer sees more changes.
        let lives = usual_or_long(1, 50);
        let rest = format!(
            "iterations={} threads=4 tick=200",
            scaled(self.iterations) * lives
        );
        gated(self.workloads, &rest).vcpus(2)
    }
}

/// How many changes the storm consists of where the processor executes it.
const TOGGLES: u32 = 2000;

/// What a guest has printed, but for what depends on who was faster: how often a channel of `messages` was full or empty.
fn settled(printed: Printed) -> Printed {
    let mut printed = without_gate(printed);
    let waits = |function: &String| function.starts_with("messages_");
    printed.calls.retain(|function, _| !waits(function));
    printed
}

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
        "calls_*",
        "messages_*",
    ];
    let more = [
        "tail_calls_*",
        "*_empty",
        "recursion_step",
        "*_varargs",
        "*",
        "*_leaf",
        "events_*",
        "*_marks",
        "optimised_*",
        "many_00*",
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
        &settled(ended.good().printed()),
        &settled(expected.clone()),
        "after {toggles} toggles"
    );
    toggles
}

/// So many changes and more, of as many guests as it takes, and under every load. Each guest has the options that
/// `more` says, and begins with `first`.
pub fn storms(
    changes: u32,
    mut more: impl FnMut() -> [&'static str; 2],
    first: impl Fn(&mut Client),
) {
    let mut random = Random::new();
    let expected = LOADS.each_ref().map(|load| untraced(load.guest()));
    let (mut made, mut guests) = (0, 0);
    for (load, expected) in LOADS.iter().zip(&expected).cycle() {
        if made >= changes && guests >= LOADS.len() {
            break;
        }
        let mode = *random.pick(&["overwrite", "discard"]);
        let more = more();
        let guest = load
            .guest()
            .with(more)
            .with(["--mode", mode, "--ring-size", "64"]);
        let of_this = storm(&mut random, guest, &first, expected);
        println!("{of_this} changes beside {}, {more:?}", load.workloads);
        assert!(of_this > 0, "a guest ended before its first change");
        made += of_this;
        guests += 1;
    }
    println!("{made} changes of {guests} guests");
}

#[test]
fn two_thousand_toggles_leave_every_result_and_every_byte_as_it_was() {
    storms(scaled(TOGGLES), || ["--patch-method", "quiesce"], |_| {});
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
