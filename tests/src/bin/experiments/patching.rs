//! 7: how long the guest stands still while its text is changed.

use std::path::Path;
use std::time::{Duration, Instant};

use status::Changed;
use tests::measure::Failed;
use tests::measure::guest::{Client, Guest};
use tests::measure::sample::Samples;
use vmm::control::method::{Method, Nothing};
use vmm::control::methods::filters::{AddFilter, FilterChange, RemoveFilter};
use vmm::control::methods::guest::ShutDown;

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
/// As `vmm run --patch-method` has them.
const METHODS: [&str; 2] = ["quiesce", "live"];
/// What the seed has for a stop.
const STOP: &str = "up to 800 µs for all of a kernel";
/// What is traced all the time, so that the rings say that the vCPUs are busy.
const BUSY: &str = "spin_leaf";
/// Switches of each number of sites, half of them on.
const SWITCHES: usize = 40;
/// Between two switches the vCPUs go about their work.
const GAP: Duration = Duration::from_millis(1);

pub fn experiment(bench: Bench<'_>) -> Result<Experiment, Failed> {
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for method in METHODS {
        for vcpus in [1, 2] {
            let (mut lost, mut in_all) = (Vec::new(), Vec::new());
            for (sites, times) in times(bench.place, method, vcpus)? {
                lost.push((f64::from(sites), times.lost.median()));
                in_all.push((f64::from(sites), times.in_all.median()));
                let title = format!("{method}, {vcpus} vCPU, {sites} sites");
                let row = Row::of(format!("{title}: lost by a vCPU"), "µs", times.lost);
                rows.push(row.beside(if (method, sites) == ("quiesce", 10_000) {
                    STOP
                } else {
                    ""
                }));
                rows.push(Row::of(
                    format!("{title}: request to reply"),
                    "µs in all",
                    times.in_all,
                ));
            }
            series.push((format!("{method}, {vcpus} vCPU: lost"), lost));
            series.push((format!("{method}, {vcpus} vCPU: request to reply"), in_all));
        }
    }
    let last = |index: usize| {
        let points = series.get(index).map(|(_, points)| points);
        points
            .and_then(|points| points.last())
            .map_or(f64::NAN, |(_, us)| *us)
    };
    let (stop, live) = (last(2), last(6));
    let finding = Finding {
        verdict: Verdict::of(&[stop > 400.0, live < stop]),
        text: format!(
            "For 10,000 sites on two vCPUs the stop takes {stop:.0} µs from each, live patching {live:.0} µs, beside what the \
             guest spends at breakpoints. For a few sites the stop is a matter of kicking the vCPUs out of the guest once; live \
             patching does that four times."
        ),
    };
    Ok(Experiment {
        number: 7,
        title: "Stop against live patching, from 1 to 10,000 sites",
        method: "Functions are switched on and off from outside while every vCPU works. Stop: from the request until the last \
                 vCPU goes on. Live: from each kick until the vCPU is on its way again, all kicks of a change together.",
        year: 2008,
        seed: "Rostedt, 2008 (S4e): stop_machine to patch all sites takes up to 800 µs, which rules it out for real time. \
               Desnoyers, 2008 (S4f): a breakpoint meanwhile needs no stop.",
        rows,
        finding,
        plot: Plot::Lines {
            over: "sites",
            unit: "µs",
            series,
        },
    })
}

/// Times of switching a number of sites, in microseconds.
struct Times {
    lost: Samples,
    in_all: Samples,
}

fn times(place: &Path, method: &str, vcpus: u16) -> Result<Vec<(u32, Times)>, Failed> {
    let arguments = [
        "--trace",
        "function",
        "--filter",
        BUSY,
        "--patch-method",
        method,
    ];
    let guest = Guest::boot(place, vcpus, "workload=spin", &arguments)?;
    let mut client = guest.connect()?;
    client.wait_for_records()?;
    let all = SITES.map(|(sites, glob)| Ok((sites, switch(&mut client, sites, glob)?)));
    let all = all.into_iter().collect::<Result<_, Failed>>();
    client.ask(&ShutDown(Nothing {}))?;
    all
}

fn switch(client: &mut Client, sites: u32, glob: &str) -> Result<Times, Failed> {
    let change = || FilterChange {
        filter: vec![glob.to_owned()],
        ..FilterChange::default()
    };
    let (add, remove) = (AddFilter(change()), RemoveFilter(change()));
    let calls = [add.call()?, remove.call()?];
    let (mut lost, mut in_all) = (Vec::new(), Vec::new());
    // The first time writes the stubs.
    for (number, call) in calls.iter().cycle().take(SWITCHES + 2).enumerate() {
        let start = Instant::now();
        let changed: Changed = client.call(call)?;
        let took = start.elapsed();
        if changed.patched + changed.restored != u64::from(sites) {
            return Err(format!("{glob}: {changed:?} instead of {sites} sites").into());
        }
        if number >= 2 {
            lost.push(changed.pause_us);
            in_all.push(took.as_secs_f64() * 1e6);
        }
        std::thread::sleep(GAP);
    }
    Ok(Times {
        lost: lost.into_iter().collect(),
        in_all: in_all.into_iter().collect(),
    })
}
