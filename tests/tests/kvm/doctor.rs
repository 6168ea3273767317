//! `vmm doctor` as a user sees it.

use std::fs;

use serde_json::Value;
use tests::{Ended, guest, vmm, vmm_says};

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

/// Whoever booted one there saw it stand, and no word of why.
#[test]
fn a_linux_is_warned_of_where_it_does_not_get_through_its_boot() {
    let json = vmm().args(["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    let mut checks = report["checks"].as_array().unwrap().iter();
    let check = checks.find(|check| check["name"] == "ring 0 is executed, not emulated");
    let is_executed = check.unwrap()["verdict"] == "ok";
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("kernel.elf");
    let mut file = fs::read(guest()).unwrap();
    fs::write(&kernel, &file).unwrap();
    let run = || vmm_says(&["run", "--kernel", kernel.to_str().unwrap()]);
    let has_warned = |said: &Ended| said.stderr.contains("`vmm doctor` says what to do");
    assert!(!has_warned(&run().good()));
    // It calls itself one, and is none.
    file.extend(b"Linux version 6.1.0 (a@b)\n\0");
    fs::write(&kernel, &file).unwrap();
    assert_eq!(has_warned(&run().good()), !is_executed);
}
