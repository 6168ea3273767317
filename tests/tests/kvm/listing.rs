//! What can be traced, as `vmm sites` and as the guest itself say it.

use std::collections::BTreeSet;

use serde_json::Value;
use tests::{Guest, guest, scaled, vmm_says};

/// So many functions of `many` are printed by the guest, which takes long in the box.
fn many() -> u32 {
    scaled(10_000)
}

/// What the guest says it has.
fn guest_names() -> BTreeSet<String> {
    let cmdline = format!("workload=functions many_functions={}", many());
    let (ended, _) = Guest::new(&cmdline).run();
    let console = ended.good().stdout;
    let names = console
        .lines()
        .filter_map(|line| line.strip_prefix("function "));
    names.map(str::to_owned).collect()
}

/// These without those of `many` that the guest does not print.
fn printed(names: impl Iterator<Item = String>) -> BTreeSet<String> {
    let number = |name: &str| name.strip_prefix("many_")?.parse::<u32>().ok();
    names
        .filter(|name| number(name).is_none_or(|number| number < many()))
        .collect()
}

#[test]
fn sites_and_the_guest_name_the_same_functions() {
    let listing = vmm_says(&["sites".as_ref(), guest().as_os_str(), "--json".as_ref()]).good();
    let listing: Value = serde_json::from_str(&listing.stdout).unwrap();
    let functions = listing["sites"]
        .as_array()
        .or(listing["functions"].as_array());
    let named = |function: &Value| {
        let name = function["symbol"].as_str().or(function["name"].as_str());
        name.expect("a name").to_owned()
    };
    let functions = functions.expect("a list");
    assert!(functions.len() > 10_000, "{} functions", functions.len());
    let sites = printed(functions.iter().map(named));
    let guest = guest_names();
    let differ: Vec<_> = sites.symmetric_difference(&guest).collect();
    assert!(differ.is_empty(), "{differ:?}");
}

#[test]
fn the_table_has_a_line_for_each() {
    let table = vmm_says(&["sites".as_ref(), guest().as_os_str()])
        .good()
        .stdout;
    for name in [
        "calls_leaf",
        "fentry_root",
        "mcount_root",
        "patchable_root",
        "many_9999",
    ] {
        assert!(table.contains(name), "no {name}");
    }
}

#[test]
fn a_running_guest_lists_the_same() {
    let mut running = Guest::new("workload=list,spin").start();
    running.wait_for("workload spin");
    let listed = running.client().call("functions", Value::Null);
    let listed = listed["functions"].as_array().unwrap().clone();
    let available = listed
        .iter()
        .filter(|function| function["state"] == "available");
    let names = available.map(|function| function["name"].as_str().unwrap().to_owned());
    // Init text is gone by now, and no module is loaded.
    let mut expected = guest_names();
    expected.retain(|name| !name.starts_with("init_") && !name.starts_with("module_"));
    assert!(printed(names) == expected, "other functions");
    let skipped = listed
        .iter()
        .find(|function| function["state"] == "skipped")
        .unwrap();
    assert!(
        skipped["reason"]
            .as_str()
            .is_some_and(|why| !why.is_empty()),
        "{skipped}"
    );
}
