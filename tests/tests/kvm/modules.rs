//! Text that comes and goes: init text that is freed, a module that is loaded and unloaded in a loop.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tests::exact::{assert_exact, gated, untraced, without_gate};
use tests::{Client, Guest, Random, in_the_box, patched_by, scaled, vmm_says};

const TRACED: [&str; 4] = ["--filter", "module_*", "--filter", "init_*"];
const ROOM: [&str; 4] = ["--mode", "discard", "--ring-size", "32768"];

/// The functions that the running guest has, by their names' beginning.
fn there(client: &mut Client, glob: &str) -> Option<BTreeSet<String>> {
    let functions = client.ask("functions", json!({"glob": glob}))?.unwrap();
    let functions = functions["functions"].as_array().unwrap();
    let name = |function: &Value| function["name"].as_str().unwrap().to_owned();
    Some(functions.iter().map(name).collect())
}

#[test]
fn a_filter_that_selects_a_module_has_it_from_its_first_call_on() {
    for vcpus in [1, 2] {
        let iterations = scaled(200);
        let guest = Guest::new(&format!("workload=init,modules iterations={iterations}"));
        let guest = guest.vcpus(vcpus).with(TRACED).with(ROOM);
        let (ended, trace) = guest.with(["--trace", "function"]).output().run();
        let ended = ended.good();
        assert!(ended.stdout.contains("counter spoilt 0\n"), "{ended}");
        assert_exact(&trace, &ended.printed());
    }
}

#[test]
fn returns_from_a_module_are_hooked_too() {
    let iterations = scaled(200);
    let guest = Guest::new(&format!("workload=init,modules iterations={iterations}"));
    let guest = guest.vcpus(2).with(TRACED).with(ROOM);
    let (ended, trace) = guest.with(["--trace", "graph"]).output().run();
    let printed = ended.good().printed();
    assert_eq!(trace.lost(), 0);
    assert_eq!(trace.uftrace(), printed.called(), "uftrace report");
}

#[test]
fn a_module_is_listed_while_it_is_there_and_init_text_until_it_is_freed() {
    let iterations = scaled(2000);
    let mut running = gated("modules,list", &format!("iterations={iterations}")).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    assert_eq!(there(&mut client, "module_*"), Some(BTreeSet::new()));
    assert_eq!(
        there(&mut client, "init_*"),
        Some(BTreeSet::new()),
        "freed by now"
    );
    running.type_text("q");
    let names = ["module_leaf", "module_run", "module_step"];
    let all: BTreeSet<String> = names.map(str::to_owned).into();
    let (mut seen, mut missed) = (false, false);
    while let Some(now) = there(&mut client, "module_*") {
        seen |= now == all;
        missed |= now.is_empty();
        assert!(now.is_empty() || now == all, "{now:?}");
    }
    assert!(
        seen && missed,
        "it was loaded and unloaded {iterations} times"
    );
    let _ = running.end().0.good();
}

#[test]
fn filters_change_while_a_module_comes_and_goes() {
    let iterations = if in_the_box() { 100 } else { 500 };
    let guest = |method: &'static str| {
        let guest = gated(
            "modules,threads",
            &format!("iterations={iterations} tick=200"),
        );
        guest.vcpus(2).with(patched_by(method))
    };
    let expected = untraced(guest("quiesce"));
    let mut random = Random::new();
    for method in ["quiesce", "live", "atomic"] {
        let mut running = guest(method).start();
        running.wait_for("workload spin");
        let mut client = running.client();
        let digest = client.digest();
        running.type_text("q");
        let mut changes = 0;
        loop {
            let glob = *random.pick(&["module_*", "module_leaf", "threads_*", "*"]);
            let one = json!({"filter": [glob]});
            let (name, params) = match random.next_u64() % 4 {
                0 | 1 => ("start", one),
                2 => ("filter.set", one),
                _ => ("stop", Value::Null),
            };
            // Refused when it does not fit the state.
            let Some(_) = client.ask(name, params) else {
                break;
            };
            changes += 1;
            if changes % 16 == 0 {
                let _ = client.ask("stop", Value::Null);
                let now = client.ask("digest", Value::Null);
                assert!(now.is_none_or(|now| now.unwrap()["sha256"] == digest));
            }
        }
        println!("{method}: {changes} changes");
        assert!(changes > 10, "the guest ended too early");
        let ended = running.end().0.good();
        assert!(ended.stdout.contains("counter spoilt 0\n"), "{ended}");
        assert_eq!(without_gate(ended.printed()), expected, "{method}");
    }
}

#[test]
fn what_the_linker_threw_away_is_in_no_list() {
    let guest = tests::guest();
    let sites = vmm_says(&["sites", guest.to_str().expect("a path")]).good();
    assert!(sites.stdout.contains("module_leaf"), "{sites}");
    assert!(!sites.stdout.contains("module_unused"), "{sites}");
}

/// The module that is linked into the guest, as a file.
fn linked_in() -> Vec<u8> {
    const ROOM: usize = 64 << 10;
    let guest = std::fs::read(tests::guest()).unwrap();
    let magic = b"\x7fELF";
    let mut starts = (1..guest.len()).filter(|at| guest[*at..].starts_with(magic));
    let start = starts.next().expect("a file in the file");
    guest[start..start + ROOM - 1].to_vec()
}

/// Another module than the linked one: it computes something else.
fn another() -> Vec<u8> {
    let mut module = linked_in();
    let factor = 0xc4ce_b9fe_1a85_ec53u64.to_le_bytes();
    let at = module.windows(8).position(|bytes| bytes == factor);
    module[at.expect("the factor in module_leaf")] ^= 0x10;
    module
}

#[test]
fn a_module_that_is_given_as_a_file_is_loaded_and_traced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("module.elf");
    std::fs::write(&path, another()).unwrap();
    let iterations = scaled(200);
    let cmdline = format!("workload=modules iterations={iterations}");
    let own = Guest::new(&cmdline).run().0.good().printed();
    let guest = Guest::new(&cmdline).vcpus(2).with(TRACED).with(ROOM);
    let guest = guest.with(["--module", path.to_str().expect("a path")]);
    let (ended, trace) = guest.with(["--trace", "function"]).output().run();
    let ended = ended.good();
    assert!(ended.stdout.contains("counter spoilt 0\n"), "{ended}");
    let entered = 100 * u64::from(iterations);
    assert!(
        ended
            .stdout
            .contains(&format!("counter entered {entered}\n"))
    );
    let printed = ended.printed();
    assert_ne!(printed.checksums, own.checksums, "it is another module");
    let counts = trace.counts();
    for (function, times) in [("module_run", 1), ("module_step", 2), ("module_leaf", 4)] {
        assert_eq!(counts[function], times * entered, "{function}");
        assert_eq!(own.calls[function], times * entered, "{function}");
    }
}

#[test]
fn files_that_are_no_modules_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("module.elf");
    let guest = tests::guest();
    let guest = guest.to_str().expect("a path");
    let name = path.to_str().expect("a path");
    let module = linked_in();
    let mut elsewhere = module.clone();
    elsewhere[24] ^= 0x10;
    let cases = [
        (Vec::new(), "it is no module"),
        (module[..100].to_vec(), "it is no module"),
        (elsewhere, "entered at its first byte"),
        ([&module[..], &[0; 100]].concat(), "has room for 65535"),
        (std::fs::read(guest).unwrap(), "has room for 65535"),
    ];
    for (bytes, expected) in cases {
        std::fs::write(&path, bytes).unwrap();
        let refused = vmm_says(&["run", "--kernel", guest, "--module", name]);
        let line = refused.refused(100);
        assert!(
            line.contains(expected) && line.contains("module.elf"),
            "{line}"
        );
    }
    let missing = folder.path().join("missing");
    let missing = missing.to_str().expect("a path");
    let refused = vmm_says(&["run", "--kernel", guest, "--module", missing]);
    assert!(refused.refused(100).contains("No such file"));
}
