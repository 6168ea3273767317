//! Reports of graph traces written by our own writer, against the layout that ftrace has.

use std::fs;
use std::path::PathBuf;

use crate::testing::{event as step, functions, text_of};
use proptest::prelude::*;
use tempfile::TempDir;
use terms::function::FunctionId;

use super::tests::damaged;
use super::*;
use crate::event::{End, Event, EventKind};
use crate::export::store::{Ending, Store};
use crate::export::uftrace::{AnomalyNote, GRAPH, Metadata, NO_CLOCK, UftraceWriter};
use crate::glob::Pattern;
use crate::graph::rules::{Rules, Threshold};
use crate::graph::{Anomalies, Anomaly};

fn entry(time_ns: u64, vcpu: u16, thread: u32, depth: u32, function: u32) -> Event {
    step(
        time_ns,
        vcpu,
        thread,
        depth,
        EventKind::Entry(FunctionId(function)),
    )
}

fn exit(time_ns: u64, vcpu: u16, thread: u32, depth: u32, function: u32, end: End) -> Event {
    let kind = EventKind::Exit {
        function: FunctionId(function),
        end,
        // The file has times only.
        duration: None,
    };
    step(time_ns, vcpu, thread, depth, kind)
}

/// Two threads on two vCPUs: a call that migrates, one that is unhooked, one that is open at the end.
pub(super) fn trace() -> (TempDir, PathBuf) {
    trace_with("tsc", None)
}

fn trace_with(clock: &str, clock_period_ns: Option<u64>) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(4);
    let metadata = Metadata {
        vcpus: 2,
        image: "guest.elf".into(),
        tracer: GRAPH.into(),
        clock: clock.into(),
        clock_period_ns,
        ..Metadata::default()
    };
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), metadata, false).unwrap();
    for event in [
        entry(1_000, 0, 0, 0, 0),
        entry(1_100, 0, 0, 1, 1),
        exit(1_350, 0, 0, 1, 1, End::Returned),
        entry(2_000, 1, 1, 0, 2),
        entry(3_000, 0, 0, 1, 2),
        entry(3_000, 0, 0, 2, 3),
        exit(3_000, 0, 0, 2, 3, End::Unhooked),
        exit(33_000, 1, 0, 1, 2, End::Returned),
        step(33_500, 1, 0, 1, EventKind::Lost(7)),
        exit(34_000, 1, 0, 0, 0, End::Unsure),
        entry(40_000, 1, 1, 1, 1),
        exit(240_500, 1, 1, 1, 1, End::Returned),
    ] {
        writer.append(event).unwrap();
    }
    let mut anomalies = Anomalies::default();
    anomalies.note(Anomaly::Unhooked, 5, FunctionId(3), 0);
    let anomalies = AnomalyNote::list(&anomalies, &functions);
    let end = Ending {
        anomalies,
        ..Ending::default()
    };
    let tally = Store::finish(&mut writer, end).unwrap();
    // As reports count them: six entries, five ends.
    assert_eq!((tally.records, tally.lost), (11, 7));
    (root, directory)
}

pub(super) fn text(
    directory: &Path,
    format: Format,
    rules: &Rules,
) -> (Result<Printed, ReportError>, String) {
    let mut out = Vec::new();
    let view = View {
        format,
        excerpt: rules.clone().into(),
        ..View::default()
    };
    let result = print(directory, &view, &mut out);
    (result, String::from_utf8(out).unwrap())
}

#[test]
fn what_is_shorter_than_the_clock_s_period_is_neither_0_nor_a_guess() {
    let (_root, directory) = trace_with("page", Some(300));
    let (_, graph) = text(&directory, Format::Graph, &Rules::default());
    assert!(graph.contains(" 0)   <300 ns     |    f1();"), "{graph}");
    assert!(!graph.contains("0.250 us"), "{graph}");
    assert!(graph.contains(" 1) + 30.000 us   |"), "{graph}");
    let (_, counts) = text(&directory, Format::Counts, &Rules::default());
    let row = counts.lines().find(|line| line.ends_with("f1")).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    let expected = [
        "2", "200.750", "200.750", "<0.300", "100.375", "200.500", "f1",
    ];
    assert_eq!(columns, expected);
}

/// What is printed of some rows, the words of each line apart.
fn rows(format: Format, functions: &[&str], most: Option<usize>) -> Vec<String> {
    let (_root, directory) = trace();
    let functions = functions.iter().map(|glob| Pattern::new(glob).unwrap());
    let view = View {
        format,
        rows: Rows {
            functions: functions.collect(),
            most,
            ..Rows::default()
        },
        ..View::default()
    };
    let mut out = Vec::new();
    print(&directory, &view, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines = text.lines().skip(1);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    lines.map(words).collect()
}

#[test]
fn who_called_a_function_how_often_and_how_long_that_took_stands_together() {
    let expected = [
        "1 200.500 200.500 200.500 200.500 200.500 f1 <-(not seen)",
        "1 0.250 0.250 0.250 0.250 0.250 f1 <-f0",
        "1 30.000 30.000 30.000 30.000 30.000 f2 <-f0",
        "1 - - - - - f2 <-(not traced)",
        "1 - - - - - f0 <-(not traced)",
        "1 - - - - - f3 <-f2",
        "# 6 calls of 6 pairs, 7 lost",
    ];
    assert_eq!(rows(Format::Callers, &[], None)[..7], expected);
    let expected = [
        "1 200.500 200.500 200.500 200.500 200.500 f1 <-(not seen)",
        "1 0.250 0.250 0.250 0.250 0.250 f1 <-f0",
        "# 2 of 6 rows are shown",
    ];
    assert_eq!(rows(Format::Callers, &["f1"], None)[..3], expected);
    assert_eq!(rows(Format::Callers, &["f1", "f3"], Some(2))[..3], expected);
}

#[test]
fn what_a_function_called_stands_together() {
    let names = |functions: &[&str]| -> Vec<String> {
        let rows = rows(Format::Callees, functions, None);
        let names = rows.iter().filter(|row| row.contains("->"));
        let last = |row: &String| row.rsplit_once(" ->").unwrap().1.to_owned();
        let caller = |row: &String| row.split(" ->").next().unwrap().ends_with("f2");
        names
            .map(|row| format!("{}{}", if caller(row) { "f2:" } else { "" }, last(row)))
            .collect()
    };
    assert_eq!(names(&[]), ["f1", "f2", "f1", "f0", "f2", "f2:f3"]);
    assert_eq!(names(&["f2"]), ["f2:f3"]);
}

#[test]
fn the_slowest_calls_are_shown_with_when_and_where_and_who_called() {
    let expected = [
        "200.500 0.000040 1 1 f1 <-(not seen)",
        "30.000 0.000003 1 0 f2 <-f0",
        "0.250 0.000001 0 0 f1 <-f0",
        "# 3 of 3 calls of known duration",
    ];
    assert_eq!(rows(Format::Slowest, &[], None)[..4], expected);
    let shown = rows(Format::Slowest, &[], Some(1));
    assert_eq!(
        shown[..2],
        [expected[0], "# 1 of 3 calls of known duration"]
    );
    let shown = rows(Format::Slowest, &["f2"], None);
    assert_eq!(shown[..2], [expected[1], "# 1 of 1 call of known duration"]);
}

#[test]
fn rows_are_chosen_of_tables_only_and_one_of_these_is_comma_separated() {
    let (_root, directory) = trace();
    let view = View {
        rows: Rows {
            most: Some(3),
            ..Rows::default()
        },
        ..View::default()
    };
    for format in [Format::Function, Format::Graph] {
        let view = View {
            format,
            ..view.clone()
        };
        let refused = print(&directory, &view, io::sink());
        assert!(matches!(refused, Err(ReportError::NotATable)), "{format:?}");
    }
    let view = View {
        notation: Notation::Csv,
        ..View::default()
    };
    let error = print(&directory, &view, io::sink()).unwrap_err();
    assert!(matches!(error, ReportError::SeveralTables), "{error}");
}

/// A file that somebody else has made, or damaged: an inner call cannot be longer than the one that it was made in.
#[test]
fn calls_around_a_time_that_goes_back_have_no_duration_and_it_is_said() {
    let (_root, directory) = trace();
    let times = || {
        let (printed, text) = text(&directory, Format::Counts, &Rules::default());
        let row = text.lines().find(|line| line.ends_with("f2")).unwrap();
        let columns: Vec<&str> = row.split_whitespace().take(3).collect();
        (columns.join(" "), printed.unwrap().notes)
    };
    assert_eq!(times(), ("2 30.000 30.000".to_owned(), Vec::new()));
    // The entry of f3, which was called by f2.
    let task = TraceDirectory::open(&directory).unwrap().tasks.remove(0);
    let mut bytes = fs::read(&task.data).unwrap();
    bytes[4 * 16..4 * 16 + 8].copy_from_slice(&2_000u64.to_le_bytes());
    fs::write(&task.data, &bytes).unwrap();
    let (row, notes) = times();
    assert_eq!(row, "2 - -");
    let expected = "thread 0: 1 times go back; calls around them are of unknown duration";
    assert_eq!(notes, [expected]);
}

#[test]
fn without_a_clock_no_duration_is_shown() {
    let (_root, directory) = trace_with(NO_CLOCK, None);
    let (_, graph) = text(&directory, Format::Graph, &Rules::default());
    assert!(!graph.contains(" us "), "{graph}");
    let (_, counts) = text(&directory, Format::Counts, &Rules::default());
    let row = counts.lines().find(|line| line.ends_with("f1")).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns, ["2", "-", "-", "-", "-", "-", "f1"]);
}

#[test]
fn the_graph_format_is_that_of_ftrace() {
    let (_root, directory) = trace();
    let (printed, text) = text(&directory, Format::Graph, &Rules::default());
    let expected = "\
# tracer: function_graph
#
# CPU  DURATION                  FUNCTION CALLS
# |     |   |                     |   |   |   |
 0)               |  f0() {
 0)   0.250 us    |    f1();
 1)               |  f2() {
 0)               |    f2() {
 0)               |      f3(); /* unhooked */
 ------------------------------------------
 1)    thread-1    =>    thread-0   
 ------------------------------------------

 1) + 30.000 us   |    } /* f2 */
CPU:1 [LOST 7 EVENTS]
 1)               |  } /* f0: records lost meanwhile */
 ------------------------------------------
 1)    thread-0    =>    thread-1   
 ------------------------------------------

 1) ! 200.500 us  |    f1();
# 1 calls of which the entry alone is known: their return could not be hooked (first: f3, thread-0)
";
    assert_eq!(text, expected);
    let printed = printed.unwrap();
    assert_eq!((printed.entries, printed.lost), (6, 7));
}

#[test]
fn counts_have_times_of_what_is_known() {
    let (_root, directory) = trace();
    let (printed, text) = text(&directory, Format::Counts, &Rules::default());
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows[1],
        [
            "2", "200.750", "200.750", "0.250", "100.375", "200.500", "f1"
        ]
    );
    assert_eq!(
        rows[2],
        ["2", "30.000", "30.000", "30.000", "30.000", "30.000", "f2"]
    );
    assert_eq!(rows[3], ["1", "-", "-", "-", "-", "-", "f0"]);
    assert_eq!(rows[4], ["1", "-", "-", "-", "-", "-", "f3"]);
    assert!(
        text.contains("# 6 calls of 4 functions, 7 lost\n# CPU:1 [LOST 7 EVENTS]\n# 1 calls of")
    );
    assert_eq!(printed.unwrap().entries, 6);
}

#[test]
fn entries_alone_can_be_shown_too() {
    let (_root, directory) = trace();
    let (printed, text) = text(&directory, Format::Function, &Rules::default());
    // What is lost of a graph is no number of entries.
    assert!(!text.contains("entries-in-buffer"), "{text}");
    assert!(text.contains(" [000]     0.000001: f1 <-f0\n"), "{text}");
    // Records were lost since f2 was entered, in which it is.
    assert!(text.contains(" [001]     0.000040: f1\n"), "{text}");
    assert!(text.contains(" [000]     0.000001: f0\n"), "{text}");
    assert_eq!(printed.unwrap().entries, 6);
}

#[test]
fn rules_select_calls() {
    let (_root, directory) = trace();
    let owned = |glob: &str| vec![glob.to_owned()];
    let shown = |depth, roots: &[String], notrace: &[String], nanoseconds: Option<u64>| {
        let threshold = nanoseconds.map(|nanoseconds| Threshold { nanoseconds });
        let depth = std::num::NonZeroU32::new(depth);
        let rules = Rules::new(depth, roots, notrace, threshold).unwrap();
        let text = text(&directory, Format::Graph, &rules).1;
        let calls = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once("|  "));
        calls.map(|(_, call)| call.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        shown(1, &[], &[], None),
        ["f0() {", "f2() {", "} /* f0: records lost meanwhile */"]
    );
    assert_eq!(
        shown(0, &owned("f2"), &owned("f3"), None),
        ["f2() {", "f2();", "  f1();"]
    );
    assert_eq!(
        shown(0, &[], &owned("f0"), Some(200_000)),
        ["f2() {", "  f1();"]
    );
    let rules = Rules::new(None, &owned("g*"), &[], None).unwrap();
    let error = text(&directory, Format::Graph, &rules).0.unwrap_err();
    assert!(matches!(error, ReportError::NoRoot), "{error}");
}

#[test]
fn a_trace_without_its_side_files_is_shown_as_of_one_vcpu() {
    let (_root, directory) = trace();
    fs::remove_file(directory.join("1000.side")).unwrap();
    fs::write(directory.join("1001.side"), [1]).unwrap();
    let (printed, text) = text(&directory, Format::Graph, &Rules::default());
    let printed = printed.unwrap();
    assert_eq!(printed.entries, 6);
    assert!(!text.contains(" 1) "), "{text}");
    let said = printed.missing.unwrap().to_string();
    assert!(
        said.starts_with("of 12 records nobody knows the vCPU any more")
            && said.contains("(first: of thread 0): ")
            && said.ends_with("1000.side was cut or removed since"),
        "{said}"
    );
}

#[test]
fn what_is_not_listed_or_not_described_is_said_to_be_so() {
    let (_root, directory) = trace();
    let tasks = directory.join("task.txt");
    let whole = fs::read_to_string(&tasks).unwrap();
    let lines = whole.lines().filter(|line| !line.contains("1001"));
    let cut: String = lines.map(|line| format!("{line}\n")).collect();
    fs::write(&tasks, cut).unwrap();
    let shown = || text(&directory, Format::Counts, &Rules::default());
    let said = shown().0.unwrap().missing.unwrap().to_string();
    assert!(
        said.contains("task.txt was cut")
            && said.contains("not list 1 data file that is there (first: 1001.dat)"),
        "{said}"
    );
    fs::write(&tasks, whole).unwrap();
    assert_eq!(shown().0.unwrap().missing, None);

    fs::remove_file(directory.join("exotrace.json")).unwrap();
    let said = text(&directory, Format::Graph, &Rules::default())
        .0
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("nothing says that this is one: there is no ")
            && said.ends_with("/exotrace.json"),
        "{said}"
    );
    let (_, text) = shown();
    assert!(
        text.contains("\n# exotrace.json is missing, which says"),
        "{text}"
    );
}

/// Nothing says how much was written of it. It was read without a word, as a guest of fewer threads or none.
#[test]
fn what_is_not_listed_of_a_trace_that_was_never_completed_is_said_to_be_so() {
    let (_root, directory) = trace();
    let side = directory.join("exotrace.json");
    let text_of = |path: &Path| fs::read_to_string(path).unwrap();
    let killed = text_of(&side).replace("\"finished\": true", "\"finished\": false");
    let tasks = directory.join("task.txt");
    let whole = text_of(&tasks);
    fs::write(&side, killed).unwrap();
    let shown = || {
        let (printed, text) = text(&directory, Format::Counts, &Rules::default());
        (printed.unwrap(), text)
    };
    let not_ended = "the trace was not ended in order: its end may be missing".to_owned();
    let (printed, _) = shown();
    assert_eq!(
        (printed.missing, printed.notes),
        (None, vec![not_ended.clone()])
    );
    // A thread of which nothing has been written is about to be listed.
    fs::write(directory.join("1002.dat"), "").unwrap();
    fs::write(directory.join("01003.dat"), "no task is called so").unwrap();
    assert_eq!(shown().0.missing, None);
    for (length, which) in [
        (
            whole.len() - 1,
            "1 data file that is there (first: 1001.dat)",
        ),
        (0, "2 data files that are there (first: 1000.dat)"),
    ] {
        fs::write(&tasks, &whole[..length]).unwrap();
        let (printed, text) = shown();
        let missing = printed.missing.unwrap().to_string();
        let expected = format!(
            "{not_ended}; task.txt was cut or exchanged since: it does not list {which}: their calls are not shown"
        );
        assert_eq!(missing, expected);
        assert!(text.contains(&format!("\n# {expected}\n")), "{text}");
        assert_eq!(printed.notes, [""; 0], "it is said once");
    }
    // Nor does it matter why it is not known.
    fs::remove_file(side).unwrap();
    fs::write(&tasks, &whole[..whole.len() - 1]).unwrap();
    let missing = shown().0.missing.unwrap().to_string();
    let both = ["exotrace.json is missing", "it does not list 1 data file"];
    assert!(both.iter().all(|said| missing.contains(said)), "{missing}");
}

#[test]
fn a_trace_of_entries_has_no_graph() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        vcpus: 1,
        ..Metadata::default()
    };
    let writer =
        UftraceWriter::create(&directory, text_of(&functions(1)), metadata, false).unwrap();
    writer.finish().unwrap();
    let error = text(&directory, Format::Graph, &Rules::default())
        .0
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("showing calls in each other needs a trace of a graph"),
        "{error}"
    );
    let rules = Rules::new(std::num::NonZeroU32::new(1), &[], &[], None).unwrap();
    let error = text(&directory, Format::Counts, &rules).0.unwrap_err();
    assert!(error.to_string().contains("by depth"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the files hold, printing ends without a panic.
    #[test]
    fn mutated_graphs_never_panic(
        file in prop::sample::select(vec!["task.txt", "1000.dat", "1001.dat", "1000.side", "exotrace.json"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let (_root, directory) = trace();
        let path = directory.join(file);
        let bytes = damaged(&path, changes);
        let length = bytes.len().saturating_sub(cut.index(bytes.len()) / 3);
        fs::write(&path, &bytes[..length]).unwrap();
        let tables = [Format::Overview, Format::Counts, Format::Callers, Format::Slowest];
        for format in tables.into_iter().chain([Format::Function, Format::Graph]) {
            if let Err(error) = print(&directory, &format.into(), io::sink()) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn the_last_calls_of_each_vcpu_end_where_a_fatal_function_is_entered() {
    use super::last::{Last, print_last};
    let (_root, directory) = trace();
    let text = |calls, until: &[&str]| {
        let mut out = Vec::new();
        let printed = print_last(
            &directory,
            Last {
                calls,
                until,
                room: None,
            },
            &mut out,
        )
        .unwrap();
        (printed.entries, String::from_utf8(out).unwrap())
    };
    let (entries, all) = text(100, &[]);
    assert_eq!(entries, 6);
    assert!(
        all.contains("f0() {") && all.contains("! 200.500 us  |    f1();"),
        "{all}"
    );
    let (entries, two) = text(2, &[]);
    assert_eq!(entries, 4, "two of each vCPU: {two}");
    assert!(!two.contains("f0() {"), "{two}");
    let (entries, fatal) = text(2, &["f3"]);
    assert_eq!(entries, 3);
    let expected = [
        "# CPU 0 is in f0 > f2\n",
        " 0)               |    f2() {\n",
        " 0)               |      f3(); /* unhooked */\n",
        "# CPU 1 is in f2\n",
        " 1)               |  f2() {\n",
    ];
    assert_eq!(fatal, expected.concat());
}
