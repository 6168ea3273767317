//! `make mutants`: does a test notice when the code is wrong? Each entry of `tests/mutants.txt` is a small change that must
//! make a test fail.
//!
//! ```text
//! make mutants [MUTANTS='[kvm] [jobs=N] [NAME or FILE...]']
//! ```
//!
//! All changes go into one copy of the sources, each with a question whether it is the one that is asked for (`MUTANT=n` in
//! the environment): so the copy is compiled once, and not once for each. What is known of the same sources from a run before
//! is not run again. `kvm` adds the entries whose tests need `/dev/kvm`.

mod baseline;
mod copy;
mod list;
mod run;
mod weave;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use list::Entry;
use run::{Suites, Verdict};

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failed) => {
            eprintln!("mutants: {failed}");
            ExitCode::FAILURE
        }
    }
}

/// What is asked for.
struct Options {
    kvm: bool,
    jobs: usize,
    names: Vec<String>,
}

impl Options {
    fn read() -> Result<Self, Failed> {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let (kvm, names) = (false, Vec::new());
        let mut options = Self { kvm, jobs, names };
        for argument in std::env::args().skip(1) {
            match argument.split_once('=') {
                Some(("jobs", number)) => options.jobs = number.parse()?,
                None if argument == "kvm" => options.kvm = true,
                _ => options.names.push(argument),
            }
        }
        Ok(options)
    }

    fn wants(&self, entry: &Entry) -> bool {
        let is_named = self.names.is_empty()
            || self
                .names
                .iter()
                .any(|name| entry.name.contains(&**name) || entry.file.contains(&**name));
        is_named && !entry.is_part() && (self.kvm || entry.suite != "kvm")
    }
}

fn run() -> Result<bool, Failed> {
    let options = Options::read()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()?;
    let all = list::read(&std::fs::read_to_string(root.join("tests/mutants.txt"))?)?;
    let wanted: Vec<&Entry> = all.iter().filter(|entry| options.wants(entry)).collect();
    let mut sources = copy::sources(&root)?;
    let entries: Vec<&Entry> = all.iter().collect();
    let stale = weave::weave(&mut sources, &entries);
    for (name, why) in &stale {
        println!("stale     {name}: {why}");
    }
    let place = root.join("target/mutants");
    let digest = copy::write(&root, &place, &sources)?;
    let suites = Suites::build(&place, wanted.iter().map(|entry| &*entry.suite))?;
    let wanted: Vec<&Entry> = wanted
        .into_iter()
        .filter(|entry| !stale.contains_key(&entry.name))
        .collect();
    let verdicts = run::all(&suites, &place, digest, &wanted, options.jobs)?;
    Ok(summary(&wanted, &verdicts) && stale.is_empty())
}

/// Says what became of each; whether nothing survived that has no reason to.
fn summary(entries: &[&Entry], verdicts: &BTreeMap<String, Verdict>) -> bool {
    let mut counts = BTreeMap::new();
    let mut is_good = true;
    for entry in entries {
        let Some(verdict) = verdicts.get(&entry.name) else {
            continue;
        };
        let word = match (verdict, &entry.survives) {
            (Verdict::Survived, Some(_)) => "excused",
            (Verdict::Survived, None) => "SURVIVED",
            (Verdict::Killed(_), Some(_)) => "KILLED, though excused",
            (Verdict::Killed(_), None) => "killed",
            (Verdict::Hung, _) => "hung",
        };
        is_good &= word != "SURVIVED";
        *counts.entry(word).or_insert(0) += 1;
        if word != "killed" {
            println!("{word:9} {}: {}", entry.name, entry.file);
        }
    }
    println!("{} mutants: {counts:?}", verdicts.len());
    is_good
}
