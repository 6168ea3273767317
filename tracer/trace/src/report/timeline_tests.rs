//! The timeline of a trace, and times with nanoseconds.

use serde_json::{Value, json};

use super::graph_tests::trace;
use super::table_tests::change;
use super::*;
use crate::glob::Pattern;

fn printed(view: &View) -> String {
    let (_root, directory) = trace();
    let mut out = Vec::new();
    print(&directory, view, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn timeline(rows: Rows, notation: Notation) -> String {
    printed(&View {
        format: Format::Timeline,
        rows,
        notation,
        ..View::default()
    })
}

#[test]
fn a_timeline_has_a_line_for_each_vcpu_and_each_thread() {
    // From 1.000 to 40.000 us; 1.024 us each.
    let bar = |at: &[(usize, char)]| {
        let mut bar = [' '; 39];
        at.iter().for_each(|(at, shown)| bar[*at] = *shown);
        bar.iter().collect::<String>()
    };
    let expected = [
        format!("     CALLS     LOST {:>39}  WHERE", "WHEN"),
        format!("         4        0 {}  vCPU 0", bar(&[(0, '█'), (1, '█')])),
        format!(
            "         2        7 {}  vCPU 1",
            bar(&[(0, '▄'), (31, 'x'), (38, '▄')])
        ),
        "# a column is 1.024 us".into(),
        format!("     CALLS     LOST {:>39}  WHERE", "WHEN"),
        format!(
            "         4        7 {}  thread-0",
            bar(&[(0, '█'), (1, '█'), (31, 'x')])
        ),
        format!(
            "         2        0 {}  thread-1",
            bar(&[(0, '▄'), (38, '▄')])
        ),
    ];
    let text = timeline(Rows::default(), Notation::Text);
    let lines: Vec<&str> = text.lines().take(expected.len() + 1).collect();
    let (legend, lines) = lines.split_last().unwrap();
    assert_eq!(lines, expected);
    let full = "# the fuller a column is, the more happened; x where records were lost";
    assert_eq!(*legend, full);
}

#[test]
fn a_timeline_is_of_the_functions_and_threads_that_one_asks_for() {
    let rows = Rows {
        functions: vec![Pattern::new("f1").unwrap()],
        most: Some(1),
        ..Rows::default()
    };
    let text = timeline(rows, Notation::Text);
    let calls = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    let rows: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("CALLS"))
        .map(calls)
        .collect();
    // Both vCPUs, and the first thread of the two.
    assert_eq!(rows, ["1", "1", "1"], "{text}");
    assert!(text.contains("# 1 of 2 rows are shown\n"), "{text}");
}

#[test]
fn programs_get_the_numbers_of_a_timeline() {
    let text = timeline(Rows::default(), Notation::Json);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["column_ns"], 1024);
    let second = &answer["vcpus"][1];
    assert_eq!((&second["calls"], &second["lost"]), (&json!(2), &json!(7)));
    let happened = second["at"]["happened"].as_array().unwrap();
    let lost = second["at"]["lost"].as_array().unwrap();
    assert_eq!((happened.len(), lost.len()), (39, 39));
    assert_eq!(
        (&happened[0], &happened[38], &lost[31]),
        (&json!(1), &json!(1), &json!(7))
    );
    assert_eq!(answer["threads"][0]["name"], "thread-0");
    let csv = timeline(Rows::default(), Notation::Csv);
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("calls,lost,at,name"));
    assert!(lines.next().unwrap().starts_with("4,0,2 2 0 0"), "{csv}");
    let ends: Vec<&str> = csv
        .lines()
        .filter_map(|line| line.rsplit(',').next())
        .collect();
    assert_eq!(
        ends,
        ["name", "vCPU 0", "vCPU 1", "thread-0", "thread-1"],
        "{csv}"
    );
}

#[test]
fn a_timeline_needs_a_clock_and_columns_that_there_are() {
    let (_root, directory) = trace();
    let refused = |view: &View| print(&directory, view, io::sink()).unwrap_err().to_string();
    let unknown = View {
        rows: Rows {
            sort: Some("age".into()),
            ..Rows::default()
        },
        ..Format::Timeline.into()
    };
    assert!(refused(&unknown).contains("calls, lost, at, name"));
    change(&directory, |said| said["clock"] = json!("none"));
    let message = refused(&Format::Timeline.into());
    assert!(message.starts_with("a timeline needs times"), "{message}");
}

#[test]
fn moments_have_nanoseconds_when_one_asks_for_them() {
    let with = |format| View {
        format,
        has_nanoseconds: true,
        ..View::default()
    };
    let text = printed(&with(Format::Function));
    assert!(text.contains(" [000]  0.000001100: f1 <-f0\n"), "{text}");
    let text = printed(&with(Format::Overview));
    let expected = "time      0.000239500 s, from 0.000001000 to 0.000240500\n";
    assert!(text.contains(expected), "{text}");
    let row = "\n       200.500       0.000040000    1       1  f1 <-(not seen)\n";
    assert!(text.contains(row), "{text}");
    assert!(
        text.contains("\n   DURATION us      ENTERED AT s  CPU"),
        "{text}"
    );
}

#[test]
fn the_first_screen_says_for_how_long_the_guest_stood_still() {
    let (_root, directory) = trace();
    let first_screen = || {
        let mut out = Vec::new();
        print(&directory, &Format::Overview.into(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(!first_screen().contains("pauses"));
    change(&directory, |said| {
        let pauses = json!({"count": 2, "p50_ns": 46_000, "p99_ns": 90_100, "max_ns": 90_100});
        said["pauses"] = pauses;
    });
    let line = "\npauses    2 pauses: p50 46.0 us, p99 90.1 us, longest 90.1 us\n";
    let text = first_screen();
    assert!(text.contains(line), "{text}");
    let pause =
        |begin_ns: u64, length_ns: u64| json!({"begin_ns": begin_ns, "length_ns": length_ns});
    let line = line.trim_end();
    for (longest_ns, expected) in [
        (
            90_100,
            format!(
                "{line}, at 0.007000 s\ntriggers  fired 2 times, first '?f: stop' at 0.000001 s; \
                 of 1 the record was lost, and with it when that was\n"
            ),
        ),
        // A longer one came later than those that are kept.
        (80_000, format!("{line}\ntriggers")),
    ] {
        change(&directory, |said| {
            said["paused"] = json!([pause(5_000, 46_000), pause(7_000_000, longest_ns)]);
            let untimed = json!({"trigger": "g: stop"});
            said["fired"] = json!([{"time_ns": 1_000, "trigger": "\u{1b}f: stop"}, untimed]);
        });
        let text = first_screen();
        assert!(text.contains(&expected), "{text}");
    }
}
