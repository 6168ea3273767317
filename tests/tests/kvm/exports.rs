//! What other tools read of an exported trace is what there is.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tests::exact::{lossy, on_two_vcpus, with_events};
use tests::{Guest, Trace};

/// A line of `trace-cmd report -t`.
#[derive(Debug)]
struct Line {
    vcpu: u16,
    time_ns: u64,
    event: String,
    text: String,
}

/// The events, and how many are said to be missing.
fn lines(report: &str) -> (Vec<Line>, u64) {
    let (mut lines, mut lost) = (Vec::new(), 0);
    for line in report.lines().filter(|line| !line.starts_with("cpus=")) {
        if let Some((_, dropped)) = line
            .strip_prefix("CPU:")
            .and_then(|rest| rest.split_once('['))
        {
            let count = dropped.strip_suffix(" EVENTS DROPPED]");
            lost += count
                .and_then(|count| count.parse::<u64>().ok())
                .expect("a count");
            continue;
        }
        let (_, rest) = line.split_once('[').expect(line);
        let (vcpu, rest) = rest.split_once(']').expect(line);
        let mut parts = rest.splitn(3, ':');
        let time = parts.next().expect(line).trim().replace('.', "");
        lines.push(Line {
            vcpu: vcpu.parse().expect(line),
            time_ns: time.parse().expect(line),
            event: parts.next().expect(line).trim().to_owned(),
            text: parts.next().expect(line).trim().to_owned(),
        });
    }
    (lines, lost)
}

/// The function that is entered in a line.
fn entered(line: &Line) -> Option<&str> {
    match &*line.event {
        "function" => line.text.split(' ').next(),
        "funcgraph_entry" => {
            let (_, call) = line.text.split_once('|')?;
            call.trim().split('(').next()
        }
        _ => None,
    }
}

fn counts<'a>(lines: impl IntoIterator<Item = &'a Line>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for name in lines.into_iter().filter_map(entered) {
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

fn assert_in_order(lines: &[Line]) {
    let goes_back = lines.windows(2).find(|two| two[0].time_ns > two[1].time_ns);
    assert!(
        goes_back.is_none(),
        "not in the order of time: {goes_back:?}"
    );
}

#[test]
fn trace_cmd_counts_what_a_guest_on_two_vcpus_has_called() {
    for tracer in ["function", "graph"] {
        let (printed, trace) = on_two_vcpus(tracer);
        let (lines, lost) = lines(&trace.trace_cmd());
        assert_eq!((counts(&lines), lost), (printed.called(), 0), "{tracer}");
        // Printed with its plugins, a call's return is looked for among what is next of its vCPU, and what others did meanwhile
        // may come too late: so it was with 7 of 60 graphs, in trace-cmd 3.1.6.
        assert_in_order(&self::lines(&trace.trace_cmd_without_plugins()).0);
        if tracer == "function" {
            assert_in_order(&lines);
        }
        let on_second = lines.iter().filter(|line| line.vcpu == 1).count();
        assert!(on_second > 0, "{tracer}");
    }
}

/// Durations as ours: in microseconds, to the nanosecond.
#[test]
fn trace_cmd_has_the_durations_and_the_events_that_our_reports_have() {
    let trace = with_events();
    let (lines, _) = lines(&trace.trace_cmd());
    assert_in_order(&lines);
    let ours = trace.report("graph");
    let is_event = |line: &&str| line.contains("/* message_sent: ");
    let events = ours.lines().filter(is_event).map(|line| {
        let (_, text) = line.split_once("message_sent: ").expect(line);
        text.trim_end_matches(" */").to_owned()
    });
    let theirs = lines.iter().filter(|line| line.event == "message_sent");
    let theirs: Vec<String> = theirs.map(|line| line.text.clone()).collect();
    assert_eq!(theirs, events.collect::<Vec<_>>());
    assert_eq!(theirs.len(), 40);
    let micros = |text: &str| {
        let mut words = text.split(' ').filter(|word| word.contains('.'));
        words.next().map(str::to_owned)
    };
    let durations = |text: &mut dyn Iterator<Item = &str>| {
        let mut durations: Vec<String> = text.filter_map(micros).collect();
        durations.sort();
        durations
    };
    let calls = ours
        .lines()
        .filter(|line| line.contains(" us ") && line.contains('|'));
    let ours = durations(&mut calls.map(|line| line.split('|').next().unwrap_or_default()));
    let calls = lines
        .iter()
        .filter(|line| line.event.starts_with("funcgraph"));
    let theirs = durations(&mut calls.map(|line| line.text.split('|').next().unwrap_or_default()));
    assert_eq!(theirs, ours);
    assert_eq!(theirs.len(), 80);
}

#[test]
fn trace_cmd_says_how_many_records_were_lost() {
    let (printed, trace) = lossy();
    let (lines, lost) = lines(&trace.trace_cmd());
    let delivered: u64 = counts(&lines).values().sum();
    assert_eq!((counts(&lines), lost), (trace.counts(), trace.lost()));
    assert_eq!(delivered + lost, printed.total());
    assert!(lost > 0);
    assert_in_order(&lines);
}

/// Names that other readers would end at a blank, or take for something else.
#[test]
fn trace_cmd_reads_events_of_probes_whose_names_are_none_for_it() {
    let (ended, trace) = Guest::new("workload=values threads=1 iterations=5")
        .with(["--probe", "optimised_color%return $retval"])
        .output()
        .run();
    let _ = ended.good();
    let (lines, _) = lines(&trace.trace_cmd());
    let named = |line: &&Line| line.event == "optimised_color_return";
    let seen: Vec<&Line> = lines.iter().filter(named).collect();
    assert_eq!(seen.len(), trace.fields("optimised_color%return").len());
    assert!(!seen.is_empty());
    assert!(
        seen.iter()
            .all(|line| line.text.starts_with("retval=VALUES_"))
    );
}

/// A field of a message of protobuf, as its wire format has it.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (byte, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

/// The fields of a message by their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).expect("a length");
                let (inner, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(inner)
            }
            kind => panic!("a field of kind {kind}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

fn number(message: &[u8], of: u64) -> Option<u64> {
    let mut fields = fields(message).into_iter();
    fields.find_map(|(number, field)| match field {
        Field::Number(value) if number == of => Some(value),
        _ => None,
    })
}

/// The message in a field, and in a field of this, and so on.
fn inner<'a>(message: &'a [u8], path: &[u64]) -> Option<&'a [u8]> {
    let Some((of, path)) = path.split_first() else {
        return Some(message);
    };
    let mut fields = fields(message).into_iter();
    fields.find_map(|(number, field)| match field {
        Field::Bytes(bytes) if number == *of => inner(bytes, path),
        _ => None,
    })
}

/// What a viewer makes of a trace in Perfetto's format.
#[derive(Default)]
pub(super) struct Viewed {
    /// Calls of each function, on tracks of threads, and how long they took.
    calls: BTreeMap<String, (u64, u64)>,
    /// Instants by name.
    pub(super) instants: BTreeMap<String, u64>,
    /// Numbers that are told with instants, by `INSTANT.NAME`.
    pub(super) values: BTreeMap<String, Vec<u64>>,
    lost: u64,
}

/// What each sequence of packets has said so far.
#[derive(Default)]
struct Sequence {
    now_ns: u64,
    names: BTreeMap<u64, String>,
    annotations: BTreeMap<u64, String>,
    open: Vec<(String, u64)>,
    is_thread: bool,
}

/// How long the guest was held each time, in the order of time.
fn held_as_reported(trace: &Trace) -> Vec<u64> {
    let report: Value = serde_json::from_str(&trace.report_with("overview", &["--json"])).unwrap();
    let mut pauses: Vec<_> = report["about"]["paused"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    pauses.sort_by_key(|pause| pause["begin_ns"].as_u64());
    let lengths = pauses.iter().map(|pause| pause["length_ns"].as_u64());
    let lengths: Vec<u64> = lengths.map(Option::unwrap).collect();
    assert!(!lengths.is_empty(), "it was held to be patched");
    lengths
}

/// The numbers of fields are those of Perfetto's schema, of which another program than ours has checked them.
pub(super) fn viewed(trace: &Trace) -> Viewed {
    let bytes = std::fs::read(trace.exported("perfetto")).expect("a file");
    let (mut viewed, mut sequences) = (Viewed::default(), BTreeMap::<u64, Sequence>::new());
    let mut last_ns = 0;
    for (number_of_packet, packet) in fields(&bytes) {
        let (1, Field::Bytes(packet)) = (number_of_packet, packet) else {
            panic!("a trace is packets")
        };
        let sequence = sequences
            .entry(number(packet, 10).unwrap_or_default())
            .or_default();
        if let Some(track) = inner(packet, &[60]) {
            sequence.is_thread = inner(track, &[4]).is_some();
        } else if let Some(clocks) = inner(packet, &[6]) {
            assert_eq!(number(packet, 13), Some(1), "nothing of before counts");
            let clock = fields(clocks).pop().map(|(_, field)| field);
            let Some(Field::Bytes(own)) = clock else {
                panic!("no clock")
            };
            assert_eq!((number(own, 1), number(own, 3)), (Some(64), Some(1)));
            sequence.now_ns = number(own, 2).expect("a time");
        } else if let Some(event) = inner(packet, &[11]) {
            assert_eq!(number(packet, 13), Some(2), "names of before count");
            sequence.now_ns += number(packet, 8).expect("a time");
            assert!(sequence.now_ns >= last_ns, "the order of time");
            last_ns = sequence.now_ns;
            let told = inner(packet, &[12]).map(fields).unwrap_or_default();
            for (kind, name) in told {
                let Field::Bytes(name) = name else {
                    panic!("no name")
                };
                let text = String::from_utf8(inner(name, &[2]).expect("a name").to_vec());
                let (iid, text) = (number(name, 1).expect("its number"), text.unwrap());
                let known = match kind {
                    2 => &mut sequence.names,
                    3 => &mut sequence.annotations,
                    other => panic!("names of kind {other}"),
                };
                assert_eq!(known.insert(iid, text), None, "it is told once");
            }
            let name = number(event, 10).map(|name| sequence.names[&name].clone());
            match (number(event, 9), name) {
                (Some(1), Some(name)) => sequence.open.push((name, sequence.now_ns)),
                (Some(2), None) => {
                    let (name, begun_ns) = sequence.open.pop().expect("an end has a beginning");
                    let (calls, sum) = viewed.calls.entry(name).or_default();
                    *calls += u64::from(sequence.is_thread);
                    *sum += sequence.now_ns - begun_ns;
                }
                (Some(3), Some(name)) => {
                    for (of, value) in fields(event) {
                        let (4, Field::Bytes(value)) = (of, value) else {
                            continue;
                        };
                        let field = &sequence.annotations[&number(value, 1).expect("its name")];
                        let known = [3, 4].into_iter().find_map(|of| number(value, of));
                        let values = viewed.values.entry(format!("{name}.{field}"));
                        values.or_default().extend(known);
                    }
                    *viewed.instants.entry(name).or_default() += 1;
                }
                (Some(4), None) => viewed.lost = number(event, 30).expect("a count"),
                other => panic!("{other:?}"),
            }
        }
    }
    // What ran on a vCPU is no call.
    viewed.calls.retain(|_, (calls, _)| *calls > 0);
    let held = viewed.values.remove("guest held.length_ns");
    let held = held.unwrap_or_default();
    let pauses = viewed.instants.remove("guest held").unwrap_or_default();
    assert_eq!(pauses, held.len() as u64);
    assert_eq!(held, held_as_reported(trace));
    viewed
}

#[test]
fn perfetto_is_told_of_every_call_and_how_long_it_took() {
    let (ended, trace) =
        Guest::new("workload=threads,smp,events iterations=200 threads=4 tick=300")
            .vcpus(2)
            .with(["--trace", "graph", "--event", "message_sent"])
            .output()
            .run();
    let _ = ended.good();
    let report: Value = serde_json::from_str(&trace.report_with("counts", &["--json"])).unwrap();
    let rows = report["counts"].as_array().unwrap().iter();
    let ours = rows.map(|row| {
        let [calls, total] = ["calls", "total_ns"].map(|key| row[key].as_u64().unwrap());
        (row["function"].as_str().unwrap().to_owned(), (calls, total))
    });
    let viewed = viewed(&trace);
    assert_eq!(viewed.calls, ours.collect());
    let events = report["events"][0]["count"].as_u64().unwrap();
    assert_eq!(
        viewed.instants,
        [("message_sent".to_owned(), events)].into()
    );
    assert_eq!(viewed.lost, 0);
    let report: Value = serde_json::from_str(&trace.report_with("values", &["--json"])).unwrap();
    let fields = report["values"].as_array().unwrap().iter();
    let ours = fields.map(|field| {
        let [count, different] = ["count", "different"].map(|key| field[key].as_u64().unwrap());
        (
            field["field"].as_str().unwrap().to_owned(),
            (count, different),
        )
    });
    let theirs = viewed.values.into_iter().map(|(field, values)| {
        let different: BTreeSet<_> = values.iter().collect();
        (field, (values.len() as u64, different.len() as u64))
    });
    let ours: BTreeMap<_, _> = ours.collect();
    assert!(!ours.is_empty());
    assert_eq!(theirs.collect::<BTreeMap<_, _>>(), ours);
}

#[test]
fn perfetto_is_told_of_calls_without_returns_and_of_what_is_lost() {
    let (ended, trace) = Guest::new("workload=calls iterations=2000")
        .with([
            "--trace",
            "function",
            "--mode",
            "discard",
            "--ring-size",
            "4",
        ])
        .output()
        .run();
    let printed = ended.good().printed();
    let viewed = viewed(&trace);
    assert_eq!(viewed.instants, trace.counts());
    assert_eq!(viewed.lost, trace.lost());
    let delivered: u64 = viewed.instants.values().sum();
    assert_eq!(delivered + viewed.lost, printed.total());
}

/// Of a trace without returns each call is an instant, in the order of time, and each stack one function.
#[test]
fn calls_without_returns_are_instants_and_stacks_of_one() {
    let (ended, trace) = Guest::new("workload=calls,threads iterations=50")
        .vcpus(2)
        .with(["--trace", "function", "--filter", "calls_*"])
        .output()
        .run();
    let _ = ended.good();
    let expected = trace.counts();
    assert!(!expected.is_empty());
    let json: Value = serde_json::from_str(&trace.export("chrome")).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let times: Vec<f64> = events
        .iter()
        .filter_map(|event| event["ts"].as_f64())
        .collect();
    assert!(times.is_sorted());
    let mut instants = BTreeMap::new();
    for event in events
        .iter()
        .filter(|event| event["ph"] == "i" && event["pid"] == 0)
    {
        if let Some(name) = event["name"]
            .as_str()
            .filter(|name| name.starts_with("calls_"))
        {
            *instants.entry(name.to_owned()).or_default() += 1;
        }
    }
    assert_eq!(instants, expected);
    let folded = trace.export("folded");
    let stacks = folded.lines().map(|line| line.rsplit_once(' ').unwrap());
    let stacks: BTreeMap<String, u64> = stacks
        .map(|(name, calls)| (name.to_owned(), calls.parse().unwrap()))
        .collect();
    assert_eq!(stacks, expected);
    let drawn = trace.export("flamegraph");
    assert!(drawn.contains("calls_leaf ("), "{drawn}");
}

/// Whoever looks at a trace sees why it ends, or what else was done about it.
#[test]
fn perfetto_is_told_of_probes_and_of_triggers_that_fire() {
    let (ended, trace) = Guest::new("workload=calls iterations=20")
        .with(["--trace", "graph", "--filter", "calls_*"])
        .with(["--probe", "calls_trunk"])
        .with(["--trigger", "calls_root: run true x2"])
        .output()
        .run();
    let _ = ended.good();
    let hits = trace.counts()["calls_trunk"];
    let expected = [("calls_trunk", hits), ("trigger fired", 2)];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(viewed(&trace).instants, expected.into());
}
