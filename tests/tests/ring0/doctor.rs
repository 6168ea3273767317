//! The place is what these tests need.

use serde_json::Value;
use tests::vmm;

#[test]
fn ring_0_is_executed() {
    let output = vmm().args(["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let name = "ring 0 is executed, not emulated";
    let check = checks.iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(check["verdict"], "ok", "{check}");
}
