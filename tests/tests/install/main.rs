//! `make install` into an empty place, as a packager does it. Needs make, and a `vmm` that has been built (`tests/run`).
#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::{Ended, vmm_says};

/// What of the share folder is there beside man pages.
const COMPLETIONS: [&str; 5] = [
    "usr/share/bash-completion/completions/exotrace",
    "usr/share/bash-completion/completions/vmm",
    "usr/share/fish/vendor_completions.d/exotrace.fish",
    "usr/share/fish/vendor_completions.d/vmm.fish",
    "usr/share/zsh/site-functions/_vmm",
];

fn make(target: &str, place: &Path) -> Ended {
    let mut make = Command::new("make");
    make.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .arg(target)
        .arg("PREFIX=/usr")
        .arg(format!("DESTDIR={}", place.display()));
    Ended::from(make.output().expect("make")).good()
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let below = |path: PathBuf| {
        if path.is_dir() {
            files(&path)
        } else {
            vec![path]
        }
    };
    paths.flat_map(below).collect()
}

/// The verb of each man page: `ctl-start` of `vmm-ctl-start.1`, nothing of `vmm.1`.
fn verbs(installed: &BTreeSet<String>) -> BTreeSet<String> {
    let pages = installed
        .iter()
        .filter_map(|file| file.strip_prefix("usr/share/man/man1/vmm"));
    let verbs = pages.map(|page| page.strip_suffix(".1").expect("a man page"));
    verbs
        .map(|verb| verb.trim_start_matches('-').to_owned())
        .collect()
}

/// The verbs that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    // What is said of a verb may continue in a line of its own, further in.
    let verbs = lines.filter_map(|line| line.strip_prefix("  "));
    let verbs = verbs.filter(|line| !line.starts_with(' '));
    let verbs = verbs.filter_map(|line| line.split_whitespace().next());
    verbs
        .filter(|verb| *verb != "help")
        .map(str::to_owned)
        .collect()
}

/// The long options that a text names at the beginning of a line.
fn options(help: &str) -> Vec<String> {
    let starts = help.lines().map(str::trim_start);
    let starts = starts.filter(|line| line.starts_with('-'));
    let words =
        starts.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
    // A value that can be left out stands in brackets, right after the name.
    let names = words.filter_map(|word| word.split('[').next());
    names.map(str::to_owned).collect()
}

/// Looks at the page of a verb, and at those of the verbs below it. Returns how many options there were.
fn check_page(verb: &[&str], pages: &Path, left: &mut BTreeSet<String>) -> usize {
    let name = verb.join("-");
    assert!(left.remove(&name), "no man page of `{}`", verb.join(" "));
    let file = match &*name {
        "" => "vmm.1".to_owned(),
        _ => format!("vmm-{name}.1"),
    };
    let page = fs::read_to_string(pages.join(file)).expect("a man page");
    let page = page.replace("\\-", "-");
    let help = vmm_says(&[verb, &["--help"]].concat()).good().stdout;
    let options = options(&help);
    for option in &options {
        let there = format!("\\fB{option}\\fR");
        assert!(
            page.contains(&there),
            "the man page of `{name}` lacks {option}:\n{page}"
        );
    }
    let below = listed(&help)
        .into_iter()
        .map(|next| check_page(&[verb, &[next.as_str()]].concat(), pages, left));
    below.sum::<usize>() + options.len()
}

/// One program, by both of its names.
const PROGRAMS: [&str; 2] = ["usr/bin/vmm", "usr/bin/exotrace"];

#[test]
fn an_installation_is_complete_and_goes_away() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let _ = make("install", place.path());
    let relative = |path: PathBuf| {
        let path = path
            .strip_prefix(place.path())
            .expect("below it")
            .to_owned();
        path.to_str().expect("a name").to_owned()
    };
    let installed: BTreeSet<String> = files(place.path()).into_iter().map(relative).collect();
    for file in &installed {
        let mode = fs::metadata(place.path().join(file))
            .expect("a file")
            .permissions()
            .mode();
        let is_program = PROGRAMS.contains(&file.as_str());
        let expected = if is_program { 0o755 } else { 0o644 };
        assert_eq!(mode & 0o7777, expected, "{file}");
    }
    for program in PROGRAMS {
        let said = Command::new(place.path().join(program))
            .arg("--version")
            .output();
        let said = Ended::from(said.expect("it starts")).good();
        assert!(said.stdout.starts_with("vmm "), "{program}: {said}");
    }
    for file in COMPLETIONS {
        let script = fs::read_to_string(place.path().join(file)).expect(file);
        // It asks the program what there is (tests/kvm/command_line.rs).
        assert!(script.contains("COMPLETE="), "{file}");
        assert!(script.contains("exotrace"), "{file} is for one name");
    }
    let other_page = place.path().join("usr/share/man/man1/exotrace.1");
    let page = fs::read_to_string(other_page).expect("a page of its other name");
    assert!(page.contains("vmm"), "{page}");
    let mut left = verbs(&installed);
    assert_eq!(
        installed.len(),
        left.len() + 1 + COMPLETIONS.len() + PROGRAMS.len(),
        "{installed:#?}"
    );
    let options = check_page(&[], &place.path().join("usr/share/man/man1"), &mut left);
    assert!(options > 100, "only {options} options were found");
    assert_eq!(
        left,
        BTreeSet::new(),
        "man pages of verbs that there are not"
    );
    let _ = make("uninstall", place.path());
    assert_eq!(files(place.path()), Vec::<PathBuf>::new());
}
