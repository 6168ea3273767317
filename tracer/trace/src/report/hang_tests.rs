//! Calls that never returned, where those are asked for that took long: a guest that hangs is what that is for.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;
use terms::event_format::{EventFormat, EventId};
use terms::field::{Field, FieldType, FieldValue};
use terms::function::FunctionId;

use super::*;
use crate::event::Moment;
use crate::export::call_formats::CallFormats;
use crate::export::store::{Ending, News, Store};
use crate::export::uftrace::record::{Kind, word};
use crate::export::uftrace::{Fired, GRAPH, Metadata, UftraceWriter};
use crate::graph::rules::{Rules, Threshold};
use crate::testing::{entry, event, exit, functions, text_of};

const SECOND: u64 = 1_000_000_000;

/// A trace of these events, which says this of itself.
fn written_with(
    metadata: Metadata,
    values: Option<CallFormats>,
    events: Vec<Event>,
) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        vcpus: 1,
        tracer: GRAPH.into(),
        ..metadata
    };
    let functions = functions(4);
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), metadata, false).unwrap();
    let format = EventFormat::new("sent".into(), Vec::new());
    writer.learn(News::Points(&[format.into()]));
    if let Some(values) = values {
        writer.learn(News::Values(values));
    }
    for event in events {
        writer.append(event).unwrap();
    }
    writer.finish().unwrap();
    (root, directory)
}

fn written(events: Vec<Event>) -> (TempDir, PathBuf) {
    written_with(Metadata::default(), None, events)
}

fn long(nanoseconds: u64) -> Excerpt {
    let threshold = Some(Threshold { nanoseconds });
    Excerpt::from(Rules {
        threshold,
        ..Rules::default()
    })
}

/// The calls that are shown of those that took so long: when they were entered, and by which thread.
fn shown(directory: &Path, nanoseconds: u64) -> Vec<(u64, u32)> {
    let trace = TraceDirectory::open(directory).unwrap();
    let mut calls = Calls::open(&trace, &long(nanoseconds)).unwrap();
    let mut shown = Vec::new();
    while let Some(next) = calls.pop().unwrap() {
        let steps = next.steps();
        let entries = steps.filter(|step| matches!(step.kind, EventKind::Entry(_)));
        shown.extend(entries.map(|step| (step.time_ns, step.thread)));
    }
    shown
}

/// A call that is entered when a second is over, and does not return.
fn hang(thread: u32) -> Event {
    event(SECOND, 0, thread, 0, entry(0))
}

/// Whether it is shown for so long, and for no longer.
fn assert_took(directory: &Path, nanoseconds: u64) {
    for (threshold, expected) in [
        (nanoseconds / 17, true),
        (nanoseconds, true),
        (nanoseconds + 1, false),
        (10 * SECOND, false),
    ] {
        let is_shown = |(time_ns, _): &(u64, u32)| *time_ns == SECOND;
        let is_shown = shown(directory, threshold).iter().any(is_shown);
        assert_eq!(is_shown, expected, "{threshold} ns");
    }
}

#[test]
fn a_call_that_never_returned_took_until_the_trace_ends_whichever_thread_is_read_first() {
    for (hung, other) in [(0, 1), (1, 0)] {
        let short = |begin_ns: u64| {
            [
                event(begin_ns, 0, other, 0, entry(1)),
                event(begin_ns + 5, 0, other, 0, exit(1)),
            ]
        };
        let others = (1..=9).flat_map(|at| short(at * SECOND + 899_999_995));
        for is_first in [true, false] {
            let mut events: Vec<Event> = others.clone().collect();
            events.insert(if is_first { 0 } else { events.len() }, hang(hung));
            let (_root, directory) = written(events);
            assert_took(&directory, 8_900_000_000);
        }
    }
}

#[test]
fn reports_and_exports_have_a_call_that_never_returned() {
    let other = [entry(1), exit(1)];
    let other = (9..)
        .zip(other)
        .map(|(at, kind)| event(at * SECOND, 0, 1, 0, kind));
    let (_root, directory) = written([hang(0)].into_iter().chain(other).collect());
    for format in [Format::Counts, Format::Function, Format::Graph] {
        let view = View {
            format,
            excerpt: long(5 * SECOND),
            ..View::default()
        };
        let mut text = Vec::new();
        let printed = print(&directory, &view, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("f0") && !text.contains("f1"), "{text}");
        assert_eq!(printed.entries, 1);
    }
    let trace = TraceDirectory::open(&directory).unwrap();
    let mut calls = Calls::open(&trace, &long(5 * SECOND)).unwrap();
    let mut json = Vec::new();
    crate::convert::chrome(&trace, &mut calls, |note| panic!("{note}"), &mut json).unwrap();
    let json = String::from_utf8(json).unwrap();
    assert!(
        json.contains("\"f0\"") && !json.contains("\"f1\""),
        "{json}"
    );
}

/// Nothing is called any more: what else the trace has tells that the guest went on.
#[test]
fn events_and_what_was_done_from_outside_tell_how_long_a_call_hangs() {
    let (_root, directory) = written(vec![hang(0)]);
    assert_took(&directory, 0);
    let sent = EventKind::Point(EventId(0));
    let events = [3, 4].map(|at| event(at * SECOND, 0, 0, 0, sent));
    let (_root, directory) = written([hang(0)].into_iter().chain(events).collect());
    assert_took(&directory, 3 * SECOND);
    let fired = Fired {
        time_ns: Some(6 * SECOND),
        trigger: "f0 > 5s: stop".to_owned(),
    };
    let metadata = Metadata {
        fired: vec![fired],
        ..Metadata::default()
    };
    let (_root, directory) = written_with(metadata, None, vec![hang(0)]);
    assert_took(&directory, 5 * SECOND);
}

/// Nothing at all follows: the trace says itself up to when it would have.
#[test]
fn a_trace_says_when_it_ends() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        vcpus: 1,
        tracer: GRAPH.into(),
        ..Metadata::default()
    };
    let functions = functions(4);
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), metadata, false).unwrap();
    writer.append(hang(0)).unwrap();
    let end = Ending {
        until_ns: 8 * SECOND,
        ..Ending::default()
    };
    Store::finish(&mut writer, end).unwrap();
    assert_took(&directory, 7 * SECOND);
}

/// Values stand after records then, and can look like one: where the last record begins is known to who reads all.
#[test]
fn the_last_record_of_a_file_with_values_tells_how_long_a_call_hangs() {
    let fields = ["a", "b"].map(|name| Field {
        name: name.into(),
        kind: FieldType::named("u64").unwrap(),
    });
    let captured = [(FunctionId(1), Moment::Entry, &fields[..])].into_iter();
    let formats = CallFormats::of(&functions(4), captured);
    assert!(!formats.is_empty(), "they are beside the records");
    let as_record = [9 * SECOND, word(Kind::Entry, 0)].map(FieldValue::Unsigned);
    let call = |at: u64| Event {
        values: Some(as_record.clone().into()),
        ..event(at * SECOND, 0, 1, 0, entry(1))
    };
    let returns = event(2 * SECOND + 5, 0, 1, 0, exit(1));
    let events = vec![hang(0), call(2), returns, call(4)];
    let (_root, directory) = written_with(Metadata::default(), Some(formats), events);
    assert_took(&directory, 3 * SECOND);
}

/// Its end is being written, or was never: what is whole counts. A file that is none is left to who reads it.
#[test]
fn a_file_that_ends_in_the_middle_of_a_record_ends_with_the_one_before() {
    let other = [entry(1), exit(1), entry(1)];
    let other = (2..)
        .zip(other)
        .map(|(at, kind)| event(at * SECOND, 0, 1, 0, kind));
    let (_root, directory) = written([hang(0)].into_iter().chain(other).collect());
    assert_took(&directory, 3 * SECOND);
    let data = directory.join("1001.dat");
    let bytes = std::fs::read(&data).unwrap();
    std::fs::write(&data, &bytes[..bytes.len() - 1]).unwrap();
    assert_took(&directory, 2 * SECOND);
    std::fs::write(&data, b"").unwrap();
    assert_took(&directory, 0);
}

/// A random walk of one thread: each step begins a call, or ends one, or lets time pass.
fn walk() -> impl Strategy<Value = Vec<(u8, u64)>> {
    prop::collection::vec((0..3u8, 0..9u64), 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever threads do: those calls are shown that took so long, where what is open ends with the trace.
    #[test]
    fn just_the_calls_that_took_so_long_are_shown(
        walks in prop::collection::vec(walk(), 1..5), threshold in 0..60u64,
    ) {
        let (mut events, mut begun, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (thread, walk) in (0..).zip(walks) {
            let (mut time_ns, mut open) = (1, Vec::new());
            for (step, length_ns) in walk {
                time_ns += length_ns;
                match (step, open.pop()) {
                    (0, Some(begin_ns)) => {
                        let depth = u32::try_from(open.len()).unwrap();
                        events.push(event(time_ns, 0, thread, depth, exit(0)));
                        expected.extend((time_ns - begin_ns >= threshold).then_some((begin_ns, thread)));
                    }
                    (1, around) => {
                        open.extend(around);
                        let depth = u32::try_from(open.len()).unwrap();
                        events.push(event(time_ns, 0, thread, depth, entry(0)));
                        open.push(time_ns);
                    }
                    (_, around) => open.extend(around),
                }
            }
            begun.extend(open.into_iter().map(|begin_ns| (begin_ns, thread)));
        }
        let end_ns = events.iter().map(|event| event.time_ns).max().unwrap_or_default();
        let is_long = |(begin_ns, _): &(u64, u32)| end_ns - begin_ns >= threshold;
        expected.extend(begun.into_iter().filter(is_long));
        let (_root, directory) = written(events);
        let mut shown = shown(&directory, threshold);
        prop_assert!(shown.is_sorted_by_key(|(time_ns, _)| *time_ns), "{shown:?}");
        shown.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(shown, expected);
    }
}
