//! Times in a trace, where the guest's counter has an offset to the host's, and where the guest sets it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::exact::{gated, without_gate};
use tests::{Guest, Trace, scaled, usual_or_long};

/// The times of all calls, in the order of the report.
fn times(trace: &Trace) -> Vec<Duration> {
    times_of(&trace.report("function"), None)
}

/// The same of a report that was printed, or of one vCPU's in it.
fn times_of(report: &str, vcpu: Option<u16>) -> Vec<Duration> {
    let on = vcpu.map_or_else(String::new, |vcpu| format!("[{vcpu:03}]"));
    let is_wanted = |line: &&str| line.contains("<guest>-") && line.contains(&on);
    let lines = report.lines().filter(is_wanted);
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
    client.call("tracing-off", Value::Null);
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

/// How long a vCPU has waited, and how far its calls before and after that are apart by its own counter.
#[derive(Debug)]
struct Waited {
    length: Duration,
    gap: Duration,
}

/// Two vCPUs that wait again and again, and are recorded all the same: each of the waits between two calls.
fn waits(wait_time: &str) -> Vec<Waited> {
    let count = scaled(usual_or_long(200_000, 600_000));
    let workload = format!("workload=bench_smp iterations={count} rounds=1");
    let guest = Guest::new(&workload).vcpus(2).output();
    let guest = guest.with(["--trace", "function", "--filter", "bench_leaf_traced"]);
    let guest = guest.with(["--mode", "lossless", "--ring-size", "64"]);
    let (ended, trace) = guest.with(["--wait-time", wait_time]).run();
    let _ = ended.good();
    assert_eq!(trace.lost(), 0);
    assert_eq!(trace.counts()["bench_leaf_traced"], u64::from(3 * count));
    let side = trace.side();
    assert_eq!(side["doubts"], Value::Null, "nothing is in doubt");
    let report = trace.report("function");
    assert!(times_of(&report, None).is_sorted(), "a time goes back");
    let of_vcpu = [0, 1].map(|vcpu| times_of(&report, Some(vcpu)));
    let each = side["waits"]["each"].as_array().expect("waits").iter();
    let waits = each.filter_map(|wait| {
        let ns = |name: &str| Duration::from_nanos(wait[name].as_u64().unwrap());
        let vcpu = usize::try_from(wait["vcpu"].as_u64().unwrap()).unwrap();
        let times = &of_vcpu[vcpu];
        let after = times.partition_point(|time| *time < ns("end_ns"));
        let gap = *times.get(after)? - *times.get(after.checked_sub(1)?)?;
        let length = ns("length_ns");
        Some(Waited { length, gap })
    });
    waits.collect()
}

/// While one waits nobody executes, and that is what no counter of the guest shows. It shows when the host leaves the guest alone
/// for other reasons, also before it continues after a wait: so of many waits a busy host shows as much, but not of all.
#[test]
fn a_guest_does_not_see_waits_that_are_hidden_from_it() {
    let hidden = waits("hidden");
    let unseen = hidden.iter().filter(|wait| wait.gap < wait.length).count();
    assert!(4 * unseen > hidden.len(), "{unseen} of {hidden:?}");
    // Times are printed in microseconds.
    let rounding = Duration::from_micros(1);
    let visible = waits("visible");
    let is_seen = |wait: &Waited| wait.gap + rounding > wait.length;
    assert!(
        !visible.is_empty() && visible.iter().all(is_seen),
        "{visible:?}"
    );
}

/// Filters change, each in a pause, beside waits that are hidden: nothing is lost, and no vCPU ever sees a time before one
/// that any has seen.
#[test]
fn pauses_beside_hidden_waits_lose_nothing_and_turn_no_clock_back() {
    let iterations = format!("iterations={}", scaled(usual_or_long(200_000, 600_000)));
    let guest = gated("clock", &iterations).vcpus(2).output();
    let guest = guest.with(["--mode", "lossless", "--ring-size", "64"]);
    let guest = guest.with(["--wait-time", "hidden", "--patch-method", "quiesce"]);
    let mut running = guest.start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.call("start", json!({"filter": ["smp_*"]}));
    running.type_text("q");
    let mut changes = 0;
    for method in ["filter.add", "filter.remove"].iter().cycle() {
        // Until the guest has ended.
        let Some(reply) = client.ask(method, json!({"filter": ["calls_*"]})) else {
            break;
        };
        reply.unwrap();
        changes += 1;
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
