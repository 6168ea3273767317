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
mod leaf;
mod pause;
mod reader;

use std::path::Path;
use std::process::ExitCode;

use table::{Row, Table};
use tests::measure::host::{load, name, step_forward, tsc_ghz};
use tests::measure::{Failed, guest, rounds, sample, sessions, table};

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
    Table::new(name()?, before, rows)?.publish(&result)
}

fn rows(place: &Path) -> Result<Vec<Row>, Failed> {
    let mut rows = leaf::rows(place, tsc_ghz())?;
    rows.extend(pause::rows(place)?);
    rows.extend(reader::rows(place)?);
    rows.extend(footprint::rows(place)?);
    Ok(rows)
}
