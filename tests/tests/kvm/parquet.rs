//! What a reader of Parquet finds in the tables of a trace is what there is.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::Value;
use tests::exact::{lossy, on_two_vcpus, with_events};
use tests::{Guest, vmm_says};

/// The rows of a table.
pub(super) fn rows(directory: &Path, table: &str) -> Vec<Row> {
    let file = File::open(directory.join(format!("{table}.parquet"))).expect(table);
    let reader = SerializedFileReader::new(file).expect(table);
    let rows = reader.get_row_iter(None).expect(table);
    rows.map(|row| row.expect(table)).collect()
}

/// What a row has in a column; nothing where it is null.
fn cell<'a>(row: &'a Row, name: &str) -> Option<&'a Field> {
    let (_, field) = row
        .get_column_iter()
        .find(|(column, _)| *column == name)
        .expect(name);
    (!matches!(field, Field::Null)).then_some(field)
}

pub(super) fn text<'a>(row: &'a Row, name: &str) -> Option<&'a str> {
    cell(row, name).map(|field| match field {
        Field::Str(text) => &**text,
        other => panic!("{name}: {other:?}"),
    })
}

pub(super) fn number(row: &Row, name: &str) -> Option<u64> {
    cell(row, name).map(|field| match field {
        Field::Long(number) => (*number).try_into().expect(name),
        other => panic!("{name}: {other:?}"),
    })
}

fn sum<'a>(rows: impl IntoIterator<Item = &'a Row>, name: &str) -> u64 {
    rows.into_iter().filter_map(|row| number(row, name)).sum()
}

fn by_function(rows: &[Row]) -> BTreeMap<&str, Vec<&Row>> {
    let mut functions: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let name = text(row, "function").expect("a name");
        functions.entry(name).or_default().push(row);
    }
    functions
}

fn counts(rows: &[Row]) -> BTreeMap<String, u64> {
    let functions = by_function(rows).into_iter();
    functions
        .map(|(name, calls)| (name.to_owned(), calls.len() as u64))
        .collect()
}

#[test]
fn every_call_is_a_row_with_its_times_and_who_called() {
    for tracer in ["function", "graph"] {
        let (printed, trace) = on_two_vcpus(tracer);
        let directory = trace.exported("parquet");
        let calls = rows(&directory, "calls");
        assert_eq!(counts(&calls), printed.called(), "{tracer}");
        assert_eq!(rows(&directory, "losses").len(), 0);
        let on_second = calls.iter().filter(|call| number(call, "vcpu") == Some(1));
        assert!(on_second.count() > 0, "{tracer}");
        let ours = trace.report_with("counts", &["--json"]);
        let ours: Value = serde_json::from_str(&ours).expect("JSON");
        let ours = ours["counts"].as_array().expect("rows");
        let calls = by_function(&calls);
        let functions = rows(&directory, "functions");
        let functions = by_function(&functions);
        assert_eq!((calls.len(), functions.len()), (ours.len(), ours.len()));
        for of in ours {
            let name = of["function"].as_str().expect("a name");
            let (calls, row) = (&calls[name], functions[name][0]);
            assert_eq!(number(row, "calls"), of["calls"].as_u64(), "{name}");
            for time in ["total", "self", "min", "max"] {
                let theirs = number(row, &format!("{time}_ns"));
                assert_eq!(theirs, of[format!("{time}_ns")].as_u64(), "{name}: {time}");
            }
            if tracer == "function" {
                assert!(calls.iter().all(|call| cell(call, "duration_ns").is_none()));
                continue;
            }
            let own = sum(calls.iter().copied(), "self_ns");
            assert_eq!(Some(own), of["self_ns"].as_u64(), "{name}");
        }
    }
}

/// Each pair as `vmm report --format callers` has it.
#[test]
fn callers_are_those_of_our_report() {
    let (_, trace) = on_two_vcpus("graph");
    let calls = rows(&trace.exported("parquet"), "calls");
    let mut pairs: BTreeMap<(&str, Option<&str>), u64> = BTreeMap::new();
    for call in &calls {
        let function = text(call, "function").expect("a name");
        *pairs.entry((function, text(call, "caller"))).or_default() += 1;
    }
    let ours = trace.report_with("callers", &["--json"]);
    let ours: Value = serde_json::from_str(&ours).expect("JSON");
    let ours = ours["callers"].as_array().expect("rows").iter();
    let ours: BTreeMap<_, _> = ours
        .map(|row| {
            let pair = (
                row["function"].as_str().expect("a name"),
                row["caller"].as_str(),
            );
            (pair, row["calls"].as_u64().expect("a count"))
        })
        .collect();
    assert_eq!(pairs, ours);
}

#[test]
fn losses_events_and_values_have_rows() {
    let (printed, trace) = lossy();
    let directory = trace.exported("parquet");
    let lost = sum(&rows(&directory, "losses"), "lost");
    assert_eq!(lost, trace.lost());
    assert_eq!(
        rows(&directory, "calls").len() as u64 + lost,
        printed.total()
    );
    assert!(lost > 0);

    let trace = with_events();
    let events = rows(&trace.exported("parquet"), "events");
    let theirs = events.iter().map(|event| {
        assert_eq!(text(event, "side"), Some("guest"));
        assert_eq!(text(event, "event"), Some("message_sent"));
        serde_json::from_str::<Value>(text(event, "fields").expect("fields")).expect("JSON")
    });
    assert_eq!(theirs.collect::<Vec<_>>(), trace.fields("message_sent"));
    assert_eq!(events.len(), 40);
}

/// Those of the first screen.
#[test]
fn pauses_and_triggers_have_rows() {
    let (ended, trace) = Guest::new("workload=calls iterations=20")
        .with(["--trace", "graph"])
        .with(["--trigger", "calls_root: stop x1"])
        .output()
        .run();
    let _ = ended.good();
    let remarks = rows(&trace.exported("parquet"), "remarks");
    let of = |what: &str| -> Vec<_> {
        let of = remarks.iter().filter(|row| text(row, "what") == Some(what));
        of.collect()
    };
    let overview = trace.report_with("overview", &["--json"]);
    let overview: Value = serde_json::from_str(&overview).unwrap();
    let about = &overview["about"];
    let lengths: Vec<_> = of("pause")
        .iter()
        .map(|row| number(row, "length_ns"))
        .collect();
    let paused = about["paused"].as_array().unwrap().iter();
    let expected: Vec<_> = paused.map(|pause| pause["length_ns"].as_u64()).collect();
    assert!(!expected.is_empty());
    assert_eq!(lengths, expected);
    let triggers = of("trigger");
    assert_eq!(
        (triggers.len(), number(triggers[0], "length_ns")),
        (1, None)
    );
    let fired = &about["fired"][0];
    assert_eq!(number(triggers[0], "time_ns"), fired["time_ns"].as_u64());
    let said = text(triggers[0], "said").unwrap();
    assert!(said.contains("calls_root: stop"), "{said}");
}

#[test]
fn a_run_that_is_there_stays_and_stdout_is_no_directory() {
    let (_, trace) = on_two_vcpus("graph");
    let there = trace.exported("parquet");
    let before = rows(&there, "calls").len();
    let [from, to] = [trace.path(), there.clone()].map(|path| path.to_str().unwrap().to_owned());
    let export = ["export", &from, "--format", "parquet"];
    let said = vmm_says(&[&export[..], &["-o", &to]].concat());
    let said = said.refused(106);
    assert!(said.contains("something is there already"), "{said}");
    assert_eq!(rows(&there, "calls").len(), before);
    let said = vmm_says(&export);
    let said = said.refused(100);
    assert!(
        said.contains("--format parquet: is a directory: name one with -o"),
        "{said}"
    );
}

/// What is captured of calls is text.
#[test]
fn arguments_and_return_values_are_columns() {
    let (ended, trace) = Guest::new("workload=values threads=1 iterations=5")
        .with(["--trace", "graph", "--filter", "optimised_*"])
        .with(["--args", "--retval"])
        .output()
        .run();
    let _ = ended.good();
    let calls = rows(&trace.exported("parquet"), "calls");
    let args = calls.iter().filter_map(|call| text(call, "args"));
    let retvals = calls.iter().filter_map(|call| text(call, "retval"));
    let (args, retvals): (Vec<_>, Vec<_>) = (args.collect(), retvals.collect());
    let graph = trace.report("graph");
    assert!(!args.is_empty() && !retvals.is_empty(), "{graph}");
    for shown in args.iter().chain(&retvals) {
        assert!(graph.contains(shown), "{shown}: {graph}");
    }
}
