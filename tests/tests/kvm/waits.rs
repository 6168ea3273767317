//! Every reader of a trace is told of the waits of vCPUs for the reader of their rings: one by one where it has moments, in
//! a sentence where it adds up.

use std::fs;

use serde_json::{Value, json};
use tests::exact::gated;
use tests::{Ended, Trace, vmm_says};

use super::ctf::babeltrace;
use super::exports::viewed;
use super::html::browsed;
use super::parquet::{number, rows, text};

/// What a wait is called where each is.
const ONE: &str = "for the reader up to here";

/// A graph on two vCPUs in the smallest rings.
fn waited<const N: usize>(options: [&str; N]) -> (Ended, Trace) {
    let rest = "iterations=300 threads=4 tick=100";
    let guest = gated("threads,smp,calls", rest).vcpus(2);
    let guest = guest.with(["--trace", "graph", "--notrace", "spin_*"]);
    let guest = guest.with(["--mode", "lossless", "--ring-size", "64"]);
    let mut running = guest.with(options).output().start();
    running.type_text("q");
    let (ended, trace) = running.end();
    (ended.good(), trace)
}

/// How long each was, in the order in which they ended.
fn lengths(trace: &Trace) -> Vec<u64> {
    let side = trace.side();
    let mut each = side["waits"]["each"].as_array().unwrap().clone();
    each.sort_by_key(|wait| wait["end_ns"].as_u64());
    let lengths = each.iter().map(|wait| wait["length_ns"].as_u64().unwrap());
    let lengths: Vec<u64> = lengths.collect();
    assert!(!lengths.is_empty(), "nobody has waited: {side}");
    assert_eq!(side["waits"]["count"], json!(lengths.len()));
    assert_eq!(
        side["waits"]["total_ns"],
        json!(lengths.iter().sum::<u64>())
    );
    lengths
}

fn times(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

/// What `vmm` says of a trace on stderr.
fn noted(verb: &[&str], trace: &Trace, options: &[&str]) -> String {
    let path = trace.path();
    let words = [verb, &[path.to_str().unwrap()], options].concat();
    vmm_says(&words).good().stderr
}

#[test]
fn every_report_and_every_export_tells_of_waits() {
    let (_, trace) = waited([]);
    let lengths = lengths(&trace);
    let count = lengths.len();
    let sentence = format!("{count} waits of vCPUs for the reader, ");
    // A number of some thousands has commas.
    let plain = |said: &str| said.replace(',', "");
    let tells = |said: &str| {
        let (said, sentence) = (plain(said), plain(&sentence));
        assert!(said.contains(&sentence), "{sentence}: {said}");
        assert!(said.contains("calls that were open meanwhile have it in their times"));
    };

    for format in [
        "overview", "counts", "callers", "callees", "slowest", "values", "timeline",
    ] {
        tells(&trace.report(format));
    }
    for format in ["function", "graph"] {
        let said = trace.report(format);
        tells(&said);
        assert_eq!(times(&said, ONE), count, "{format}");
        let lines = trace.report_with(format, &["--json"]);
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let waits = lines.filter(|line: &Value| line["kind"] == "wait");
        let found: Vec<_> = waits
            .map(|line| line["length_ns"].as_u64().unwrap())
            .collect();
        assert_eq!(found, lengths, "{format} as JSON");
        tells(&noted(
            &["report", "--format", format, "--json"],
            &trace,
            &[],
        ));
    }
    let counts: Value = serde_json::from_str(&trace.report_with("counts", &["--json"])).unwrap();
    tells(&counts["remarks"].to_string());
    tells(&noted(
        &["report", "--format", "counts", "--csv"],
        &trace,
        &[],
    ));
    let same = trace.path();
    tells(&noted(&["diff"], &trace, &[same.to_str().unwrap()]));

    let chrome: Value = serde_json::from_str(&trace.export("chrome")).unwrap();
    let events = chrome["traceEvents"].as_array().unwrap().iter();
    let waits = events.filter(|event| {
        event["name"]
            .as_str()
            .is_some_and(|name| name.ends_with(ONE))
    });
    assert_eq!(waits.count(), count, "chrome");
    assert_eq!(times(&trace.trace_cmd(), ONE), count, "trace-cmd");
    assert_eq!(
        times(&trace.uftrace_says(&["replay", "--event-full"]), ONE),
        count,
        "uftrace"
    );
    let (lines, _) = babeltrace(&trace);
    let waits = lines.iter().filter(|line| line.fields.contains(ONE));
    assert_eq!(waits.count(), count, "CTF");
    let seen = viewed(&trace);
    let name = "waited for the reader until here";
    assert_eq!(seen.instants.get(name), Some(&(count as u64)), "perfetto");
    assert_eq!(
        seen.values[&format!("{name}.length_ns")],
        lengths,
        "perfetto"
    );
    let remarks = rows(&trace.exported("parquet"), "remarks");
    let waits = remarks
        .iter()
        .filter(|row| text(row, "what") == Some("wait"));
    let found: Vec<_> = waits.map(|row| number(row, "length_ns").unwrap()).collect();
    assert_eq!(found, lengths, "parquet");

    tells(&noted(&["export", "--format", "folded"], &trace, &[]));
    let picture = fs::read_to_string(trace.exported("flamegraph")).unwrap();
    let (picture, said) = (plain(&picture), format!("{count} waits for the reader ("));
    assert!(picture.contains(&said), "{said}");
    tells(&noted(&["export", "--format", "flamegraph"], &trace, &[]));
    let script = "
        const shown = timeline.waits.map(wait => wait.length);
        const isOnItsLine = wait => timeline.lines[wait.row].name === wait.line && wait.end - wait.columns >= -1 && wait.end <= timeline.columns + 1;
        return { shown, placed: timeline.waits.every(isOnItsLine), said: document.getElementById('about').textContent };";
    let said = browsed(&trace.exported("html"), script);
    let most = count.min(4096);
    let shown = said["shown"].as_array().unwrap();
    assert_eq!((shown.len(), &said["placed"]), (most, &json!(true)), "page");
    tells(said["said"].as_str().unwrap());
}

/// A trace that is kept otherwise tells the same, and what is made of it for uftrace.
#[test]
fn a_compact_trace_tells_of_waits_as_its_directory_does() {
    let (_, trace) = waited(["--store", "compact"]);
    let count = trace.report("graph");
    let count = times(&count, ONE);
    assert!(count > 0, "nobody has waited");
    let _ = trace.exported("uftrace");
    let directory = trace.named("uftrace");
    assert_eq!(lengths(&directory).len(), count);
    assert_eq!(directory.side()["wait_time"], "visible");
    assert_eq!(times(&directory.report("graph"), ONE), count);
    assert_eq!(times(&directory.trace_cmd(), ONE), count);
}
