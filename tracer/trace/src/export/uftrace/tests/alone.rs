//! A trace without a call, as uftrace opens it.

use super::*;

/// uftrace's tui ends in a trace without a call that has returned.
#[test]
fn a_trace_of_events_alone_has_one_call_around_them_for_uftrace() {
    let root = tempfile::tempdir().unwrap();
    for (name, metadata) in [("functions", metadata(1)), ("graph", graph_metadata())] {
        let directory = root.path().join(name);
        let functions = functions(1);
        let writer = UftraceWriter::create(&directory, text_of(&functions), metadata, false);
        let mut writer = writer.unwrap();
        for time_ns in [50, 70] {
            writer.append(call(time_ns, 0, EventKind::Wait(3))).unwrap();
        }
        writer.finish().unwrap();
        let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        let tasks = text("task.txt");
        assert!(tasks.ends_with(" pid=999 ppid=1000\n"), "{tasks}");
        assert_eq!(names_of_tasks(&directory)[0], "999 events");
        let info = fs::read(directory.join("info")).unwrap();
        let info = String::from_utf8_lossy(&info);
        assert!(
            info.contains("nr_tid=2\ntaskinfo:tids=1000,999\n"),
            "{info}"
        );
        assert_eq!(fs::metadata(directory.join("1000.dat")).unwrap().len(), 0);
        let calls = records(&directory.join("999.dat"));
        let [(49, Kind::Entry, at), (71, Kind::Exit, left)] = calls[..] else {
            panic!("{calls:?}");
        };
        assert_eq!(at, left);
        let map = text(layout::MAP_FILE);
        let base = u64::from_str_radix(map.split('-').next().unwrap(), 16).unwrap();
        let symbols = text("guest_x.elf.sym");
        let last = format!("{:016x} T (no calls)", at - base);
        let end = format!("{:016x} ? __sym_end", at - base + 1);
        assert!(symbols.ends_with(&format!("{last}\n{end}\n")), "{symbols}");
        let read = crate::report::directory::TraceDirectory::open(&directory).unwrap();
        assert_eq!(read.tasks.len(), 1, "ours do not see it");
        let again = UftraceWriter::create(&directory, text_of(&functions), graph_metadata(), true);
        let mut again = again.expect("it is known as a trace");
        again
            .append(call(10, 0, EventKind::Entry(FunctionId(0))))
            .unwrap();
        again.finish().unwrap();
        assert!(!directory.join("999.dat").exists(), "it has a call");
        assert!(!text("guest_x.elf.sym").contains("(no calls)"));
    }
}

/// Where the call cannot be made, everything else is there.
#[test]
fn a_trace_that_uftrace_cannot_open_says_what_is_missing_and_is_let_go() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        tracer: NOP.to_owned(),
        ..metadata(1)
    };
    let writer = UftraceWriter::create(&directory, text_of(&functions(1)), metadata, false);
    let mut writer = writer.unwrap();
    writer
        .append(call_on(0, 10, EventKind::LostPoints(7)))
        .unwrap();
    let tasks = directory.join("task.txt");
    fs::remove_file(&tasks).unwrap();
    fs::create_dir(&tasks).unwrap();
    let error = writer.close().unwrap_err().to_string();
    assert!(error.contains("task.txt"), "{error}");
    let side = fs::read_to_string(directory.join(SIDE_FILE)).unwrap();
    let side: SideFile = serde_json::from_str(&side).unwrap();
    assert_eq!((side.events.lost, side.totals.len()), (7, 1));
    assert!(!has_lock(&directory), "nobody writes it any more");
}
