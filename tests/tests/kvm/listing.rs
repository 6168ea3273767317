//! What can be traced, as `vmm sites` and as the guest itself say it.

use std::collections::BTreeSet;

use serde_json::Value;
use tests::{Guest, guest, vmm_says};

fn guest_names() -> BTreeSet<String> {
    let (ended, _) = Guest::new("workload=functions").run();
    let console = ended.good().stdout;
    let names = console
        .lines()
        .filter_map(|line| line.strip_prefix("function "));
    names.map(str::to_owned).collect()
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
    let sites: BTreeSet<String> = functions.expect("a list").iter().map(named).collect();
    let guest = guest_names();
    assert!(guest.len() > 10_000, "{} functions", guest.len());
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
    assert_eq!(names.collect::<BTreeSet<String>>(), guest_names());
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
