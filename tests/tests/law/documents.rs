//! Commands that documents print are run (`tests/tests/kvm/documents.rs`, `tests/tests/linux/documents.rs`); those that are
//! not say why, and are few.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::transcript::blocks;

/// Blocks that nobody runs may only become fewer.
const NOT_RUN: usize = 1;
/// The documents whose commands are run, and where `console linux` is.
const RUN: [&str; 5] = [
    "README.md",
    "docs/attach.md",
    "docs/guide.md",
    "docs/probes.md",
    "docs/linux.md",
];

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages = fs::read_dir(root.join("docs")).expect("docs");
    let pages = pages.map(|page| page.expect("a page").path());
    let mut all: Vec<PathBuf> = pages.collect();
    all.push(root.join("README.md"));
    all
}

#[test]
fn printed_commands_are_run_or_say_why_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut not_run = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).expect("a page");
        let name = path
            .strip_prefix(&root)
            .unwrap_or(&path)
            .display()
            .to_string();
        for block in blocks(&text).unwrap_or_else(|wrong| panic!("{name}: {wrong}")) {
            let at = format!("{name}:{}", block.line);
            assert!(
                RUN.contains(&&*name),
                "{at}: nobody runs the commands of this page"
            );
            match block.class.split_once(' ') {
                Some(("norun", reason)) => not_run.push(format!("{at}: {reason}")),
                None if ["", "linux"].contains(&&*block.class) => {}
                _ => panic!("{at}: what is `console {}`?", block.class),
            }
        }
    }
    assert!(not_run.len() <= NOT_RUN, "{not_run:#?}");
}

/// What the commands of a page write traces to.
fn written(page: &str) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join(page)).expect("a page");
    let blocks = blocks(&text).expect("blocks");
    let commands = blocks.into_iter().flat_map(|block| block.commands);
    let mut written = BTreeSet::new();
    for command in commands {
        let words: Vec<&str> = command.command.split_whitespace().collect();
        let named = words
            .windows(2)
            .filter(|pair| ["--output", "-o", "dump"].contains(&pair[0]));
        written.extend(named.map(|pair| pair[1].to_owned()));
    }
    written
}

/// The guide is typed where the README was: a directory that is there is refused.
#[test]
fn the_guide_writes_nothing_that_the_readme_has_written() {
    let [readme, guide] = ["README.md", "docs/guide.md"].map(written);
    assert!(readme.len() > 1 && guide.len() > 5, "{readme:?} {guide:?}");
    let both: Vec<&String> = readme.intersection(&guide).collect();
    assert!(both.is_empty(), "{both:?}");
}

/// Where the links of a page lead, as far as they are files.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let ends = page.split("](").skip(1);
    let links = ends.filter_map(|rest| rest.split([')', '#']).next());
    links.filter(|link| !link.is_empty() && !link.contains("://"))
}

#[test]
fn links_lead_to_files_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let others = [
        "CONTRIBUTING.md",
        "tracer/DESIGN.md",
        "vmm/DESIGN.md",
        "vmm/CONTROL.md",
    ];
    let others = others
        .iter()
        .chain(&["guest/README.md", "images/README.md"]);
    let pages = documents()
        .into_iter()
        .chain(others.map(|page| root.join(page)));
    let mut broken = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        let folder = page.parent().expect("a folder");
        let missing = links(&text).filter(|link| !folder.join(link).exists());
        broken.extend(missing.map(|link| format!("{}: {link}", page.display())));
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// What stands in backquotes and ends in `.rs` is a file, or the end of its path.
#[test]
fn source_files_that_are_named_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let listed = Command::new("git")
        .args(["ls-files", "-z", "*.rs", "*.md"])
        .current_dir(&root)
        .output();
    let listed = String::from_utf8(listed.expect("git").stdout).expect("names");
    let files: Vec<&str> = listed.split('\0').filter(|name| !name.is_empty()).collect();
    let is_there = |name: &str| {
        let end = format!("/{name}");
        files.iter().any(|file| format!("/{file}").ends_with(&end))
    };
    let pages = files.iter().filter(|file| file.ends_with(".md"));
    // What has changed since is told as it was.
    let pages = pages.filter(|page| **page != "CHANGELOG.md");
    let (mut named, mut missing) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(root.join(page)).expect("a page");
        let words = text.split('`').skip(1).step_by(2);
        for word in words.filter(|word| word.ends_with(".rs") && !word.contains([' ', '*', ':'])) {
            named += 1;
            if !is_there(word) {
                missing.push(format!("{page}: {word}"));
            }
        }
    }
    assert!(named > 100, "{named}");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The lists of system calls are shown as they are.
#[test]
fn the_page_about_security_has_the_lists_of_system_calls() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let page = fs::read_to_string(page).expect("a page");
    let lists = vmm::confine::as_markdown();
    assert!(
        page.ends_with(&lists),
        "docs/security.md must end with:\n{lists}"
    );
}
