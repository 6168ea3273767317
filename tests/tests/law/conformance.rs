//! The page about conformance says what the cases say, and each case that passes has a test of its name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::Item;
use tests::conformance::{Ground, as_markdown, cases, shown_on};

#[test]
fn the_page_about_conformance_has_the_cases() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/conformance.md");
    let page = fs::read_to_string(page).expect("a page");
    let table = as_markdown();
    assert!(
        page.ends_with(&table),
        "docs/conformance.md must end with:\n{table}"
    );
    let cases = cases();
    let passed = cases.iter().filter(|case| !case.grounds.is_empty()).count();
    let sum = format!("**{passed} of {}**", cases.len());
    assert!(page.contains(&sum), "docs/conformance.md must say {sum}");
}

/// The functions of a file of the suite: those that are tests, and the other ones.
fn functions(file: &Path) -> (Vec<String>, Vec<String>) {
    let text = fs::read_to_string(file).expect("a file of the suite");
    let parsed = syn::parse_file(&text).expect("Rust");
    let (mut tests, mut others) = (Vec::new(), Vec::new());
    for item in parsed.items {
        if let Item::Fn(function) = item {
            let is_test = function.attrs.iter().any(|one| one.path().is_ident("test"));
            let into = if is_test { &mut tests } else { &mut others };
            into.push(function.sig.ident.to_string());
        }
    }
    (tests, others)
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("the suite");
    let files = files.map(|file| file.expect("a file").path());
    files.filter(|path| path.is_file()).collect()
}

/// Those of the bundled guest are tests; those of Linux are steps of a test, which compares them with the list when it runs.
#[test]
fn each_case_that_passes_has_a_test_of_its_name_and_each_test_a_case() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let (mut tests, mut steps) = (Vec::new(), BTreeSet::new());
    for file in files_of(&folder) {
        tests.extend(functions(&file).0);
    }
    for file in files_of(&folder.join("linux")) {
        steps.extend(functions(&file).1);
    }
    tests.sort();
    let mut shown = shown_on(Ground::Bundled);
    shown.sort_unstable();
    assert_eq!(tests, shown);
    let missing = shown_on(Ground::Linux).into_iter();
    let missing: Vec<&str> = missing.filter(|name| !steps.contains(*name)).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn no_case_is_there_twice_and_each_says_what_it_has_to() {
    let cases = cases();
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
    for case in cases {
        let words = [case.behaviour, case.command];
        assert!(!case.behaviour.is_empty(), "{}", case.name);
        // One row is one line.
        assert!(
            !words.iter().any(|text| text.contains('\n')),
            "{}",
            case.name
        );
    }
}
