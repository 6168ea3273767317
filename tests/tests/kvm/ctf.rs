//! What babeltrace2 reads of a trace in the Common Trace Format is what there is.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;
use tests::exact::{lossy, on_two_vcpus};
use tests::{Guest, Trace};

/// A line of babeltrace2.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line {
    time_ns: u64,
    vcpu: u16,
    event: String,
    pub(super) fields: String,
}

impl Line {
    /// `[0.058940163] (+0.000011347) message_sent: { cpu_id = 0 }, { from = 0, to = 5 }`
    fn of(text: &str) -> Self {
        let (time, rest) = text.split_once("] (").expect(text);
        let (_, rest) = rest.split_once(") ").expect(text);
        let (event, rest) = rest.split_once(": { cpu_id = ").expect(text);
        let (vcpu, fields) = rest.split_once(" }, { ").expect(text);
        Self {
            time_ns: time[1..].replace('.', "").parse().expect(text),
            vcpu: vcpu.parse().expect(text),
            event: event.to_owned(),
            fields: fields.strip_suffix(" }").expect(text).to_owned(),
        }
    }

    /// The name of an enumerator: `function = ( "calls_root" : container = 129 )`.
    fn named(&self, field: &str) -> &str {
        let (_, rest) = self.fields.split_once(&format!("{field} = ( \"")).unwrap();
        rest.split_once('"').unwrap().0
    }
}

/// All lines, and how many records are said to be discarded.
pub(super) fn babeltrace(trace: &Trace) -> (Vec<Line>, u64) {
    let directory = trace.exported("ctf");
    let said = Command::new("babeltrace2")
        .args(["--clock-seconds", "--color=never"])
        .arg(directory)
        .output()
        .expect("babeltrace2 is installed");
    assert!(said.status.success(), "{said:?}");
    let [lines, warnings] = [said.stdout, said.stderr].map(|text| String::from_utf8(text).unwrap());
    let discarded = warnings.lines().map(|line| {
        let (_, rest) = line.split_once("Tracer discarded ").expect(line);
        rest.split_once(' ').unwrap().0.parse::<u64>().expect(line)
    });
    let discarded = discarded.sum();
    let lines: Vec<Line> = lines.lines().map(Line::of).collect();
    let times = lines.iter().map(|line| line.time_ns);
    assert!(times.is_sorted(), "the order of time");
    (lines, discarded)
}

fn counts(lines: &[Line], event: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in lines.iter().filter(|line| line.event == event) {
        *counts.entry(line.named("function").to_owned()).or_default() += 1;
    }
    counts
}

/// The entries as our own report has them.
fn entries(trace: &Trace) -> Vec<(u64, u16, String)> {
    let text = trace.report_with("function", &["--ns"]);
    let entry = |line: &str| {
        let (_, rest) = line.split_once('[').expect(line);
        let (vcpu, rest) = rest.split_once(']').expect(line);
        let (time, name) = rest.trim().split_once(": ").expect(line);
        let name = name.split_once(" <-").map_or(name, |(name, _)| name);
        let time = time.replace('.', "").parse().expect(line);
        (time, vcpu.parse().expect(line), name.to_owned())
    };
    let is_remark = |line: &&str| !line.starts_with('#');
    let mut entries: Vec<_> = text.lines().filter(is_remark).map(entry).collect();
    entries.sort();
    entries
}

#[test]
fn babeltrace_has_every_call_at_its_time_on_its_vcpu() {
    for (tracer, event) in [("function", "function"), ("graph", "func_entry")] {
        let (printed, trace) = on_two_vcpus(tracer);
        let (lines, discarded) = babeltrace(&trace);
        assert_eq!(discarded, 0);
        assert_eq!(counts(&lines, event), printed.called(), "{tracer}");
        let theirs = lines.iter().filter(|line| line.event == event);
        let mut theirs: Vec<_> = theirs
            .map(|line| (line.time_ns, line.vcpu, line.named("function").to_owned()))
            .collect();
        theirs.sort();
        assert_eq!(theirs, entries(&trace), "{tracer}");
        let ends = counts(&lines, "func_exit");
        match tracer {
            "graph" => assert_eq!(ends, printed.called()),
            _ => assert!(ends.is_empty()),
        }
    }
}

#[test]
fn babeltrace_warns_of_every_record_that_was_lost() {
    let (printed, trace) = lossy();
    let (lines, discarded) = babeltrace(&trace);
    let delivered: u64 = counts(&lines, "function").values().sum();
    assert_eq!(counts(&lines, "function"), trace.counts());
    assert_eq!(discarded, trace.lost());
    assert_eq!(delivered + discarded, printed.total());
    assert!(discarded > 0);
}

/// What an event and a probe hold, as numbers, addresses and text; and what was captured of calls.
#[test]
fn babeltrace_has_the_values_that_our_reports_have() {
    let (ended, trace) = Guest::new("workload=events,values iterations=40 threads=1")
        .with(["--trace", "graph", "--filter", "events_*"])
        .with(["--event", "message_sent"])
        .with(["--probe", "optimised_color%return $retval"])
        .output()
        .run();
    let _ = ended.good();
    let (lines, discarded) = babeltrace(&trace);
    assert_eq!(discarded, 0);
    for (event, count) in [("message_sent", 40), ("optimised_color%return", 0)] {
        let named = lines.iter().filter(|line| line.event == event);
        let theirs: Vec<_> = named.map(|line| values(&line.fields)).collect();
        let ours: Vec<_> = trace.fields(event).iter().map(our_values).collect();
        assert_eq!(theirs, ours, "{event}");
        assert!(
            !ours.is_empty() && (count == 0 || ours.len() == count),
            "{event}"
        );
    }
}

/// The text of a field of calls: `returned = "7"`.
fn told<'a>(fields: &'a str, field: &str) -> Option<&'a str> {
    let (_, rest) = fields.split_once(&format!(", {field} = \""))?;
    Some(
        rest.split_once("\", ")
            .map_or_else(|| rest.trim_end_matches('"'), |(text, _)| text),
    )
}

/// babeltrace2 keeps what a field of text had where an empty one follows: results of calls that have none were shown.
#[test]
fn babeltrace_has_of_a_call_what_is_known_of_it_and_nothing_else() {
    let (ended, trace) = Guest::new("workload=calls,c_mcount iterations=20")
        .with(["--trace", "graph", "--args", "--retval"])
        .output()
        .run();
    let _ = ended.good();
    let (lines, _) = babeltrace(&trace);
    let is_step = |line: &&Line| line.event.starts_with("func_");
    let theirs: Vec<_> = lines
        .iter()
        .filter(is_step)
        .map(|line| {
            let known = ["args", "returned"].map(|field| told(&line.fields, field).is_some());
            let end = told(&line.fields, "end").map(str::to_owned);
            let is_entry = line.event == "func_entry";
            (
                is_entry,
                line.time_ns,
                line.named("function").to_owned(),
                known,
                end,
            )
        })
        .collect();
    let ours = trace.report_with("graph", &["--json"]);
    let ours: Vec<Value> = ours
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let is_step = |line: &&Value| ["call", "return"].map(Value::from).contains(&line["kind"]);
    let ours: Vec<_> = ours
        .iter()
        .filter(is_step)
        .map(|line| {
            let text = |field: &str| line[field].as_str().map(str::to_owned);
            let known = ["args", "retval"].map(|field| line.get(field).is_some());
            let time_ns = line["time_ns"].as_u64().unwrap();
            let is_entry = line["kind"] == "call";
            (
                is_entry,
                time_ns,
                text("function").unwrap(),
                known,
                text("remark"),
            )
        })
        .collect();
    assert_eq!(theirs, ours);
    // Else nothing was tried.
    for (entries, of) in [(true, 0), (false, 1)] {
        let steps = || ours.iter().filter(|(is_entry, ..)| *is_entry == entries);
        let has = |is_known: bool| steps().any(|(.., known, _)| known[of] == is_known);
        assert!(has(true) && has(false), "with what is known, and without");
    }
}

/// Values by name: `from = 0, color = "RED"`.
fn values(fields: &str) -> BTreeMap<String, String> {
    let value = |field: &str| {
        let (name, value) = field.split_once(" = ").expect(field);
        (name.to_owned(), value.trim_matches('"').to_owned())
    };
    fields.split(", ").map(value).collect()
}

/// The same of an event as our trace has it: what is no number says what it is.
fn our_values(fields: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::Object(named) => named.values().next().unwrap().as_str().unwrap().to_owned(),
        number => number.to_string(),
    };
    let fields = fields.as_object().unwrap().iter();
    fields
        .map(|(name, value)| (name.clone(), text(value)))
        .collect()
}
