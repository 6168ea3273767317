//! `make bench`: what tracing costs on this host, as one table and as JSON.
//!
//! ```text
//! leaf       a traced call against an untraced one and against rdtsc, for each tracer and each way
//!            to hook returns; tracing switched off; two vCPUs against one
//! pause      the guest's standstill when functions are switched; the cost of a site
//! reader     the host's side: a full ring read, decoded, written
//! footprint  boot, memory of the VMM
//! ```
//!
//! Guests run on `/dev/kvm`, their workloads in ring 3, each vCPU on a CPU of its own. What is compared
//! was measured in the same guest, in turn, several times; a row is a median with its spread.

mod footprint;
mod guest;
mod leaf;
mod pause;
mod reader;
mod rounds;
mod sample;
mod table;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{setpriority_process, setsid};
use table::{Row, Table};
use vmm::clock::host_tsc;

/// Whatever went wrong: it is printed, and the benchmark ends.
type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("bench: {failed}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failed> {
    let result = std::env::args().nth(1);
    let result = result.ok_or("usage: bench FILE.json")?;
    let place = tempfile::tempdir()?;
    let before = load()?;
    step_forward();
    let rows = rows(place.path())?;
    let table = Table {
        host: host()?,
        load: [before, load()?],
        unix_time: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        rows,
    };
    println!("{table}");
    let json = serde_json::to_string_pretty(&table.json())?;
    fs::write(&result, json + "\n").map_err(|error| format!("{result}: {error}"))?;
    println!("{result}");
    Ok(())
}

/// Asks that whatever else runs on this host gives way to this process, as to its guests: what it
/// asks of them would have to wait. For that it needs a session, and with it a scheduling group, of
/// its own.
fn step_forward() {
    if setsid().is_ok() {
        let _ = fs::write("/proc/self/autogroup", "-20");
        let _ = setpriority_process(None, -20);
    }
}

fn rows(place: &Path) -> Result<Vec<Row>, Failed> {
    let mut rows = leaf::rows(place, tsc_ghz())?;
    rows.extend(pause::rows(place)?);
    rows.extend(reader::rows(place)?);
    rows.extend(footprint::rows(place)?);
    Ok(rows)
}

/// Ticks of the counter in a nanosecond.
fn tsc_ghz() -> f64 {
    let (since, start) = (Instant::now(), host_tsc());
    while since.elapsed() < Duration::from_millis(100) {
        std::hint::spin_loop();
    }
    #[expect(clippy::cast_precision_loss, reason = "a tenth of a second")]
    let ticks = (host_tsc() - start) as f64;
    ticks / since.elapsed().as_secs_f64() / 1e9
}

fn host() -> Result<String, Failed> {
    let text = fs::read_to_string("/proc/cpuinfo")?;
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model
        .unwrap_or_default()
        .trim_start_matches([' ', '\t', ':']);
    let cpus = std::thread::available_parallelism()?;
    Ok(format!("{model}, {cpus} CPUs"))
}

fn load() -> Result<String, Failed> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}
