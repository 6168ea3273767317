//! `vmm doctor` as a user sees it.

use serde_json::Value;
use tests::vmm;

#[test]
fn the_host_that_these_tests_run_on_is_usable() {
    let output = vmm().arg("doctor").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("Tracing works on this host."), "{text}");
}

#[test]
fn json_says_the_same_as_the_text() {
    let text = vmm().arg("doctor").output().unwrap();
    let json = vmm().args(["doctor", "--json"]).output().unwrap();
    assert_eq!(text.status.code(), json.status.code());
    let text = String::from_utf8(text.stdout).unwrap();
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 20, "{} checks", checks.len());
    for check in checks {
        let name = check["name"].as_str().unwrap();
        assert!(text.contains(name), "the text lacks {name}");
    }
}
