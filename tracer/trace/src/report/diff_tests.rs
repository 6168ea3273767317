//! Traces whose calls are known, compared.

use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::diff::{Compared, Comparison, compare};
use super::table_tests::change;
use super::*;
use crate::export::uftrace::{GRAPH, Metadata, NO_CLOCK, UftraceWriter};
use crate::glob::Pattern;
use crate::testing::{entry, event, exit, functions, text_of};

/// A trace of one thread that makes calls one after the other: of this function, for so long; `f0` around each.
fn trace(root: &TempDir, name: &str, calls: &[(u32, u64)], tracer: &str) -> PathBuf {
    trace_by(root, name, calls, (tracer, "tsc"))
}

/// By this tracer and clock.
fn trace_by(
    root: &TempDir,
    name: &str,
    calls: &[(u32, u64)],
    (tracer, clock): (&str, &str),
) -> PathBuf {
    let directory = root.path().join(name);
    let metadata = Metadata {
        vcpus: 1,
        tracer: tracer.into(),
        clock: clock.into(),
        ..Metadata::default()
    };
    let mut functions = functions(14);
    // Two of one name.
    functions[13].display = Arc::clone(&functions[12].display);
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), metadata, false).unwrap();
    let is_graph = tracer == GRAPH;
    let mut time_ns = 1_000;
    let mut put = |time_ns, depth, kind| {
        writer.append(event(time_ns, 0, 0, depth, kind)).unwrap();
    };
    for (function, length_ns) in calls {
        put(time_ns, 0, entry(0));
        time_ns += 10;
        put(time_ns, u32::from(is_graph), entry(*function));
        time_ns += length_ns;
        if is_graph {
            put(time_ns, 1, exit(*function));
            put(time_ns + 10, 0, exit(0));
        }
        time_ns += 100;
    }
    writer.finish().unwrap();
    directory
}

/// Twelve functions, each called once by f0.
pub(super) fn twelve() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let calls: Vec<_> = (1..13).map(|function| (function, 10)).collect();
    let directory = trace(&root, "twelve", &calls, GRAPH);
    (root, directory)
}

fn compared(a: &Path, b: &Path, comparison: &Comparison) -> (Compared, String) {
    let mut out = Vec::new();
    let compared = compare(a, b, comparison, &mut out).unwrap();
    (compared, String::from_utf8(out).unwrap())
}

fn as_json(a: &Path, b: &Path) -> Value {
    let comparison = Comparison {
        notation: Notation::Json,
        ..Comparison::default()
    };
    serde_json::from_str(&compared(a, b, &comparison).1).unwrap()
}

#[test]
fn what_got_slower_is_told_with_how_sure_that_is() {
    let root = tempfile::tempdir().unwrap();
    // f1: 1000 or 1010 before, 200 more after. f2 before, f3 after. f0 took 20 each time.
    let calls = |more: u64, other: u32| {
        let mut calls: Vec<_> = (0..10u64).map(|n| (1, 1_000 + more + n % 2 * 10)).collect();
        calls.push((other, 5_000));
        calls
    };
    let a = trace(&root, "a", &calls(0, 2), GRAPH);
    let b = trace(&root, "b", &calls(200, 3), GRAPH);
    let (_, text) = compared(&a, &b, &Comparison::default());
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = text.lines().skip(1).map(words).collect();
    let [a_said, b_said] = ["A", "B"].map(|label| {
        let path = root.path().join(label.to_lowercase());
        format!(
            "# {label}: {}: 22 calls of 3 functions, 0 lost",
            path.display()
        )
    });
    // Three standard errors of two means of ten: 3 * sqrt(2 * 27.8 / 10) = 7.1 ns.
    let expected = [
        "1 0 5.000 - 5.000 - -5.000 - - vanished f2",
        "0 1 - 5.000 - 5.000 +5.000 - - appeared f3",
        "10 10 10.050 12.050 10.050 12.050 +2.000 +19.9 +0.7 slower f1",
        "11 11 15.270 17.270 0.220 0.220 0.000 0.0 0.0 alike f0",
        &a_said,
        &b_said,
    ];
    assert_eq!(lines, expected);
    let verdicts = |a, b| {
        let rows = as_json(a, b);
        let rows = rows["diff"].as_array().unwrap().iter();
        let said = rows.map(|row| (row["function"].clone(), row["verdict"].clone()));
        said.collect::<Vec<_>>()
    };
    let back = verdicts(&b, &a);
    let expected = [
        (json!("f2"), json!("appeared")),
        (json!("f3"), json!("vanished")),
        (json!("f1"), json!("faster")),
        (json!("f0"), json!("alike")),
    ];
    assert_eq!(back, expected);
}

#[test]
fn what_may_be_chance_is_no_difference() {
    let root = tempfile::tempdir().unwrap();
    let calls = |more: u64| -> Vec<_> { (0..20).map(|n| (1, more + n % 2 * 3_000)).collect() };
    let a = trace(&root, "a", &calls(0), GRAPH);
    let b = trace(&root, "b", &calls(500), GRAPH);
    let json = as_json(&a, &b);
    let row = &json["diff"][0];
    assert_eq!(
        (&row["function"], &row["verdict"]),
        (&json!("f1"), &json!("alike"))
    );
    assert_eq!(row["each_percent"], json!(33.3));
    assert_eq!(row["change_ns"], json!(10_000));
    let more = trace(&root, "more", &[calls(0), calls(0)].concat(), GRAPH);
    let json = as_json(&a, &more);
    assert_eq!(json["diff"][0]["verdict"], json!("more calls"));
    let json = as_json(&more, &a);
    assert_eq!(json["diff"][0]["verdict"], json!("fewer calls"));
}

#[test]
fn functions_of_one_name_are_one() {
    let root = tempfile::tempdir().unwrap();
    let a = trace(&root, "a", &[(12, 10), (13, 20)], GRAPH);
    let b = trace(&root, "b", &[(13, 40)], GRAPH);
    let json = as_json(&a, &b);
    let mut rows = json["diff"].as_array().unwrap().iter();
    let row = rows.find(|row| row["function"] == "f12").unwrap();
    let numbers = ["calls_a", "calls_b", "self_a_ns", "total_b_ns"].map(|key| &row[key]);
    assert_eq!(numbers, [&json!(2), &json!(1), &json!(30), &json!(40)]);
}

#[test]
fn what_is_to_be_said_of_a_trace_names_it() {
    let root = tempfile::tempdir().unwrap();
    let a = trace(&root, "a", &[(1, 10)], GRAPH);
    let b = trace(&root, "b", &[(1, 10)], GRAPH);
    change(&b, |said| said["finished"] = json!(false));
    let (compared, _) = compared(&a, &b, &Comparison::default());
    let [note] = &compared.notes[..] else {
        panic!("{:?}", compared.notes)
    };
    let expected = format!("{}: the trace was not ended in order", b.display());
    assert!(note.starts_with(&expected), "{note}");
    assert!(compared.unknown.is_empty());
    // What is missing may be what a condition is about.
    let comparison = Comparison {
        conditions: vec!["calls > 10%".parse().unwrap()],
        ..Comparison::default()
    };
    let (compared, text) = self::compared(&a, &b, &comparison);
    assert_eq!(compared.unknown, [note.as_str()]);
    assert!(text.contains(&format!("# {note}\n")), "{text}");
    assert!(self::compared(&a, &a, &comparison).0.unknown.is_empty());
}

/// Functions had vanished whose calls were lost, and nobody was told that they might not have.
#[test]
fn what_was_lost_may_be_what_a_condition_is_about() {
    let root = tempfile::tempdir().unwrap();
    let whole = trace(&root, "whole", &[(1, 10)], GRAPH);
    let loses = root.path().join("loses");
    let metadata = Metadata {
        vcpus: 1,
        tracer: GRAPH.into(),
        ..Metadata::default()
    };
    let functions = functions(14);
    let text = text_of(&functions);
    let mut writer = UftraceWriter::create(&loses, text, metadata, false).unwrap();
    writer
        .append(event(1_000, 0, 0, 0, EventKind::Lost(7)))
        .unwrap();
    writer.append(event(2_000, 0, 0, 0, entry(0))).unwrap();
    writer.append(event(3_000, 0, 0, 0, exit(0))).unwrap();
    writer.finish().unwrap();
    let comparison = Comparison {
        conditions: vec!["vanished".parse().unwrap()],
        ..Comparison::default()
    };
    let expected = format!("{}: 7 records lost", loses.display());
    for (a, b) in [(&whole, &loses), (&loses, &whole)] {
        assert_eq!(compared(a, b, &comparison).0.unknown, [&*expected]);
        let without = compared(a, b, &Comparison::default()).0;
        assert!(without.unknown.is_empty());
    }
}

#[test]
fn a_condition_that_holds_names_the_function_that_it_holds_for() {
    let root = tempfile::tempdir().unwrap();
    let a = trace(&root, "a", &[(1, 1_000), (1, 1_002)], GRAPH);
    let b = trace(&root, "b", &[(1, 1_100), (1, 1_102), (2, 1)], GRAPH);
    let failed = |conditions: &[&str], functions: &[&str]| {
        let comparison = Comparison {
            conditions: conditions
                .iter()
                .map(|text| text.parse().unwrap())
                .collect(),
            rows: Rows {
                functions: functions
                    .iter()
                    .map(|glob| Pattern::new(glob).unwrap())
                    .collect(),
                ..Rows::default()
            },
            ..Comparison::default()
        };
        compared(&a, &b, &comparison).0.failed
    };
    assert_eq!(
        failed(
            &["total > 9%", "appeared", "vanished", "calls > 2"],
            &["f1", "f2"]
        ),
        [
            "total > 9%: f1: 2.002 us before, 2.202 us after",
            "appeared: f2"
        ]
    );
    assert_eq!(
        failed(&["calls > 0", "total > 9%"], &["f0"])[0],
        "calls > 0: f0: 2 before, 3 after"
    );
    assert!(failed(&["appeared"], &["f1"]).is_empty());
}

#[test]
fn a_function_of_neither_trace_is_a_slip_of_the_pen_and_one_that_nobody_called_is_none() {
    let root = tempfile::tempdir().unwrap();
    let a = trace(&root, "a", &[(1, 1)], GRAPH);
    let b = trace(&root, "b", &[(1, 1), (2, 1)], GRAPH);
    let of = |glob: &str| Comparison {
        rows: Rows {
            functions: vec![Pattern::new(glob).unwrap()],
            ..Rows::default()
        },
        conditions: vec!["calls > 10%".parse().unwrap()],
        ..Comparison::default()
    };
    let refused = compare(&a, &b, &of("f122"), io::sink()).unwrap_err();
    let message = refused.to_string();
    assert!(
        message.starts_with("no function of either trace matches 'f122'; did you mean `f12`"),
        "{message}"
    );
    assert!(compared(&a, &b, &of("f5")).0.failed.is_empty());
    assert!(compared(&a, &b, &of("f2")).1.contains("appeared"));
}

#[test]
fn of_a_trace_of_entries_calls_alone_are_compared() {
    let root = tempfile::tempdir().unwrap();
    let a = trace(&root, "a", &[(1, 1), (1, 1), (2, 1)], "function");
    let b = trace(&root, "b", &[(1, 9), (1, 9), (1, 9), (2, 1)], GRAPH);
    let (_, text) = compared(&a, &b, &Comparison::default());
    let lines: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "CALLS A CALLS B VERDICT FUNCTION",
        "3 4 more calls f0",
        "2 3 more calls f1",
        "1 1 alike f2",
    ];
    assert_eq!(lines[..4], expected);
    let last = "# only one of them has returns: there are no durations to compare";
    assert_eq!(lines.last().unwrap(), last);
    let comparison = Comparison {
        conditions: vec!["avg > 1us".parse().unwrap()],
        ..Comparison::default()
    };
    let refused = compare(&a, &b, &comparison, io::sink()).unwrap_err();
    assert!(matches!(refused, ReportError::NotAGraph(_)), "{refused}");
}

/// Whoever looks at the beginning only (`| head`) is told what holds all the same.
#[test]
fn a_condition_holds_also_where_nobody_reads_the_table() {
    struct Closed(usize);

    impl Write for Closed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self
                .0
                .checked_sub(bytes.len())
                .ok_or(io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let root = tempfile::tempdir().unwrap();
    let a = trace(&root, "a", &[(1, 1_000); 10], GRAPH);
    let b = trace(&root, "b", &[(1, 9_000); 10], GRAPH);
    let comparison = Comparison {
        conditions: vec!["avg > 1us".parse().unwrap()],
        ..Comparison::default()
    };
    let (whole, _) = compared(&a, &b, &comparison);
    assert!(whole.printed.is_ok() && !whole.failed.is_empty());
    let cut = compare(&a, &b, &comparison, Closed(10)).unwrap();
    assert_eq!(cut.printed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(cut.failed, whole.failed);
}

#[test]
fn of_a_trace_without_times_none_are_compared() {
    let root = tempfile::tempdir().unwrap();
    let a = trace_by(&root, "a", &[(1, 1), (1, 1), (2, 1)], (GRAPH, NO_CLOCK));
    let b = trace(&root, "b", &[(1, 9), (1, 9), (1, 9), (2, 1)], GRAPH);
    let (_, text) = compared(&a, &b, &Comparison::default());
    assert!(
        !text.contains("SELF") && text.contains("more calls"),
        "{text}"
    );
    let last = "# only one of them has times: there are no durations to compare";
    assert_eq!(text.lines().last().unwrap(), last);
    let comparison = Comparison {
        conditions: vec!["total > 1%".parse().unwrap()],
        ..Comparison::default()
    };
    for (a, b) in [(&a, &b), (&b, &a), (&a, &a)] {
        let refused = compare(a, b, &comparison, io::sink()).unwrap_err();
        assert!(matches!(refused, ReportError::NoTimes(_)), "{refused}");
    }
}

#[test]
fn what_is_not_there_is_named_and_so_is_the_trace_that_lacks_it() {
    let root = tempfile::tempdir().unwrap();
    let a = trace(&root, "a", &[(1, 1), (1, 1)], GRAPH);
    let refused = compare(
        &a,
        &root.path().join("none"),
        &Comparison::default(),
        io::sink(),
    );
    assert!(refused.unwrap_err().to_string().contains("none"));
    let b = trace(&root, "b", &[(1, 1), (1, 1)], GRAPH);
    std::fs::write(b.join("1000.dat"), b"").unwrap();
    let (compared, _) = compared(&a, &b, &Comparison::default());
    let [missing] = &compared.missing[..] else {
        panic!("{:?}", compared.missing)
    };
    let message = missing.to_string();
    assert!(message.starts_with("4 of 4 calls are missing"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A trace has no difference to itself, and what one way is more is less the other way.
    #[test]
    fn differences_turn_round_with_the_traces(
        a in prop::collection::vec((1u32..4, 0u64..2_000), 1..30),
        b in prop::collection::vec((1u32..4, 0u64..2_000), 1..30),
    ) {
        let root = tempfile::tempdir().unwrap();
        let (a, b) = (trace(&root, "a", &a, GRAPH), trace(&root, "b", &b, GRAPH));
        let itself = as_json(&a, &a);
        for row in itself["diff"].as_array().unwrap() {
            prop_assert_eq!((&row["verdict"], &row["change_ns"]), (&json!("alike"), &json!(0)));
        }
        let turned = |verdict: &Value| match verdict.as_str().unwrap() {
            "appeared" => "vanished",
            "vanished" => "appeared",
            "slower" => "faster",
            "faster" => "slower",
            "more calls" => "fewer calls",
            "fewer calls" => "more calls",
            other => panic!("{other}"),
        };
        let (there, back) = (as_json(&a, &b), as_json(&b, &a));
        for row in there["diff"].as_array().unwrap() {
            let mut rows = back["diff"].as_array().unwrap().iter();
            let other = rows.find(|other| other["function"] == row["function"]).unwrap();
            prop_assert_eq!(row["change_ns"].as_i64(), other["change_ns"].as_i64().map(|ns| -ns));
            if row["verdict"] != "alike" {
                prop_assert_eq!(turned(&row["verdict"]), other["verdict"].as_str().unwrap());
            }
        }
    }
}
