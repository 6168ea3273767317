//! Probes: what they record is what the guest computed, as often as it did, and they leave no trace in it.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};
use tests::exact::{gated, untraced, without_gate};
use tests::{Client, Guest, Random, Running, in_the_box, scaled};

const THREADS: u64 = 5;

/// So few that all hits of all threads fit into the ring of one vCPU: nothing is lost, however late the reader is.
fn iterations() -> u64 {
    if in_the_box() { 200 } else { 2000 }
}

fn rest() -> String {
    format!("iterations={} threads={THREADS} tick=200", iterations())
}

fn unsigned(fields: &Value, name: &str) -> u64 {
    let value = fields[name].as_u64();
    value.unwrap_or_else(|| panic!("{name} of {fields}"))
}

fn signed(fields: &Value, name: &str) -> i64 {
    let value = fields[name].as_i64();
    value.unwrap_or_else(|| panic!("{name} of {fields}"))
}

/// What the guest passes to `registers`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "that is how the guest makes them"
)]
fn assert_registers(fields: &Value) {
    let serial = unsigned(fields, "rdi");
    let number = serial.wrapping_mul(3).wrapping_neg() as i32;
    assert_eq!(signed(fields, "rsi"), i64::from(number), "{fields}");
    assert_eq!(unsigned(fields, "rdx"), u64::from(serial as u8), "{fields}");
    assert_eq!(signed(fields, "rcx"), i64::from(!serial as i16), "{fields}");
}

const REGISTERS: &str = "%rdi:u64 %rsi:i32 %rdx:u8 %rcx:i16";

#[test]
fn every_hit_is_recorded_with_its_values_and_changes_nothing() {
    let expected = untraced(gated("values", &rest()).vcpus(2));
    for options in [&["--trace", "function"][..], &["--trace", "graph"], &[]] {
        let guest = Guest::new(&format!("workload=values {}", rest())).vcpus(2);
        let with_one = |guest: Guest, option: &&str| guest.with([*option]);
        let guest = options.iter().fold(guest, with_one);
        let [one, other] = ["unoptimised_registers", "optimised_registers"];
        let probes = [one, other].map(|name| format!("{name} {REGISTERS}"));
        let guest = guest.with(["--probe", &probes[0], "--probe", &probes[1]]);
        let guest = guest.with(["--mode", "discard", "--ring-size", "16384"]);
        let (ended, trace) = guest.output().run();
        let printed = ended.good().printed();
        assert_eq!(printed.checksums, expected.checksums);
        for name in [one, other] {
            let found = trace.fields(name);
            assert_eq!(found.len() as u64, printed.calls[name], "{name}");
            found.iter().for_each(assert_registers);
        }
        assert_eq!(trace.lost(), 0);
        for format in ["function", "graph"] {
            // Only a graph session has a graph.
            if format == "function" || options.contains(&"graph") {
                let report = trace.report(format);
                assert!(report.contains("optimised_registers: rdi="), "{report}");
            }
        }
        let table = fs::read(trace.path().join("probes.json")).unwrap();
        let table: Value = serde_json::from_slice(&table).unwrap();
        assert_eq!(table[1]["name"], other);
        assert_eq!(table[1]["values"][2], json!({"name": "rdx", "type": "u8"}));
    }
}

/// The serial of each hit and the vCPU that it was on.
type Hits = Vec<(u64, u64)>;

/// Each thread's serials count up, whichever vCPU it is on: so no serial comes before its forerunner. Says how often
/// a thread was on another vCPU for its next hit.
fn assert_in_order(hits: &Hits) -> usize {
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    let mut moves = 0;
    for (serial, vcpu) in hits {
        let next = serial.wrapping_add(1);
        assert!(!seen.contains_key(&next), "{next:#x} before {serial:#x}");
        let before = seen.get(&serial.wrapping_sub(1));
        moves += usize::from(before.is_some_and(|before| before != vcpu));
        seen.insert(*serial, *vcpu);
    }
    moves
}

/// Guests that may go by until a thread of one has migrated, the later ones with up to four times as much to do, which still fits into the ring: on a
/// busy host one vCPU can do all the work of a short one.
const GUESTS: u32 = 20;

/// Events of several vCPUs are in the order of time, wherever they are shown.
#[test]
fn hits_of_threads_that_migrate_come_in_order() {
    let migrated = (0..GUESTS).any(|guest| migrations_in_order(1 << (guest / 7)) > 0);
    assert!(migrated, "no thread of {GUESTS} guests has migrated");
}

/// How often threads of one guest, which does so many times more than others here, migrated between two hits, each of which stands
/// where it belongs.
fn migrations_in_order(times: u64) -> usize {
    let iterations = iterations() * times;
    let line = format!("workload=values iterations={iterations} threads={THREADS} tick=200");
    let guest = Guest::new(&line).vcpus(2);
    let guest = guest.with(["--probe", "optimised_registers serial=%rdi:u64"]);
    let guest = guest.with(["--mode", "discard", "--ring-size", "16384"]);
    let (ended, trace) = guest.output().run();
    let printed = ended.good().printed();
    let calls = printed.calls["optimised_registers"];
    let event = |line: &Value| {
        let vcpu = line["vcpu"].as_u64().unwrap();
        (unsigned(&line["fields"], "serial"), vcpu)
    };
    let hits: Hits = trace.events().iter().map(event).collect();
    assert_eq!(hits.len() as u64, calls);
    let report = trace.report("function");
    let line = |line: &str| {
        let (before, serial) = line.split_once("optimised_registers: serial=")?;
        let (_, vcpu) = before.split_once('[')?;
        let (vcpu, _) = vcpu.split_once(']')?;
        Some((serial.trim().parse().unwrap(), vcpu.parse().unwrap()))
    };
    let shown: Hits = report.lines().filter_map(line).collect();
    assert_eq!(shown, hits);
    assert_in_order(&hits)
}

/// A guest that spins, traced by a session that records probes only.
fn spinning(options: &[&str]) -> (Running, Client, String) {
    let mut running = Guest::spinning(options);
    let mut client = running.client();
    let digest = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    (running, client, digest)
}

fn add(client: &mut Client, session: &str, probes: &[&str]) -> Vec<u64> {
    let changed = client.call("probe.add", json!({"session": session, "probes": probes}));
    let changed = changed["probes"].as_array().unwrap();
    changed
        .iter()
        .map(|one| one["id"].as_u64().unwrap())
        .collect()
}

fn states(client: &mut Client) -> BTreeMap<u64, String> {
    let list = client.call("probe.list", Value::Null);
    let list = list["probes"].as_array().unwrap().iter();
    let of = |probe: &Value| {
        let state = probe["state"].as_str().unwrap().to_owned();
        (probe["id"].as_u64().unwrap(), state)
    };
    list.map(of).collect()
}

#[test]
fn an_address_is_shared_by_probes_of_several_sessions_and_restored_with_the_last() {
    let (mut running, mut client, digest) = spinning(&[]);
    client.call("session.create", json!({"name": "other", "tracer": "nop"}));
    client.call("start", json!({"session": "other"}));
    let one = add(
        &mut client,
        "default",
        &["spin_leaf %rdi", "spin_leaf %rsi"],
    );
    let other = add(&mut client, "other", &["spin_leaf %rax"]);
    assert_eq!((one.as_slice(), other.as_slice()), (&[1, 2][..], &[3][..]));
    assert_ne!(client.digest(), digest);
    // Functions can be traced at the same site, before and after them.
    client.call(
        "session.create",
        json!({"name": "graph", "tracer": "graph"}),
    );
    client.call("start", json!({"session": "graph", "filter": ["spin_*"]}));
    client.call("probe.disable", json!({"ids": [1]}));
    client.call("stop", json!({"session": "graph"}));
    let expected = [(1, "disabled"), (2, "on"), (3, "on")];
    let expected = expected.map(|(id, state)| (id, state.to_owned()));
    assert_eq!(states(&mut client), BTreeMap::from(expected));
    client.call("probe.remove", json!({"all_of": "default"}));
    assert_ne!(client.digest(), digest);
    // A session that is stopped has no probes in the text, but keeps them.
    client.call("stop", json!({"session": "other"}));
    assert_eq!(client.digest(), digest);
    assert_eq!(states(&mut client), BTreeMap::from([(3, "off".to_owned())]));
    client.call("start", json!({"session": "other"}));
    assert_ne!(client.digest(), digest);
    client.call("session.delete", json!({"session": "other"}));
    assert_eq!(client.digest(), digest);
    assert_eq!(states(&mut client), BTreeMap::new());
    // Numbers are not used again.
    assert_eq!(add(&mut client, "default", &["spin_leaf"]), [4]);
    running.type_text("q");
    let printed = running.end().0.good().printed();
    assert_eq!(printed.calls["spin_leaf"], 4 * printed.calls["spin_root"]);
}

/// Disabled probes record nothing, enabled ones every hit: the guest's workloads run one after the other.
#[test]
fn what_is_disabled_records_nothing_and_what_is_enabled_everything() {
    let rest = rest();
    let mut running = Guest::new(&format!("workload=list,spin,values,spin,values {rest}"))
        .vcpus(2)
        .with(["--mode", "discard", "--ring-size", "16384"])
        .output()
        .start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.call("start", json!({"tracer": "nop"}));
    add(
        &mut client,
        "default",
        &[
            "optimised_registers %rdi:u64",
            "unoptimised_registers %rdi:u64",
        ],
    );
    client.call("probe.disable", json!({"ids": [2]}));
    running.type_text("q");
    running.wait_for("checksum values");
    client.call("probe.disable", json!({"ids": [1]}));
    client.call("probe.enable", json!({"ids": [2]}));
    let list = client.call("probe.list", Value::Null);
    let passes = THREADS * iterations();
    assert_eq!(list["probes"][0]["hits"], passes);
    assert_eq!(list["probes"][1]["hits"], 0);
    running.type_text("q");
    let (ended, trace) = running.end();
    let _ = ended.good();
    for name in ["optimised_registers", "unoptimised_registers"] {
        assert_eq!(trace.fields(name).len() as u64, passes, "{name}");
    }
}

/// Every place of a function where a probe can be, by trying each offset; those inside instructions are refused.
fn at_every_instruction(client: &mut Client, function: &str, bytes: u64) -> Vec<String> {
    let names = (0..bytes).map(|offset| match offset {
        0 => function.to_owned(),
        _ => format!("{function}+{offset:#x}"),
    });
    let is_set = |name: &String| match client.ask("probe.add", json!({"probes": [name]})).unwrap() {
        Ok(_) => true,
        Err(error) => {
            let message = error["message"].as_str().unwrap();
            let expected = ["is inside the instruction", "belongs to a patch site"];
            let is_expected = expected.iter().any(|words| message.contains(words));
            assert!(is_expected, "{message}");
            false
        }
    };
    // From the last one on: what displaces several instructions does so only where no other probe is yet.
    names.rev().filter(is_set).collect()
}

/// Of functions without branches, compiled with and without optimisation: each instruction is executed as often as its
/// function is called, whether it is displaced or not.
#[test]
fn probes_at_every_instruction_are_all_hit_and_change_nothing() {
    let iterations = iterations() / 10;
    let rest = format!("iterations={iterations} threads={THREADS} tick=200");
    let expected = untraced(gated("values", &rest).vcpus(2));
    let mut running = gated("values,spin", &rest)
        .vcpus(2)
        .with(["--mode", "discard", "--ring-size", "16384"])
        .output()
        .start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    let mut names = Vec::new();
    for (function, bytes) in [
        ("unoptimised_registers", 0x78),
        ("unoptimised_pieces", 0x83),
        ("optimised_registers", 0x2b),
        ("optimised_pieces", 5),
    ] {
        names.extend(at_every_instruction(&mut client, function, bytes));
    }
    assert!(names.len() > 70, "{names:?}");
    let list = client.call("probe.list", Value::Null);
    for tactic in ["1 (site)", "2 (one)", "5 (breakpoint)"] {
        let mut all = list["probes"].as_array().unwrap().iter();
        assert!(all.any(|probe| probe["tactic"] == tactic), "{tactic}");
    }
    running.type_text("q");
    running.wait_for("checksum values");
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), digest);
    let list = client.call("probe.list", Value::Null);
    let list = list["probes"].as_array().unwrap();
    for (probe, name) in list.iter().zip(&names) {
        assert_eq!(probe["name"], **name);
        assert_eq!(probe["hits"], THREADS * iterations, "{probe}");
    }
    running.type_text("q");
    let printed = without_gate(running.end().0.good().printed());
    assert_eq!(printed.checksums, expected.checksums);
}

/// Values in the middle of a function, where a breakpoint or a jump has displaced an instruction.
#[test]
fn values_between_instructions_are_those_of_that_moment() {
    let (ended, trace) = Guest::new(&format!("workload=calls iterations={}", iterations() / 10))
        .vcpus(2)
        .with(["--probe", "calls_leaf %rdi"])
        .with(["--probe", "calls_twig+0x6 %rdi if %rdi & 1 == 1"])
        .with(["--probe", "calls_twig+0xe %rbx %rax"])
        .with(["--mode", "discard", "--ring-size", "16384"])
        .output()
        .run();
    let printed = ended.good().printed();
    let odd = trace.fields("calls_twig+0x6");
    let is_odd = |fields: &&Value| {
        let digits = fields["rdi"].as_str().unwrap().trim_start_matches("0x");
        u64::from_str_radix(digits, 16).unwrap() & 1 == 1
    };
    let all = trace.fields("calls_leaf");
    // Of each two leaves of a twig the first has the twig's own argument.
    let expected = all.iter().step_by(2).filter(is_odd).count();
    assert_eq!(odd.len(), expected);
    assert!(expected > 0 && odd.iter().all(|fields| is_odd(&fields)));
    let twigs = trace.fields("calls_twig+0xe");
    assert_eq!(twigs.len() as u64, printed.calls["calls_twig"]);
    assert!(twigs.iter().all(|fields| fields["rbx"] == fields["rax"]));
}

/// Before they are set, the rings that they record into are made in a pause.
#[test]
fn a_thousand_probes_are_set_and_removed_in_one_pause_each() {
    let pauses = a_thousand_probes(&["--atomic"]);
    assert_eq!(pauses, [1 + 1, 1]);
}

/// So that none of them is long; a request of which a part cannot be is none all the same.
#[test]
fn a_thousand_probes_are_set_and_removed_in_slices() {
    let pauses = a_thousand_probes(&["--max-pause", "0.02", "--patch-method", "quiesce"]);
    assert!(pauses.iter().all(|pauses| *pauses > 3), "{pauses:?}");
}

#[test]
fn a_thousand_probes_are_set_and_removed_while_the_guest_runs() {
    let pauses = a_thousand_probes(&["--patch-method", "live"]);
    assert_eq!(pauses, [1, 0]);
}

/// Says in how many pauses they are set, and removed.
fn a_thousand_probes(options: &[&str]) -> [u64; 2] {
    let (mut running, mut client, digest) = spinning(options);
    let functions = client.call("functions", Value::Null);
    let functions = functions["functions"].as_array().unwrap().iter();
    let names = functions.filter(|one| one["state"] == "available");
    let names: Vec<&str> = names.map(|one| one["name"].as_str().unwrap()).collect();
    let probes = names.iter().cycle().take(1000);
    let probes: Vec<String> = probes.map(|name| format!("{name} %rdi")).collect();
    let changed = client.call("probe.add", json!({"probes": probes}));
    assert_eq!(changed["probes"].as_array().unwrap().len(), 1000);
    let set = changed["pauses"].as_u64().unwrap();
    let one_is_wrong = [&probes[..], &["no_such_function".to_owned()]].concat();
    let said = client.refused("probe.add", json!({"probes": one_is_wrong}));
    assert!(said.contains("no_such_function"), "{said}");
    assert_eq!(states(&mut client).len(), 1000);
    let changed = client.call("probe.remove", json!({"all_of": "default"}));
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let _ = running.end().0.good();
    [set, changed["pauses"].as_u64().unwrap()]
}

#[test]
fn what_cannot_be_is_refused_in_one_line_and_nothing_is_half_set() {
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    let digest = client.digest();
    let early = client.refused("probe.add", json!({"probes": ["spin_leaf %rdi"]}));
    assert!(early.contains("not been started"), "{early}");
    client.call("start", json!({"tracer": "nop"}));
    let cases = [
        (
            &["probe", "add", "spin_leef", "%rdi"][..],
            &["spin_leef"][..],
        ),
        (&["probe", "add", "spin_leaf", "%rdx1"], &["rdx1"]),
        (&["probe", "add", "spin_leaf", "%rdi:u65"], &["u65"]),
        (
            &["--session", "nobody", "probe", "add", "spin_leaf"],
            &["nobody"],
        ),
        (&["probe", "remove", "7"], &["no probe 7"]),
        (&["probe", "enable", "0"], &["no probe 0"]),
        (&["probe", "disable", "all", "--session", "x"], &["'x'"]),
    ];
    for (verb, words) in cases {
        running.refuses(verb, words);
    }
    assert_eq!(states(&mut client), BTreeMap::new());
    assert_eq!(client.digest(), digest);
    let said = running.ctl(&["probe", "add", "spin_leaf", "%rdi", "%rsi:u8"]);
    let said = said.good().stdout;
    assert!(said.starts_with("probe 1 set: spin_leaf"), "{said}");
    let said = running.ctl(&["probe", "list"]).good().stdout;
    assert!(said.contains("rsi: u8"), "{said}");
    assert!(said.contains(", on, session default"), "{said}");
    let said = running.ctl(&["probe", "remove", "all"]).good().stdout;
    assert!(said.contains("probe 1 removed"), "{said}");
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let _ = running.end().0.good();
    let mut command_line = Guest::new("workload=list").with(["--probe", "no_such %rdi"]);
    command_line = command_line.with(["--timeout", "60"]);
    let line = command_line.run().0;
    assert!(line.refused(100).contains("no_such"), "{line}");
}

/// One change at random. `None` when the guest has ended; what does not fit the state is refused.
fn toggle(client: &mut Client, random: &mut Random, ids: &mut Vec<u64>) -> Option<()> {
    let functions = ["registers", "stacked", "pieces", "locals", "step", "color"];
    let builds = ["optimised", "unoptimised"];
    let session = *random.pick(&["default", "other"]);
    let some = [random.next_u64(), random.next_u64()].map(|number| {
        let index = usize::try_from(number).unwrap_or(0) % ids.len().max(1);
        ids.get(index).copied().unwrap_or(0)
    });
    let (method, params) = match random.next_u64() % 10 {
        0..=3 => {
            let count = 1 + random.next_u64() % 8;
            let probes = (0..count).map(|_| {
                let (build, function) = (*random.pick(&builds), *random.pick(&functions));
                // After the site is an instruction in all of them.
                let place = *random.pick(&["", "", "+5"]);
                format!("{build}_{function}{place} {REGISTERS}")
            });
            let probes: Vec<String> = probes.collect();
            ("probe.add", json!({"session": session, "probes": probes}))
        }
        4 | 5 => ("probe.remove", json!({"ids": some})),
        6 => ("probe.disable", json!({"ids": some})),
        7 => ("probe.enable", json!({"ids": some})),
        8 => ("stop", json!({"session": session})),
        _ => (
            "start",
            json!({"session": session, "filter": ["*values*", "*step"]}),
        ),
    };
    match client.ask(method, params)? {
        Ok(changed) if method == "probe.add" => {
            let added = changed["probes"].as_array().unwrap().iter();
            ids.extend(added.map(|one| one["id"].as_u64().unwrap()));
        }
        Ok(_) if method == "probe.remove" => ids.retain(|id| !some.contains(id)),
        Ok(_) => {}
        Err(error) => {
            let message = error["message"].as_str().unwrap();
            let expected = ["started", "no probe 0"];
            assert!(
                expected.iter().any(|word| message.contains(word)),
                "{method}: {message}"
            );
        }
    }
    Some(())
}

#[test]
fn a_storm_of_probes_leaves_every_result_and_every_byte_as_it_was() {
    storm([], 600);
}

/// Those of one instruction are set while it is executed, the others in a pause.
#[test]
fn a_storm_of_probes_while_the_guest_runs_does_so_too() {
    storm(["--patch-method", "live"], 300);
}

fn storm<const N: usize>(options: [&str; N], toggles: u32) {
    let mut random = Random::new();
    let rest = format!("iterations={} threads={THREADS} tick=200", scaled(40_000));
    let expected = untraced(gated("values", &rest).vcpus(2));
    let mut running = gated("values,spin", &rest)
        .vcpus(2)
        .with(["--ring-size", "256"])
        .with(options)
        .output()
        .start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    client.call(
        "session.create",
        json!({"name": "other", "tracer": "graph"}),
    );
    running.type_text("q");
    let mut ids = Vec::new();
    for _ in 0..scaled(toggles) {
        toggle(&mut client, &mut random, &mut ids).expect("the guest runs");
    }
    for session in ["default", "other"] {
        // Refused when it is stopped just now.
        let _ = client.ask("stop", json!({"session": session}));
    }
    assert_eq!(client.digest(), digest);
    running.wait_for("checksum values");
    running.type_text("q");
    let (ended, trace) = running.end();
    let printed = without_gate(ended.good().printed());
    assert_eq!(printed.checksums, expected.checksums);
    for build in ["optimised", "unoptimised"] {
        trace
            .fields(&format!("{build}_registers"))
            .iter()
            .for_each(assert_registers);
    }
}

/// It was once: a graph that was switched off hid the returns for which another session's probe waited.
#[test]
fn a_graph_that_is_switched_off_hides_no_return_from_a_probe() {
    for tracer in ["graph", "profile"] {
        let mut running: Running = gated("calls,spin", "iterations=20").start();
        running.wait_for("workload spin");
        let mut client = running.client();
        let own = json!({"tracer": tracer, "filter": ["calls_twig"]});
        client.call("start", own);
        let output = json!({"output": running.path("returns")});
        let create = json!({"name": "returns", "tracer": "nop", "options": output});
        client.call("session.create", create);
        client.call("start", json!({"session": "returns"}));
        let add = json!({"session": "returns", "probes": ["calls_twig%return"]});
        client.call("probe.add", add);
        client.call("tracing-off", Value::Null);
        running.type_text("q");
        running.wait_for("checksum calls");
        client.call("stop", json!({"session": "returns"}));
        let listed = client.call("probe.list", Value::Null);
        running.type_text("q");
        let calls = running.end().0.good().printed().calls;
        assert_eq!(
            listed["probes"][0]["hits"].as_u64(),
            calls.get("calls_twig").copied(),
            "{tracer}"
        );
    }
}
