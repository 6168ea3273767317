//! A trace directory that may come from anywhere: reports and exports of it are an error or text, and nothing that a
//! terminal would obey is in them. The input is the directory's files in a fixed order, with a mark between them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use trace::graph::excerpt::Excerpt;
use trace::graph::rules::{Rules, Threshold};
use trace::report::last::{Last, print_last};
use trace::report::{Format, Printed, ReportError, View, Watch, print};
use vmm::commands::export::{Destination, ExportFormat, export};
use vmm::commands::stacks::StackOptions;

/// Stands between two files.
const MARK: &[u8] = b"\n====\n";
const FILES: [&str; 13] = [
    "task.txt",
    "exotrace.json",
    "1000.dat",
    "1000.side",
    "1001.dat",
    "1001.side",
    "values.json",
    "events-0.jsonl",
    "events-1.jsonl",
    "sid-0000000000000000.map",
    "guest.sym",
    "probes.json",
    "host-0.jsonl",
];
const INFO: &[u8] =
    b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// How these directories are called: the process and a number follow.
const NAME: &str = "exotrace-fuzz-";

/// Removes it when the process ends in order. One of a process that was killed is removed by the next one.
pub(super) struct Directory(pub PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Directory {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let place = std::env::temp_dir();
        sweep(&place);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("{NAME}{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory for files");
        fs::write(path.join("info"), INFO).expect("a file");
        Self(path)
    }

    /// What stands before the mark is a file; one of nothing is not there.
    fn fill(&self, bytes: &[u8]) {
        let mut left = bytes;
        for name in FILES {
            let end = left.windows(MARK.len()).position(|part| part == MARK);
            let (file, rest) = left.split_at(end.unwrap_or(left.len()));
            left = rest.get(MARK.len()..).unwrap_or_default();
            let path = self.0.join(name);
            let _ = match file {
                [] => fs::remove_file(path),
                file => fs::write(path, file),
            };
        }
    }
}

/// Removes what processes have left behind that are no more.
fn sweep(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(NAME));
        let process = rest.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

thread_local! {
    /// One directory for the whole process, so that a run costs no more than its files.
    static DIRECTORY: Directory = Directory::new();
}

/// Reports and exports.
pub fn run(bytes: &[u8]) {
    DIRECTORY.with(|directory| {
        directory.fill(bytes);
        look(&directory.0);
    });
}

fn look(directory: &Path) {
    let threshold = "1us".parse::<Threshold>().ok();
    let glob = ["b".to_owned()];
    let rules = Rules::new(std::num::NonZeroU32::new(2), &[], &glob, threshold).expect("rules");
    let some = Excerpt {
        vcpus: vec![0],
        from_ns: Some(100),
        until_ns: Some(1 << 40),
        ..rules.into()
    };
    let tables = [
        Format::Overview,
        Format::Counts,
        Format::Callers,
        Format::Callees,
        Format::Slowest,
        Format::Values,
    ];
    for format in tables.into_iter().chain([Format::Function, Format::Graph]) {
        shown(|out| print(directory, &format.into(), out));
    }
    let view = View {
        format: Format::Graph,
        excerpt: some.clone(),
        ..View::default()
    };
    shown(|out| print(directory, &view, out));
    let last = Last {
        calls: 3,
        until: &["b"],
        room: None,
    };
    shown(|out| print_last(directory, last, out));
    let to = directory.join("export");
    let plain = StackOptions::default();
    let compared = StackOptions {
        values: true,
        before: Some(directory.to_owned()),
        ..StackOptions::default()
    };
    for (format, stacks) in [
        (ExportFormat::Folded, &compared),
        (ExportFormat::TraceDat, &plain),
        (ExportFormat::Perfetto, &plain),
        (ExportFormat::Chrome, &plain),
    ] {
        let _ = fs::remove_file(&to);
        let nobody = |_| Ok(Watch::default());
        let destination = Destination {
            output: Some(to.clone()),
            host: (format == ExportFormat::TraceDat).then(|| directory.join("host")),
            force: true,
        };
        if export(directory, format, &some, stacks, &destination, nobody).is_ok()
            && format == ExportFormat::Chrome
        {
            let text = fs::read(&to).expect("what was written");
            serde_json::from_slice::<serde_json::Value>(&text).expect("JSON");
        }
    }
}

pub(super) fn shown(print: impl FnOnce(&mut Vec<u8>) -> Result<Printed, ReportError>) {
    let mut out = Vec::new();
    let printed = print(&mut out);
    plain(&String::from_utf8(out).expect("text"));
    match printed {
        Ok(printed) => printed.notes.iter().for_each(|note| plain(note)),
        Err(error) => plain(&error.to_string()),
    }
}

fn plain(text: &str) {
    let is_plain = |char: char| char == '\n' || !char.is_control();
    assert!(text.chars().all(is_plain), "{text:?}");
}

fn record(time: u64, kind: u64, depth: u64, value: u64) -> Vec<u8> {
    let word = kind | 5 << 3 | depth << 6 | value << 16;
    [time.to_le_bytes(), word.to_le_bytes()].concat()
}

/// A trace of functions, a graph with all that can be beside it, and one that was cut.
pub fn seeds() -> Vec<Vec<u8>> {
    let tasks = "SESS timestamp=0.0 pid=1000 sid=0000000000000000 exename=\"vcpu0\"\nTASK timestamp=0.0 tid=1000 pid=1000\nTASK timestamp=0.0 tid=1001 pid=1001\n";
    let map = "000000100000-000000200000 r-xp 00000000 00:00 0                          guest\n";
    let symbols = "0000000000000000 T a\n0000000000000010 T b\n0000000000001000 ? __sym_end\n";
    let side = |tracer: &str| {
        format!(
            r#"{{"version":1,"finished":true,"high_bits":"0xffff000000000000","command_line":"c","image":"guest","vcpus":2,"mode":"discard","clock":"page","clock_period_ns":1000,"tsc_khz":2600000,"ring_strategy":"gs","filter":[],"notrace":[],"tracer":"{tracer}","stack_bytes":16384,"threads":{{"0":"init-1"}},"anomalies":[{{"kind":"late","count":1,"function":"a","thread":0}}],"clock_stalls":[{{"end_ns":900,"length_ns":100}}],"events":{{"events":{{"e":1}},"lost":1}},"totals":[{{"vcpu":0,"tid":1000,"entries":2,"lost":1,"dropped":0,"reordered":0,"unknown":0}}]}}"#
        )
    };
    let values = r#"[{"function":"b","address":"0x100010","args":[{"name":"n","type":"u32","bytes":4},{"name":"s","type":"string","bytes":16}],"retval":[{"name":"r","type":"i64","bytes":8}]}]"#;
    let events = "{\"time_ns\":700,\"vcpu\":0,\"event\":\"e\",\"fields\":{\"x\":1,\"y\":\"0xffff\"}}\n{\"time_ns\":900,\"vcpu\":0,\"lost\":3}\n";
    let values_of =
        |length: u16| [&[7, 0, 0, 0][..], &length.to_le_bytes(), b"hi", &[0; 8]].concat();
    let thread = [
        record(500, 0, 0, 0x10_0000),
        record(600, 4, 1, 0x10_0010),
        values_of(2),
        record(2600, 5, 1, 0x10_0010),
        vec![9; 8],
        record(2700, 2, 1, 5),
        record(2800, 1, 0, 0x10_0000),
    ]
    .concat();
    let other = [record(550, 0, 0, 0x10_0010), record(560, 1, 0, 0x10_0010)].concat();
    let ends = [0u16, 1, 0, 8, 0].map(u16::to_le_bytes).concat();
    let join = |files: &[&[u8]]| files.join(MARK);
    let (tasks, map, symbols) = (tasks.as_bytes(), map.as_bytes(), symbols.as_bytes());
    let (graph, function) = (side("graph"), side("function"));
    let texts = [
        values.as_bytes(),
        events.as_bytes(),
        events.as_bytes(),
        map,
        symbols,
        b"[]",
    ];
    let whole = |side: &str, thread: &[u8]| {
        let data: [&[u8]; 6] = [tasks, side.as_bytes(), thread, &ends, &other, &ends];
        join(&[&data[..], &texts].concat())
    };
    vec![
        whole(&graph, &thread),
        whole(&graph, &thread[..thread.len() - 7]),
        whole(&function, &other),
        join(&[
            tasks, b"", &other, b"", &other, b"", b"", b"", b"", map, symbols,
        ]),
    ]
}
