//! Values that come back from a trace, also where uftrace cannot be told of them.

use std::sync::Arc;

use terms::field::{Field, FieldType, FieldValue};
use terms::function::{Function, FunctionId};

use super::graph_tests::text;
use super::*;
use crate::event::{End, EventKind, Moment};
use crate::export::call_formats::CallFormats;
use crate::export::uftrace::{GRAPH, Metadata, UftraceWriter};
use crate::graph::rules::Rules;
use crate::testing::{functions, text_of};

#[test]
fn values_that_uftrace_cannot_be_told_of_come_back_all_the_same() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let mut functions = functions(4);
    for (function, name) in functions
        .iter_mut()
        .zip(["same", "same", "odd@name", "plain"])
    {
        function.display = name.into();
    }
    let metadata = Metadata {
        tracer: GRAPH.to_owned(),
        vcpus: 1,
        ..Metadata::default()
    };
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), metadata, false).unwrap();
    let fields = ["u32", "u32", "u64", "u32"].map(|kind| {
        let name = kind.into();
        let kind = FieldType::named(kind).unwrap();
        [Field { name, kind }]
    });
    let numbers = || (0..4).map(FunctionId);
    let captured = numbers().zip(&fields);
    let captured = captured.map(|(id, fields)| (id, Moment::Entry, &fields[..]));
    writer
        .describe_values(CallFormats::of(&functions, captured))
        .unwrap();
    for (time_ns, function) in (1..).zip(numbers()) {
        let event = |kind, values| Event {
            time_ns,
            vcpu: 0,
            thread: 0,
            depth: 0,
            kind,
            values,
        };
        let values = [FieldValue::Unsigned(7 * time_ns)];
        let entry = event(EventKind::Entry(function), Some(values.into()));
        let end = End::Returned;
        let duration = Some(0);
        let exit = EventKind::Exit {
            function,
            end,
            duration,
        };
        writer.append(entry).unwrap();
        writer.append(event(exit, None)).unwrap();
    }
    writer.finish().unwrap();
    let info =
        String::from_utf8_lossy(&std::fs::read(directory.join("info")).unwrap()).into_owned();
    assert!(info.contains("argspec:plain@arg1/u32\n"), "{info}");
    let said = text(&directory, Format::Graph, &Rules::default()).1;
    for expected in [
        "same(u32=7);",
        "same(u32=14);",
        "odd@name(u64=21);",
        "plain(u32=28);",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    // What is left of a file that was cut is shown.
    std::fs::write(directory.join("1000.side"), [0, 0x80, 7]).unwrap();
    let said = text(&directory, Format::Graph, &Rules::default()).1;
    assert!(
        said.contains("same();") && said.contains("plain(u32=28);"),
        "{said}"
    );
}

#[test]
fn values_stay_where_they_lay_when_a_function_of_the_same_name_comes() {
    let mut functions = functions(2);
    functions[1].display = Arc::clone(&functions[0].display);
    let field = [Field {
        name: "a".into(),
        kind: FieldType::named("u32").unwrap(),
    }];
    let formats = |functions: &[Function], count| {
        let captured = (0..count).map(|n| (FunctionId(n), Moment::Entry, &field[..]));
        CallFormats::of(functions, captured)
    };
    let before = formats(&functions[..1], 1);
    let mut now = formats(&functions, 2);
    let places = |formats: &CallFormats| {
        let at = |n: usize| formats.is_beside(functions[n].address.0, Moment::Entry);
        [at(0), at(1)]
    };
    assert_eq!(
        (places(&before), places(&now)),
        ([false, false], [true, true])
    );
    now.stay_as(&before);
    assert_eq!(places(&now), [false, true]);
}
