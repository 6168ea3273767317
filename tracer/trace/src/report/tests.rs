//! Reports of traces written by our own writer, and of damaged ones.

use std::fs;
use std::path::{Path, PathBuf};

use crate::testing::{self, functions, text_of};
use proptest::prelude::*;
use tempfile::TempDir;
use terms::event_format::{EventFormat, EventId};
use terms::function::FunctionId;

use super::*;
use crate::event::{Event, EventKind};
use crate::export::store::{News, Store};
use crate::export::uftrace::{Metadata, NOP, UftraceWriter};

/// The file's bytes with some changed.
pub(super) fn damaged(path: &Path, changes: Vec<(prop::sample::Index, u8)>) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    for (index, byte) in changes {
        let at = index.index(bytes.len());
        bytes[at] = byte;
    }
    bytes
}

/// Of a trace of functions: each vCPU is a thread.
fn event(time_ns: u64, vcpu: u16, kind: EventKind) -> Event {
    testing::event(time_ns, vcpu, vcpu.into(), 0, kind)
}

/// A trace of two vCPUs: three calls on the first, two and a loss on the second.
fn trace() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        vcpus: 2,
        image: "guest.elf".into(),
        ..Metadata::default()
    };
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions(3)), metadata, false).unwrap();
    let entry = |time, vcpu, id| event(time, vcpu, EventKind::Entry(FunctionId(id)));
    for event in [
        entry(1_000_000_000, 0, 0),
        entry(12_345_678_901, 0, 1),
        entry(12_345_679_000, 0, 1),
        entry(2_000_000_000, 1, 2),
        event(2_000_500_000, 1, EventKind::Lost(123)),
        entry(12_345_678_901, 1, 1),
    ] {
        writer.append(event).unwrap();
    }
    writer.finish().unwrap();
    (root, directory)
}

fn text(directory: &Path, format: Format) -> (Result<Printed, ReportError>, String) {
    let mut out = Vec::new();
    let result = print(directory, &format.into(), &mut out);
    (result, String::from_utf8(out).unwrap())
}

#[test]
fn the_function_format_is_that_of_ftrace() {
    let (_root, directory) = trace();
    let (printed, text) = text(&directory, Format::Function);
    let expected = "\
# tracer: function
#
# entries-in-buffer/entries-written: 5/128   #P:2
#
#           TASK-PID     CPU#    TIMESTAMP   FUNCTION
#              | |         |         |         |
         <guest>-0       [000]     1.000000: f0
         <guest>-0       [001]     2.000000: f2
CPU:1 [LOST 123 EVENTS]
         <guest>-0       [000]    12.345678: f1
         <guest>-0       [001]    12.345678: f1
         <guest>-0       [000]    12.345679: f1
";
    assert_eq!(text, expected);
    assert_eq!(
        printed.unwrap(),
        Printed {
            entries: 5,
            lost: 123,
            ..Printed::default()
        }
    );
}

#[test]
fn counts_are_sorted_and_say_what_is_missing() {
    let (_root, directory) = trace();
    let (printed, text) = text(&directory, Format::Counts);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(
        lines,
        [
            "CALLS  FUNCTION",
            "3  f1",
            "1  f0",
            "1  f2",
            "# 5 calls of 3 functions, 123 lost",
            "# CPU:1 [LOST 123 EVENTS]",
        ]
    );
    assert_eq!(printed.unwrap().entries, 5);
}

#[test]
fn who_called_whom_and_what_was_slow_takes_a_graph() {
    let (_root, directory) = trace();
    for format in [Format::Callers, Format::Callees, Format::Slowest] {
        let (refused, text) = text(&directory, format);
        let is_as_expected = match format {
            Format::Slowest => matches!(refused, Err(ReportError::NotAGraph(_))),
            _ => matches!(refused, Err(ReportError::NoCallers)),
        };
        assert!(is_as_expected, "{format:?}");
        assert_eq!(text, "");
    }
}

#[test]
fn a_torn_or_unfinished_trace_is_read_up_to_its_end() {
    let (_root, directory) = trace();
    let data = directory.join("1000.dat");
    let bytes = fs::read(&data).unwrap();
    fs::write(&data, &bytes[..bytes.len() - 25]).unwrap();
    fs::remove_file(directory.join("exotrace.json")).unwrap();
    let printed = text(&directory, Format::Function).0.unwrap();
    assert_eq!(printed.entries, 4);
    assert!(
        printed.notes[0].contains("7 bytes of a torn record"),
        "{:?}",
        printed.notes
    );
}

#[test]
fn a_damaged_record_is_an_error_after_what_was_good() {
    let (_root, directory) = trace();
    let data = directory.join("1000.dat");
    let mut bytes = fs::read(&data).unwrap();
    bytes[32..48].fill(0xff);
    fs::write(&data, bytes).unwrap();
    for format in [Format::Function, Format::Counts] {
        let (result, text) = text(&directory, format);
        let message = result.unwrap_err().to_string();
        assert!(
            message.contains("1000.dat: no record at offset 0x20"),
            "{message}"
        );
        let good = text.lines().filter(|line| line.contains("f0")).count();
        assert_eq!(good, 1, "{text}");
    }
}

/// They are in files of their own.
#[test]
fn events_are_added_up_also_where_a_record_of_calls_is_damaged() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        vcpus: 1,
        ..Metadata::default()
    };
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions(2)), metadata, false).unwrap();
    let format = EventFormat::new("sent".into(), Vec::new());
    writer.learn(News::Points(&[format.into()]));
    let called = |id| EventKind::Entry(FunctionId(id));
    let passed = EventKind::Point(EventId(0));
    for (time_ns, kind) in [(5, called(0)), (7, called(1)), (10, passed), (20, passed)] {
        writer.append(event(time_ns, 0, kind)).unwrap();
    }
    writer.finish().unwrap();
    let data = directory.join("1000.dat");
    let mut bytes = fs::read(&data).unwrap();
    bytes[16..32].fill(0xff);
    fs::write(&data, bytes).unwrap();
    let (result, text) = text(&directory, Format::Overview);
    result.unwrap_err();
    for good in ["f0\n", "2  sent\n"] {
        assert!(text.contains(good), "{text}");
    }
}

#[test]
fn what_is_no_trace_is_named() {
    let root = tempfile::tempdir().unwrap();
    let error = |directory: &Path| text(directory, Format::Counts).0.unwrap_err().to_string();
    assert!(error(&root.path().join("none")).contains("open the trace directory"));
    assert!(error(root.path()).contains("/info: no such file: not a trace of ours"));
    let (_root, directory) = trace();
    let damage = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        let good = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let message = error(&directory);
        fs::write(&path, good).unwrap();
        assert!(message.contains(name), "{name}: {message}");
        message
    };
    damage("info", b"");
    damage("info", &[0x55; 100]);
    damage("task.txt", &[0xff, 0xfe]);
    damage("task.txt", b"TASK timestamp=0 tid=../../x pid=1\n");
    damage(
        "task.txt",
        b"SESS timestamp=0 pid=1 sid=../up exename=\"x\"\n",
    );
    damage("sid-0000000000000000.map", b"");
    damage(
        "sid-0000000000000000.map",
        b"1000-2000 r-xp 0 0:0 0 ../../secret\n",
    );
    damage("guest.elf.sym", b"zz T f0\n");
    damage("exotrace.json", b"{\"version\": ");
    fs::remove_file(directory.join("1001.dat")).unwrap();
    assert!(error(&directory).contains("cannot open"));
}

/// A list that somebody has written twice does not double what the files have.
#[test]
fn a_task_that_is_listed_twice_is_read_once() {
    let (_root, directory) = trace();
    let counts = || text(&directory, Format::Counts).1;
    let before = counts();
    let tasks = directory.join("task.txt");
    let listed = fs::read_to_string(&tasks).unwrap();
    fs::write(&tasks, listed.repeat(2)).unwrap();
    assert_eq!(counts(), before);
}

#[test]
fn more_tasks_than_a_trace_can_have_are_refused_before_they_are_there() {
    let (_root, directory) = trace();
    let tasks = directory.join("task.txt");
    let listed = fs::read_to_string(&tasks).unwrap();
    let most = |count: u32| {
        let more = (0..count).map(|tid| format!("TASK timestamp=0.0 tid={}\n", 5000 + tid));
        fs::write(&tasks, listed.clone() + &more.collect::<String>()).unwrap();
        TraceDirectory::open(&directory)
    };
    assert_eq!(most(4094).unwrap().tasks.len(), 4096);
    let refused = most(4095).unwrap_err().to_string();
    assert!(refused.contains("more than 4096 tasks"), "{refused}");
}

/// Each line and each stack would repeat it.
#[test]
fn of_a_name_that_has_no_end_the_beginning_is_read() {
    let (_root, directory) = trace();
    let symbols = directory.join("guest.elf.sym");
    let listed = fs::read_to_string(&symbols).unwrap();
    let line = listed.lines().find(|line| line.ends_with(" f1")).unwrap();
    let long = format!("{}{}", line.trim_end_matches("f1"), "\u{e9}".repeat(3000));
    fs::write(&symbols, listed.replace(line, &long)).unwrap();
    let (_, shown) = text(&directory, Format::Function);
    let longest = shown.lines().map(|line| line.matches('\u{e9}').count());
    assert_eq!(longest.max(), Some(2048));
    let is_told = |line: &str| line.contains("\u{e9}...");
    assert!(shown.lines().any(is_told), "that it goes on is said");
}

/// Who opened it waited for ever.
#[test]
fn a_pipe_in_place_of_what_describes_a_trace_is_refused() {
    for name in ["exotrace.json", "task.txt", "info", "guest.elf.sym"] {
        let (_root, directory) = trace();
        let file = directory.join(name);
        fs::remove_file(&file).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&file).status();
        assert!(made.unwrap().success());
        let refused = TraceDirectory::open(&directory).unwrap_err().to_string();
        assert!(refused.contains("it is no file"), "{refused}");
    }
}

/// Somebody is about to write it.
#[test]
fn a_task_that_is_listed_in_part_is_not_there_yet() {
    let (_root, directory) = trace();
    let counts = || text(&directory, Format::Counts).1;
    let before = counts();
    let tasks = directory.join("task.txt");
    let listed = fs::read_to_string(&tasks).unwrap();
    for part in [
        "T",
        "TASK timestamp=0.000000000 t",
        "TASK timestamp=0.000000000 tid=10",
    ] {
        fs::write(&tasks, format!("{listed}{part}")).unwrap();
        assert_eq!(counts(), before);
    }
}

#[test]
fn what_the_totals_have_and_the_files_have_not_is_missing() {
    let (_root, directory) = trace();
    let missing = |directory: &Path| text(directory, Format::Counts).0.unwrap().missing;
    assert_eq!(missing(&directory), None);
    let data = directory.join("1000.dat");
    let bytes = fs::read(&data).unwrap();
    fs::write(&data, &bytes[..32]).unwrap();
    let message = missing(&directory).unwrap().to_string();
    assert!(message.starts_with("2 of 5 calls are missing"), "{message}");
    fs::write(&data, b"").unwrap();
    let message = missing(&directory).unwrap().to_string();
    assert!(message.starts_with("3 of 5 calls are missing"), "{message}");
    // What was never completed has no totals to be compared with.
    fs::remove_file(directory.join("exotrace.json")).unwrap();
    assert_eq!(missing(&directory), None);
}

/// A trace of a session that records events only: two, and seven that are lost.
fn events_only() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        vcpus: 1,
        tracer: NOP.into(),
        ..Metadata::default()
    };
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions(1)), metadata, false).unwrap();
    let format = EventFormat::new("sent".into(), Vec::new());
    writer.learn(News::Points(&[format.into()]));
    let passed = EventKind::Point(EventId(0));
    for (time_ns, kind) in [(10, passed), (15, EventKind::LostPoints(7)), (20, passed)] {
        writer.append(event(time_ns, 0, kind)).unwrap();
    }
    writer.finish().unwrap();
    (root, directory)
}

#[test]
fn a_trace_of_events_only_does_not_say_that_it_is_of_functions() {
    let (_root, directory) = events_only();
    let (printed, text) = text(&directory, Format::Function);
    assert!(text.starts_with("# tracer: nop\n"), "{text}");
    // They are its lines: it once said that there were none.
    assert!(
        text.contains("# entries-in-buffer/entries-written: 2/9 "),
        "{text}"
    );
    let printed = printed.unwrap();
    assert_eq!((printed.entries, printed.events, printed.lost), (0, 2, 7));
}

#[test]
fn the_first_screen_of_events_alone_has_no_table_of_calls() {
    let (_root, directory) = events_only();
    let (_, text) = text(&directory, Format::Overview);
    let expected = "\
guest     1 vCPU
recorded  nop
time      0.000000 s, from 0.000000 to 0.000000
events    2
lost      7 records (77.7 %)

         COUNT  EVENT
             2  sent
# 2 events, 7 lost
";
    assert_eq!(text, expected);
}

#[test]
fn events_that_the_totals_have_and_the_files_have_not_are_missing() {
    for format in [Format::Function, Format::Counts, Format::Overview] {
        let (_root, directory) = events_only();
        assert_eq!(text(&directory, format).0.unwrap().missing, None);
        let file = directory.join("events-0.jsonl");
        let lines = fs::read_to_string(&file).unwrap();
        let (first, _) = lines.split_once('\n').unwrap();
        fs::write(&file, format!("{first}\n")).unwrap();
        let missing = text(&directory, format).0.unwrap().missing.unwrap();
        let message = missing.to_string();
        assert!(
            message.starts_with("1 of 2 events are missing"),
            "{message}"
        );
    }
}

#[test]
fn one_call_of_one_function_is_said_in_the_singular() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        vcpus: 1,
        ..Metadata::default()
    };
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions(1)), metadata, false).unwrap();
    let kind = EventKind::Entry(FunctionId(0));
    writer.append(event(1, 0, kind)).unwrap();
    writer.finish().unwrap();
    let (_, text) = text(&directory, Format::Counts);
    assert!(text.contains("# 1 call of 1 function, 0 lost"), "{text}");
}

#[test]
fn a_trace_that_is_being_written_says_by_whom() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        command_line: "vmm run".to_owned(),
        ..Metadata::default()
    };
    let writer =
        UftraceWriter::create(&directory, text_of(&functions(3)), metadata.clone(), false).unwrap();
    let notes = || text(&directory, Format::Counts).0.unwrap().notes.join("\n");
    assert!(
        notes().contains("is being written by process"),
        "{}",
        notes()
    );
    let error =
        UftraceWriter::create(&directory, text_of(&functions(3)), metadata, true).unwrap_err();
    assert!(error.to_string().contains("(vmm run)"), "{error}");
    // As if it were killed.
    drop(writer);
    assert!(notes().contains("not ended in order"), "{}", notes());
    // Killed before it had said what it is of. What somebody else wrote has no such file.
    std::fs::remove_file(directory.join("exotrace.json")).unwrap();
    assert!(notes().contains("not ended in order"), "{}", notes());
    std::fs::remove_file(directory.join("exotrace.lock")).unwrap();
    assert_eq!(notes(), "");
    let next = UftraceWriter::create(
        &directory,
        text_of(&functions(3)),
        Metadata::default(),
        true,
    )
    .unwrap();
    next.finish().unwrap();
    assert_eq!(notes(), "");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the files hold, printing ends without a panic.
    #[test]
    fn mutated_directories_never_panic(
        file in prop::sample::select(vec![
            "info", "task.txt", "sid-0000000000000000.map", "guest.elf.sym", "1000.dat",
            "exotrace.json",
        ]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in 0.0..1.5f64,
    ) {
        let (_root, directory) = trace();
        let path = directory.join(file);
        let bytes = damaged(&path, changes);
        let keep = bytes.iter().zip(1u32..).take_while(|(_, n)| f64::from(*n) <= keep * 100.0);
        let length = keep.count();
        fs::write(&path, &bytes[..length.max(1)]).unwrap();
        for format in [Format::Function, Format::Counts] {
            if let Err(error) = print(&directory, &format.into(), io::sink()) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn a_clock_that_stood_still_is_said_once_before_what_comes_after_it() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        vcpus: 1,
        image: "guest.elf".into(),
        ..Metadata::default()
    };
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions(1)), metadata, false).unwrap();
    for time_ns in [999, 1_000, 4_000_000, 6_000_000] {
        let kind = EventKind::Entry(FunctionId(0));
        writer.append(event(time_ns, 0, kind)).unwrap();
    }
    for end_ns in [1_000, 5_000_000, 7_000_000] {
        let stall = event(end_ns, 0, EventKind::Stall(20_500));
        writer.append(stall).unwrap();
    }
    writer.finish().unwrap();
    let said = text(&directory, Format::Function).1;
    let is_stall = |line: &str| line == "# the clock stood still for 20 us up to here";
    let sum = "# 3 times the clock stood still, 61.500 us in all, longest 20.500 us: ";
    assert!(said.lines().last().unwrap().starts_with(sum), "{said}");
    let lines = said.lines().skip_while(|line| !line.ends_with(": f0"));
    let stalls: Vec<bool> = lines.map(is_stall).collect();
    // What stood still after the last entry is said after it, and all of it at the end.
    assert_eq!(
        stalls,
        [false, true, false, false, true, false, true, false]
    );
}
