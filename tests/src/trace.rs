//! A trace directory as its readers show it: uftrace, and `vmm report`.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::output::Counts;
use crate::place::{patient, vmm};

/// A trace directory, which lives as long as this.
#[derive(Debug)]
pub struct Trace {
    folder: TempDir,
    name: String,
}

impl Trace {
    pub(crate) fn new(folder: TempDir, name: &str) -> Self {
        Self {
            folder,
            name: name.to_owned(),
        }
    }

    /// Another trace in the same folder.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }

    /// All events and losses, in the order of time. At the same time those of the first vCPUs go first, each in
    /// the order in which it recorded them.
    ///
    /// # Panics
    /// When a file of events cannot be read.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        self.events_of("events-")
    }

    /// The same of what the host did.
    #[must_use]
    pub fn host_events(&self) -> Vec<Value> {
        self.events_of("host-")
    }

    fn events_of(&self, prefix: &str) -> Vec<Value> {
        let mut files: Vec<(u16, PathBuf)> = Vec::new();
        for entry in fs::read_dir(self.path()).expect("a trace directory") {
            let path = entry.expect("a file of the trace").path();
            let name = path.file_name().expect("its name").to_string_lossy();
            let number = name
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_suffix(".jsonl"));
            if let Some(number) = number {
                files.push((number.parse().expect("a vCPU's number"), path.clone()));
            }
        }
        files.sort();
        let mut events: Vec<Value> = Vec::new();
        for (_, path) in files {
            let text = fs::read_to_string(&path).expect("a file of events");
            let lines = text.lines().map(serde_json::from_str::<Value>);
            events.extend(lines.map(|line| line.expect("an event in each line")));
        }
        events.sort_by_key(|event| event["time_ns"].as_u64().expect("a time"));
        events
    }

    /// The fields of every event of this name, in the order of time.
    #[must_use]
    pub fn fields(&self, event: &str) -> Vec<Value> {
        let events = self.events().into_iter();
        let named = events.filter(|line| line.get("event").is_some_and(|name| name == event));
        named
            .filter_map(|line| line.get("fields").cloned())
            .collect()
    }

    /// What the trace says of itself.
    ///
    /// # Panics
    /// When it says nothing.
    #[must_use]
    pub fn side(&self) -> Value {
        let text = fs::read(self.path().join("exotrace.json")).expect("the side file");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// The counts of `uftrace report`.
    ///
    /// # Panics
    /// When uftrace is not installed or does not like the trace.
    #[must_use]
    pub fn uftrace(&self) -> Counts {
        table(&self.uftrace_says(&["report", "-f", "call"]))
    }

    /// The output of `vmm report`.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn report(&self, format: &str) -> String {
        self.report_with(format, &[])
    }

    /// The output of `vmm report`, of what the options select.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn report_with(&self, format: &str, options: &[&str]) -> String {
        let mut command = vmm();
        command
            .arg("report")
            .arg(self.path())
            .args(["--format", format])
            .args(options);
        said(command)
    }

    /// The output of `vmm export`.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn export(&self, format: &str) -> String {
        let mut command = vmm();
        command
            .arg("export")
            .arg(self.path())
            .args(["--format", format]);
        said(command)
    }

    /// A file that `vmm export` has written.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn exported(&self, format: &str) -> PathBuf {
        self.exported_with(format, &[])
    }

    fn exported_with(&self, format: &str, options: &[&OsStr]) -> PathBuf {
        let file = self.folder.path().join(format);
        let mut export = vmm();
        export.arg("export").arg(self.path());
        export
            .args(["--format", format, "--force", "-o"])
            .arg(&file);
        export.args(options);
        let _ = said(export);
        file
    }

    /// The output of `trace-cmd report` of what is exported for it, times to the nanosecond.
    ///
    /// # Panics
    /// When trace-cmd is not installed or does not like the trace.
    #[must_use]
    pub fn trace_cmd(&self) -> String {
        self.trace_cmd_with(&[])
    }

    /// The same, each event as it is in the file.
    ///
    /// # Panics
    /// As of [`Self::trace_cmd`].
    #[must_use]
    pub fn trace_cmd_without_plugins(&self) -> String {
        self.trace_cmd_with(&["-N"])
    }

    fn trace_cmd_with(&self, options: &[&str]) -> String {
        let file = self.exported("trace-dat");
        let mut command = Command::new("trace-cmd");
        command.args(["report", "-t"]).args(options);
        command.arg("-i").arg(&file);
        said(command)
    }

    /// The same of what the host did, in a file of its own, and of both files together: the names of the files stand
    /// before the lines, `host` and `trace-dat`.
    ///
    /// # Panics
    /// As of [`Self::trace_cmd`].
    #[must_use]
    pub fn trace_cmd_with_host(&self) -> [String; 2] {
        let host = self.folder.path().join("host");
        let guest = self.exported_with("trace-dat", &["--host".as_ref(), host.as_os_str()]);
        [vec![&host], vec![&host, &guest]].map(|files| {
            let mut command = Command::new("trace-cmd");
            command.args(["report", "-t"]);
            for file in files {
                command.arg("-i").arg(file);
            }
            said(command)
        })
    }

    /// The output of one of uftrace's commands.
    ///
    /// # Panics
    /// When uftrace is not installed or does not like the trace.
    #[must_use]
    pub fn uftrace_says(&self, words: &[&str]) -> String {
        let mut command = Command::new("uftrace");
        command
            .args(words)
            .args(["--no-pager", "-d"])
            .arg(self.path());
        said(command)
    }

    /// What `uftrace tui` draws on a terminal when these keys are pressed.
    ///
    /// # Panics
    /// When uftrace is not installed or does not like the trace.
    #[must_use]
    pub fn uftrace_draws(&self, keys: &str) -> String {
        let directory = self.path().display().to_string();
        // It wants a terminal; `script` is one.
        let mut command = patient("script");
        let mut child = command
            .args([
                "-qec",
                &format!("uftrace tui -d '{directory}'"),
                "/dev/null",
            ])
            .envs([("TERM", "xterm"), ("LINES", "24"), ("COLUMNS", "100")])
            // Not every user's shell runs commands.
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script starts");
        let mut typed = child.stdin.take().expect("a pipe");
        typed.write_all(keys.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        let drawn = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command:?}: {drawn}");
        drawn
    }

    /// The counts of `vmm report --format counts`.
    #[must_use]
    pub fn counts(&self) -> Counts {
        table(&self.report("counts"))
    }

    /// How many records are missing, as `vmm report` says.
    ///
    /// # Panics
    /// When it does not say.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let report = self.report("counts");
        let line = report
            .lines()
            .find(|line| line.contains("calls of") || line.contains("call of"))
            .expect("the totals");
        let lost = line
            .rsplit(", ")
            .next()
            .and_then(|end| end.strip_suffix(" lost"));
        lost.and_then(|count| count.parse().ok())
            .expect("a count of lost records")
    }
}

/// What a command prints when all goes well.
fn said(mut command: Command) -> String {
    let output = command.output().expect("the command starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How often each function was called, as `vmm report` says of a trace, which may still be written. `None` if it refuses that.
///
/// # Panics
/// When it says something else than counts.
#[must_use]
pub fn counts_of(trace: &Path) -> Option<Counts> {
    let mut report = vmm();
    report.arg("report").arg(trace);
    report.args(["--format", "counts", "--json"]);
    let report = report.output().expect("vmm starts");
    if !report.status.success() {
        return None;
    }
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let rows = report.get("counts").and_then(Value::as_array);
    let row = |row: &Value| {
        let name = row.get("function")?.as_str()?.to_owned();
        Some((name, row.get("calls")?.as_u64()?))
    };
    let rows = rows.expect("rows").iter();
    Some(rows.map(|of| row(of).expect("a row")).collect())
}

/// The rows `COUNT NAME` of a table; headings and totals are none.
fn table(text: &str) -> Counts {
    let row = |line: &str| {
        let (count, name) = line.trim().split_once(char::is_whitespace)?;
        Some((name.trim().to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}
