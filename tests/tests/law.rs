//! The law of the crates: which may know of which. Checked in what cargo resolves and in the
//! sources, so that a convenient shortcut does not go unnoticed.
#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}

/// Everything that `package` is built from, itself left out.
fn built_from(package: &str) -> Vec<String> {
    let edges = [
        "tree",
        "--locked",
        "--prefix",
        "none",
        "--edges",
        "normal,build",
    ];
    let tree = cargo(&[&edges[..], &["--package", package]].concat());
    let names = tree
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next());
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The crates that each member of the workspace names, for building or for its tests.
fn named_by_members() -> Vec<(String, Vec<String>)> {
    let metadata = cargo(&["metadata", "--locked", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    let name = |value: &Value| value["name"].as_str().expect("a name").to_owned();
    let packages = metadata["packages"].as_array().expect("packages");
    let named = |package: &Value| {
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        dependencies.iter().map(name).collect()
    };
    packages
        .iter()
        .map(|package| (name(package), named(package)))
        .collect()
}

/// Every Rust file below `folder`, with its text.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "no sources in {folder}");
    found
}

/// The part of a file that is no test.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

#[test]
fn tracer_is_built_from_nothing_that_knows_kvm_or_threads() {
    let forbidden = [
        "kvm-",
        "vm-memory",
        "vm-superio",
        "vmm",
        "linux-loader",
        "event-manager",
        "tests",
        "tokio",
        "rayon",
        "crossbeam",
        "libc",
    ];
    for name in built_from("tracer") {
        let bad = forbidden.iter().any(|start| name.starts_with(start));
        assert!(!bad, "tracer is built from {name}");
    }
}

#[test]
fn tracer_forbids_unsafe_code_and_knows_no_threads_and_no_clock() {
    for (path, text) in sources("tracer/src") {
        if path.ends_with("tracer/src/lib.rs") {
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{}",
                path.display()
            );
        }
        for word in ["std::thread", "Instant", "SystemTime"] {
            let there = without_tests(&text).contains(word);
            assert!(!there, "{} names {word}", path.display());
        }
    }
}

#[test]
fn only_vmm_names_kvm() {
    for (member, dependencies) in named_by_members() {
        let kvm = dependencies.iter().find(|name| name.starts_with("kvm-"));
        assert!(member == "vmm" || kvm.is_none(), "{member} names {kvm:?}");
    }
}

#[test]
fn nothing_depends_on_the_tests_and_tracer_does_not_depend_on_vmm() {
    for (member, dependencies) in named_by_members() {
        assert!(
            !dependencies.contains(&"tests".to_owned()),
            "{member} depends on tests"
        );
        let vmm = dependencies.contains(&"vmm".to_owned());
        assert!(!vmm || member == "tests", "{member} depends on vmm");
    }
}

#[test]
fn iced_x86_is_named_only_under_insn() {
    for folder in ["tracer/src", "vmm/src"] {
        for (path, text) in sources(folder) {
            let inside = path.components().any(|part| part.as_os_str() == "insn");
            assert!(inside || !text.contains("iced_x86"), "{}", path.display());
        }
    }
}

#[test]
fn the_guest_knows_nothing_of_the_host_crates() {
    for manifest in [
        "guest/kernel",
        "guest/control",
        "guest/points",
        "guest/workloads",
    ] {
        let path = root().join(manifest).join("Cargo.toml");
        let text = fs::read_to_string(&path).expect("a manifest of the guest");
        assert!(
            !text.contains("../../"),
            "{} reaches out of guest/",
            path.display()
        );
    }
}
