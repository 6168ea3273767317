//! Which crate may know of which: what cargo resolves, and what the sources name.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::source::{root, sources};
use crate::words::parts;

pub(crate) fn cargo(arguments: &[&str]) -> String {
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

/// The crates of the tracer, and which of them each may name.
const TRACER: [(&str, &[&str]); 7] = [
    ("terms", &[]),
    ("insn", &["terms"]),
    ("debuginfo", &["insn", "terms"]),
    ("image", &["insn", "terms"]),
    ("trace", &["terms"]),
    ("status", &["terms", "trace"]),
    (
        "tracer",
        &["debuginfo", "image", "insn", "status", "terms", "trace"],
    ),
];

#[test]
fn the_crates_of_the_tracer_name_only_what_is_below_them() {
    for (member, dependencies) in named_by_members() {
        let Some((_, below)) = TRACER.iter().find(|(name, _)| *name == member) else {
            continue;
        };
        let members = TRACER.map(|(name, _)| name);
        for other in dependencies
            .iter()
            .filter(|name| members.contains(&name.as_str()) && **name != member)
        {
            assert!(below.contains(&other.as_str()), "{member} names {other}");
        }
    }
}

#[test]
fn who_shows_a_trace_needs_nothing_that_reads_images_or_patches() {
    let forbidden = [
        "tracer",
        "image",
        "insn",
        "debuginfo",
        "iced-x86",
        "object",
        "gimli",
    ];
    let needed = built_from("trace");
    for name in forbidden {
        assert!(
            !needed.iter().any(|other| other == name),
            "trace is built from {name}"
        );
    }
    let patching = [
        "engine", "kvm", "patch", "quiesced", "site", "stub", "window",
    ];
    for source in sources("tracer/trace") {
        let path = source.path.display();
        for name in source.names() {
            let words: Vec<String> = parts(&name).collect();
            let bad = patching
                .iter()
                .find(|bad| words.iter().any(|word| word == *bad));
            assert_eq!(bad, None, "{path}: {name}");
        }
    }
}

#[test]
fn only_traces_are_files_of_the_library() {
    let files = ["OpenOptions", "fs", "rustix"];
    for source in sources("tracer") {
        let path = source.path.display();
        let names = source.names();
        let file = files.iter().find(|file| names.contains(**file));
        let is_place = source.path.starts_with("tracer/trace/src");
        assert!(is_place || file.is_none(), "{path} names {file:?}");
    }
}

#[test]
fn tracer_forbids_unsafe_code_and_knows_no_threads_and_no_clock() {
    for source in sources("tracer") {
        let path = source.path.display();
        if source.path.ends_with("src/lib.rs") {
            assert!(source.text.contains("#![forbid(unsafe_code)]"), "{path}");
        }
        for word in ["std::thread", "Instant", "SystemTime"] {
            assert!(!source.text.contains(word), "{path} names {word}");
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
fn iced_x86_is_named_only_by_insn() {
    for folder in ["tracer", "vmm/src"] {
        for source in sources(folder) {
            let inside = source.path.starts_with("tracer/insn");
            let there = source.text.contains("iced_x86");
            assert!(inside || !there, "{}", source.path.display());
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
