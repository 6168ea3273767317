//! Disks that are full, from the beginning, at one write, or from one on: the guest goes on, what was written can be read, and all
//! is accounted for.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tests::elf::Kernels;
use tests::exact::untraced;
use tests::users::as_root;
use tests::{Ended, Guest, Printed, guest, in_the_box, starts_vmm, vmm, vmm_says};

use crate::output::{run, trace_in_mode, trace_to};

/// The guest continues to its end; the trace holds what was written before, and opens.
fn assert_survived(ended: &Ended, directory: &Path) {
    let kept = kept(ended, directory);
    let mut uftrace = Command::new("uftrace");
    uftrace
        .args(["report", "--no-pager", "-f", "call", "-d"])
        .arg(directory);
    let uftrace = run(&mut uftrace).good();
    assert_eq!(calls(&uftrace.stdout), kept, "{uftrace}");
}

/// How many leaves are in a trace of which not all could be written, when the guest was not disturbed and all is accounted for.
fn kept(ended: &Ended, directory: &Path) -> u64 {
    assert_eq!(ended.code, Some(106), "{ended}");
    ended.no_panic();
    assert!(
        ended.stderr.contains(directory.to_str().unwrap()),
        "{ended}"
    );
    let printed = ended.printed();
    assert_eq!(
        printed.calls["calls_leaf"], 64_000,
        "the guest was not disturbed: {ended}"
    );
    let report = vmm_says(&[Path::new("report"), directory, "--format=counts".as_ref()]).good();
    let kept = calls(&report.stdout);
    assert!(kept > 0 && kept < 64_000, "{report}");
    assert_eq!(accounted(&report.stdout), printed.total(), "{report}");
    assert_ne!(printed, Printed::default());
    kept
}

/// The leaves in a table of calls.
fn calls(text: &str) -> u64 {
    let mut lines = text.lines();
    let row = lines.find_map(|line| line.trim().strip_suffix("calls_leaf"));
    row.and_then(|row| row.trim().parse::<u64>().ok())
        .unwrap_or(0)
}

/// The calls that a report has, and the records that it says were lost.
fn calls_and_lost(report: &str) -> (u64, u64) {
    let summary = report.lines().find(|line| line.starts_with("# "));
    let words: Vec<&str> = summary.unwrap_or_default().split(' ').collect();
    let number = |index: usize| words[index].parse::<u64>().unwrap();
    // # N calls of F functions, L lost
    (number(1), number(6))
}

/// Both together: of a trace without returns a call is a record.
fn accounted(report: &str) -> u64 {
    let (calls, lost) = calls_and_lost(report);
    calls + lost
}

/// The entries and ends of calls in the files of threads.
fn records_of_threads(trace: &Path) -> u64 {
    let files = std::fs::read_dir(trace)
        .unwrap()
        .map(|file| file.unwrap().path());
    let is_of_thread = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_str().unwrap();
        let tid = name.strip_suffix(".dat");
        tid.is_some_and(|tid| tid.parse::<u32>().is_ok())
    };
    let of = |file: PathBuf| {
        let bytes = std::fs::read(file).unwrap();
        let (records, _) = bytes.as_chunks::<16>();
        // 0 is an entry, 1 an end, 2 a loss.
        records.iter().filter(|record| record[8] & 3 < 2).count() as u64
    };
    files.filter(is_of_thread).map(of).sum()
}

/// A process may write files of 512 KiB only.
#[test]
fn a_file_that_must_not_grow_keeps_what_it_has() {
    let folder = Kernels::new();
    let trace = folder.path().join("trace");
    let vmm = trace_to(&trace, &[]);
    let mut limited = starts_vmm("sh");
    limited.args(["-c", "ulimit -f 1024; exec \"$@\"", "limited"]);
    limited
        .arg(vmm.get_program())
        .args(vmm.get_args())
        .stdin(Stdio::null());
    assert_survived(&run(&mut limited), &trace);
}

/// A full disk: a file system of 1 MiB.
#[test]
fn a_disk_that_is_full_keeps_what_it_has() {
    let folder = Kernels::new();
    let disk = Disk::mount(folder.path(), "size=1m,mode=777");
    let trace = disk.0.join("trace");
    assert_survived(&run(&mut trace_to(&trace, &[])), &trace);
    let stderr = run(&mut trace_to(&disk.0.join("second"), &[])).stderr;
    assert!(stderr.contains("No space left"), "{stderr}");
}

/// The same of a trace that is kept as the rings had it.
#[test]
fn a_disk_that_is_full_keeps_what_a_compact_trace_has() {
    let folder = Kernels::new();
    // Names of functions take most of it.
    let disk = Disk::mount(folder.path(), "size=700k,mode=777");
    let trace = disk.0.join("trace");
    let ended = run(&mut trace_to(&trace, &["--store", "compact"]));
    let _ = kept(&ended, &trace);
}

/// As a full disk, but that it is we who say so; what describes the trace does not count.
#[test]
fn no_more_is_written_than_was_allowed() {
    let folder = Kernels::new();
    let bytes_of = |trace: &Path| {
        let files = std::fs::read_dir(trace).unwrap().map(Result::unwrap);
        let records = files.filter(|file| {
            let name = file.file_name().into_string().unwrap();
            [".dat", ".side", ".exo"]
                .iter()
                .any(|end| name.ends_with(end))
        });
        records
            .map(|file| file.metadata().unwrap().len())
            .sum::<u64>()
    };
    let limited = |store: &str, most: u64| {
        let trace = folder.path().join(format!("{store}-{most}"));
        let size = format!("{most}B");
        let options = ["--store", store, "--max-output", &size];
        let ended = run(&mut trace_to(&trace, &options));
        let words = "bytes that traces may take";
        assert!(ended.stderr.contains(words), "{ended}");
        (ended, trace)
    };
    // A compact trace has the same calls in a seventh of the room, and in the same file the names of functions.
    for (store, most) in [("uftrace", 500_000), ("compact", 100_000)] {
        let (_, nothing) = limited(store, 1);
        let described = bytes_of(&nothing);
        let (ended, trace) = limited(store, most);
        let _ = kept(&ended, &trace);
        let records = bytes_of(&trace) - described;
        // What is said of the loss.
        let end = 1000;
        assert!(
            records > most / 2 && records <= most + end,
            "{store}: {records} beside {described}"
        );
    }
}

/// Nothing ends a wait for a full disk: the guest continues without it, or does not.
#[test]
fn nobody_waits_for_a_disk_that_is_full() {
    let folder = Kernels::new();
    let disk = Disk::mount(folder.path(), "size=1m,mode=777");
    let lossless = ["lossless", "--ring-size", "64"];
    let trace = disk.0.join("trace");
    let lossless_to = |options: &[&str]| run(&mut trace_in_mode(&lossless, &trace, options));
    assert_survived(&lossless_to(&[]), &trace);
    std::fs::remove_dir_all(&trace).unwrap();
    let ended = lossless_to(&["--on-full", "end"]);
    assert_eq!(ended.code, Some(106), "{ended}");
    for words in ["--on-full end", "No space left"] {
        assert!(ended.stderr.contains(words), "{ended}");
    }
}

/// A small file system, mounted as long as this lives.
struct Disk(std::path::PathBuf);

impl Disk {
    fn mount(at: &Path, options: &str) -> Self {
        let mount = ["mount", "-t", "tmpfs", "-o", options, "none"];
        assert!(
            root_does(&mount, at),
            "a test of a full disk needs root, or sudo without password"
        );
        Self(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        root_does(&["umount"], &self.0);
    }
}

fn root_does(words: &[&str], at: &Path) -> bool {
    let status = as_root(words[0]).args(&words[1..]).arg(at).status();
    status.is_ok_and(|status| status.success())
}

/// The calls of a whole run.
const CMDLINE: &str = "workload=calls iterations=200";

/// Which writes find the disk full.
#[derive(Debug, Clone, Copy)]
struct Full {
    /// The first, counted from one.
    at: u64,
    /// Whether all after it do as well.
    stays: bool,
}

/// A disk that can be full (`tests/disk/full.c`).
struct FullDisk {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl FullDisk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        // There is no compiler in the box: tests/in-box brings the library along.
        let library = if in_the_box() {
            tests.join("../images/out/disk.so")
        } else {
            let library = folder.path().join("disk.so");
            let mut build = Command::new(tests.join("disk/build"));
            let _ = run(build.arg(&library)).good();
            library
        };
        std::fs::create_dir(folder.path().join("disk")).unwrap();
        Self { folder, library }
    }

    fn trace(&self) -> PathBuf {
        self.folder.path().join("disk/trace")
    }

    /// Runs the guest with its trace on this disk, in the place of what is there. Returns how it ended, and what it asked of the disk.
    fn run(&self, options: &[&str], full: Option<Full>) -> (Ended, u64) {
        let count = self.folder.path().join("count");
        let mut command = vmm();
        command.arg("run").arg("--kernel").arg(guest());
        command.args(["--cmdline", CMDLINE, "--mode", "discard", "--force"]);
        command.args(options).arg("--output").arg(self.trace());
        command.stdin(Stdio::null());
        command.env("LD_PRELOAD", &self.library);
        command.env("DISK_BELOW", self.folder.path().join("disk"));
        command.env("DISK_COUNT", &count);
        if let Some(full) = full {
            command.env("DISK_FAILS", full.at.to_string());
            if full.stays {
                command.env("DISK_STAYS", "1");
            }
        }
        let ended = run(&mut command);
        let asked = std::fs::read_to_string(count).unwrap();
        (ended, asked.parse().unwrap())
    }
}

/// The records that a run says are missing.
fn missing(ended: &Ended) -> u64 {
    let words: Vec<&str> = ended.stderr.split(' ').collect();
    let said = words
        .windows(3)
        .rfind(|words| words[1..] == ["records", "are"]);
    said.map_or(0, |words| words[0].parse().unwrap())
}

/// What a run that found the disk full has left. Returns whether its guest had begun.
fn assert_accounted(disk: &FullDisk, ended: &Ended, total: u64, tracer: &str) -> bool {
    assert_eq!(ended.code, Some(106), "{ended}");
    ended.no_panic();
    assert!(ended.stderr.contains("No space left on device"), "{ended}");
    let trace = disk.trace();
    let report = vmm_says(&[Path::new("report"), &trace, "--format=counts".as_ref()]);
    report.no_panic();
    if !ended.stdout.contains("checksum") {
        // It was refused before the guest began. What had been made by then is no trace, or has nothing in it.
        if report.code == Some(0) {
            assert_eq!(accounted(&report.stdout), 0, "{report}");
            assert!(report.stderr.contains("not ended in order"), "{report}");
        } else {
            let _ = report.refused(100);
        }
        return false;
    }
    // What cannot even be said on a disk that stays full, the run says.
    let report = report.good();
    // Of a graph a call is two records, and either can be missing alone.
    let (accounted, total) = match tracer {
        "graph" => {
            let (_, lost) = calls_and_lost(&report.stdout);
            (records_of_threads(&trace) + lost, 2 * total)
        }
        _ => (accounted(&report.stdout), total),
    };
    assert!(
        accounted == total || accounted + missing(ended) == total,
        "{total}: {report} {ended}"
    );
    assert!(
        accounted == total || report.stderr.contains("not ended in order"),
        "{report}"
    );
    true
}

#[test]
fn whichever_write_finds_the_disk_full_all_is_accounted_for() {
    let expected = untraced(Guest::new(CMDLINE));
    let total = expected.total();
    // Each of them is two runs, which in the box take seconds.
    let every = if in_the_box() { 5 } else { 1 };
    for (store, tracer) in [
        ("uftrace", "function"),
        ("compact", "function"),
        ("uftrace", "graph"),
    ] {
        let disk = FullDisk::new();
        let options = ["--store", store, "--trace", tracer];
        let (whole, writes) = disk.run(&options, None);
        let _ = whole.good();
        assert!(writes > 10, "{store}: {writes}");
        let (mut before, mut begun) = (0, 0);
        for at in (1..=writes).step_by(every) {
            for stays in [false, true] {
                // A run that can make nothing leaves an older trace as it is.
                let _ = std::fs::remove_dir_all(disk.trace());
                let (ended, asked) = disk.run(&options, Some(Full { at, stays }));
                // How often it is written depends on when it is looked: the last ones need not come.
                if asked < at {
                    let _ = ended.good();
                } else if assert_accounted(&disk, &ended, total, tracer) {
                    begun += 1;
                } else {
                    before += 1;
                }
            }
        }
        assert!(before > 0 && begun > 0, "{store}: {before} {begun}");
        // None of them is in the way of the next.
        let (ended, _) = disk.run(&options, None);
        let ended = ended.good();
        assert_eq!(ended.printed().total(), total);
    }
}
