//! What it costs to trace the guest of another process, beside what it costs to trace ours: `vmm run` is the other VMM, too.

use std::path::Path;
use std::time::Instant;

use status::Changed;
use vmm::control::method::Nothing;
use vmm::control::methods::guest::ShowStatus;
use vmm::control::protocol::Call;

use crate::Failed;
use crate::attached::Attached;
use crate::guest::{Client, Guest};
use crate::pause::{BUSY, STOPPING, SWITCHED, switch, toggle};
use crate::rounds::{CALLS, Rounds, ratio};
use crate::sample::Samples;
use crate::table::{Row, Target};

/// Guests of each kind, in turn.
const TURNS: usize = 3;
/// Rounds in each guest.
const ROUNDS: u64 = 100;
/// Switches of one function in each guest, half of them on.
const SWITCHES: usize = 300;
/// How often many functions are switched on in each guest, after the first time.
const AGAIN: usize = 4;
/// Ten thousand functions, which are not called.
const MANY: &str = "many_*";
const TRACED: &str = "bench_leaf_traced";
/// A guest that waits for a `q` before it measures.
const GATED: &str = "workload=list,spin,bench";

/// Who traces a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Ours,
    Attached,
}

/// A guest that is traced, and by whom.
#[derive(Debug)]
struct Run {
    guest: Guest,
    attached: Option<Attached>,
}

impl Run {
    fn begin(
        who: Who,
        place: &Path,
        vcpus: u16,
        cmdline: &str,
        filter: &str,
    ) -> Result<Self, Failed> {
        let trace = [&["--trace", "function", "--filter", filter][..], &STOPPING].concat();
        let own: &[&str] = match who {
            Who::Ours => &trace,
            Who::Attached => &[],
        };
        let guest = Guest::boot(place, vcpus, cmdline, own)?;
        // It runs: somebody who attaches finds it there.
        guest.connect()?;
        let attached = match who {
            Who::Ours => None,
            Who::Attached => Some(Attached::to(&guest, vcpus.into(), place, &trace)?),
        };
        Ok(Self { guest, attached })
    }

    fn client(&self) -> Result<Client, Failed> {
        match &self.attached {
            Some(attached) => attached.connect(),
            None => self.guest.connect(),
        }
    }
}

/// What was measured of one of the two.
#[derive(Debug, Default)]
struct Measured {
    stubs: Rounds,
    pauses: Vec<f64>,
    first: Vec<f64>,
    again: Vec<f64>,
    begun: Vec<f64>,
    peak: Vec<f64>,
    after: Vec<f64>,
}

/// Rows about ours and about others.
pub fn rows(place: &Path) -> Result<Vec<Row>, Failed> {
    let (mut ours, mut theirs) = (Measured::default(), Measured::default());
    for _ in 0..TURNS {
        for (who, measured) in [(Who::Ours, &mut ours), (Who::Attached, &mut theirs)] {
            measured.stubs(who, place)?;
            measured.changes(who, place)?;
        }
    }
    table(ours, theirs)
}

impl Measured {
    /// What stubs cost.
    fn stubs(&mut self, who: Who, place: &Path) -> Result<(), Failed> {
        let cmdline = format!("{GATED} iterations={CALLS} rounds={ROUNDS}");
        let mut run = Run::begin(who, place, 1, &cmdline, TRACED)?;
        // It answers when tracing has begun.
        wait_for_session(&mut run.client()?)?;
        run.guest.type_text("q")?;
        self.stubs.collect(run.guest, 0)?;
        run.attached.map_or(Ok(()), Attached::finish)
    }

    /// How long the guest stands still, how long many functions take, and what is needed to begin.
    fn changes(&mut self, who: Who, place: &Path) -> Result<(), Failed> {
        let run = Run::begin(who, place, 2, "workload=spin", BUSY)?;
        let mut client = run.client()?;
        client.wait_for_records()?;
        if let Some(attached) = &run.attached {
            self.begun.push(milliseconds(attached.started));
        }
        let one = switch(&mut client, &toggle(SWITCHED)?, SWITCHES)?;
        self.pauses.extend(one.times.values());
        let many = toggle(MANY)?;
        self.first.push(on_and_off(&mut client, &many)?);
        for _ in 0..AGAIN {
            self.again.push(on_and_off(&mut client, &many)?);
        }
        if let Some(attached) = &run.attached {
            self.peak.push(mib(attached.memory_kib(&["VmHWM"])?));
            self.after
                .push(mib(attached.memory_kib(&["RssAnon", "RssFile"])?));
        }
        Ok(())
    }
}

/// Waits until functions are traced.
fn wait_for_session(client: &mut Client) -> Result<(), Failed> {
    loop {
        let status = client.ask(&ShowStatus(Nothing {}))?;
        let sessions = &status.tracing.sessions;
        if sessions.iter().any(|session| session.traced > 0) {
            return Ok(());
        }
    }
}

/// Milliseconds that it takes to switch on, and switches off again.
fn on_and_off(client: &mut Client, [on, off]: &[Call; 2]) -> Result<f64, Failed> {
    let since = Instant::now();
    let changed: Changed = client.call(on)?;
    let time = milliseconds(since);
    client.call::<Changed>(off)?;
    match changed.patched {
        0 => Err("no function was attached".into()),
        _ => Ok(time),
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn mib(kib: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a process has less than 2^53 KiB"
    )]
    let mib = kib as f64 / 1024.0;
    mib
}

fn table(ours: Measured, theirs: Measured) -> Result<Vec<Row>, Failed> {
    let none = Target::None;
    let stubs = ratio(&theirs.stubs.added(TRACED)?, &ours.stubs.added(TRACED)?);
    let mut rows = vec![Row::median(
        "attach, function: added, against ours",
        "x",
        &stubs,
        Target::AtMost(1.05),
    )];
    let [own, other] = [ours.pauses, theirs.pauses].map(Samples::from_iter);
    for parts in [50, 99] {
        let title = format!("pause to switch 1 function, p{parts}");
        let own_title = format!("beside it, ours: {title}");
        rows.push(Row::percentile(own_title, "us", &own, parts, none));
        let other_title = format!("attach: {title}");
        rows.push(Row::percentile(other_title, "us", &other, parts, none));
        let against = other.percentile(parts) / own.percentile(parts);
        rows.push(Row::median(
            format!("attach: {title}, against ours"),
            "x",
            &Samples::from_iter([against]),
            Target::AtMost(1.3),
        ));
    }
    let most = Target::AtMost(50.0);
    for (title, own, other, target) in [
        ("the first time", ours.first, theirs.first, most),
        ("again", ours.again, theirs.again, none),
    ] {
        let title = format!("10,000 functions switched on in slices, {title}");
        let [own, other] = [own, other].map(Samples::from_iter);
        rows.push(Row::median(
            format!("beside it, ours: {title}"),
            "ms",
            &own,
            none,
        ));
        rows.push(Row::median(
            format!("attach: {title}"),
            "ms",
            &other,
            target,
        ));
    }
    for (title, unit, values, most) in [
        (
            "to the first record, with a file",
            "ms",
            theirs.begun,
            500.0,
        ),
        (
            "memory of the tracer at its peak, with a file",
            "MiB",
            theirs.peak,
            200.0,
        ),
        (
            "memory of the tracer afterwards, without rings",
            "MiB",
            theirs.after,
            64.0,
        ),
    ] {
        let samples = Samples::from_iter(values);
        let target = Target::AtMost(most);
        rows.push(Row::median(
            format!("attach: {title}"),
            unit,
            &samples,
            target,
        ));
    }
    Ok(rows)
}
