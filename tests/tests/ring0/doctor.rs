//! The place is what these tests need.

use serde_json::Value;
use tests::vmm;

/// A trial that says no where it must say yes is noticed here: elsewhere its no is what is expected.
#[test]
fn what_the_box_can_do_is_said_to_be_possible() {
    let output = vmm().args(["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    for name in [
        "ring 0 is executed, not emulated",
        "the guest's TSC can be set back",
    ] {
        let check = checks.iter().find(|check| check["name"] == name);
        let check = check.unwrap_or_else(|| panic!("no check {name}: {report}"));
        assert_eq!(check["verdict"], "ok", "{check}");
    }
}
