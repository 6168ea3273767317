//! Trace directories written and looked at byte by byte, and data files on a disk that fills up.

mod alone;
mod budget;
mod full;
mod many;
mod steps;

use crate::testing::{event, functions, text_of};
use terms::function::FunctionId;

use super::record::{Kind, Record, truncated, word};
use super::*;
use crate::export::store::Store;

fn metadata(vcpus: u16) -> Metadata {
    let (image, command_line) = (
        "out/guest x.elf".to_owned(),
        "vmm run --x \"a\"\n".to_owned(),
    );
    Metadata {
        image,
        command_line,
        vcpus,
        ..Metadata::default()
    }
}

fn entry(time_ns: u64, vcpu: u16, function: u32) -> Event {
    call_on(vcpu, time_ns, EventKind::Entry(FunctionId(function)))
}

fn lost(time_ns: u64, vcpu: u16, count: u64) -> Event {
    call_on(vcpu, time_ns, EventKind::Lost(count))
}

/// Where each vCPU is a thread.
fn call_on(vcpu: u16, time_ns: u64, kind: EventKind) -> Event {
    event(time_ns, vcpu, vcpu.into(), 0, kind)
}

fn append(writer: &mut UftraceWriter, events: impl IntoIterator<Item = Event>) {
    for event in events {
        writer.append(event).unwrap();
    }
}

fn records(path: &Path) -> Vec<(u64, Kind, u64)> {
    let bytes = fs::read(path).unwrap();
    let (records, rest) = bytes.as_chunks::<16>();
    assert!(rest.is_empty(), "{} torn", path.display());
    records
        .iter()
        .map(|r| Record::unpack(*r).unwrap())
        .map(|r| (r.time, r.kind, r.value))
        .collect()
}

#[test]
fn each_entry_is_a_call_of_no_duration() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(3);
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), metadata(2), false).unwrap();
    let events = [
        entry(10, 0, 0),
        entry(10, 1, 2),
        lost(11, 1, 7),
        entry(12, 0, 1),
        // Before the one before: kept in order.
        entry(5, 0, 2),
        entry(13, 0, 99),
        entry(14, 9, 0),
    ];
    append(&mut writer, events);
    assert_eq!(writer.side.strays, 1);
    let totals = writer.finish().unwrap();
    let [f0, f1, f2] = [0, 1, 2].map(|n| truncated(functions[n].address.0));
    assert_eq!(
        records(&directory.join("1000.dat")),
        [
            (10, Kind::Entry, f0),
            (10, Kind::Exit, f0),
            (12, Kind::Entry, f1),
            (12, Kind::Exit, f1),
            (12, Kind::Entry, f2),
            (12, Kind::Exit, f2),
        ]
    );
    assert_eq!(
        records(&directory.join("1001.dat")),
        [
            (10, Kind::Entry, f2),
            (10, Kind::Exit, f2),
            (11, Kind::Lost, 7)
        ]
    );
    let numbers: Vec<_> = totals
        .iter()
        .map(|t| (t.tid, t.entries, t.lost, t.reordered, t.unknown))
        .collect();
    assert_eq!(numbers, [(1000, 3, 0, 1, 1), (1001, 1, 7, 0, 0)]);
}

#[test]
fn the_directory_is_complete_before_the_first_event() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions(2)), metadata(2), false).unwrap();
    let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    let info = fs::read(directory.join("info")).unwrap();
    assert_eq!(&info[..16], b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02");
    let lines = String::from_utf8_lossy(&info[40..]).into_owned();
    assert_eq!(
        lines,
        "exename:guest_x.elf\ncmdline:vmm run --x 'a' \ntaskinfo:lines=2\ntaskinfo:nr_tid=2\ntaskinfo:tids=1000,1001\n"
    );
    let tasks = "SESS timestamp=0.000000000 pid=1000 sid=0000000000000000 exename=\"guest_x.elf\"\n\
                 TASK timestamp=0.000000000 tid=1000 pid=1000\n\
                 FORK timestamp=0.000000000 pid=1001 ppid=1000\n";
    assert_eq!(text("task.txt"), tasks);
    assert_eq!(names_of_tasks(&directory), ["1000 vcpu0", "1001 vcpu1"]);
    assert_eq!(
        text("guest_x.elf.sym"),
        "0000000000000000 T f0\n0000000000000010 T f1\n0000000000000020 ? __sym_end\n0000000000001000 ? __sym_end\n"
    );
    let map = text("sid-0000000000000000.map");
    assert!(map.starts_with("ffff80100000-ffff80101000 r-xp"), "{map}");
    assert!(
        map.contains(" guest_x.elf\n") && map.contains("[stack]"),
        "{map}"
    );
    assert_eq!(fs::metadata(directory.join("1001.dat")).unwrap().len(), 0);
    let side: SideFile = serde_json::from_str(&text(SIDE_FILE)).unwrap();
    assert!(!side.finished);
    let known_late = Metadata {
        tsc_khz: 2_600_000,
        ..metadata(2)
    };
    let described = Metadata {
        vcpus: 77,
        tracer: "graph".to_owned(),
        ..known_late.clone()
    };
    writer.describe(described).unwrap();
    let side: SideFile = serde_json::from_str(&text(SIDE_FILE)).unwrap();
    assert_eq!((side.metadata, side.finished), (known_late.clone(), false));
    writer.finish().unwrap();
    let side: SideFile = serde_json::from_str(&text(SIDE_FILE)).unwrap();
    assert!(side.finished);
    assert_eq!((side.metadata, side.totals.len()), (known_late, 2));
}

#[test]
fn flushed_events_are_on_disk_at_once() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions(1)), metadata(1), false).unwrap();
    append(&mut writer, (0..10_000).map(|time| entry(time, 0, 0)));
    let length = || records(&directory.join("1000.dat")).len();
    assert!(length() > 10_000, "a full buffer is written");
    writer.flush().unwrap();
    assert_eq!(length(), 20_000);
}

#[test]
fn only_traces_are_overwritten_and_only_when_forced() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(1);
    let create = |force| {
        UftraceWriter::create(&directory, text_of(&functions), metadata(1), force).map(drop)
    };
    let both_check = |directory: &Path| {
        let checked = check_output(directory, true);
        assert_eq!(checked.is_ok(), check_output(directory, false).is_ok());
        checked
    };
    both_check(&directory).unwrap();
    create(false).unwrap();
    check_output(&directory, true).unwrap();
    assert!(directory.join("info").exists(), "nothing is removed");
    for error in [
        create(false).unwrap_err(),
        check_output(&directory, false).unwrap_err(),
    ] {
        assert!(
            matches!(&error, ExportError::Exists(path) if *path == directory),
            "{error}"
        );
    }
    fs::write(directory.join("7.dat"), "old").unwrap();
    create(true).unwrap();
    assert!(!directory.join("7.dat").exists());
    for foreign in ["notes.txt", "x.dat", "taxes"] {
        fs::write(directory.join(foreign), "mine").unwrap();
        take_away(&directory, "vmm").unwrap_err();
        for error in [create(true), check_output(&directory, true)].map(Result::unwrap_err) {
            assert!(error.to_string().contains(foreign), "{error}");
        }
        assert!(directory.join("info").exists(), "nothing is removed");
        fs::remove_file(directory.join(foreign)).unwrap();
    }
    fs::write(directory.join("info"), "shopping list").unwrap();
    assert!(matches!(create(true), Err(ExportError::NotATrace { .. })));
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let error = UftraceWriter::create(&file, text_of(&functions), metadata(1), true).unwrap_err();
    assert!(matches!(error, ExportError::NotADirectory(_)), "{error}");
    let error = both_check(&file).unwrap_err();
    assert!(matches!(error, ExportError::NotADirectory(_)), "{error}");
    for missing in ["no/such", "file/such"].map(|name| root.path().join(name)) {
        let created = UftraceWriter::create(&missing, text_of(&functions), metadata(1), true);
        for error in [created.unwrap_err(), both_check(&missing).unwrap_err()] {
            let name = missing.display().to_string();
            assert!(error.to_string().contains(&name), "{error}");
        }
    }
    both_check(Path::new("such-a-directory")).unwrap();
}

/// It has what the values of all calls are, too: of a trace with thousands of threads that was hundreds of gigabytes.
#[test]
fn the_list_of_threads_is_written_once_where_nobody_reads_it_before() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(1);
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), graph_metadata(), false).unwrap();
    let listed = || {
        let info = fs::read(directory.join("info")).unwrap();
        String::from_utf8_lossy(&info).contains("taskinfo:tids=1000,1001,1002\n")
    };
    writer.describe_later();
    for thread in 0..3 {
        let entry = call(10, thread, EventKind::Entry(FunctionId(0)));
        writer.append(entry).unwrap();
        writer.flush().unwrap();
    }
    writer.describe_values(CallFormats::default()).unwrap();
    let tasks = fs::read_to_string(directory.join("task.txt")).unwrap();
    assert!(
        tasks.contains("tid=1002") || tasks.contains("pid=1002"),
        "{tasks}"
    );
    writer.describe_all(None);
    assert!(!listed(), "it is written at the end");
    writer.finish().unwrap();
    assert!(listed());
}

/// What reads the trace takes no such name for one of a file.
#[test]
fn an_image_whose_name_begins_with_a_dot_has_another_one() {
    assert_eq!(module_name("a/.vmlinux-6.1"), "_vmlinux-6.1");
    assert_eq!(module_name("a/v.m l"), "v.m_l");
}

#[test]
fn a_trace_that_came_to_nothing_is_taken_away_once_nobody_writes_it() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(1);
    let writer = UftraceWriter::create(&directory, text_of(&functions), metadata(1), false);
    let taken = take_away(&directory, "vmm");
    for busy in [taken, check_output(&directory, true)].map(Result::unwrap_err) {
        assert!(matches!(busy, ExportError::Busy { .. }), "{busy}");
    }
    assert!(directory.join("info").exists(), "nothing is removed");
    writer.unwrap().finish().unwrap();
    take_away(&directory, "vmm").unwrap();
    assert!(!directory.exists());
}

/// A disk was full, and when it had room again the run was in its own way.
#[test]
fn nothing_stays_of_a_trace_that_cannot_be_begun() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(1);
    let text = text_of(&functions);
    let create = |image: &str| {
        let image = image.to_owned();
        let metadata = Metadata {
            image,
            ..metadata(1)
        };
        UftraceWriter::create(&directory, text, metadata, false)
    };
    // No file can be called so.
    create(&"x".repeat(300)).unwrap_err();
    assert!(!directory.exists());
    create("guest.elf").unwrap();
    // What is not ours stays, whatever is in the way.
    create("guest.elf").unwrap_err();
    assert!(directory.join("info").exists());
}

fn graph_metadata() -> Metadata {
    Metadata {
        tracer: GRAPH.to_owned(),
        ..metadata(2)
    }
}

fn call(time_ns: u64, thread: u32, kind: EventKind) -> Event {
    event(time_ns, 1, thread, 0, kind)
}

#[test]
fn threads_of_a_graph_get_their_files_when_they_are_seen() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(2);
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), graph_metadata(), false).unwrap();
    let text =
        |name: &str| String::from_utf8_lossy(&fs::read(directory.join(name)).unwrap()).into_owned();
    assert!(text("info").contains("taskinfo:nr_tid=0\n") && text("task.txt").is_empty());
    let function = FunctionId(1);
    writer
        .append(call(10, 0, EventKind::Entry(function)))
        .unwrap();
    writer
        .append(call(11, 2, EventKind::Entry(function)))
        .unwrap();
    writer.flush().unwrap();
    assert!(text("info").contains("taskinfo:nr_tid=2\ntaskinfo:tids=1000,1002\n"));
    assert!(text("task.txt").ends_with("FORK timestamp=0.000000000 pid=1002 ppid=1000\n"));
    assert!(text(layout::MAP_FILE).contains("guest_x.elf"));
    let end = crate::event::End::NotSeen;
    let exit = EventKind::Exit {
        function,
        end,
        duration: None,
    };
    writer.append(call(15, 0, exit)).unwrap();
    writer.append(call(16, 0, EventKind::Lost(3))).unwrap();
    writer
        .append(call(17, 0, EventKind::Entry(FunctionId(99))))
        .unwrap();
    let totals = writer.finish().unwrap();
    let f1 = truncated(functions[1].address.0);
    assert_eq!(
        records(&directory.join("1000.dat")),
        [
            (10, Kind::Entry, f1),
            (15, Kind::Exit, f1),
            (16, Kind::Lost, 3)
        ]
    );
    let side = fs::read(directory.join("1000.side")).unwrap();
    let side: Vec<_> = side
        .as_chunks::<2>()
        .0
        .iter()
        .map(|w| threads::read_side_word(u16::from_le_bytes(*w)))
        .collect();
    assert_eq!(side[1], (1, end));
    assert_eq!(side.len(), 3);
    let numbers: Vec<_> = totals
        .iter()
        .map(|t| (t.vcpu, t.entries, t.lost, t.unknown))
        .collect();
    assert_eq!(numbers, [(0, 0, 0, 0), (1, 2, 3, 1)]);
    UftraceWriter::create(&directory, text_of(&functions), graph_metadata(), true)
        .expect("a graph trace is replaced");
}

#[test]
fn threads_have_the_names_that_become_known() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions(1)), graph_metadata(), false).unwrap();
    let names = || names_of_tasks(&directory);
    let entry = |thread| call(10, thread, EventKind::Entry(FunctionId(0)));
    writer.name_thread(1, "init-1".to_owned());
    for thread in 0..3 {
        writer.append(entry(thread)).unwrap();
    }
    writer.flush().unwrap();
    assert_eq!(names(), ["1000 thread0", "1001 init-1", "1002 thread2"]);
    writer.name_thread(2, "kworker/0:1\"\nöö".to_owned());
    writer.name_thread(3, "never seen".to_owned());
    writer.finish().unwrap();
    let cut = "1002 kworker/0:1' ö";
    assert_eq!(names(), ["1000 thread0", "1001 init-1", cut]);
}

/// What the file of names says: 48 bytes for each task, the last one counts.
fn names_of_tasks(directory: &Path) -> Vec<String> {
    let bytes = fs::read(directory.join(layout::NAMES_FILE)).unwrap();
    let (records, []) = bytes.as_chunks::<48>() else {
        panic!("{} bytes", bytes.len());
    };
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let named = records.iter().map(|record| {
        assert_eq!(record[..8], [3, 0, 0, 0, 0, 0, 48, 0]);
        assert_eq!(record[12..16], record[36..40]);
        assert_eq!(record[40..], [0; 8], "from the first moment on");
        let name = record[16..32].split(|byte| *byte == 0).next().unwrap();
        let name = std::str::from_utf8(name).unwrap();
        (
            number(&record[12..16]),
            format!("{} {name}", number(&record[12..16])),
        )
    });
    named
        .collect::<std::collections::BTreeMap<_, _>>()
        .into_values()
        .collect()
}

#[test]
fn a_thread_whose_files_cannot_be_made_is_tried_again() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions(1)), graph_metadata(), false).unwrap();
    let in_the_way = directory.join("1000.side");
    fs::create_dir(&in_the_way).unwrap();
    let entry = call(10, 0, EventKind::Entry(FunctionId(0)));
    writer.append(entry.clone()).unwrap();
    let error = writer.flush().unwrap_err();
    assert!(error.to_string().contains("1000.side"), "{error}");
    fs::remove_dir(&in_the_way).unwrap();
    writer.append(entry.clone()).unwrap();
    writer.finish().unwrap();
    let written = records(&directory.join("1000.dat"));
    assert_eq!(
        (written[0].1, written[0].2, written[1].1),
        (Kind::Lost, 1, Kind::Entry)
    );
    let side: SideFile =
        serde_json::from_slice(&fs::read(directory.join(SIDE_FILE)).unwrap()).unwrap();
    assert_eq!(side.dropped, 1);
}

/// Whoever kills us then finds it.
#[test]
fn a_thread_that_calls_nothing_any_more_says_what_it_has_lost_when_there_is_room_again() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions(1)), graph_metadata(), false).unwrap();
    let entry = |time_ns, thread| Event {
        vcpu: 1,
        ..call(time_ns, thread, EventKind::Entry(FunctionId(0)))
    };
    append(&mut writer, [entry(10, 0)]);
    writer.flush().unwrap();
    let (data, aside) = (directory.join("1000.dat"), root.path().join("aside"));
    fs::rename(&data, &aside).unwrap();
    // This one has no file yet.
    let in_the_way = directory.join("1001.side");
    fs::create_dir(&in_the_way).unwrap();
    append(&mut writer, [entry(20, 0), entry(21, 0), entry(22, 1)]);
    writer.flush().unwrap_err();
    writer.flush().unwrap_err();
    fs::rename(&aside, &data).unwrap();
    fs::remove_dir(&in_the_way).unwrap();
    writer.flush().unwrap();
    let assert_said = || {
        let of = |name| records(&directory.join(name));
        let (first, second) = (of("1000.dat"), of("1001.dat"));
        assert_eq!((first.len(), first[0].1), (2, Kind::Entry));
        assert_eq!(first[1], (21, Kind::Lost, 2));
        assert_eq!(second, [(22, Kind::Lost, 1)]);
        let beside = |name| fs::read(directory.join(name)).unwrap();
        assert_eq!(beside("1000.side"), [1, 0, 1, 0], "lost where it called");
        assert_eq!(beside("1001.side"), [1, 0]);
        let tasks = fs::read_to_string(directory.join("task.txt")).unwrap();
        assert!(tasks.contains("pid=1001"), "{tasks}");
    };
    assert_said();
    writer.close().unwrap();
    assert_said();
    assert_eq!(writer.dropped_records(), 3);
}

/// What the last records of a thread's file become when its files cannot grow any more.
#[test]
fn a_thread_whose_files_are_full_says_the_loss_in_place() {
    let exit = EventKind::Exit {
        function: FunctionId(0),
        end: crate::event::End::Returned,
        duration: Some(1),
    };
    let cases = [
        (exit, 3, 2 + 3),
        (EventKind::Entry(FunctionId(0)), 3, 2 + 3),
        (EventKind::Lost(7), 2, 1 + 3 + 7),
    ];
    for (last, dropped, said) in cases {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("trace");
        let mut writer =
            UftraceWriter::create(&directory, text_of(&functions(1)), graph_metadata(), false)
                .unwrap();
        // Room for two records, and what is beside them.
        Store::set_budget(&mut writer, &Budget::of(256 + 2 * (16 + 2)));
        let entry = call(10, 0, EventKind::Entry(FunctionId(0)));
        writer.append(entry.clone()).unwrap();
        writer.append(call(11, 0, last)).unwrap();
        writer.flush().unwrap();
        writer.append(entry.clone()).unwrap();
        writer.append(call(12, 0, EventKind::Lost(3))).unwrap();
        writer.flush().unwrap_err();
        writer.append(entry.clone()).unwrap();
        writer.flush().unwrap_err();
        writer.close().unwrap_err();
        let written = records(&directory.join("1000.dat"));
        assert_eq!(written.len(), 2, "{last:?}");
        assert_eq!(written[1], (11, Kind::Lost, said + 1), "{last:?}");
        assert_eq!(writer.dropped_records(), dropped, "{last:?}");
        assert_eq!(fs::read(directory.join("1000.side")).unwrap().len(), 4);
    }
}
