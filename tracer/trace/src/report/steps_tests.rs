//! Calls and events one by one, as programs read them.

use serde_json::{Value, json};
use tempfile::TempDir;
use terms::event_format::{EventFormat, EventId};
use terms::field::{Field, FieldType, FieldValue};
use terms::function::FunctionId;

use super::*;
use crate::event::Moment;
use crate::export::call_formats::CallFormats;
use crate::export::store::{Ending, News, Store};
use crate::export::uftrace::{GRAPH, Metadata, NO_CLOCK, UftraceWriter};
use crate::testing::{entry, event, exit, functions, text_of};

/// With a value of each call of `f0`, of each return of `f1`, and of each `sent`; thread 0 has a name with an escape.
fn trace(tracer: &str, events: impl IntoIterator<Item = Event>) -> TempDir {
    trace_by("tsc", tracer, events)
}

/// The same of a session that has this clock.
fn trace_by(clock: &str, tracer: &str, events: impl IntoIterator<Item = Event>) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let functions = functions(3);
    let metadata = Metadata {
        vcpus: 2,
        tracer: tracer.into(),
        clock: clock.into(),
        ..Metadata::default()
    };
    let directory = root.path().join("trace");
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), metadata, false).unwrap();
    let field = [Field {
        name: "a,b".into(),
        kind: FieldType::named("u32").unwrap(),
    }];
    let sent = EventFormat::new("sent".into(), field.to_vec());
    writer.learn(News::Points(&[sent.into()]));
    let captured = [(0, Moment::Entry), (1, Moment::Exit)];
    let captured = captured.map(|(id, moment)| (FunctionId(id), moment, &field[..]));
    let captured = CallFormats::of(&functions, captured.into_iter());
    writer.describe_values(captured).unwrap();
    writer.learn(News::Thread(0, "c\u{1b}t-42".to_owned()));
    for event in events {
        writer.append(event).unwrap();
    }
    Store::finish(&mut writer, Ending::default()).unwrap();
    root
}

/// `f0 { f1  sent }` of thread 0, a loss on the other vCPU, and a clock that was late; the call of `f0` does not end.
fn graph() -> TempDir {
    let with = |event: Event, value| Event {
        values: Some([FieldValue::Unsigned(value)].into()),
        ..event
    };
    let steps = [
        with(event(1_000, 0, 0, 0, entry(0)), 7),
        event(1_100, 0, 0, 1, entry(1)),
        with(event(1_350, 0, 0, 1, exit(1)), 8),
        with(event(2_000, 0, 0, 1, EventKind::Point(EventId(0))), 9),
        event(3_000, 1, 1, 0, EventKind::Lost(5)),
        event(4_000, 1, 1, 0, EventKind::LostPoints(6)),
        event(5_000, 0, 0, 1, EventKind::Stall(400)),
    ];
    trace(GRAPH, steps)
}

fn printed(root: &TempDir, format: Format, notation: Notation) -> String {
    let view = View {
        format,
        notation,
        ..View::default()
    };
    let mut out = Vec::new();
    let printed = print(&root.path().join("trace"), &view, &mut out).unwrap();
    assert_eq!(printed.missing, None);
    String::from_utf8(out).unwrap()
}

fn objects(text: &str) -> Vec<Value> {
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

#[test]
fn each_step_is_an_object_on_its_line() {
    let root = graph();
    let text = printed(&root, Format::Graph, Notation::Json);
    assert!(!text.contains('\u{1b}'), "{text}");
    let (task, name) = ("c\u{1b}t-42", "a,b");
    let expected = [
        json!({"time_ns": 1000, "vcpu": 0, "thread": 0, "task": task, "depth": 0, "kind": "call", "function": "f0", "args": {name: 7}}),
        json!({"time_ns": 1100, "vcpu": 0, "thread": 0, "task": task, "depth": 1, "kind": "call", "function": "f1", "caller": "f0"}),
        json!({"time_ns": 1350, "vcpu": 0, "thread": 0, "task": task, "depth": 1, "kind": "return", "function": "f1", "caller": "f0", "duration_ns": 250, "retval": [8]}),
        json!({"time_ns": 2000, "vcpu": 0, "kind": "event", "event": "sent", "fields": {name: 9}}),
        json!({"time_ns": 3000, "vcpu": 1, "thread": 1, "depth": 0, "kind": "lost", "count": 5}),
        json!({"time_ns": 4000, "vcpu": 1, "kind": "lost-events", "count": 6}),
    ];
    let objects = objects(&text);
    assert_eq!(objects[..6], expected);
    let stall = &objects[6];
    assert_eq!(stall["kind"], "stall");
    assert_eq!(
        (&stall["time_ns"], &stall["length_ns"]),
        (&json!(5000), &json!(400))
    );
    assert!(
        stall["remark"]
            .as_str()
            .is_some_and(|remark| !remark.is_empty())
    );
    assert_eq!(objects.len(), 7);
    // Of entries alone all but the return is there.
    let entries = printed(&root, Format::Function, Notation::Json);
    let mut without_return = objects;
    without_return.remove(2);
    assert_eq!(self::objects(&entries), without_return);
}

/// What records have in place of a time was once shown as one, the same on each line.
#[test]
fn without_a_clock_what_the_guest_recorded_has_no_time() {
    let steps = [
        event(500, 0, 0, 0, entry(1)),
        event(500, 0, 0, 0, exit(1)),
        event(500, 0, 0, 0, EventKind::LostPoints(6)),
    ];
    let root = trace_by(NO_CLOCK, GRAPH, steps);
    let host = "{\"time_ns\":700,\"vcpu\":0,\"event\":\"host:kvm_entry\"}\n";
    std::fs::write(root.path().join("trace/host-0.jsonl"), host).unwrap();
    let objects = objects(&printed(&root, Format::Graph, Notation::Json));
    let times: Vec<&Value> = objects.iter().map(|line| &line["time_ns"]).collect();
    let (unknown, known) = (&Value::Null, &json!(700));
    assert_eq!(times, [unknown, unknown, unknown, known]);
    assert!(
        objects
            .iter()
            .all(|line| line.as_object().unwrap().contains_key("time_ns"))
    );
    let rows = printed(&root, Format::Graph, Notation::Csv);
    let rows: Vec<&str> = rows.lines().skip(1).collect();
    let times = rows.iter().map(|row| row.split_once(',').unwrap().0);
    assert_eq!(times.collect::<Vec<_>>(), ["", "", "", "700"]);
    let text = printed(&root, Format::Function, Notation::Text);
    assert!(text.contains("[000]            -: f1\n"), "{text}");
    assert!(
        text.contains("[000]     0.000000: host:kvm_entry"),
        "{text}"
    );
}

#[test]
fn each_step_is_a_row_of_comma_separated_values() {
    let text = printed(&graph(), Format::Graph, Notation::Csv);
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(
        rows[..7],
        [
            "time_ns,vcpu,thread,task,depth,kind,name,caller,duration_ns,count,remark,values",
            r#"1000,0,0,c?t-42,0,call,f0,,,,,"{""a,b"":7}""#,
            "1100,0,0,c?t-42,1,call,f1,f0,,,,",
            "1350,0,0,c?t-42,1,return,f1,f0,250,,,[8]",
            r#"2000,0,,,,event,sent,,,,,"{""a,b"":9}""#,
            "3000,1,1,,0,lost,,,,5,,",
            "4000,1,,,,lost-events,,,,6,,",
        ]
    );
    assert!(rows[7].starts_with("5000,,,,,stall,,,400,,"), "{}", rows[7]);
    assert_eq!(rows.len(), 8);
}

#[test]
fn calls_without_returns_are_entries_and_have_no_caller() {
    let calls = [event(10, 0, 0, 0, entry(1)), event(20, 1, 1, 0, entry(2))];
    let root = trace("function", calls);
    let objects = objects(&printed(&root, Format::Function, Notation::Json));
    let expected = [
        json!({"time_ns": 10, "vcpu": 0, "thread": 0, "depth": 0, "kind": "entry", "function": "f1"}),
        json!({"time_ns": 20, "vcpu": 1, "thread": 1, "depth": 0, "kind": "entry", "function": "f2"}),
    ];
    assert_eq!(objects, expected);
}
