//! Words that stand nowhere, or only where they belong.

use std::path::Path;

use syn::Item;

use crate::source::{Source, sources};

/// All that is ours and runs on the host.
const FOLDERS: [&str; 3] = ["tracer", "vmm/src", "tests/src"];

/// Words that say nothing: no file, no module and no type is called so, also not in part.
const EMPTY: [&str; 8] = [
    "util", "utils", "helper", "helpers", "manager", "misc", "common", "stuff",
];

/// Where `unsafe` is needed: a mapping, a signal or KVM.
const UNSAFE: [&str; 19] = [
    "vmm/src/clock.rs",
    "vmm/src/confine/libraries.rs",
    "vmm/src/confine/violation.rs",
    "vmm/src/control/server.rs",
    "vmm/src/counter.rs",
    "vmm/src/foreign/ptrace.rs",
    "vmm/src/foreign/run_page.rs",
    "vmm/src/foreign/same_file.rs",
    "vmm/src/foreign/shapes.rs",
    "vmm/src/trial/vm.rs",
    "vmm/src/memory.rs",
    "vmm/src/memslots.rs",
    "vmm/src/signals.rs",
    "vmm/src/terminal.rs",
    "vmm/src/foreign/urgent.rs",
    "vmm/src/host/clock_page.rs",
    "vmm/src/vcpu/cpu_time.rs",
    "vmm/src/vcpu/kick.rs",
    "vmm/src/vcpu/thread.rs",
];

/// Where the library names Linux, beside `linux/` and the formats of its files: which kinds of guests there are, and
/// the library's door.
const KNOW_LINUX: [&str; 2] = ["tracer/src/guest_kind.rs", "tracer/src/lib.rs"];

#[test]
fn no_name_says_nothing() {
    for source in all() {
        let path = source.path.display();
        let names = source.path.iter().filter_map(|name| name.to_str());
        let names = names.map(|name| name.trim_end_matches(".rs").to_owned());
        for name in names.chain(declared(&source.file().items)) {
            let empty = EMPTY
                .iter()
                .find(|empty| parts(&name).any(|part| part == **empty));
            assert_eq!(empty, None, "{path}: {name}");
        }
    }
}

#[test]
fn unsafe_code_is_where_it_is_needed_and_nowhere_else() {
    for source in all() {
        let path = source.path.display();
        let is_there = source.names().iter().any(|name| name == "unsafe");
        let is_allowed = UNSAFE
            .iter()
            .any(|allowed| source.path == Path::new(allowed));
        assert!(is_allowed || !is_there, "{path} has unsafe code");
        assert!(is_there || !is_allowed, "{path} has none: take it off");
    }
}

/// Another process is held in one place, and where tests kill one of ours at a step of their choice, or have a thread of it call
/// what it may not.
#[test]
fn only_what_reaches_other_vmms_names_ptrace() {
    for source in all() {
        let is_named = source
            .names()
            .iter()
            .any(|name| name == "ptrace" || name == "nix");
        let is_allowed = source.path.starts_with("vmm/src/foreign")
            || source.path == Path::new("tests/src/mortal.rs")
            || source.path == Path::new("tests/src/forced.rs");
        assert!(is_allowed || !is_named, "{}", source.path.display());
    }
}

/// What mends an error, the command line adds.
#[test]
fn texts_of_the_library_name_no_option() {
    for source in sources("tracer") {
        let named = source.strings().into_iter().find(|text| names_option(text));
        assert_eq!(named, None, "{}", source.path.display());
    }
}

#[test]
fn linux_is_named_in_its_place() {
    let places = ["tracer/src/linux", "tracer/image"];
    let is_of = |name: &String| name.to_lowercase().contains("linux");
    for source in sources("tracer") {
        let path = source.path.display();
        let is_place = places.iter().any(|place| source.path.starts_with(place));
        let is_allowed = KNOW_LINUX
            .iter()
            .any(|allowed| source.path == Path::new(allowed));
        let names = source.names();
        let found = names.iter().find(|name| is_of(name));
        let text = source.strings().into_iter().find(is_of);
        if !is_place && !is_allowed {
            assert_eq!((found, &text), (None, &None), "{path}");
        }
        assert!(
            found.is_some() || !is_allowed,
            "{path} does not: take it off"
        );
    }
}

/// Nothing is *behind* what comes before it: it comes *after* it.
#[test]
fn after_is_called_so() {
    for source in all() {
        let found = words(&source.text).any(|word| word == "behind");
        assert!(!found, "{} says behind", source.path.display());
    }
}

fn all() -> Vec<Source> {
    FOLDERS.iter().flat_map(|folder| sources(folder)).collect()
}

/// The names of modules and types.
fn declared(items: &[Item]) -> Vec<String> {
    let names = items.iter().filter_map(|item| match item {
        Item::Enum(item) => Some(&item.ident),
        Item::Mod(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        _ => None,
    });
    names.map(ToString::to_string).collect()
}

/// The words that a name is made of, in small letters.
pub fn parts(name: &str) -> impl Iterator<Item = String> {
    let mut apart = String::new();
    for char in name.chars() {
        if char.is_ascii_uppercase() {
            apart.push('_');
        }
        apart.push(char.to_ascii_lowercase());
    }
    let parts: Vec<String> = apart.split('_').map(str::to_owned).collect();
    parts.into_iter()
}

/// Whether a text has an option in it, as `--force`.
fn names_option(text: &str) -> bool {
    let mut after = text.split("--").skip(1);
    after.any(|rest| rest.starts_with(|char: char| char.is_ascii_lowercase()))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !char.is_alphanumeric())
}

#[test]
fn names_are_told_apart_in_their_words() {
    let of = |name| parts(name).collect::<Vec<_>>().join(" ");
    assert_eq!(of("SiteManager").trim(), "site manager");
    assert_eq!(of("site_manager"), "site manager");
    let file = syn::parse_file("mod helper {} struct A; fn util() {}").expect("Rust");
    assert_eq!(declared(&file.items), ["helper", "A"]);
    for (text, expected) in [("use --force", true), ("a -- b", false), ("--", false)] {
        assert_eq!(names_option(text), expected, "{text}");
    }
}
