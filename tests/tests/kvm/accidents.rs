//! Ends that nobody wished for: each has its status and one line, and the trace is finished.

use std::fs::File;
use std::process::Stdio;

use serde_json::Value;
use tests::elf::{Kernels, bare};
use tests::{Client, Ended, Guest, Trace, counts_of, guest, limited, until, vmm, vmm_says};

fn runs(code: &[u8], limit: &str) -> Ended {
    let folder = Kernels::new();
    let kernel = folder.write("bare.elf", &bare(code));
    vmm_says(&[
        "run",
        "--kernel",
        kernel.to_str().unwrap(),
        "--timeout",
        limit,
    ])
}

#[test]
fn a_triple_fault_is_a_crash_that_says_where() {
    // An undefined instruction where there is no IDT.
    let ended = runs(&[0x0f, 0x0b], "30");
    assert!(
        ended.refused(102).contains("the guest crashed: vCPU 0"),
        "{ended}"
    );
}

#[test]
fn a_guest_that_never_ends_meets_its_limit() {
    assert!(runs(&[0xeb, 0xfe], "1").refused(103).contains("--timeout"));
    // Halted, with interrupts off.
    assert!(
        runs(&[0xfa, 0xf4, 0xeb, 0xfd], "1")
            .refused(103)
            .contains("--timeout")
    );
}

/// Of a guest that had not ended well nothing said so.
#[test]
fn console_output_that_is_lost_is_said_beside_what_went_wrong() {
    let runs = |seconds: &str| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut run = vmm();
        run.args(["run", "--cmdline", "workload=list,spin", "--timeout"]);
        run.arg(seconds).arg("--kernel").arg(guest());
        let ended = run.stdin(Stdio::null()).stdout(full).output();
        Ended::from(ended.expect("vmm starts"))
    };
    let lost = "the guest's console output is lost: stdout: No space";
    let ended = limited(runs, |ended| ended.stderr.contains(lost));
    assert_eq!(ended.code, Some(103), "{ended}");
    for said in [lost, "did not end within"] {
        assert!(ended.stderr.contains(said), "no '{said}': {ended}");
    }
    ended.no_panic();
}

#[test]
fn a_guest_that_rings_the_doorbell_all_the_time_does_not_fill_the_log() {
    // mov dx, 0xf6; again: out dx, al; jmp again
    let code = [0x66, 0xba, 0xf6, 0x00, 0xee, 0xeb, 0xfd];
    let said = |ended: &Ended| ended.stderr.matches("announced").count();
    let ended = limited(|seconds| runs(&code, seconds), |ended| said(ended) > 0);
    assert_eq!(ended.code, Some(103), "{ended}");
    let said = said(&ended);
    assert!((1..=20).contains(&said), "{said} remarks");
}

#[test]
fn the_guests_own_failures_are_its_own_statuses() {
    let (ended, _) = Guest::new("workload=panic").run();
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(1), ""),
        "{ended}"
    );
    let (ended, _) = Guest::new("workload=fault").run();
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(2), ""),
        "{ended}"
    );
    let (ended, _) = Guest::new("workload=nonsense").run();
    assert_eq!(ended.code, Some(1));
    assert!(ended.stdout.contains("nonsense"), "{ended}");
}

/// A traced `spin`.
fn spin() -> Guest {
    let guest = Guest::new("workload=spin").vcpus(2).output();
    let guest = guest.with(["--trace", "function", "--filter", "spin_root"]);
    guest.with(["--ring-size", "64"])
}

/// The same, with records written already.
fn spinning() -> tests::Running {
    let mut running = spin().start();
    let seen = |status: &Value| Client::rings(status, "read") > 1000;
    running.client().wait_until("reads records", seen);
    running
}

fn assert_readable(trace: &Trace) {
    let counts = trace.counts();
    assert!(counts["spin_root"] > 0);
    assert_eq!(counts, trace.uftrace());
}

#[test]
fn ctrl_c_finishes_the_trace() {
    for signal in ["-INT", "-TERM"] {
        let running = spinning();
        running.signal(signal);
        let socket = running.socket().to_owned();
        let (ended, trace) = running.end();
        assert_eq!(ended.code, Some(104), "{ended}");
        ended.no_panic();
        assert!(!socket.exists(), "the socket is left behind");
        assert_readable(&trace);
        assert!(!trace.report("function").contains("end may be missing"));
    }
}

/// Nothing can be finished; what is on the disk is whole records.
#[test]
fn a_killed_vmm_leaves_a_readable_trace() {
    let running = spin().start();
    let trace = running.path("trace");
    let is_written = || counts_of(&trace).is_some_and(|counts| !counts.is_empty());
    until("records are written", is_written);
    running.signal("-KILL");
    let (ended, trace) = running.end();
    assert_eq!(ended.code, None);
    assert_readable(&trace);
}

#[test]
fn a_time_limit_finishes_the_trace() {
    let (ended, trace) = limited(
        |seconds| spin().with(["--timeout", seconds]).run(),
        |(ended, _)| last_calls(ended) >= 40,
    );
    assert_eq!(ended.code, Some(103), "{ended}");
    assert_readable(&trace);
    assert_last_calls(&ended, &["all of them: vmm report "]);
}

#[test]
fn a_dead_guest_s_last_calls_are_shown_without_a_trace_directory_too() {
    let trace = ["--trace", "graph", "--filter", "spin_*"];
    let guest = || Guest::new("workload=spin").vcpus(2).with(trace);
    let (ended, _) = limited(
        |seconds| guest().with(["--timeout", seconds]).run(),
        |(ended, _)| last_calls(ended) >= 40,
    );
    assert_eq!(ended.code, Some(103), "{ended}");
    assert_last_calls(&ended, &["spin_root() {", "--output DIR keeps all"]);
}

/// Put together where the run may still write.
#[test]
fn a_dead_guest_s_last_calls_are_shown_of_a_compact_trace_too() {
    let guest = || spin().with(["--store", "compact"]);
    let (ended, trace) = limited(
        |seconds| guest().with(["--timeout", seconds]).run(),
        |(ended, _)| last_calls(ended) >= 40,
    );
    assert_eq!(ended.code, Some(103), "{ended}");
    assert_last_calls(&ended, &["all of them: vmm report "]);
    assert!(!trace.counts().is_empty());
}

/// How many lines of calls are shown at the end.
fn last_calls(ended: &Ended) -> usize {
    let lines = ended.stderr.lines();
    lines.filter(|line| line.contains("spin_")).count()
}

/// The last calls of both vCPUs, and these words.
fn assert_last_calls(ended: &Ended, words: &[&str]) {
    let header = "last 20 calls of each vCPU (session default):";
    for word in [header, "spin_root"].iter().chain(words) {
        assert!(ended.stderr.contains(word), "no '{word}': {ended}");
    }
    let calls = last_calls(ended);
    // Of a graph there are lines of exits as well.
    assert!(
        (40..=120).contains(&calls),
        "{calls} lines of calls: {ended}"
    );
    ended.no_panic();
}

/// The guest dies of a fault after traced calls: the trace has them all.
#[test]
fn a_trace_survives_the_guests_death() {
    let trace = ["--trace", "function", "--mode", "discard"];
    let guest = Guest::new("workload=calls,fault iterations=100").with(trace);
    let (ended, trace) = guest.output().run();
    assert_eq!(ended.code, Some(2), "{ended}");
    assert_eq!(trace.counts(), ended.printed().called());
}
