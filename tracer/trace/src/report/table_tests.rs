//! The first screen, and tables sorted, cut and written for programs.

use serde_json::{Value, json};

use super::graph_tests::trace;
use super::*;
use crate::export::probes::{self, ProbeNote};
use crate::glob::Pattern;

/// What is printed of the trace of two threads on two vCPUs, six calls and a loss of seven.
fn printed(format: Format, rows: Rows, notation: Notation) -> (String, Vec<String>) {
    let (_root, directory) = trace();
    let view = View {
        format,
        rows,
        notation,
        ..View::default()
    };
    let mut out = Vec::new();
    let printed = print(&directory, &view, &mut out).unwrap();
    (String::from_utf8(out).unwrap(), printed.notes)
}

fn sorted(key: &str, most: Option<usize>) -> Rows {
    Rows {
        sort: Some(key.to_owned()),
        most,
        ..Rows::default()
    }
}

fn last_words(text: &str) -> Vec<&str> {
    let rows = text.lines().skip(1).filter(|line| !line.starts_with('#'));
    rows.map(|row| row.rsplit(' ').next().unwrap()).collect()
}

#[test]
fn the_first_screen_says_what_was_traced_what_is_missing_and_where_the_time_went() {
    let (text, _) = printed(Format::Overview, Rows::default(), Notation::Text);
    let expected = "\
guest     guest.elf, 2 vCPUs
recorded  graph, clock tsc
time      0.000239 s, from 0.000001 to 0.000240
calls     6 of 4 functions
lost      7 records (38.8 %)

         CALLS       TOTAL us        SELF us         MIN us         AVG us         MAX us  FUNCTION
             2        200.750        200.750          0.250        100.375        200.500  f1
             2         30.000         30.000         30.000         30.000         30.000  f2
             1              -              -              -              -              -  f0
             1              -              -              -              -              -  f3
# 6 calls of 4 functions, 7 lost
# CPU:1 [LOST 7 EVENTS]

   DURATION us   ENTERED AT s  CPU  THREAD  FUNCTION <-CALLER
       200.500       0.000040    1       1  f1 <-(not seen)
        30.000       0.000003    1       0  f2 <-f0
         0.250       0.000001    0       0  f1 <-f0
# 3 of 3 calls of known duration
# (not seen): records were lost since what is open around the call was entered, its caller can be among them
# 1 calls of which the entry alone is known: their return could not be hooked (first: f3, thread-0)
";
    assert_eq!(text, expected);
}

#[test]
fn the_first_screen_is_cut_and_sorted_as_one_says() {
    let (text, _) = printed(
        Format::Overview,
        sorted("function", Some(1)),
        Notation::Text,
    );
    assert!(text.contains("  f0\n# 1 of 4 rows are shown\n"), "{text}");
    assert!(
        text.contains("# 1 of 3 calls of known duration\n"),
        "{text}"
    );
    let rows = Rows {
        functions: vec![Pattern::new("f2").unwrap()],
        ..Rows::default()
    };
    let (text, _) = printed(Format::Overview, rows, Notation::Text);
    assert!(text.contains("# 1 of 4 rows are shown\n"), "{text}");
    assert!(text.contains("# 1 of 1 call of known duration\n"), "{text}");
}

#[test]
fn rows_are_sorted_by_any_column_and_what_is_not_known_comes_last() {
    let names = |key| {
        let (text, _) = printed(Format::Counts, sorted(key, None), Notation::Text);
        last_words(&text).join(" ")
    };
    assert_eq!(names("calls"), "f1 f2 f0 f3");
    assert_eq!(names("min"), "f2 f1 f0 f3");
    assert_eq!(names("function"), "f0 f1 f2 f3");
    let (text, _) = printed(Format::Slowest, sorted("entered", Some(2)), Notation::Text);
    assert_eq!(last_words(&text), ["seen)", "<-f0"]);
    let (text, _) = printed(Format::Callers, sorted("caller", Some(3)), Notation::Text);
    assert_eq!(last_words(&text), ["traced)", "traced)", "seen)"]);
}

#[test]
fn a_column_that_there_is_not_is_refused_and_the_others_are_named() {
    let (_root, directory) = trace();
    let refused = |format, key| {
        let view = View {
            format,
            rows: sorted(key, None),
            ..View::default()
        };
        print(&directory, &view, io::sink())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(Format::Counts, "length"),
        "there is no column 'length' to sort by: calls, total, self, min, avg, max, function"
    );
    assert_eq!(
        refused(Format::Slowest, "self"),
        "there is no column 'self' to sort by: duration, entered, cpu, thread, function, caller"
    );
}

#[test]
fn programs_get_nanoseconds_and_all_that_is_to_be_said() {
    let json = |format, rows| -> Value {
        serde_json::from_str(&printed(format, rows, Notation::Json).0).unwrap()
    };
    let counts = json(Format::Counts, sorted("function", Some(2)));
    let f0 = json!({
        "calls": 1, "total_ns": null, "self_ns": null, "min_ns": null, "avg_ns": null, "max_ns": null,
        "function": "f0",
    });
    let f1 = json!({
        "calls": 2, "total_ns": 200_750, "self_ns": 200_750, "min_ns": 250, "avg_ns": 100_375,
        "max_ns": 200_500, "function": "f1",
    });
    assert_eq!(counts["counts"], json!([f0, f1]));
    let numbers = [&counts["calls"], &counts["lost"]];
    assert_eq!(numbers, [&json!(6), &json!(7)]);
    let remarks = json!([
        "2 of 4 rows are shown",
        "6 calls of 4 functions, 7 lost",
        "CPU:1 [LOST 7 EVENTS]",
        "1 calls of which the entry alone is known: their return could not be hooked (first: f3, thread-0)",
    ]);
    assert_eq!(counts["remarks"], remarks);
    let slowest = json(Format::Slowest, sorted("duration", Some(1)));
    let first = json!([{
        "duration_ns": 200_500, "entered_ns": 40_000, "cpu": 1, "thread": 1, "function": "f1", "caller": "(not seen)",
    }]);
    assert_eq!(slowest["slowest"], first);
    let callers = json(Format::Callers, sorted("caller", Some(1)));
    assert_eq!(callers["callers"][0]["caller"], Value::Null);
    let overview = json(Format::Overview, Rows::default());
    assert_eq!(overview["about"]["span_ns"], json!([1_000, 240_500]));
    assert_eq!(overview["counts"].as_array().unwrap().len(), 4);
    assert_eq!(overview["slowest"].as_array().unwrap().len(), 3);
}

#[test]
fn comma_separated_values_are_rows_alone_and_the_rest_is_a_remark() {
    let rows = sorted("function", Some(2));
    let (text, notes) = printed(Format::Counts, rows, Notation::Csv);
    let expected = "\
calls,total_ns,self_ns,min_ns,avg_ns,max_ns,function
1,,,,,,f0
2,200750,200750,250,100375,200500,f1
";
    assert_eq!(text, expected);
    assert_eq!(notes[0], "7 records lost");
    assert!(notes[1].starts_with("1 calls of which"), "{notes:?}");
}

/// An empty table looks as if all were well.
#[test]
fn rows_of_what_there_is_not_are_refused_with_what_is_like_it() {
    let (_root, directory) = trace();
    let refused = |format, globs: &[&str]| {
        let globs = globs.iter().map(|glob| Pattern::new(glob).unwrap());
        let rows = Rows {
            functions: globs.collect(),
            ..Rows::default()
        };
        let view = View {
            format,
            rows,
            ..View::default()
        };
        let mut out = Vec::new();
        let printed = print(&directory, &view, &mut out);
        printed.err().map(|error| {
            assert!(out.is_empty());
            error.to_string()
        })
    };
    for format in [Format::Counts, Format::Callees, Format::Slowest] {
        assert_eq!(
            refused(format, &["f1", "nope*"]).unwrap(),
            "no function of the trace matches 'nope*'"
        );
        assert_eq!(refused(format, &["f1", "f[23]", "*"]), None);
    }
    assert_eq!(
        refused(Format::Overview, &["f11"]).unwrap(),
        "no function and no event of the trace matches 'f11'; did you mean `f1`?"
    );
    assert_eq!(
        refused(Format::Values, &["f1"]).unwrap(),
        "no event of the trace matches 'f1'"
    );
    // A probe whose condition never held is no slip of the pen.
    let probe = ProbeNote {
        name: "never".into(),
        ..ProbeNote::default()
    };
    probes::write(&directory, &[probe]).unwrap();
    for format in [Format::Values, Format::Overview] {
        assert_eq!(refused(format, &["never"]), None);
    }
}

/// Changes what a trace says of itself.
pub(super) fn change(directory: &Path, change: impl FnOnce(&mut Value)) {
    let side = directory.join("exotrace.json");
    let mut said: Value = serde_json::from_slice(&std::fs::read(&side).unwrap()).unwrap();
    change(&mut said);
    std::fs::write(&side, said.to_string()).unwrap();
}

/// The remarks on the trace of two threads when it says something else of itself.
fn remarks(format: Format, other: impl FnOnce(&mut Value)) -> Vec<String> {
    let (_root, directory) = trace();
    change(&directory, other);
    let mut out = Vec::new();
    print(&directory, &format.into(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let remarks = text.lines().filter_map(|line| line.strip_prefix("# "));
    remarks.map(str::to_owned).collect()
}

#[test]
fn all_that_is_in_doubt_is_said_by_every_view_of_a_graph() {
    let change = |said: &mut Value| {
        said["clock"] = json!("none");
        said["dropped"] = json!(3);
        said["totals"][0]["reordered"] = json!(4);
        said["waiting_modules"] = json!(5);
        let late = json!({"module": "ext4", "times": 1, "functions": 6, "at_most_us": 7});
        said["late_modules"] = json!([late]);
        let stalls =
            [5_000, 2_000].map(|length_ns| json!({"end_ns": 9_000, "length_ns": length_ns}));
        said["clock_stalls"] = json!(stalls);
    };
    for format in [
        Format::Overview,
        Format::Counts,
        Format::Callers,
        Format::Slowest,
        Format::Graph,
    ] {
        let said = remarks(format, change);
        for expected in [
            "recorded without a clock",
            "3 calls could not be written",
            "4 records came after later ones",
            "5 modules not read yet",
            "ext4: ",
            "2 times the clock stood still, 7.000 us in all, longest 5.000 us: ",
        ] {
            let count = said.iter().filter(|line| line.contains(expected)).count();
            assert_eq!(count, 1, "{format:?}: {expected}: {said:?}");
        }
        let said = remarks(format, |_| ());
        let is_doubt = |line: &&String| {
            let is_of_callers = line.contains("(not seen): ");
            line.contains("clock") || line.contains("not ") && !is_of_callers
        };
        let doubts: Vec<_> = said.iter().filter(is_doubt).collect();
        assert_eq!(
            doubts.len(),
            1,
            "the call whose return was not hooked: {said:?}"
        );
    }
}

#[test]
fn a_first_screen_without_times_has_none() {
    let (_root, directory) = trace();
    change(&directory, |said| said["clock"] = json!("none"));
    let mut out = Vec::new();
    print(&directory, &Format::Overview.into(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains(", clock none\ncalls "), "{text}");
    assert!(!text.contains("DURATION us"), "{text}");
}

#[test]
fn a_first_screen_has_ten_functions_and_five_calls_unless_one_says_how_many() {
    let lines = |rows| {
        let (_root, directory) = crate::report::diff_tests::twelve();
        let view = View {
            rows,
            ..View::default()
        };
        let mut out = Vec::new();
        print(&directory, &view, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.contains("rows") || line.contains("of known"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let first = [
        "# 10 of 13 rows are shown",
        "# 5 of 24 calls of known duration",
    ];
    assert_eq!(lines(Rows::default()), first);
    let rows = sorted("calls", Some(12));
    let more = [
        "# 12 of 13 rows are shown",
        "# 12 of 24 calls of known duration",
    ];
    assert_eq!(lines(rows), more);
}
