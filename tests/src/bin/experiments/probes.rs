//! 8: what it costs to get out of the code and back.

use tests::measure::Failed;
use tests::measure::sample::Samples;
use vmm::trial::features::{Exit, exit_times};

use crate::Bench;
use crate::experiment::{Experiment, Finding, Plot, Row, Verdict};

const TRACED: &str = "bench_leaf_traced";
/// Ways out to the VMM, in a VM with one vCPU that executes nothing else.
const EXITS: [(Exit, &str); 3] = [
    (
        Exit::SoftwareBreakpoint,
        "int3 in ring 0, to the VMM and back",
    ),
    (
        Exit::HardwareBreakpoint,
        "debug register in ring 0, to the VMM and back",
    ),
    (Exit::PortWrite, "port write in ring 0, to the VMM and back"),
];
const EXITS_TIMED: usize = 2000;

pub fn experiment(bench: Bench<'_>) -> Result<Experiment, Failed> {
    let probes = bench.measure("workload=micro_probes iterations=200000 rounds=9", &[])?;
    let of = |name: &str| -> Result<Samples, Failed> {
        let cycles = probes.of(&format!("probes.{name}"))?;
        Ok(cycles.iter().map(|cycles| bench.ns(*cycles)).collect())
    };
    let stub = |clock| -> Result<Samples, Failed> {
        let arguments = ["--trace", "function", "--clock", clock, "--filter", TRACED];
        let rounds = bench.measure("workload=bench iterations=200000 rounds=5", &arguments)?;
        Ok(rounds
            .added(TRACED)?
            .into_iter()
            .map(|one| bench.ns(one))
            .collect())
    };
    let (timed, untimed) = (stub("tsc")?, stub("none")?);
    let ns = timed.median();
    let kernel = of("kernel")?;
    let breakpoint = of("breakpoint")?;
    let trap = breakpoint.median();
    let mut rows = vec![
        Row::of("stub at the entry, record with a time", "ns", timed)
            .beside("270 ns (LTTng, 3 GHz Pentium 4)"),
        Row::of("stub at the entry, record without a time", "ns", untimed),
        Row::of("breakpoint, served by the guest's kernel", "ns", breakpoint),
        Row::of("a kernel call: exception, scheduler and back", "ns", kernel),
        Row::of(
            "the same, and a port read that leaves to the VMM",
            "ns",
            of("vmm")?,
        ),
    ];
    rows.extend(
        EXITS.map(|(exit, name)| match exit_times(exit, EXITS_TIMED) {
            Ok(times) => {
                let ns = times.iter().map(|time| time.as_secs_f64() * 1e9);
                Row::of(name, "ns", ns.collect())
            }
            Err(why) => Row::not_run(name, "ns", format!("no such exit on this KVM ({why})")),
        }),
    );
    let exit = rows
        .iter()
        .rev()
        .find_map(|row| Some((&row.what, row.value.as_ref().ok()?)));
    let exit = exit.map_or_else(String::new, |(name, samples)| {
        format!(
            " The VMM and back takes {:.0} ns ({name}).",
            samples.median()
        )
    });
    Ok(Experiment {
        number: 8,
        title: "Probes: breakpoints against stubs",
        method: "A record written by a stub, added to a leaf; an int3 that the guest's kernel serves; a kernel call; exits to the VMM. \
                 Exits in ring 0 are timed by the host in a VM of their own, from KVM_RUN to its return.",
        year: 2008,
        seed: "Desnoyers, Anvin, April 2008 (S3): LTTng writes an event in about 270 ns on a 3 GHz Pentium 4; where a breakpoint \
               is too dear, a call in five bytes does it.",
        rows,
        finding: Finding {
            verdict: Verdict::of(&[ns < 270.0, trap > 10.0 * ns]),
            text: format!(
                "A stub writes a record with a time in {ns:.1} ns; a breakpoint takes {trap:.0} ns before anything is recorded, with a \
                 handler of twelve instructions (ring 0 may be emulated on this host).{exit}"
            ),
        },
        plot: Plot::Bars { unit: "ns" },
    })
}
