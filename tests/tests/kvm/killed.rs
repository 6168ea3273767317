//! `vmm run`, `ctl` and `report` are killed at any moment: what was written stays readable, the guest that is talked to does not
//! notice, and nothing that is left is in the way of the next start.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use tests::exact::untraced;
use tests::mortal::{Steps, killed_at};
use tests::{Ended, Guest, Random, counts_of, guest, scaled, until, usual_or_long, vmm};

const CMDLINE: &str = "workload=calls,threads iterations=200 tick=500";

/// How many are killed.
fn lives(of: u32) -> u32 {
    usual_or_long(scaled(of), 300)
}

fn report(trace: &Path) -> Command {
    let mut report = vmm();
    report.arg("report").arg(trace);
    report
}

/// Kills `command` at a step of all that it has, at random, so many times; after each `look` is told how it ended.
fn kill_at_random(command: impl Fn() -> Command, lives: u32, mut look: impl FnMut()) {
    let whole = killed_at(&mut command(), Steps::All, u64::MAX);
    assert!(whole.ended == Some(0) && whole.steps > 50, "{whole:?}");
    let mut random = Random::new();
    for _ in 0..lives {
        let step = 1 + random.next_u64() % whole.steps;
        let lived = killed_at(&mut command(), Steps::All, step);
        assert!(
            lived.ended.is_none_or(|ended| ended == 0),
            "{step}: {lived:?}"
        );
        look();
    }
}

/// Each time into the same directory, with the same socket.
#[test]
fn a_run_that_is_killed_leaves_what_it_has_written_and_is_in_nobodys_way() {
    let expected = untraced(Guest::new(CMDLINE).vcpus(2));
    for store in ["uftrace", "compact"] {
        let folder = tempfile::tempdir().unwrap();
        let [trace, socket] = ["trace", "control"].map(|name| folder.path().join(name));
        let run = || {
            let mut run = vmm();
            run.arg("run").arg("--kernel").arg(guest());
            run.args(["--cmdline", CMDLINE, "--vcpus", "2", "--trace", "graph"]);
            run.args(["--mode", "discard", "--store", store, "--force"]);
            run.arg("--control").arg(&socket);
            run.arg("--output").arg(&trace);
            // What it makes for a moment stays, too, when it is killed.
            run.env("TMPDIR", folder.path());
            run
        };
        let mut cut = 0;
        kill_at_random(run, lives(40), || {
            let report = Ended::from(report(&trace).output().unwrap());
            if report.code != Some(0) {
                // It was killed before there was one.
                let line = report.refused(100);
                assert!(!has_begun(&trace), "{line}");
            } else if report.stderr.contains("not ended in order") {
                cut += 1;
            } else {
                let counts = counts_of(&trace);
                assert_eq!(counts, Some(expected.called()), "{store}: {report}");
            }
        });
        assert!(cut > 0, "{store}: none was killed while it wrote");
        let last = killed_at(&mut run(), Steps::All, u64::MAX);
        assert_eq!(last.ended, Some(0), "{last:?}");
        let counts = counts_of(&trace);
        assert_eq!(counts, Some(expected.called()), "{store}");
    }
}

/// A few calls, of which nothing fills a buffer, and then none for as long as it lives.
#[test]
fn few_calls_are_in_the_trace_before_the_run_is_killed() {
    let calls = "workload=calls,spin iterations=5";
    let expected = untraced(Guest::new("workload=calls iterations=5"));
    let written = [
        ("uftrace", "function"),
        ("uftrace", "graph"),
        ("compact", "graph"),
    ];
    for (store, tracer) in written {
        let guest = Guest::new(calls).vcpus(2).output();
        let guest = guest.with(["--trace", tracer, "--filter", "calls_*", "--store", store]);
        let running = guest.start();
        let trace = running.path("trace");
        until("all of them are in the trace", || {
            counts_of(&trace) == Some(expected.called())
        });
        running.signal("-KILL");
        let (ended, trace) = running.end();
        assert_eq!(ended.code, None, "{ended}");
        let counts = counts_of(&trace.path());
        assert_eq!(counts, Some(expected.called()), "{store}, {tracer}");
    }
}

/// Whether there is what a reader begins with.
fn has_begun(trace: &Path) -> bool {
    let bytes = |name: &str| std::fs::metadata(trace.join(name)).map_or(0, |file| file.len());
    bytes("exotrace.json") > 0 || bytes("records.exo") > 0
}

#[test]
fn whoever_is_killed_while_he_talks_to_a_guest_is_noticed_by_nobody() {
    let mut running = Guest::spinning(&["--trace", "graph"]);
    let text = {
        let mut client = running.client();
        client.call("stop", json!({}));
        client.digest()
    };
    let socket = running.socket().to_owned();
    let verbs: [&[&str]; 5] = [
        &["status"],
        &["start"],
        &["filter", "add", "spin_*"],
        &["session", "list"],
        &["stop"],
    ];
    let (mut random, mut killed) = (Random::new(), 0);
    for verb in verbs {
        let ctl = || {
            let mut ctl = vmm();
            ctl.arg("ctl").arg("--control").arg(&socket).args(verb);
            ctl
        };
        // What was asked for may have been done already: it is refused then.
        let steps = killed_at(&mut ctl(), Steps::All, u64::MAX).steps.max(1);
        for _ in 0..lives(12) {
            let lived = killed_at(&mut ctl(), Steps::All, 1 + random.next_u64() % steps);
            killed += u64::from(lived.ended.is_none());
            let _ = running.ctl(&["status"]).good();
        }
    }
    assert!(killed > 0, "each came to its end");
    // Unless it was stopped.
    let _ = running.ctl(&["stop"]);
    let mut client = running.client();
    assert_eq!(client.digest(), text);
    running.type_text("q");
    let _ = running.end().0.good();
}

/// Names and contents.
fn files(of: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(of).unwrap().map(Result::unwrap);
    files
        .map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, std::fs::read(file.path()).unwrap())
        })
        .collect()
}

#[test]
fn a_report_that_is_killed_leaves_the_trace_as_it_was() {
    let (ended, trace) = Guest::new(CMDLINE)
        .with(["--trace", "graph"])
        .output()
        .run();
    let _ = ended.good();
    let before = files(&trace.path());
    let whole = Ended::from(report(&trace.path()).output().unwrap()).good();
    kill_at_random(
        || report(&trace.path()),
        lives(40),
        || {
            assert_eq!(files(&trace.path()), before);
        },
    );
    let again = Ended::from(report(&trace.path()).output().unwrap()).good();
    assert_eq!(again.stdout, whole.stdout);
}
