//! Times in a trace, where the guest's counter has an offset to the host's, and where the guest sets it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::exact::{gated, without_gate};
use tests::{Guest, Trace, scaled};

/// The times of all calls, in the order of the report.
fn times(trace: &Trace) -> Vec<Duration> {
    let report = trace.report("function");
    let lines = report.lines().filter(|line| line.contains("<guest>-"));
    let times = lines.filter_map(|line| line.split_whitespace().nth(2));
    let seconds = times.map(|time| time.trim_end_matches(':').parse().unwrap());
    seconds.map(Duration::from_secs_f64).collect()
}

/// How many records may have wrong times, by why, as the trace says.
fn doubts(trace: &Trace, kind: &str) -> u64 {
    let side = trace.side();
    let notes = side["doubts"].as_array().cloned().unwrap_or_default();
    let note = notes.into_iter().find(|note| note["kind"] == kind);
    note.map_or(0, |note| note["count"].as_u64().unwrap())
}

#[test]
fn times_lie_within_the_run() {
    for vcpus in [1, 2] {
        let workload = "workload=calls,threads iterations=10";
        let guest = Guest::new(workload).vcpus(vcpus).output();
        let begin = Instant::now();
        let (ended, trace) = guest.with(["--trace", "function"]).run();
        let run = begin.elapsed();
        let _ = ended.good();
        let times = times(&trace);
        assert!(times.len() > 100, "{} times", times.len());
        assert!(times[0] > Duration::ZERO && times.is_sorted(), "{times:?}");
        let last = times[times.len() - 1];
        assert!(last <= run, "{last:?} of a run of {run:?}");
        assert_eq!(trace.side()["doubts"], Value::Null, "nothing is in doubt");
    }
}

/// A vCPU's counter is set some seconds ahead while everything is traced: that is noticed, what may be wrong is counted,
/// and what follows has the right times.
#[test]
fn a_guest_that_sets_its_clock_is_noticed() {
    let guest = Guest::new("workload=list,spin").vcpus(2).output();
    let guest = guest.with(["--trace", "function", "--filter", "spin_root"]);
    // What was recorded before the host has noticed is not written over, however late the reader is.
    let guest = guest.with(["--mode", "lossless", "--wait-time", "visible"]);
    let begin = Instant::now();
    let mut running = guest.start();
    running.wait_for("workload spin");
    let mut client = running.client();
    // There is much to write, where it takes long.
    client.call("tracing-off", Value::Null);
    let clocks = |status: &Value| status["tracing"]["vcpu_clocks"].clone();
    let status = client.wait_until("knows the clocks", |status| clocks(status).is_object());
    assert_eq!(clocks(&status)["sets"], 0, "{status}");
    assert_eq!(clocks(&status)["differ"], false, "{status}");
    assert!(
        clocks(&status)["bound_ns"].as_u64().unwrap() > 0,
        "{status}"
    );
    client.call("tracing-on", Value::Null);
    running.type_text("t");
    running.wait_for("clock set");
    let status = client.wait_until("notices", |status| clocks(status)["sets"] == 1);
    assert_eq!(clocks(&status)["differ"], true, "one vCPU's of two");
    let text = running.ctl(&["status"]).good().stdout;
    assert!(text.contains("vCPU clocks: set 1×"), "{text}");
    running.type_text("q");
    let (ended, trace) = running.end();
    let run = begin.elapsed();
    let _ = ended.good();
    assert_eq!(doubts(&trace, "set"), 1);
    assert!(doubts(&trace, "moved") > 0, "{}", trace.side()["doubts"]);
    let report = trace.report("counts");
    assert!(
        report.contains("the guest's clock was set meanwhile"),
        "{report}"
    );
    let last = times(&trace).pop().unwrap();
    assert!(last <= run, "{last:?} of a run of {run:?}");
}

/// Ticks of the guest's own counter that its workload has taken, and those of the waits in it; all of two vCPUs.
fn ticks_of_waits(wait_time: &str) -> (u64, u64) {
    let count = scaled(600_000);
    let workload = format!("workload=bench_smp iterations={count} rounds=1");
    let guest = Guest::new(&workload).vcpus(2).output();
    let guest = guest.with(["--trace", "function", "--filter", "bench_leaf_traced"]);
    let guest = guest.with(["--mode", "lossless", "--ring-size", "64"]);
    let (ended, trace) = guest.with(["--wait-time", wait_time]).run();
    let ended = ended.good();
    assert_eq!(trace.lost(), 0);
    assert_eq!(trace.counts()["bench_leaf_traced"], u64::from(3 * count));
    let times = times(&trace);
    assert!(times.is_sorted(), "a time goes back");
    let side = trace.side();
    assert_eq!(side["doubts"], Value::Null, "nothing is in doubt");
    let lines = ended.stdout.lines().map(str::trim);
    let taken = lines.filter_map(|line| line.strip_prefix("bench "));
    let taken = taken.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    let khz = side["tsc_khz"].as_u64().expect("the counter's frequency");
    let waited = side["waits"]["total_ns"].as_u64().expect("waits") / 1000 * khz / 1000;
    assert!(waited > 0, "nobody has waited");
    (taken.sum(), waited)
}

/// While one waits nobody executes, and that is what no counter of the guest shows. Ticks for which a busy host leaves the guest
/// alone are seen by it, waits or not: less than the waits, once, is what cannot be seen unless they are hidden.
#[test]
fn a_guest_does_not_see_waits_that_are_hidden_from_it() {
    const TRIES: usize = 8;
    let mut tries = (0..TRIES).map(|_| ticks_of_waits("hidden"));
    let mut seen = Vec::new();
    let is_hidden = tries.any(|(taken, waited)| {
        seen.push((taken, waited));
        taken < waited
    });
    assert!(
        is_hidden,
        "ticks that it took, and those in waits: {seen:?}"
    );
    let (taken, waited) = ticks_of_waits("visible");
    assert!(
        taken > waited,
        "it took {taken} ticks with {waited} in waits"
    );
}

/// Filters change, each in a pause, beside waits that are hidden: nothing is lost, and no vCPU ever sees a time before one
/// that any has seen.
#[test]
fn pauses_beside_hidden_waits_lose_nothing_and_turn_no_clock_back() {
    let iterations = format!("iterations={}", scaled(600_000));
    let guest = gated("clock", &iterations).vcpus(2).output();
    let guest = guest.with(["--mode", "lossless", "--ring-size", "64"]);
    let guest = guest.with(["--wait-time", "hidden", "--patch-method", "quiesce"]);
    let mut running = guest.start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.call("start", json!({"filter": ["smp_*"]}));
    running.type_text("q");
    let mut changes = 0;
    // Until the guest has ended.
    for method in ["filter.add", "filter.remove"].iter().cycle() {
        match client.ask(method, json!({"filter": ["calls_*"]})) {
            Some(Ok(_)) => changes += 1,
            _ => break,
        }
    }
    assert!(changes > 0, "the guest had ended");
    let (ended, trace) = running.end();
    let ended = ended.good();
    assert!(ended.stdout.contains("counter clock_back 0"), "{ended}");
    assert_eq!(trace.lost(), 0);
    assert_eq!(trace.counts(), without_gate(ended.printed()).called());
    let side = trace.side();
    assert!(
        side["waits"]["count"].as_u64() > Some(0),
        "nobody has waited"
    );
    assert_eq!(side["doubts"], Value::Null, "nothing is in doubt");
}
