//! What it takes to read a long trace and to write it for other tools: of ten million calls.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use terms::addr::Gva;
use terms::function::{Function, FunctionId};
use trace::event::{End, Event, EventKind, Sink};
use trace::export::uftrace::layout::Text;
use trace::export::uftrace::{GRAPH, Metadata, UftraceWriter};

use crate::Failed;
use crate::guest::beside_this;
use crate::sample::Samples;
use crate::table::{Row, Target};

/// Runs of each.
const ROUNDS: usize = 3;
/// Calls in a tree: two of each from the one above.
const TREE: u64 = 63;
const DEPTH: u32 = 6;
const TREES: u64 = 160_000;
/// Threads, in turn.
const THREADS: u32 = 4;
/// The memory that any may take.
const MOST_MIB: f64 = 100.0;
/// Runs a command, and prints the KiB that it took.
const PEAK: &str = "import resource, subprocess, sys
ended = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(ended.returncode)";

const FORMATS: [&str; 8] = [
    "folded",
    "flamegraph",
    "chrome",
    "perfetto",
    "trace-dat",
    "ctf",
    "parquet",
    "html",
];

/// Rows about formats: of a graph, and of as many calls without returns.
pub fn rows(place: &Path) -> Result<Vec<Row>, Failed> {
    let mut rows = Vec::new();
    for (tracer, remark) in [(GRAPH, ""), ("function", " (function)")] {
        let trace = place.join(format!("long-{tracer}"));
        write(&trace, tracer)?;
        let of = |name: &str| format!("{name}{remark}");
        rows.extend(measured(&of("report"), &["report"], &trace, None)?);
        for format in FORMATS {
            let to = place.join("exported");
            let words = ["export", "--format", format];
            rows.extend(measured(&of(format), &words, &trace, Some(&to))?);
        }
    }
    Ok(rows)
}

/// So many calls, each of which takes a microsecond beside what it calls, as a graph or without their returns.
fn write(trace: &Path, tracer: &str) -> Result<(), Failed> {
    let functions: Vec<Function> = (0..DEPTH)
        .map(|depth| Function {
            address: Gva(0xffff_ffff_8100_0000 + 16 * u64::from(depth)),
            size: 16,
            name: format!("level_{depth}").into(),
            display: format!("level_{depth}").into(),
            ..Function::default()
        })
        .collect();
    let text = Text {
        functions: &functions,
        limit: None,
    };
    let metadata = Metadata {
        vcpus: u16::try_from(THREADS)?,
        tracer: tracer.into(),
        ..Metadata::default()
    };
    let mut writer = UftraceWriter::create(trace, text, metadata, false)?;
    let mut now = 1_000;
    let mut sink = Written {
        writer: &mut writer,
        has_returns: tracer == GRAPH,
    };
    for tree in 0..TREES {
        let thread = u32::try_from(tree)? % THREADS;
        call(&mut sink, thread, 0, &mut now);
    }
    let totals = writer.finish()?;
    let calls: u64 = totals.iter().map(|totals| totals.entries).sum();
    if calls != TREE * TREES {
        return Err(format!("{calls} calls were written").into());
    }
    Ok(())
}

/// Where calls are written, with their returns or without; there each vCPU is a thread, and nothing is inside of anything.
struct Written<'a> {
    writer: &'a mut UftraceWriter,
    has_returns: bool,
}

impl Sink for Written<'_> {
    fn event(&mut self, event: Event) {
        match event.kind {
            EventKind::Exit { .. } if !self.has_returns => {}
            _ if self.has_returns => self.writer.event(event),
            _ => self.writer.event(Event { depth: 0, ..event }),
        }
    }
}

/// One call and all that it calls.
fn call(to: &mut impl Sink, thread: u32, depth: u32, now: &mut u64) {
    let function = FunctionId(depth);
    let step = |now: &mut u64, kind| {
        *now += 500;
        let event = Event {
            time_ns: *now,
            vcpu: u16::try_from(thread).unwrap_or_default(),
            thread,
            depth,
            kind,
            values: None,
        };
        (*now, event)
    };
    let (entered, event) = step(now, EventKind::Entry(function));
    to.event(event);
    if depth + 1 < DEPTH {
        (0..2).for_each(|_| call(to, thread, depth + 1, now));
    }
    let duration = Some(*now + 500 - entered);
    let end = End::Returned;
    let kind = EventKind::Exit {
        function,
        end,
        duration,
    };
    let (_, event) = step(now, kind);
    to.event(event);
}

/// Runs `vmm` on the trace: how fast, how large, how much memory.
fn measured(
    name: &str,
    words: &[&str],
    trace: &Path,
    to: Option<&Path>,
) -> Result<Vec<Row>, Failed> {
    let (mut speeds, mut sizes, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut command = Command::new("python3");
        command
            .args(["-c", PEAK])
            .arg(beside_this("vmm")?)
            .args(words);
        command.arg(trace);
        if let Some(to) = to {
            command.arg("-o").arg(to);
        }
        let started = Instant::now();
        let output = command.stdin(Stdio::null()).output()?;
        let seconds = started.elapsed().as_secs_f64();
        if !output.status.success() {
            return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let said = String::from_utf8(output.stdout)?;
        let kib: f64 = said.trim().parse()?;
        #[expect(clippy::cast_precision_loss, reason = "ten million is less than 2^53")]
        let calls = (TREE * TREES) as f64;
        speeds.push(calls / seconds / 1e6);
        peaks.push(kib / 1024.0);
        if let Some(to) = to {
            sizes.push(taken(to)? / calls);
        }
    }
    let samples = |of: Vec<f64>| of.into_iter().collect::<Samples>();
    let mut rows = vec![
        Row::median(
            format!("{name}: ten million calls"),
            "M calls/s",
            &samples(speeds),
            Target::None,
        ),
        Row::median(
            format!("{name}: memory for them"),
            "MiB",
            &samples(peaks),
            Target::AtMost(MOST_MIB),
        ),
    ];
    if to.is_some() {
        let name = format!("{name}: size");
        rows.push(Row::median(
            &name,
            "bytes/call",
            &samples(sizes),
            Target::None,
        ));
    }
    Ok(rows)
}

/// The bytes of a file or of a directory's files; it is gone then.
fn taken(at: &Path) -> Result<f64, Failed> {
    let mut bytes = 0;
    if at.is_dir() {
        for file in fs::read_dir(at)? {
            bytes += file?.metadata()?.len();
        }
        fs::remove_dir_all(at)?;
    } else {
        bytes = fs::metadata(at)?.len();
        fs::remove_file(at)?;
    }
    #[expect(clippy::cast_precision_loss, reason = "no file is that large")]
    let bytes = bytes as f64;
    Ok(bytes)
}
