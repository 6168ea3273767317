//! How long the guest stands still while functions are switched, with every vCPU busy.

use std::path::Path;
use std::time::Duration;

use status::Changed;
use vmm::control::method::{Method, Nothing};
use vmm::control::methods::filters::{
    AddFilter, ClearFilter, FilterChange, RemoveFilter, SetFilter,
};
use vmm::control::methods::guest::ShutDown;
use vmm::control::methods::sessions::OfSession;
use vmm::control::protocol::Call;

use crate::Failed;
use crate::guest::{Client, Guest};
use crate::sample::Samples;
use crate::table::{Row, Target};

/// Switches of one function, half of them on.
const SMALL: usize = 1000;
/// Switches of all functions, half of them on.
const LARGE: usize = 40;
/// What is traced all the time, so that the rings say that the vCPUs are busy.
pub const BUSY: &str = "spin_leaf";
/// At least so many are attached when one among them is switched.
const MANY: u64 = 10_000;
/// What is switched: it is not called.
pub const SWITCHED: &str = "many_0001";
/// Between two switches the vCPUs go about their work.
const GAP: Duration = Duration::from_millis(1);

/// The only way to change text that takes pauses in any case.
pub const STOPPING: [&str; 2] = ["--patch-method", "quiesce"];

/// Rows about pauses and about the cost of a site.
pub fn rows(place: &Path) -> Result<Vec<Row>, Failed> {
    let arguments = [&["--trace", "function", "--filter", BUSY][..], &STOPPING].concat();
    let guest = Guest::boot(place, 2, "workload=spin", &arguments)?;
    let mut client = guest.connect()?;
    client.wait_for_records()?;
    let glob = |globs: &[&str]| FilterChange {
        filter: globs.iter().map(|glob| (*glob).to_owned()).collect(),
        ..FilterChange::default()
    };
    let notrace = || FilterChange {
        notrace: vec![SWITCHED.to_owned()],
        ..FilterChange::default()
    };
    let pair = |change: &dyn Fn() -> FilterChange| -> Result<[Call; 2], Failed> {
        let (add, remove) = (AddFilter(change()), RemoveFilter(change()));
        Ok([add.call()?, remove.call()?])
    };
    let one = toggle(SWITCHED)?;
    let among = pair(&notrace)?;
    let (clear, set) = (ClearFilter(OfSession::default()), SetFilter(glob(&[BUSY])));
    let all = [clear.call()?, set.call()?];
    let one = switch(&mut client, &one, SMALL)?;
    let all = switch(&mut client, &all, LARGE)?;
    let everything = client.ask(&clear)?;
    if everything.traced < MANY {
        return Err(format!("only {} functions are attached", everything.traced).into());
    }
    let among = switch(&mut client, &among, SMALL)?;
    client.ask(&ShutDown(Nothing {}))?;
    Ok(table(&one, &all, &among))
}

/// Adding a filter and removing it again.
pub fn toggle(glob: &str) -> Result<[Call; 2], Failed> {
    let change = || FilterChange {
        filter: vec![glob.to_owned()],
        ..FilterChange::default()
    };
    Ok([AddFilter(change()).call()?, RemoveFilter(change()).call()?])
}

/// Pauses in microseconds, and how many sites each of them changed.
#[derive(Debug)]
pub struct Pauses {
    /// The longest of each switch.
    pub times: Samples,
    sites: u64,
}

/// Switches something on and off, so often in all.
pub fn switch(client: &mut Client, calls: &[Call; 2], count: usize) -> Result<Pauses, Failed> {
    let mut times = Vec::new();
    let mut sites = 0;
    // The first time writes the stubs.
    for call in calls {
        client.call::<Changed>(call)?;
    }
    for call in calls.iter().cycle().take(count) {
        let changed: Changed = client.call(call)?;
        sites = changed.patched + changed.restored;
        times.push(changed.pause_us);
        std::thread::sleep(GAP);
    }
    Ok(Pauses {
        times: times.into_iter().collect(),
        sites,
    })
}

fn table(one: &Pauses, all: &Pauses, among: &Pauses) -> Vec<Row> {
    let few = one.times.median();
    #[expect(clippy::cast_precision_loss, reason = "some ten thousand")]
    let more = all.sites.saturating_sub(one.sites).max(1) as f64;
    let per_site: Samples = all.times.scaled(|all| (all - few) * 1000.0 / more);
    let (none, most) = (Target::None, Target::AtMost(50.0));
    vec![
        Row::percentile(
            "pause to switch 1 function, p50",
            "us",
            &one.times,
            50,
            most,
        ),
        Row::percentile(
            "pause to switch 1 function, p99",
            "us",
            &one.times,
            99,
            none,
        ),
        Row::percentile(
            "pause to switch 1 function, max",
            "us",
            &one.times,
            100,
            none,
        ),
        Row::percentile(
            "pause to switch 1 of 10,000 attached functions, p50",
            "us",
            &among.times,
            50,
            Target::AtMost(60.0),
        ),
        Row::percentile(
            "pause to switch 1 of 10,000 attached functions, p99",
            "us",
            &among.times,
            99,
            none,
        ),
        Row::percentile(
            "pause to switch all functions, p50",
            "us",
            &all.times,
            50,
            none,
        ),
        Row::percentile(
            "pause to switch all functions, p99",
            "us",
            &all.times,
            99,
            none,
        ),
        Row::percentile(
            "pause to switch all functions, max",
            "us",
            &all.times,
            100,
            none,
        ),
        Row::median("patching a site, of all", "ns", &per_site, none),
    ]
}
