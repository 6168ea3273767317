//! `make experiments`: what the seed documents measured, measured again on this host; a report in Markdown,
//! plots as SVG, and JSON.
//!
//! ```text
//! nops      what stands at a function's entry while nobody traces it
//! calls     a call that returns at once, mcount, fentry, frame pointers
//! hooks     ways to hook returns, 1 to 32 calls deep
//! sessions  direct against list
//! dispatch  from a tracepoint to its callbacks
//! locks     lock prefix, DS, nop
//! patching  the stop, from 1 to 10,000 sites
//! probes    out of the code and back
//! ```

mod calls;
mod dispatch;
mod experiment;
mod hooks;
mod locks;
mod markdown;
mod nops;
mod patching;
mod plot;
mod probes;
mod sessions;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use experiment::Experiment;
use markdown::Report;
use serde_json::json;
use tests::guest;
use tests::measure::Failed;
use tests::measure::guest::Guest;
use tests::measure::host::{Machine, load, step_forward, tsc_ghz};
use tests::measure::rounds::Rounds;

/// Guests of each kind, in turn.
const TURNS: usize = 3;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("experiments: {failed}");
            ExitCode::FAILURE
        }
    }
}

/// Where an experiment is made: a folder for sockets, and how fast the counter is.
#[derive(Debug, Clone, Copy)]
pub struct Bench<'a> {
    place: &'a Path,
    ghz: f64,
}

type Make = fn(Bench<'_>) -> Result<Experiment, Failed>;

const SUITE: [(u8, Make); 8] = [
    (1, nops::experiment),
    (2, calls::experiment),
    (3, hooks::experiment),
    (4, sessions::experiment),
    (5, dispatch::experiment),
    (6, locks::experiment),
    (7, patching::experiment),
    (8, probes::experiment),
];

fn run() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next();
    let folder = folder.ok_or("usage: experiments FOLDER [NUMBER…]")?;
    let folder = Path::new(&folder);
    let wanted: Vec<u8> = arguments
        .map(|number| {
            number
                .parse()
                .map_err(|_| format!("{number}: no number of an experiment"))
        })
        .collect::<Result<_, _>>()?;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let place = tempfile::tempdir()?;
    let (start, before) = (Instant::now(), load()?);
    step_forward();
    let ghz = tsc_ghz();
    let bench = Bench {
        place: place.path(),
        ghz,
    };
    let mut experiments = Vec::new();
    for (number, make) in SUITE {
        if wanted.is_empty() || wanted.contains(&number) {
            eprintln!("experiment {number}");
            experiments.push(make(bench)?);
        }
    }
    let report = Report {
        host: Machine::this()?.to_string(),
        load: [before, load()?],
        seconds: start.elapsed().as_secs(),
        experiments,
    };
    write(folder, &report)
}

fn write(folder: &Path, report: &Report) -> Result<(), Failed> {
    for one in &report.experiments {
        plot::draw(folder, one)?;
    }
    let json = json!({
        "host": report.host,
        "load_before": report.load[0],
        "load_after": report.load[1],
        "seconds": report.seconds,
        "experiments": report.experiments.iter().map(Experiment::json).collect::<Vec<_>>(),
    });
    let path = folder.join("experiments.json");
    fs::write(&path, serde_json::to_string_pretty(&json)? + "\n")?;
    let path = folder.join("experiments.md");
    fs::write(&path, report.to_string())?;
    println!("{}", path.display());
    Ok(())
}

impl Bench<'_> {
    /// What guests with one vCPU measure of themselves, all rounds of several guests.
    fn measure(self, cmdline: &str, arguments: &[&str]) -> Result<Rounds, Failed> {
        let mut rounds = Rounds::default();
        for _ in 0..TURNS {
            self.measure_into(&mut rounds, &guest(), cmdline, arguments)?;
        }
        Ok(rounds)
    }

    /// The rounds of one guest, of this image.
    fn measure_into(
        self,
        rounds: &mut Rounds,
        image: &Path,
        cmdline: &str,
        arguments: &[&str],
    ) -> Result<(), Failed> {
        let guest = Guest::boot_image(image, self.place, 1, cmdline, arguments)?;
        rounds.collect(guest, 0)
    }

    /// Cycles of the counter as nanoseconds.
    fn ns(self, cycles: f64) -> f64 {
        cycles / self.ghz
    }
}
