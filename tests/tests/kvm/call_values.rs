//! Values of calls, of functions that uftrace cannot be told apart by name.

use std::fmt::Write as _;

use image::Image;
use tempfile::TempDir;
use tests::{Guest, guest};

/// The symbols of the bundled guest as a `System.map` in which two functions have one name.
fn symbols(two: [&str; 2], one: &str) -> String {
    let image = Image::parse(&std::fs::read(guest()).unwrap()).unwrap();
    let mut map = String::new();
    for symbol in image.symbols.iter() {
        let name = if two.contains(&&*symbol.name) {
            one
        } else {
            &*symbol.name
        };
        writeln!(map, "{:016x} T {name}", symbol.address.0).unwrap();
    }
    map
}

/// The names that uftrace can write decide where values are, not whether they are captured.
#[test]
fn functions_of_one_name_have_their_values_all_the_same() {
    let folder = TempDir::new().unwrap();
    let map = folder.path().join("System.map");
    std::fs::write(&map, symbols(["calls_twig", "calls_leaf"], "calls_same")).unwrap();
    let cmdline = "workload=calls iterations=10";
    let untraced = Guest::new(cmdline).run().0.good().printed();
    let (ended, trace) = Guest::new(cmdline)
        .with(["--symbols", map.to_str().unwrap()])
        .with(["--trace", "graph", "--filter", "calls_*"])
        .with(["--args", "--retval"])
        .output()
        .run();
    assert_eq!(ended.good().printed(), untraced);
    let report = trace.report("graph");
    let mut leaves = 0;
    let lines: Vec<&str> = report.lines().collect();
    for two in lines.windows(3) {
        let [twig, first, second] = two else {
            unreachable!()
        };
        // A twig hands its value to its first leaf, and returns the sum of what both return.
        let (Some(value), Some(handed)) = (
            between(twig, "calls_same(value=", ") {"),
            between(first, "calls_same(value=", ") ="),
        ) else {
            continue;
        };
        assert_eq!(value, handed, "{report}");
        assert!(
            between(second, "calls_same(value=", ") =").is_some(),
            "{report}"
        );
        leaves += 2;
    }
    assert_eq!(leaves, 10 * 32, "{report}");
    assert!(!report.contains("calls_same()"), "{report}");
    // uftrace opens the same directory, and shows the values of the others.
    let replay = trace.uftrace_says(&["replay"]);
    assert!(
        replay.contains("calls_branch(0x") && replay.contains("calls_same()"),
        "{replay}"
    );
}

fn between<'a>(line: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(start)?;
    Some(rest.split_once(end)?.0)
}
