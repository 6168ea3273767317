//! The tools: how each is told to trace, and what it kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ::tests::measure::Failed;

use crate::program::{Build, done};

/// What a tool kept of a run.
#[derive(Debug, Clone, Copy)]
pub struct Kept {
    /// Events.
    pub events: u64,
    /// Bytes that they took.
    pub bytes: u64,
}

/// What a run printed, and what is left of it.
type Ran = Result<(Vec<String>, Option<Kept>), Failed>;

/// A tool for processes.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// Its name in the table.
    pub title: &'static str,
    /// Events of a call.
    pub events: u64,
    /// Whether it traces the tree, too.
    pub has_tree: bool,
    /// Calls in each loop, and loops.
    pub calls: [u64; 2],
    /// The program for it.
    pub build: Build,
    /// Runs the program, in a folder of its own.
    pub run: fn(Command, &Path) -> Ran,
}

const INSTRUMENTED: Build = Build {
    compiler: "gcc",
    flags: &["-finstrument-functions"],
    link: &[],
    more: None,
};
const ENTRY: Build = Build {
    flags: &["-pg", "-mfentry"],
    link: &["-pg"],
    ..INSTRUMENTED
};
/// A nop of five bytes at each entry.
const NOPS: Build = Build {
    flags: &["-pg", "-mfentry", "-mnop-mcount"],
    ..INSTRUMENTED
};
const MANY: [u64; 2] = [20_000, 20];
const FEW: [u64; 2] = [2_000, 20];

/// All of them.
pub const TOOLS: [Tool; 8] = [
    Tool {
        title: "gcc -finstrument-functions, hooks that do nothing",
        events: 2,
        has_tree: true,
        calls: MANY,
        build: Build {
            more: Some("hooks.c"),
            ..INSTRUMENTED
        },
        run: alone,
    },
    Tool {
        title: "gcc -pg (gprof: counts only)",
        events: 1,
        has_tree: true,
        calls: MANY,
        build: Build {
            flags: &["-pg"],
            ..ENTRY
        },
        run: alone,
    },
    Tool {
        title: "uftrace",
        events: 2,
        has_tree: true,
        calls: MANY,
        build: ENTRY,
        run: uftrace,
    },
    Tool {
        title: "XRay, flight data recorder",
        events: 2,
        has_tree: true,
        calls: MANY,
        build: Build {
            compiler: "clang",
            flags: &["-fxray-instrument", "-fxray-instruction-threshold=1"],
            link: &["-fxray-instrument"],
            more: Some("xray.c"),
        },
        run: xray,
    },
    Tool {
        title: "LTTng-UST, cyg-profile-fast, to disk",
        events: 2,
        has_tree: true,
        calls: MANY,
        build: INSTRUMENTED,
        run: lttng,
    },
    Tool {
        title: "uprobe on a nop",
        events: 1,
        has_tree: false,
        calls: FEW,
        build: NOPS,
        run: |program, folder| uprobe(program, folder, 0),
    },
    Tool {
        title: "uprobe on another instruction",
        events: 1,
        has_tree: false,
        calls: FEW,
        build: NOPS,
        run: |program, folder| uprobe(program, folder, NOP),
    },
    Tool {
        title: "gdb, a breakpoint that is ignored",
        events: 1,
        has_tree: false,
        calls: [20, 10],
        build: NOPS,
        run: gdb,
    },
];

/// Bytes of the nop at an entry.
const NOP: u64 = 5;
/// Where a program that is not moved is loaded.
const LOADED: u64 = 0x40_0000;
const PATIENCE: Duration = Duration::from_secs(20);

fn alone(mut program: Command, folder: &Path) -> Ran {
    Ok((done(program.current_dir(folder))?, None))
}

/// `command` with the program and its arguments after it.
fn before(mut command: Command, program: &Command) -> Command {
    command.arg(program.get_program()).args(program.get_args());
    command
}

fn uftrace(program: Command, folder: &Path) -> Ran {
    const RECORD: u64 = 16;
    let data = folder.join("data");
    let mut command = Command::new("uftrace");
    command.args(["record", "--no-libcall", "--no-event", "-b", "64m", "-d"]);
    command.arg(&data);
    let lines = done(before(command, &program).current_dir(folder))?;
    let bytes = bytes_below(&data, Some("dat"))?;
    let events = bytes / RECORD;
    Ok((lines, Some(Kept { events, bytes })))
}

fn xray(mut program: Command, folder: &Path) -> Ran {
    let base = format!("xray_logfile_base={}/log-", folder.display());
    let lines = done(program.env("XRAY_OPTIONS", base))?;
    let log = files(folder)?.into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("log-")
    });
    let log = fs::read(log.ok_or("XRay wrote no log")?)?;
    let events = xray_records(&log);
    let bytes = log.len() as u64;
    Ok((lines, Some(Kept { events, bytes })))
}

/// Counts the records of functions in a log: after a header they are eight bytes, and what says something of a
/// buffer has the lowest bit of its first byte set and is sixteen.
fn xray_records(log: &[u8]) -> u64 {
    let (mut at, mut records) = (32, 0);
    while let Some(first) = log.get(at) {
        let is_function = first & 1 == 0;
        records += u64::from(is_function);
        at += if is_function { 8 } else { 16 };
    }
    records
}

/// Ends with the run.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn lttng(mut program: Command, folder: &Path) -> Ran {
    const LIBRARY: &str = "liblttng-ust-cyg-profile-fast.so";
    let output = folder.join("ctf");
    let _daemon = Daemon(Command::new("lttng-sessiond").arg("--quiet").spawn()?);
    let tell = |words: &str| done(Command::new("lttng").args(words.split(' ')));
    let deadline = Instant::now() + PATIENCE;
    while tell("list").is_err() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    tell(&format!("create exotrace --output={}", output.display()))?;
    tell("enable-channel -u --num-subbuf=16 --subbuf-size=4M all")?;
    tell("enable-event -u -c all lttng_ust_cyg_profile_fast:*")?;
    tell("start exotrace")?;
    let lines = done(program.env("LD_PRELOAD", LIBRARY))?;
    tell("destroy exotrace")?;
    let bytes = bytes_below(&output, None)?;
    let mut count = Command::new("babeltrace2");
    let counted = done(count.arg(&output).args(["-c", "sink.utils.counter"]))?;
    // It counts on while it reads.
    let events = counted.iter().rfind(|line| line.contains("Event messages"));
    let events = events.and_then(|line| line.split_whitespace().next());
    let events = events.ok_or("babeltrace2 counted nothing")?.parse()?;
    Ok((lines, Some(Kept { events, bytes })))
}

/// The buffers of a trace of its own, which end with the run.
struct Instance(PathBuf);

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("events/exotrace/leaf/enable"), "0");
        let _ = fs::remove_dir(&self.0);
        let _ = add_uprobe("-:exotrace/leaf");
    }
}

const TRACING: &str = "/sys/kernel/tracing";

fn add_uprobe(line: &str) -> Result<(), Failed> {
    use std::io::Write;
    let path = Path::new(TRACING).join("uprobe_events");
    let mut file = fs::OpenOptions::new().append(true).open(path)?;
    Ok(file.write_all(line.as_bytes())?)
}

fn uprobe(program: Command, folder: &Path, after: u64) -> Ran {
    let file = PathBuf::from(program.get_program());
    let symbols = done(Command::new("nm").arg(&file))?;
    let leaf = symbols.iter().find(|line| line.ends_with(" traced_leaf"));
    let leaf = leaf.and_then(|line| line.split(' ').next());
    let leaf = u64::from_str_radix(leaf.ok_or("the program has no traced_leaf")?, 16)?;
    let offset = leaf - LOADED + after;
    add_uprobe(&format!("p:exotrace/leaf {}:{offset:#x}", file.display()))?;
    let instance = Instance(Path::new(TRACING).join("instances/exotrace"));
    fs::create_dir(&instance.0)?;
    fs::write(instance.0.join("buffer_size_kb"), "16384")?;
    fs::write(instance.0.join("events/exotrace/leaf/enable"), "1")?;
    let (lines, _) = alone(program, folder)?;
    let mut kept = Kept {
        events: 0,
        bytes: 0,
    };
    for cpu in files(&instance.0.join("per_cpu"))? {
        let stats = fs::read_to_string(cpu.join("stats"))?;
        let of = |key: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(key));
            line.map_or(Ok(0), |value| value.trim().parse::<u64>())
        };
        kept.events += of("entries:")?;
        kept.bytes += of("bytes:")?;
    }
    Ok((lines, Some(kept)))
}

fn gdb(program: Command, folder: &Path) -> Ran {
    let mut command = Command::new("gdb");
    command.args(["-q", "-batch", "-nx", "-ex", "break *traced_leaf"]);
    command.args(["-ex", "ignore 1 1000000000", "-ex", "run", "--args"]);
    Ok((done(before(command, &program).current_dir(folder))?, None))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, Failed> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    paths.collect()
}

/// The sizes of all files below `folder`, or of those with this extension.
pub fn bytes_below(folder: &Path, extension: Option<&str>) -> Result<u64, Failed> {
    let mut bytes = 0;
    for path in files(folder)? {
        if path.is_dir() {
            bytes += bytes_below(&path, extension)?;
        } else if extension.is_none_or(|wanted| path.extension().is_some_and(|is| is == wanted)) {
            bytes += fs::metadata(&path)?.len();
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::xray_records;

    #[test]
    fn records_of_functions_are_told_from_those_of_buffers() {
        let mut log = vec![0; 32];
        log.extend([1; 16]);
        log.extend([0; 8]);
        log.extend([2; 8]);
        log.extend([3; 16]);
        log.extend([4; 8]);
        assert_eq!(xray_records(&log), 3);
        assert_eq!(xray_records(&[]), 0);
    }
}
