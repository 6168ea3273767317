//! `make bench-linux`: what tracing a stock Linux costs, as one table and as JSON.
//!
//! The guest does the same work again and again: 300 forks, then `ls -lR /proc`. It says how long each took by
//! its own clock, to 10 ms. What is compared was measured in the same boot, against the mean of the untraced
//! work before and after it; a row is the median of the boots with its spread. In the box all times are those of
//! an emulated machine, so only their ratios mean something.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::measure::Failed;
use tests::measure::host::{Machine, load};
use tests::measure::sample::Samples;
use tests::measure::table::{Row, Table, Target};
use tests::{Client, Guest, Running, in_the_box};

/// Boots, each measured as a whole.
const BOOTS: usize = 3;
/// How often it is looked whether the first function has been recorded.
const LOOK: Duration = Duration::from_millis(20);

/// One round of work for each line that it is sent.
const SCRIPT: &str = "\
    now() { cut -d \\  -f 1 /proc/uptime; }; \
    fork() { i=0; while [ $i -lt $1 ]; do /bin/true; i=$((i + 1)); done; }; \
    echo ready; \
    while read line && [ -z $line ]; do a=$(now); fork 300; b=$(now); ls -lR /proc >/tmp/list 2>/dev/null; \
    echo took $a $b $(now); done; exit 0";

/// How long the guest took for its work, in its seconds.
#[derive(Debug, Clone, Copy)]
struct Work {
    forks: f64,
    list: f64,
}

/// The work with all functions traced.
#[derive(Debug, Clone, Copy)]
struct Traced {
    work: Work,
    /// Against the untraced work around it.
    ratio: Work,
    functions: f64,
    /// Calls that stubs recorded.
    records: f64,
    attach_s: f64,
    detach_s: f64,
    /// How often the guest was paused for both.
    pauses: f64,
    /// The longest of these pauses in milliseconds.
    longest_ms: f64,
}

/// What one boot brought.
#[derive(Debug)]
struct Boot {
    first_record_s: f64,
    untraced: Work,
    /// After a detach against before the attach.
    after: Vec<Work>,
    function: Traced,
    graph: Traced,
    /// p50, p99 and the longest of all pauses of the boot, in microseconds.
    pauses: [f64; 3],
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("bench-linux: {failed}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failed> {
    // Cargo adds `--bench`.
    let result = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let result = result.ok_or("usage: linux FILE.json")?;
    let before = load()?;
    let boots: Result<Vec<Boot>, Failed> = (1..=BOOTS)
        .map(|number| {
            eprintln!("boot {number} of {BOOTS}");
            boot()
        })
        .collect();
    let mut host = Machine::this()?;
    if in_the_box() {
        let emulated = "the box (emulated: only ratios and counts mean something), ";
        host.name.insert_str(0, emulated);
    }
    Table::new(host, before, rows(&boots?))?.publish(&result)
}

fn boot() -> Result<Boot, Failed> {
    let since = Instant::now();
    let all = ["--trace", "function", "--timeout", "1200"];
    let mut guest = Bench {
        guest: Guest::linux(SCRIPT, None).vcpus(2).with(all).start(),
        rounds: 0,
    };
    let mut client = guest.guest.client();
    while Client::rings(&client.status(), "written") == 0 {
        std::thread::sleep(LOOK);
    }
    let first_record_s = since.elapsed().as_secs_f64();
    guest.guest.wait_for("ready");
    client.call("stop", Value::Null);
    client.call("session.delete", json!({"session": "default"}));
    // The first round fills the guest's caches.
    guest.work()?;
    let first = guest.work()?;
    let mut last = first;
    let mut after = Vec::new();
    let mut traced = Vec::new();
    for tracer in ["function", "graph"] {
        client.call("session.create", json!({"name": tracer, "tracer": tracer}));
        let (mut with, then) = guest.traced(&mut client, tracer)?;
        let around = last.mean(then);
        with.ratio = with.work.against(around);
        traced.push(with);
        after.push(then.against(last));
        last = then;
    }
    let pauses = client.status();
    let pause = |name| number(&pauses, &format!("/pauses/released/{name}"));
    let pauses = [pause("p50_us")?, pause("p99_us")?, pause("max_us")?];
    guest.guest.type_text("end\n");
    let (ended, _) = guest.guest.end();
    if ended.code != Some(0) {
        return Err(ended.to_string().into());
    }
    let [function, graph] = traced[..] else {
        return Err("a tracer is missing".into());
    };
    Ok(Boot {
        first_record_s,
        untraced: first,
        after,
        function,
        graph,
        pauses,
    })
}

/// A guest that works on demand.
struct Bench {
    guest: Running,
    rounds: usize,
}

impl Bench {
    /// One round of work.
    fn work(&mut self) -> Result<Work, Failed> {
        self.guest.type_text("\n");
        self.rounds += 1;
        self.guest.wait_for_times("took ", self.rounds);
        let console = self.guest.printed();
        let line = console.lines().rfind(|line| line.starts_with("took "));
        let times: Result<Vec<f64>, _> = line
            .into_iter()
            .flat_map(|line| line.split_whitespace().skip(1))
            .map(str::parse)
            .collect();
        match times?[..] {
            [start, forked, listed] => Ok(Work {
                forks: forked - start,
                list: listed - forked,
            }),
            _ => Err(format!("not three times: {line:?}").into()),
        }
    }

    /// The work with every function traced in this session, and the work after that.
    fn traced(&mut self, client: &mut Client, session: &str) -> Result<(Traced, Work), Failed> {
        let of = json!({"session": session});
        let since = Instant::now();
        let started = client.call("start", of.clone());
        let attach_s = since.elapsed().as_secs_f64();
        let work = self.work()?;
        let records = Client::rings(&client.status(), "written");
        let since = Instant::now();
        let stopped = client.call("stop", of);
        let detach_s = since.elapsed().as_secs_f64();
        let both = |name| Ok::<_, Failed>((number(&started, name)?, number(&stopped, name)?));
        let (pauses, longest) = (both("/pauses")?, both("/pause_us")?);
        let traced = Traced {
            work,
            ratio: work,
            functions: number(&started, "/traced")?,
            #[expect(clippy::cast_precision_loss, reason = "some millions")]
            records: records as f64,
            attach_s,
            detach_s,
            pauses: pauses.0 + pauses.1,
            longest_ms: longest.0.max(longest.1) / 1000.0,
        };
        Ok((traced, self.work()?))
    }
}

impl Work {
    fn mean(self, other: Self) -> Self {
        Self {
            forks: f64::midpoint(self.forks, other.forks),
            list: f64::midpoint(self.list, other.list),
        }
    }

    fn against(self, other: Self) -> Self {
        Self {
            forks: self.forks / other.forks,
            list: self.list / other.list,
        }
    }
}

fn number(of: &Value, at: &str) -> Result<f64, Failed> {
    let number = of.pointer(at).and_then(Value::as_f64);
    number.ok_or_else(|| format!("no number {at} in {of}").into())
}

/// The part of a boot that is about one tracer.
type Of = fn(&Boot) -> &Traced;

fn rows(boots: &[Boot]) -> Vec<Row> {
    let row = |what: String, unit, value: &dyn Fn(&Boot) -> f64| {
        let samples: Samples = boots.iter().map(value).collect();
        Row::median(what, unit, &samples, Target::None)
    };
    let mut rows = vec![
        row("300 forks, untraced".into(), "guest s", &|boot| {
            boot.untraced.forks
        }),
        row("ls -lR /proc, untraced".into(), "guest s", &|boot| {
            boot.untraced.list
        }),
    ];
    let tracers: [(&str, Of); 2] = [
        ("function", |boot| &boot.function),
        ("graph", |boot| &boot.graph),
    ];
    for (name, of) in tracers {
        rows.extend([
            row(format!("{name}: functions traced"), "", &|boot| {
                of(boot).functions
            }),
            row(format!("{name}: 300 forks, x untraced"), "x", &|boot| {
                of(boot).ratio.forks
            }),
            row(format!("{name}: ls -lR /proc, x untraced"), "x", &|boot| {
                of(boot).ratio.list
            }),
            row(format!("{name}: calls recorded in both"), "M", &|boot| {
                of(boot).records / 1e6
            }),
            row(format!("{name}: attaching all functions"), "s", &|boot| {
                of(boot).attach_s
            }),
            row(format!("{name}: detaching all functions"), "s", &|boot| {
                of(boot).detach_s
            }),
            row(format!("{name}: pauses for both"), "", &|boot| {
                of(boot).pauses
            }),
            row(format!("{name}: longest of these pauses"), "ms", &|boot| {
                of(boot).longest_ms
            }),
        ]);
    }
    let after = |part: fn(&Work) -> f64| -> Samples {
        boots
            .iter()
            .flat_map(|boot| boot.after.iter().map(part))
            .collect()
    };
    for (what, samples) in [
        ("300 forks", after(|work| work.forks)),
        ("ls -lR /proc", after(|work| work.list)),
    ] {
        let what = format!("after a detach: {what}, x before the attach");
        rows.push(Row::median(what, "x", &samples, Target::None));
    }
    for (index, part) in ["p50", "p99", "max"].into_iter().enumerate() {
        rows.push(row(format!("pauses of a boot, {part}"), "us", &|boot| {
            boot.pauses.get(index).copied().unwrap_or(f64::NAN)
        }));
    }
    rows.push(row(
        "start of vmm to first traced function, all functions".into(),
        "s",
        &|boot| boot.first_record_s,
    ));
    rows
}
