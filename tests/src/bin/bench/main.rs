//! `make bench`: what tracing costs on this host, as one table and as JSON. `bench FILE.json PART...` measures
//! these parts only:
//!
//! ```text
//! leaf       a traced call against an untraced one and against rdtsc, for each tracer and each way
//!            to hook returns; tracing switched off; two vCPUs against one
//! probe      a probe with values in registers, on the stack, through a pointer; its condition false
//! pause      the guest's standstill when functions are switched; the cost of a site
//! reader     the host's side: a full ring read, decoded, written
//! footprint  boot, memory of the VMM
//! attach     the same of a guest of another process, beside ours: stubs, pauses, many functions; how long it
//!            takes to begin, and memory of the tracer
//! lossless   a vCPU that waits for its reader where another loses records
//! room       the same modes where rings have room for all of it
//! formats    reports and exports of ten million calls: speed, size, memory
//! ```
//!
//! Guests run on `/dev/kvm`, their workloads in ring 3, each vCPU on a CPU of its own. What is compared
//! was measured in the same guest, in turn, several times; a row is a median with its spread.

mod attach;
mod footprint;
mod formats;
mod leaf;
mod lossless;
mod pause;
mod probe;
mod reader;
mod room;

use std::path::Path;
use std::process::ExitCode;

use table::{Row, Table};
use tests::measure::host::{Machine, load, step_forward, tsc_ghz};
use tests::measure::{Failed, attached, guest, rounds, sample, sessions, table};

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
    let mut arguments = std::env::args().skip(1);
    let result = arguments.next();
    let result = result.ok_or_else(usage)?;
    let parts = chosen(arguments)?;
    let place = tempfile::tempdir()?;
    let before = load()?;
    step_forward();
    let machine = Machine::this()?;
    eprintln!("{machine}");
    let rows = rows(place.path(), &parts)?;
    Table::new(machine, before, rows)?.publish(&result)
}

/// Measures in this place.
type Part = fn(&Path) -> Result<Vec<Row>, Failed>;

const PARTS: [(&str, Part); 9] = [
    ("leaf", |place| leaf::rows(place, tsc_ghz())),
    ("probe", |place| probe::rows(place, tsc_ghz())),
    ("pause", pause::rows),
    ("reader", reader::rows),
    ("footprint", footprint::rows),
    ("attach", attach::rows),
    ("lossless", |place| lossless::rows(place, tsc_ghz())),
    ("room", |place| room::rows(place, tsc_ghz())),
    ("formats", formats::rows),
];

fn usage() -> String {
    let names = PARTS.map(|(name, _)| name).join(" | ");
    format!("usage: bench FILE.json [{names}]...")
}

/// The parts of these names, or all.
fn chosen(names: impl Iterator<Item = String>) -> Result<Vec<Part>, String> {
    let of_name = |name: String| {
        let found = PARTS.iter().find(|(known, _)| *known == name);
        found.map(|(_, part)| *part).ok_or_else(usage)
    };
    let parts = names.map(of_name).collect::<Result<Vec<_>, _>>()?;
    if parts.is_empty() {
        return Ok(PARTS.map(|(_, part)| part).to_vec());
    }
    Ok(parts)
}

fn rows(place: &Path, parts: &[Part]) -> Result<Vec<Row>, Failed> {
    let mut rows = Vec::new();
    for part in parts {
        rows.extend(part(place)?);
    }
    Ok(rows)
}
