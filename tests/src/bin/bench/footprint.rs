//! What a run takes before and beside the guest: time to boot, memory of the VMM.

use std::fs;
use std::path::Path;

use vmm::control::method::Nothing;
use vmm::control::methods::guest::ShowStatus;
use vmm::layout::{MIB, WINDOW_SIZE};

use crate::Failed;
use crate::guest::{Guest, MEMORY_MIB};
use crate::sample::Samples;
use crate::table::{Row, Target};

const BOOTS: usize = 7;

/// Rows about boot and memory.
pub fn rows(place: &Path) -> Result<Vec<Row>, Failed> {
    let (mut boots, mut resident) = (Vec::new(), Vec::new());
    for _ in 0..BOOTS {
        // The first workload prints a line when it is done, which takes no time.
        let arguments = ["--trace", "function"];
        let mut guest = Guest::launch(place, 2, "workload=functions,spin", &arguments)?;
        guest.line()?.ok_or("the guest printed nothing")?;
        boots.push(guest.started.elapsed().as_secs_f64() * 1e3);
        // It answers: everything that it needs has been used once.
        guest.connect()?.ask(&ShowStatus(Nothing {}))?;
        resident.push(resident_mib(guest.pid())?);
    }
    let (boots, resident): (Samples, Samples) =
        (boots.into_iter().collect(), resident.into_iter().collect());
    Ok(vec![
        Row::median(
            "start of vmm to first line of a workload, traced",
            "ms",
            &boots,
            Target::None,
        ),
        Row::median(
            "memory of the VMM beside guest RAM and rings",
            "MiB",
            &resident,
            Target::AtMost(32.0),
        ),
    ])
}

/// One mapping of a process.
#[derive(Debug, Clone, Copy, Default)]
struct Mapping {
    start: u64,
    end: u64,
    is_plain: bool,
    resident_kib: u64,
}

/// Resident memory of `process`, its guest's RAM and window left out. Those are runs of adjacent
/// anonymous mappings at least as long as the smaller of the two.
fn resident_mib(process: u32) -> Result<f64, Failed> {
    let mappings = parse(&fs::read_to_string(format!("/proc/{process}/smaps"))?)?;
    let least = WINDOW_SIZE.min(MEMORY_MIB * MIB);
    let runs =
        mappings.chunk_by(|one, next| one.end == next.start && one.is_plain && next.is_plain);
    let own = runs.filter(|run| {
        let bytes: u64 = run.iter().map(|mapping| mapping.end - mapping.start).sum();
        !(run.iter().all(|mapping| mapping.is_plain) && bytes >= least)
    });
    let kib: u64 = own.flatten().map(|mapping| mapping.resident_kib).sum();
    #[expect(
        clippy::cast_precision_loss,
        reason = "a process has less than 2^53 KiB"
    )]
    let mib = kib as f64 / 1024.0;
    Ok(mib)
}

fn parse(smaps: &str) -> Result<Vec<Mapping>, Failed> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some((start, end)) = first.split_once('-') {
            // rw-p, no file.
            let is_private = words.next() == Some("rw-p");
            mappings.push(Mapping {
                start: u64::from_str_radix(start, 16)?,
                end: u64::from_str_radix(end, 16)?,
                is_plain: is_private && words.count() == 3,
                resident_kib: 0,
            });
        } else if let (Some(mapping), "Rss:") = (mappings.last_mut(), first) {
            mapping.resident_kib = words.next().ok_or("Rss without a number")?.parse()?;
        }
    }
    Ok(mappings)
}
