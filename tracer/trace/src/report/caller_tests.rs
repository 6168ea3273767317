//! Traces of functions whose calls say where they were made.

use serde_json::{Value, json};
use tempfile::TempDir;
use terms::addr::Gva;
use terms::field::FieldValue;
use terms::function::Function;

use super::*;
use crate::event::Event;
use crate::export::uftrace::{Metadata, UftraceWriter};
use crate::graph::excerpt::Excerpt;
use crate::testing::{entry, event, text_of};

/// `f0`, `f1` and `f2`: 16 bytes of every 128.
fn functions() -> Vec<Function> {
    let apart = |mut function: Function| {
        function.address = Gva(0xffff_ffff_8010_0000 + 8 * (function.address.0 & 0xffff));
        function
    };
    crate::testing::functions(3)
        .into_iter()
        .map(apart)
        .collect()
}

/// `f1` is called in `f0`, by its last instruction, by what no symbol names (between functions, and below all of them), and
/// from nobody knows where; then `f2` by `f1`.
fn trace() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let functions = functions();
    let metadata = Metadata {
        vcpus: 1,
        tracer: "function".into(),
        clock: "tsc".into(),
        callers: true,
        ..Metadata::default()
    };
    let path = root.path().join("trace");
    let mut writer = UftraceWriter::create(&path, text_of(&functions), metadata, false).unwrap();
    let calls = [
        (1, Some(0xffff_ffff_8010_0005)),
        (1, Some(0xffff_ffff_8010_0010)),
        (1, Some(0xffff_ffff_8010_0014)),
        (1, Some(0x1000)),
        (1, None),
        (2, Some(0xffff_ffff_8010_0081)),
    ];
    for ((function, caller), time_ns) in calls.into_iter().zip((1_000..).step_by(1_000)) {
        let call = Event {
            values: caller.map(|at| [FieldValue::Pointer(Gva(at))].into()),
            ..event(time_ns, 0, 0, 0, entry(function))
        };
        writer.append(call).unwrap();
    }
    writer.finish().unwrap();
    root
}

fn printed(format: Format, notation: Notation) -> String {
    let view = View {
        format,
        notation,
        has_nanoseconds: true,
        ..View::default()
    };
    let mut out = Vec::new();
    let printed = print(&trace().path().join("trace"), &view, &mut out).unwrap();
    assert_eq!((printed.missing, printed.entries), (None, 6));
    String::from_utf8(out).unwrap()
}

#[test]
fn each_call_is_shown_with_what_made_it() {
    let text = printed(Format::Function, Notation::Text);
    let shown = text
        .lines()
        .filter_map(|line| Some(line.split_once(": ")?.1));
    let shown: Vec<&str> = shown
        .filter(|call| call.starts_with('f') && !call.starts_with("function"))
        .collect();
    let expected = [
        "f1 <-f0",
        // The instruction of the call is the last one of its function.
        "f1 <-f0",
        "f1 <-0xffffffff80100014",
        "f1 <-0x1000",
        "f1",
        "f2 <-f1",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn programs_are_told_what_made_a_call_and_where() {
    let text = printed(Format::Function, Notation::Json);
    let lines = text.lines().map(serde_json::from_str);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>().unwrap();
    let call = |time_ns: u64, name: &str| json!({"time_ns": time_ns, "vcpu": 0, "thread": 0, "depth": 0, "kind": "entry", "function": name});
    let from = |mut call: Value, caller: &str, address: &str| {
        call["caller"] = json!(caller);
        call["return_address"] = json!(address);
        call
    };
    let expected = [
        from(call(1000, "f1"), "f0", "0xffffffff80100005"),
        from(call(2000, "f1"), "f0", "0xffffffff80100010"),
        from(call(3000, "f1"), "0xffffffff80100014", "0xffffffff80100014"),
        from(call(4000, "f1"), "0x1000", "0x1000"),
        call(5000, "f1"),
        from(call(6000, "f2"), "f1", "0xffffffff80100081"),
    ];
    assert_eq!(lines, expected);
    let csv = printed(Format::Function, Notation::Csv);
    let rows: Vec<&str> = csv.lines().skip(1).collect();
    let first = r#"1000,0,0,,0,entry,f1,f0,,,,"{""return_address"":""0xffffffff80100005""}""#;
    assert_eq!((rows[0], rows[4]), (first, "5000,0,0,,0,entry,f1,,,,,"));
}

#[test]
fn calls_are_added_up_by_who_made_them() {
    let rows = |format| {
        let text = printed(format, Notation::Csv);
        let rows = text.lines().skip(1).map(str::to_owned);
        rows.collect::<Vec<String>>()
    };
    // What is in no function of the guest is nobody who is known.
    let callers = ["3,f1,", "2,f1,f0", "1,f2,f1"];
    assert_eq!(rows(Format::Callers), callers);
    let callees = ["3,,f1", "2,f0,f1", "1,f1,f2"];
    assert_eq!(rows(Format::Callees), callees);
}

#[test]
fn other_tools_are_told_what_made_a_call() {
    let root = trace();
    let trace = TraceDirectory::open(&root.path().join("trace")).unwrap();
    let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
    let mut out = Vec::new();
    crate::convert::chrome(&trace, &mut calls, |note| panic!("{note}"), &mut out).unwrap();
    let json: Value = serde_json::from_slice(&out).unwrap();
    let calls = json["traceEvents"].as_array().unwrap().iter();
    let calls = calls.filter(|one| {
        one["name"]
            .as_str()
            .is_some_and(|name| name.starts_with('f'))
    });
    let callers: Vec<&Value> = calls.map(|call| &call["args"]["caller"]).collect();
    let expected = [json!("f0"), json!("f0"), json!("0xffffffff80100014")];
    assert_eq!(callers[..3], expected.each_ref());
    assert_eq!((callers.len(), callers[4]), (6, &Value::Null));
}

#[test]
fn a_trace_dat_says_where_a_call_was_made() {
    let root = trace();
    let trace = TraceDirectory::open(&root.path().join("trace")).unwrap();
    let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
    let (mut out, note) = (Vec::new(), |note: &str| panic!("{note}"));
    let room = std::env::temp_dir();
    crate::convert::trace_dat(&trace, &mut calls, note, &room, &mut out, None).unwrap();
    let pairs = [
        (0xffff_ffff_8010_0080u64, 0xffff_ffff_8010_0005u64),
        (0xffff_ffff_8010_0080, 0x1000),
        (0xffff_ffff_8010_0080, 0),
        (0xffff_ffff_8010_0100, 0xffff_ffff_8010_0081),
    ];
    for (function, caller) in pairs {
        let both = [function.to_le_bytes(), caller.to_le_bytes()].concat();
        assert!(out.windows(16).any(|window| window == both), "{caller:#x}");
    }
}
