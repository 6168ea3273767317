//! Builds the copy, and runs the tests of one change after the other.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::Failed;
use super::baseline::{Baseline, Baselines};
use super::copy::TREE;
use super::list::Entry;
use super::weave::number;

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// This test failed.
    Killed(String),
    /// The tests did not end.
    Hung,
    /// All tests passed.
    Survived,
}

impl Verdict {
    /// As it is said and kept.
    pub fn text(&self) -> String {
        match self {
            Self::Killed(test) => format!("killed {test}"),
            Self::Hung => "hung".to_owned(),
            Self::Survived => "survived".to_owned(),
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text.split_once(' ').unwrap_or((text, "")) {
            ("killed", test) => Some(Self::Killed(test.to_owned())),
            ("hung", _) => Some(Self::Hung),
            ("survived", _) => Some(Self::Survived),
            _ => None,
        }
    }
}

/// The programs with the tests, by suite.
pub struct Suites {
    programs: BTreeMap<String, PathBuf>,
    folder: PathBuf,
}

impl Suites {
    /// Builds those that are asked for.
    ///
    /// # Errors
    /// When a change does not compile, or something else.
    pub fn build<'a>(place: &Path, suites: impl Iterator<Item = &'a str>) -> Result<Self, Failed> {
        let tree = place.join(TREE);
        let mut programs = BTreeMap::new();
        for suite in suites {
            if !programs.contains_key(suite) {
                programs.insert(suite.to_owned(), program(&tree, suite)?);
            }
        }
        if programs.contains_key("kvm") {
            // Its dependencies are there already; the tests look for it where the release is.
            build(&tree, &["build", "--locked", "-p", "vmm"])?;
            let release = tree.join("target/release");
            fs::create_dir_all(&release)?;
            fs::copy(tree.join("target/debug/vmm"), release.join("vmm"))?;
        }
        Ok(Self {
            programs,
            folder: tree.join("tests"),
        })
    }

    /// Asks the test that noticed before, of an older copy; then those that are quick, then the others.
    fn ask(
        &self,
        entry: &Entry,
        before: Option<&str>,
        baseline: &Baseline,
    ) -> Result<Verdict, Failed> {
        let is_among = |test: &&str| entry.filters.iter().any(|filter| test.contains(&**filter));
        let killer = before.filter(is_among).map(|test| vec![test, "--exact"]);
        let slow: Vec<&str> = baseline.slow.iter().map(String::as_str).collect();
        let skipped = slow.iter().flat_map(|test| ["--skip", test]);
        let quick = entry.filters().into_iter().chain(skipped).collect();
        let rest = Some(slow.clone()).filter(|slow| !slow.is_empty());
        for tests in killer.into_iter().chain([quick]).chain(rest) {
            let verdict = self.run(entry, &tests, number(&entry.name), baseline.limit, |_| {})?;
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }

    /// Runs tests of an entry with its change, or without, and says which passed.
    ///
    /// # Errors
    /// When they cannot be run.
    pub fn run(
        &self,
        entry: &Entry,
        tests: &[&str],
        mutant: u32,
        limit: Duration,
        passed: impl FnMut(&str),
    ) -> Result<Verdict, Failed> {
        let program = self
            .programs
            .get(&entry.suite)
            .ok_or("a suite that was not built")?;
        let folder = match folder_of(&entry.suite) {
            Some(folder) => self.folder.join("..").join(folder),
            None => self.folder.clone(),
        };
        let mut child = Command::new(program)
            .args(tests)
            .arg("--test-threads=1")
            .current_dir(folder)
            .env("MUTANT", mutant.to_string())
            // The same cases each time, and nothing left for the next run.
            .env("PROPTEST_RNG_SEED", "12")
            .env("EXOTRACE_SEED", "12")
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let verdict = watch(&mut child, limit, passed);
        // Its guests, too.
        let group = i32::try_from(child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let status = child.wait()?;
        Ok(match verdict {
            Verdict::Survived if !status.success() => {
                Verdict::Killed("the whole program".to_owned())
            }
            verdict => verdict,
        })
    }
}

/// The first test that fails decides.
fn watch(child: &mut Child, limit: Duration, mut passed: impl FnMut(&str)) -> Verdict {
    let end = Instant::now() + limit;
    let Some(stdout) = child.stdout.take() else {
        return Verdict::Survived;
    };
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines
            .take_while(|line| sender.send(line.clone()).is_ok())
            .count()
    });
    let mut current = String::new();
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                // What a test prints may stand between its name and what became of it.
                let begun = line.strip_prefix("test ");
                let begun = begun.and_then(|line| line.split_once(" ... "));
                if let Some((test, _)) = begun {
                    test.clone_into(&mut current);
                }
                match begun.map_or(&*line, |(_, outcome)| outcome) {
                    "FAILED" => return Verdict::Killed(current),
                    "ok" => passed(&current),
                    _ => {}
                }
                if line.starts_with("test result: ok") {
                    let _ = child.wait();
                    return Verdict::Survived;
                }
            }
            Err(RecvTimeoutError::Timeout) => return Verdict::Hung,
            Err(RecvTimeoutError::Disconnected) => {
                let _ = child.wait();
                return Verdict::Survived;
            }
        }
    }
}

/// In a place of its own: cargo takes two copies of one workspace for the same.
fn build(tree: &Path, arguments: &[&str]) -> Result<String, Failed> {
    // The one that has started this program, or else the usual one, which sees to it that a dependency that asks for another compiler
    // does not get it.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(arguments)
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", tree.join("target"))
        // Nobody looks at a backtrace.
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the changed sources do not build:\n{said}").into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Where the crate is whose own tests these are.
fn folder_of(suite: &str) -> Option<&'static str> {
    match suite {
        "image" => Some("tracer/image"),
        "trace" => Some("tracer/trace"),
        "tracer" => Some("tracer"),
        "vmm" => Some("vmm"),
        _ => None,
    }
}

fn program(tree: &Path, suite: &str) -> Result<PathBuf, Failed> {
    let format = "--message-format=json-render-diagnostics";
    let mut arguments = vec!["test", "--locked", "--no-run", format];
    match folder_of(suite) {
        Some(_) => arguments.extend(["-p", suite, "--lib"]),
        None => arguments.extend(["-p", "tests", "--test", suite]),
    }
    let said = build(tree, &arguments)?;
    let mut programs = said.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        // Programs of the same crate are built, too, and are said in any order.
        let name = message.get("target")?.get("name")?.as_str()?;
        let path = message.get("executable")?.as_str()?;
        (name == suite).then(|| PathBuf::from(path))
    });
    programs
        .next_back()
        .ok_or_else(|| format!("cargo names no program with the tests of {suite}").into())
}

/// Runs all that are not known yet; what is known of each.
///
/// # Errors
/// When tests fail without any change.
pub fn all(
    suites: &Suites,
    place: &Path,
    digest: u64,
    entries: &[&Entry],
    jobs: usize,
) -> Result<BTreeMap<String, Verdict>, Failed> {
    let known = place.join(format!("known-{digest:016x}"));
    let text = fs::read_to_string(&known).unwrap_or_default();
    let before: BTreeMap<&str, Verdict> = text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(name, verdict)| Some((name, Verdict::read(verdict)?)))
        .collect();
    let is_wanted = |entry: &&Entry| !before.contains_key(&*entry.name);
    let left: Vec<&Entry> = entries.iter().copied().filter(is_wanted).collect();
    let baselines = Baselines::measure(suites, &left)?;
    let killers = killers(place)?;
    let log = Mutex::new(OpenOptions::new().create(true).append(true).open(&known)?);
    let queue = Mutex::new(left.into_iter());
    let work = || -> Result<(), Failed> {
        loop {
            let next = queue.lock().map_err(|_| "another thread failed")?.next();
            let Some(entry) = next else { return Ok(()) };
            let baseline = baselines.of(entry).ok_or("a room without a baseline")?;
            let killer = killers.get(&entry.name).map(String::as_str);
            let verdict = suites.ask(entry, killer, baseline)?;
            println!("{:9} {}", verdict.text(), entry.name);
            let mut log = log.lock().map_err(|_| "another thread failed")?;
            writeln!(log, "{}\t{}", entry.name, verdict.text())?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread failed")?)
    })?;
    let text = fs::read_to_string(&known)?;
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    Ok(lines
        .filter(|(name, _)| entries.iter().any(|entry| entry.name == *name))
        .filter_map(|(name, verdict)| Some((name.to_owned(), Verdict::read(verdict)?)))
        .collect())
}

/// The tests that noticed changes of any copy, by entry.
fn killers(place: &Path) -> Result<BTreeMap<String, String>, Failed> {
    let mut killers = BTreeMap::new();
    for file in fs::read_dir(place)? {
        let path = file?.path();
        let name = path.file_name().unwrap_or_default();
        if !name.to_string_lossy().starts_with("known-") {
            continue;
        }
        for line in fs::read_to_string(&path)?.lines() {
            let Some((name, verdict)) = line.split_once('\t') else {
                continue;
            };
            if let Some(Verdict::Killed(test)) = Verdict::read(verdict) {
                killers.insert(name.to_owned(), test);
            }
        }
    }
    Ok(killers)
}
