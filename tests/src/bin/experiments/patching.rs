//! 7: how long the guest stands still while its text is changed.

use std::path::Path;
use std::time::{Duration, Instant};

use tests::measure::Failed;
use tests::measure::guest::{Client, Guest};
use tests::measure::sample::Samples;
use vmm::control::protocol::{Call, FilterChange};
use vmm::control::status::{Changed, Switched};

use crate::Bench;
use crate::experiment::{Experiment, Finding, Plot, Row, Verdict};

/// How many functions, and the glob that means them.
const SITES: [(u32, &str); 5] = [
    (1, "many_0001"),
    (10, "many_000?"),
    (100, "many_00??"),
    (1000, "many_0???"),
    (10_000, "many_*"),
];
/// What is traced all the time, so that the rings say that the vCPUs are busy.
const BUSY: &str = "spin_leaf";
/// Switches of each number of sites, half of them on.
const SWITCHES: usize = 40;
/// Between two switches the vCPUs go about their work.
const GAP: Duration = Duration::from_millis(1);

pub fn experiment(bench: Bench<'_>) -> Result<Experiment, Failed> {
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for vcpus in [1, 2] {
        let (mut paused, mut in_all) = (Vec::new(), Vec::new());
        for (sites, times) in pauses(bench.place, vcpus)? {
            paused.push((f64::from(sites), times.paused.median()));
            in_all.push((f64::from(sites), times.in_all.median()));
            let title = format!("stop, {vcpus} vCPU, {sites} sites");
            let seed = if sites == 10_000 {
                "up to 800 µs for all of a kernel"
            } else {
                ""
            };
            rows.push(Row::of(format!("{title}: guest paused"), "µs", times.paused).beside(seed));
            rows.push(Row::of(
                format!("{title}: request to reply"),
                "µs in all",
                times.in_all,
            ));
        }
        series.push((format!("stop, {vcpus} vCPU: paused"), paused));
        series.push((format!("stop, {vcpus} vCPU: request to reply"), in_all));
    }
    let largest = series.get(2).and_then(|(_, points)| points.last());
    let largest = largest.map_or(f64::NAN, |(_, us)| *us);
    Ok(Experiment {
        number: 7,
        title: "The stop, from 1 to 10,000 sites",
        method: "Functions are switched on and off from outside while every vCPU works. The pause is from the request until \
                 the last vCPU goes on.",
        seed: "Rostedt, 2008 (S4e): stop_machine to patch all sites takes up to 800 µs, which rules it out for real time.",
        rows,
        finding: Finding {
            verdict: Verdict::of(&[largest > 400.0]),
            text: format!(
                "For 10,000 sites two vCPUs stand still for {largest:.0} µs: stopping all for a change of everything is as \
                 long as it was. A change of one site is a matter of kicking the vCPUs out of the guest."
            ),
        },
        plot: Plot::Lines {
            over: "sites",
            unit: "µs",
            series,
        },
    })
}

/// Times of switching a number of sites, in microseconds.
struct Times {
    paused: Samples,
    in_all: Samples,
}

fn pauses(place: &Path, vcpus: u16) -> Result<Vec<(u32, Times)>, Failed> {
    let arguments = ["--trace", "function", "--filter", BUSY];
    let guest = Guest::boot(place, vcpus, "workload=spin", &arguments)?;
    let mut client = guest.connect()?;
    client.wait_for_records()?;
    let all = SITES.map(|(sites, glob)| Ok((sites, switch(&mut client, sites, glob)?)));
    let all = all.into_iter().collect::<Result<_, Failed>>();
    let _: Switched = client.call(&Call::Shutdown)?;
    all
}

fn switch(client: &mut Client, sites: u32, glob: &str) -> Result<Times, Failed> {
    let change = || FilterChange {
        filter: vec![glob.to_owned()],
        ..FilterChange::default()
    };
    let calls = [Call::FilterAdd(change()), Call::FilterRemove(change())];
    let (mut paused, mut in_all) = (Vec::new(), Vec::new());
    // The first time writes the stubs.
    for (number, call) in calls.iter().cycle().take(SWITCHES + 2).enumerate() {
        let start = Instant::now();
        let changed: Changed = client.call(call)?;
        let took = start.elapsed();
        if changed.patched + changed.restored != u64::from(sites) {
            return Err(format!("{glob}: {changed:?} instead of {sites} sites").into());
        }
        if number >= 2 {
            paused.push(changed.pause_us);
            in_all.push(took.as_secs_f64() * 1e6);
        }
        std::thread::sleep(GAP);
    }
    Ok(Times {
        paused: paused.into_iter().collect(),
        in_all: in_all.into_iter().collect(),
    })
}
