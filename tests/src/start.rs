//! Boots that are traced from their first function on.
#![expect(
    clippy::indexing_slicing,
    reason = "what a guest does not say ends the test, as a panic does"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use terms::function::FunctionId;
use tracer::filter::{Filter, Sources};
use vmm::loader::KernelFile;

use crate::{Client, Ended, Guest, Trace};

/// The guest says itself which init calls it makes: `calling  NAME+0x0/0x10 @ 1`. Lockups say how fast the host is: a boot that
/// nobody traced has them, too, on a busy one.
const WORDS: &str = "initcall_debug log_buf_len=4M";
const SCRIPT: &str = "\
    echo step up; read line; \
    dmesg | sed -n 's/.*\\] calling  \\([^+ ]*\\)+0x.* @ [0-9]*$/initcall \\1/p'; \
    dmesg | grep 'W.X mappings'; dmesg | grep -e 'WARNING:' -e 'BUG:' -e 'Oops' | grep -vc lockup; \
    echo step booted; read line";
const PASSED: &str = "W+X mappings: passed, no W+X pages found";

/// A boot that is to be traced.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The kernel's file.
    pub kernel: &'a Path,
    /// More for its command line.
    pub words: &'a str,
    /// How many vCPUs it has.
    pub vcpus: u32,
    /// Where tracing begins.
    pub attach: &'static str,
    /// What gives way in a full ring.
    pub mode: &'static str,
    /// KiB of each ring: nothing may be lost.
    pub ring: &'static str,
    /// Whether the guest sees by its clock that it waits for the reader.
    pub wait_time: &'static str,
    /// How deep calls may lie within each other that are recorded: all, or so many that none is missing to compare.
    pub depth: Option<&'static str>,
}

impl Start<'_> {
    fn guest(&self) -> Guest {
        let words = format!("{} {WORDS}", self.words);
        Guest::linux_of(self.kernel, &words, SCRIPT, None).vcpus(self.vcpus)
    }

    /// What stands at the sites of a boot that nobody traced, and how many lines of trouble it prints.
    fn untraced(&self) -> (String, String) {
        let mut running = self.guest().start();
        running.wait_for("step up");
        running.type_text("\n");
        running.wait_for("step booted");
        let mut client = running.client();
        let digest = client.digest();
        drop(client);
        running.type_text("\n");
        (digest, trouble(&running.end().0.good()))
    }

    /// Traces it and stops when it has booted: nothing is lost, and nothing that is both writable and executable is left.
    ///
    /// # Panics
    /// When anything is another way.
    #[must_use]
    fn traced(&self) -> Booted {
        let guest = self.guest().with(["--trace", "graph"]);
        let guest = guest.with(["--attach-at", self.attach, "--mode", self.mode]);
        let mut guest = guest.with(["--wait-time", self.wait_time]);
        if let Some(depth) = self.depth {
            guest = guest.with(["--max-depth", depth]);
        }
        let mut running = guest.with(["--ring-size", self.ring]).output().start();
        running.wait_for("step up");
        let mut client = running.client();
        client.call("stop", Value::Null);
        running.type_text("\n");
        running.wait_for("step booted");
        let digest = client.digest();
        let status = client.status();
        let tracing = &status["tracing"];
        assert_eq!(tracing["frozen"], Value::Null, "{status}");
        assert_eq!(tracing["cpu_strategy"], "gs", "{status}");
        assert_eq!(Client::rings(&status, "lost"), 0, "{status}");
        drop(client);
        running.type_text("\n");
        let (ended, trace) = running.end();
        let ended = ended.good();
        assert!(ended.stdout.contains(PASSED), "{ended}");
        assert_eq!(trace.lost(), 0);
        Booted {
            left: (digest, trouble(&ended)),
            ended,
            trace,
        }
    }

    /// The same, and compares it with a boot that nobody traced: no byte of a site is another one, and it has nothing more to
    /// complain of.
    ///
    /// # Panics
    /// When anything is another way.
    #[must_use]
    pub fn traced_as_untraced(&self) -> Booted {
        let untraced = self.untraced();
        let booted = self.traced();
        assert_eq!(booted.left, untraced, "{self:?}: {}", booted.ended);
        booted
    }
}

/// A boot that was traced.
#[derive(Debug)]
pub struct Booted {
    /// What stands at its sites afterwards, and how many lines of trouble it prints.
    left: (String, String),
    /// What it printed.
    pub ended: Ended,
    /// What was recorded.
    pub trace: Trace,
}

impl Booted {
    /// The init calls of the trace are those that the guest says it made, each as often, but for those that the kernel lists
    /// and that cannot be traced: returns these, by the reason.
    ///
    /// # Panics
    /// When one is another way.
    #[must_use]
    pub fn compare_init_calls(&self, kernel: &Path) -> BTreeMap<String, Vec<String>> {
        let (said, traced) = (said_init_calls(&self.ended), traced_init_calls(&self.trace));
        let untraced = untraced_init_calls(kernel);
        let names: BTreeSet<_> = said.keys().chain(traced.keys()).collect();
        let counts = names.into_iter().map(|name| {
            let of = |names: &BTreeMap<String, u64>| names.get(name).copied().unwrap_or_default();
            let why = untraced.get(name).map_or(0, Vec::len);
            (name, of(&said), of(&traced), why as u64)
        });
        let wrong: Vec<_> = counts
            .filter(|(_, said, traced, not)| traced + not != *said)
            .collect();
        assert!(
            wrong.is_empty(),
            "name, said, traced, cannot be traced: {wrong:?}"
        );
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, why) in untraced
            .into_iter()
            .filter(|(name, _)| said.contains_key(name))
        {
            for why in why {
                reasons.entry(why).or_default().push(name.clone());
            }
        }
        reasons
    }
}

/// The init calls that a kernel lists of which no call is traced, each with why not.
fn untraced_init_calls(kernel: &Path) -> BTreeMap<String, Vec<String>> {
    let kernel = KernelFile::read(kernel).expect("a kernel");
    let image = kernel.image().expect("an image");
    let selection = Filter::default()
        .select(&image, &Sources::default())
        .expect("functions");
    let mut untraced: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let is_untraced = |id: &&FunctionId| selection.selected.binary_search(id).is_err();
    for id in image.init_calls.iter().filter(is_untraced) {
        let denied = selection.denied.iter().find(|(denied, _)| denied == id);
        let why = match (image.untraceable(*id), denied) {
            (Some(untraceable), _) => untraceable.reason.class().to_owned(),
            (None, Some((_, why))) => why.to_string(),
            (None, None) => panic!("{id:?} is left out without a reason"),
        };
        let name = image.function(*id).expect("a function").display.to_string();
        untraced.entry(name).or_default().push(why);
    }
    untraced
}

/// How many lines of its log are about trouble.
fn trouble(ended: &Ended) -> String {
    let lines: Vec<&str> = ended.stdout.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| *line == "step booted");
    let at = at.and_then(|at| at.checked_sub(1)).expect("a count");
    lines[at].to_owned()
}

/// How often the guest says that it made each init call.
fn said_init_calls(ended: &Ended) -> BTreeMap<String, u64> {
    let mut said = BTreeMap::new();
    let lines = ended.stdout.lines();
    let names = lines.filter_map(|line| line.trim().strip_prefix("initcall "));
    for name in names {
        *said.entry(name.to_owned()).or_default() += 1;
    }
    assert!(said.len() > 300, "{said:?}");
    said
}

/// How often the trace has each, as the view of a boot shows it.
fn traced_init_calls(trace: &Trace) -> BTreeMap<String, u64> {
    let view = trace.report_with("boot", &["--json", "--limit", "100000"]);
    let view: Value = serde_json::from_str(&view).expect("JSON");
    let mut traced = BTreeMap::new();
    for row in view["init_calls"].as_array().expect("init calls") {
        let name = row["function"].as_str().expect("a name").to_owned();
        *traced.entry(name).or_default() += row["calls"].as_u64().expect("a count");
    }
    traced
}
