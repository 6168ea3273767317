//! What others have made, and we build upon: where it comes from, under which licence, and how often. `deny.toml` says what is
//! allowed, to `cargo deny` as to these tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;
use toml::Table;

use crate::crates::cargo;
use crate::source::root;

/// As Cargo.lock has it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// What is built for this project: the workspace, and what is apart from it.
const LOCKS: [&str; 3] = ["Cargo.lock", "fuzz/Cargo.lock", "guest/Cargo.lock"];

fn table(path: &str) -> Table {
    let text = fs::read_to_string(root().join(path)).expect(path);
    text.parse().expect("it is TOML")
}

/// The part of `deny.toml`.
fn rules(part: &str) -> Table {
    table("deny.toml")[part]
        .as_table()
        .expect("a table")
        .clone()
}

/// Everything that is built or tested on our target, as cargo resolves it.
fn packages() -> Vec<Value> {
    let target = "x86_64-unknown-linux-gnu";
    let words = [
        "metadata",
        "--locked",
        "--all-features",
        "--format-version",
        "1",
        "--filter-platform",
        target,
    ];
    let metadata: Value = serde_json::from_str(&cargo(&words)).expect("JSON");
    let nodes = metadata["resolve"]["nodes"].as_array().expect("nodes");
    let used: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|node| node["id"].as_str())
        .collect();
    let all = metadata["packages"].as_array().expect("packages");
    let is_used = |package: &&Value| package["id"].as_str().is_some_and(|id| used.contains(id));
    all.iter().filter(is_used).cloned().collect()
}

fn text<'a>(package: &'a Value, field: &str) -> &'a str {
    package[field].as_str().unwrap_or_default()
}

/// Whether what is under this licence can be had under those that are allowed: `A OR (B AND C)`, of old `A/B`.
fn is_allowed(licence: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = licence
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let spaced = spaced.replace(" WITH ", "+");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let holds = any(&mut rest, allowed);
    holds && rest.is_empty()
}

fn any(rest: &mut &[&str], allowed: &BTreeSet<&str>) -> bool {
    let mut holds = all(rest, allowed);
    while let ["OR", after @ ..] = *rest {
        *rest = after;
        holds |= all(rest, allowed);
    }
    holds
}

fn all(rest: &mut &[&str], allowed: &BTreeSet<&str>) -> bool {
    let mut holds = one(rest, allowed);
    while let ["AND", after @ ..] = *rest {
        *rest = after;
        holds &= one(rest, allowed);
    }
    holds
}

fn one(rest: &mut &[&str], allowed: &BTreeSet<&str>) -> bool {
    let [word, after @ ..] = *rest else {
        return false;
    };
    *rest = after;
    if *word != "(" {
        return allowed.contains(word.replace('+', " WITH ").as_str());
    }
    let holds = any(rest, allowed);
    let closed = rest.first() == Some(&")");
    *rest = rest.get(1..).unwrap_or_default();
    holds && closed
}

fn listed<'a>(of: &'a Table, name: &str) -> BTreeSet<&'a str> {
    let values = of[name].as_array().expect("a list");
    values.iter().filter_map(|value| value.as_str()).collect()
}

#[test]
fn every_crate_is_under_a_licence_that_is_allowed() {
    let rules = rules("licenses");
    let allowed = listed(&rules, "allow");
    let exceptions = rules["exceptions"].as_array().expect("a list");
    let mut needed = BTreeSet::new();
    for package in packages() {
        let (name, licence) = (text(&package, "name"), text(&package, "license"));
        if is_allowed(licence, &allowed) {
            continue;
        }
        let exception = exceptions.iter().filter_map(|one| one.as_table());
        let exception = exception.filter(|one| one["name"].as_str() == Some(name));
        let is_excepted = exception
            .map(|one| listed(one, "allow"))
            .any(|more| is_allowed(licence, &more));
        assert!(is_excepted, "{name} is under `{licence}`");
        needed.insert(name.to_owned());
    }
    assert_eq!(
        needed.len(),
        exceptions.len(),
        "deny.toml: exceptions that nothing needs; needed: {needed:?}"
    );
}

#[test]
fn licences_are_read_as_they_are_meant() {
    let allowed = BTreeSet::from(["MIT", "BSD-3-Clause", "Apache-2.0 WITH LLVM-exception"]);
    for (licence, expected) in [
        ("MIT", true),
        ("GPL-2.0 OR MIT", true),
        ("GPL-2.0/MIT", true),
        ("GPL-2.0 AND MIT", false),
        ("MIT AND BSD-3-Clause", true),
        ("(GPL-2.0 OR MIT) AND BSD-3-Clause", true),
        ("(GPL-2.0 OR MIT) AND GPL-3.0", false),
        ("MIT OR GPL-2.0 AND GPL-3.0", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("", false),
        ("MIT MIT", false),
        ("(MIT", false),
    ] {
        assert_eq!(is_allowed(licence, &allowed), expected, "{licence}");
    }
}

/// No directory of somebody's, no branch of a repository: the registry, by the checksum that was locked.
#[test]
fn every_crate_comes_from_the_registry() {
    let allowed = rules("sources");
    assert_eq!(
        listed(&allowed, "allow-registry"),
        BTreeSet::from([REGISTRY.trim_start_matches("registry+")])
    );
    for lock in LOCKS {
        let packages = table(lock);
        for package in packages["package"].as_array().expect("a list") {
            let field = |name: &str| package.get(name).and_then(|value| value.as_str());
            let name = field("name").expect("a name");
            match field("source") {
                // Ours.
                None => assert!(field("checksum").is_none(), "{lock}: {name}"),
                Some(source) => {
                    assert_eq!(source, REGISTRY, "{lock}: {name}");
                    assert!(field("checksum").is_some(), "{lock}: {name}");
                }
            }
        }
    }
    let here = root().canonicalize().expect("the workspace");
    for package in packages() {
        let is_ours = package["source"].is_null();
        let path = text(&package, "manifest_path");
        assert!(
            !is_ours || path.starts_with(here.to_str().expect("text")),
            "{path}"
        );
        for dependency in package["dependencies"].as_array().expect("a list") {
            let is_any = is_ours && dependency["path"].is_null() && text(dependency, "req") == "*";
            assert!(!is_any, "{path}: any version of {}", dependency["name"]);
        }
    }
}

/// A crate that is there twice is compiled twice, and its types are not its types.
#[test]
fn no_crate_is_there_twice_but_those_that_are_listed() {
    let rules = rules("bans");
    let skipped = rules["skip"].as_array().expect("a list");
    let skipped: BTreeSet<&str> = skipped
        .iter()
        .filter_map(|one| one["crate"].as_str())
        .collect();
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages() {
        let version = text(&package, "version").to_owned();
        versions
            .entry(text(&package, "name").to_owned())
            .or_default()
            .push(version);
    }
    let mut found = BTreeSet::new();
    for (name, versions) in &versions {
        let named = versions.iter().map(|version| format!("{name}@{version}"));
        let (known, others): (Vec<_>, Vec<_>) =
            named.partition(|one| skipped.contains(one.as_str()));
        assert_eq!(others.len(), 1, "{name}: {versions:?}");
        found.extend(known);
    }
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(found, skipped, "deny.toml: what is skipped is not there");
}
