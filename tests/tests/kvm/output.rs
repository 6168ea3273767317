//! Where traces go, and where they cannot.

use std::fs::{DirEntry, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::elf::Kernels;
use tests::{Ended, Guest, guest, patience, patient, vmm, vmm_says};

pub(super) fn trace_to(directory: &Path, options: &[&str]) -> Command {
    trace_in_mode(&["discard", "--ring-size", "8192"], directory, options)
}

pub(super) fn trace_in_mode(mode: &[&str], directory: &Path, options: &[&str]) -> Command {
    let mut command = vmm();
    command
        .arg("run")
        .arg("--kernel")
        .arg(guest())
        .arg("--output")
        .arg(directory);
    command.args([
        "--cmdline",
        "workload=calls iterations=2000",
        "--trace",
        "function",
    ]);
    let limit = patience().as_secs().to_string();
    command.args(["--timeout", &limit, "--mode"]).args(mode);
    command.args(options).stdin(Stdio::null());
    command
}

pub(super) fn run(command: &mut Command) -> Ended {
    Ended::from(command.output().expect("it starts"))
}

/// A trace holds what was in a guest's memory.
#[test]
fn what_is_written_is_for_its_user_only() {
    let folder = Kernels::new();
    let trace = folder.path().join("trace");
    let _ = run(&mut trace_to(&trace, &[])).good();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&trace), 0o700);
    let files = std::fs::read_dir(&trace).unwrap();
    for file in files.map(|file| file.unwrap().path()) {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn a_directory_that_exists_is_replaced_only_by_force_and_only_if_it_is_a_trace() {
    let folder = Kernels::new();
    let trace = folder.path().join("trace");
    let _ = run(&mut trace_to(&trace, &[])).good();
    let before = std::fs::read(trace.join("info")).unwrap();
    let again = run(&mut trace_to(&trace, &[]));
    for word in ["trace", "--force"] {
        assert!(again.refused(100).contains(word), "{again}");
    }
    assert_eq!(std::fs::read(trace.join("info")).unwrap(), before);
    let _ = run(&mut trace_to(&trace, &["--force"])).good();
    std::fs::write(trace.join("thesis.tex"), "years of work").unwrap();
    let foreign = run(&mut trace_to(&trace, &["--force"]));
    assert!(foreign.refused(100).contains("thesis.tex"), "{foreign}");
    assert_eq!(
        std::fs::read_to_string(trace.join("thesis.tex")).unwrap(),
        "years of work"
    );
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    for options in [&[][..], &["--force"]] {
        let ended = run(&mut trace_to(&file, options));
        assert!(ended.refused(100).contains("file"), "{ended}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

/// Two runs mixed their records in one directory once, and both said that all was well.
#[test]
fn a_directory_that_is_being_written_is_replaced_by_nobody() {
    let folder = Kernels::new();
    let trace = folder.path().join("trace");
    let mut first = Guest::spinning(&["--output", trace.to_str().unwrap()]);
    let mut client = first.client();
    let second = run(&mut trace_to(&trace, &["--force"]));
    let line = second.refused(100);
    for word in ["is being written by process", "workload=list,spin"] {
        assert!(line.contains(word), "{line}");
    }
    let report = vmm_says(&[Path::new("report"), &trace]).good();
    assert!(report.stderr.contains("is being written by"), "{report}");
    for format in ["folded", "html"] {
        let export = [
            Path::new("export"),
            &trace,
            Path::new("--format"),
            Path::new(format),
        ];
        let said = vmm_says(&export).good().stderr;
        assert_eq!(
            said.matches("is being written by").count(),
            1,
            "{format}: {said}"
        );
    }
    client.call("shutdown", Value::Null);
    let _ = first.end().0.good();
    let report = vmm_says(&[Path::new("report"), &trace]).good();
    assert!(!report.stderr.contains("written"), "{report}");
    let _ = run(&mut trace_to(&trace, &["--force"])).good();
}

/// Whoever does not look must not believe that all is well.
#[test]
fn a_run_that_traced_says_what_has_become_of_it() {
    let folder = Kernels::new();
    let trace = folder.path().join("trace");
    let ended = run(&mut trace_to(&trace, &["--filter", "calls_*"])).good();
    let calls = ended.printed().total();
    let line = ended.stderr.lines().last().unwrap();
    let path = trace.display();
    assert!(line.starts_with(&format!("vmm: {path}: ")), "{ended}");
    assert!(line.ends_with(&format!("; vmm report {path}")), "{ended}");
    let plain = line.replace(',', "");
    assert!(
        plain.contains(&format!(": {calls} calls of 6 functions ")),
        "{ended}"
    );
    let bare = |tracer: &str| {
        let cmdline = "workload=calls iterations=20";
        let (ended, _) = Guest::new(cmdline)
            .with(["--trace", tracer, "--filter", "calls_*"])
            .run();
        ended.good()
    };
    let graph = bare("graph");
    assert!(graph.stderr.contains("none kept: --output DIR"), "{graph}");
    let profile = bare("profile");
    let leaf = profile.printed().calls["calls_leaf"].to_string();
    let row = profile
        .stderr
        .lines()
        .find(|line| line.ends_with("calls_leaf"));
    assert!(
        row.is_some_and(|row| row.split_whitespace().next() == Some(&leaf)),
        "{profile}"
    );
}

/// Its totals are in another file: a report that finds less says so, and fails.
#[test]
fn a_trace_whose_data_was_cut_is_not_one_without_calls() {
    let folder = Kernels::new();
    let trace = folder.path().join("trace");
    let _ = run(&mut trace_to(&trace, &[])).good();
    std::fs::write(trace.join("1000.dat"), b"").unwrap();
    let report = vmm_says(&[Path::new("report"), &trace]);
    assert_eq!(report.code, Some(100), "{report}");
    for word in ["calls are missing", "exotrace.json"] {
        assert!(report.stderr.contains(word), "{report}");
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_an_early_error() {
    let ended = run(&mut trace_to(Path::new("/proc/self/trace"), &[]));
    assert!(ended.refused(106).contains("/proc/self/trace"), "{ended}");
    let folder = Kernels::new();
    let ended = run(&mut trace_to(&folder.path().join("missing/trace"), &[]));
    let line = ended.refused(106);
    assert!(
        line.contains("missing/trace") && line.contains("must exist"),
        "{line}"
    );
}

/// What is known at the attach only is in the trace from then on, and what changes later too.
#[test]
fn a_trace_says_how_it_was_made() {
    let folder = Kernels::new();
    let output = folder.path().join("trace");
    let mut running = Guest::spinning(&["--output", output.to_str().unwrap()]);
    let mut client = running.client();
    let side = || -> Value {
        let text = std::fs::read(output.join("exotrace.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    };
    assert_eq!(side()["ring_strategy"], "unknown", "before the attach");
    client.call("start", json!({"filter": ["spin_root", "spin_leaf"]}));
    let has = |field: &str, value: Value| side()[field] == value;
    // Who writes it is not who answers: it takes a moment.
    client.wait_until("it is told of the attach", |_| {
        !has("ring_strategy", json!("unknown"))
    });
    let attached = side();
    let strategy = &client.status()["tracing"]["cpu_strategy"];
    assert_eq!(&attached["ring_strategy"], strategy);
    assert_eq!(strategy, "gs");
    let doctor = vmm_says(&["doctor"]).stdout;
    let khz = attached["tsc_khz"].to_string();
    assert!(doctor.contains(&format!(" {khz} kHz\n")), "{khz}: {doctor}");
    assert_eq!(attached["filter"], json!(["spin_root", "spin_leaf"]));
    client.call("filter.remove", json!({"filter": ["spin_leaf"]}));
    client.wait_until("the filter is told", |_| {
        has("filter", json!(["spin_root"]))
    });
    assert_eq!(side()["finished"], false);
    client.call("shutdown", Value::Null);
    let _ = running.end().0.good();
    assert_eq!(side()["finished"], true);
    for field in ["tsc_khz", "ring_strategy"] {
        assert_eq!(side()[field], attached[field], "{field}");
    }
}

/// It was once: whoever asked waited for the disk, and so did everybody after them.
#[test]
fn a_disk_that_takes_nothing_keeps_nobody_from_asking() {
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    let output = running.path("stuck");
    let create = json!({"name": "stuck", "options": {"output": output}});
    client.call("session.create", create);
    // Whoever opens a pipe to write waits for somebody who reads.
    let pipe = output.join("exotrace.json.new");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let of_stuck = |glob: &str| json!({"session": "stuck", "filter": [glob]});
    client.call("start", of_stuck("spin_leaf"));
    let stuck = |status: &Value| {
        let sessions = status["tracing"]["sessions"].as_array().unwrap();
        let found = sessions.iter().find(|session| session["name"] == "stuck");
        found.unwrap().clone()
    };
    client.wait_until("the disk is late", |status| {
        stuck(status)["output_stalled_ms"].as_u64() >= Some(1000)
    });
    let written = |status: &Value| stuck(status)["rings"][0]["written"].as_u64().unwrap();
    let before = written(&client.status());
    client.wait_until("calls are counted", |status| written(status) > before);
    client.call("filter.add", of_stuck("spin_*"));
    client.call("tracing-off", json!({"session": "stuck"}));
    client.call("tracing-on", json!({"session": "stuck"}));
    client.call("stop", json!({"session": "stuck"}));
    let text = running.ctl(&["status"]).good().stdout;
    assert!(text.contains("writing what was read has taken"), "{text}");
    // Now it takes something again.
    let reader = std::thread::spawn(move || std::fs::read(pipe).unwrap());
    client.wait_until("it was written", |status| {
        stuck(status)["output_stalled_ms"].is_null()
    });
    let side: Value = serde_json::from_slice(&reader.join().unwrap()).unwrap();
    assert_eq!(side["finished"], false);
    running.type_text("q");
    let (ended, trace) = running.end();
    let _ = ended.good();
    let trace = trace.named("stuck");
    assert_eq!(trace.side()["finished"], true);
    assert!(trace.counts()["spin_leaf"] > 0);
}

/// A graph of 315,000 calls, or those of them that a slow host has kept, beside which there is nothing; how many those are.
fn long_trace() -> (Kernels, PathBuf, String) {
    let folder = Kernels::new();
    let trace = folder.path().join("trace");
    let graph = [
        "--cmdline",
        "workload=calls iterations=5000",
        "--trace",
        "graph",
    ];
    let mut command = vmm();
    command.arg("run").arg("--kernel").arg(guest());
    command
        .args(graph)
        .args(["--filter", "calls_*", "--output"]);
    let ended = run(command.arg(&trace).stdin(Stdio::null())).good();
    let (said, _) = ended.stderr.split_once(" calls of ").expect("a count");
    let count = said.rsplit(' ').next().expect("a count").to_owned();
    (folder, trace, count)
}

/// What is in a folder, by name.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<String> = entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// It waits at a pipe among its events until the signal is on its way; how far it is when it notices is up to the host.
#[test]
fn an_export_that_is_interrupted_leaves_nothing() {
    let (folder, trace, _) = long_trace();
    let pipe = trace.join("events-0.jsonl");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for format in ["chrome", "ctf"] {
        let to = folder.path().join("exported");
        let export = |_| {
            let mut command = vmm();
            command.arg("export").arg(&trace).args(["--format", format]);
            command.arg("-o").arg(&to).stderr(Stdio::piped());
            let child = command.spawn().expect("it starts");
            // It is open for both now, and there are no events until it is closed.
            let events = File::options().write(true).open(&pipe).unwrap();
            // A file has no name before it is whole.
            let part = usize::from(format == "ctf");
            assert_eq!(names(folder.path()).len(), 1 + part);
            let pid = Pid::from_child(&child);
            kill_process(pid, Signal::INT).unwrap();
            drop(events);
            let ended = Ended::from(child.wait_with_output().unwrap());
            if ended.code == Some(0) {
                let _ = std::fs::remove_file(&to);
                let _ = std::fs::remove_dir_all(&to);
                return false;
            }
            let said = ended.refused(104);
            assert!(said.contains("interrupted: nothing was written"), "{said}");
            assert_eq!(names(folder.path()), ["trace"], "{format}");
            true
        };
        assert!((0..20).any(export), "{format}: never interrupted");
    }
}

/// What is killed cannot tidy up: of a file nothing has a name yet, and the part of a directory goes with the next export.
#[test]
fn a_killed_export_leaves_nothing_that_stays() {
    let (folder, trace, _) = long_trace();
    let pipe = trace.join("events-0.jsonl");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for (format, parts) in [("chrome", 0), ("ctf", 1)] {
        let export = || {
            let mut command = vmm();
            command.arg("export").arg(&trace).args(["--format", format]);
            command.arg("-o").arg(folder.path().join("exported"));
            let child = command.spawn().expect("it starts");
            (child, File::options().write(true).open(&pipe).unwrap())
        };
        let (mut killed, events) = export();
        killed.kill().unwrap();
        let _ = killed.wait().unwrap();
        drop(events);
        assert_eq!(names(folder.path()).len(), 1 + parts, "{format}");
        let (next, events) = export();
        drop(events);
        let _ = Ended::from(next.wait_with_output().unwrap()).good();
        assert_eq!(names(folder.path()), ["exported", "trace"], "{format}");
        let _ = std::fs::remove_file(folder.path().join("exported"));
    }
}

#[test]
fn an_export_shows_how_far_it_is_on_a_terminal_and_only_there() {
    let (folder, trace, calls) = long_trace();
    let to = folder.path().join("exported");
    let command = format!(
        "'{}' export '{}' --format perfetto -o '{}'",
        vmm().get_program().display(),
        trace.display(),
        to.display()
    );
    let drawn = patient("script")
        .args(["-qec", &command, "/dev/null"])
        // Not every user's shell runs commands.
        .envs([("TERM", "xterm"), ("COLUMNS", "100"), ("SHELL", "/bin/sh")])
        .stdin(Stdio::null())
        .output()
        .expect("script starts");
    let drawn = String::from_utf8_lossy(&drawn.stdout).into_owned();
    assert!(drawn.contains(&format!("% of {calls} calls")), "{drawn}");
    assert_eq!(names(folder.path()), ["exported", "trace"]);
    let mut export = vmm();
    export
        .arg("export")
        .arg(&trace)
        .args(["--format", "perfetto", "-o"]);
    export.arg(&to);
    // What is there is somebody's.
    let line = run(&mut export);
    assert!(line.refused(100).contains("exists; --force"), "{line}");
    let ended = run(export.arg("--force"));
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
}
