//! What is read of a compact trace is what a trace directory of the same records has, byte for byte.

mod budget;
mod damage;
mod ends;
mod full;
mod happened;
mod owed;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use terms::addr::Gva;
use terms::event_format::EventId;
use terms::field::{Field, FieldType, FieldValue};
use terms::function::FunctionId;

use self::happened::{calls, captures, others};
use super::*;
use crate::columns::Columns;
use crate::doubt::{TimeDoubt, TimeNote};
use crate::event::{CallValues, Moment, Passed, Record, RecordKind, Step, Values};
use crate::export::call_formats::CallFormats;
use crate::export::store::{Ending, News, Store};
use crate::export::uftrace::layout::NAMES_FILE;
use crate::export::uftrace::{AnomalyNote, GRAPH, Metadata, UftraceWriter};
use crate::form::Form;
use crate::graph::Death;
use crate::graph::excerpt::Excerpt;
use crate::graph::rules::{Rules, Threshold};
use crate::host::{ExitReason, HostStep, HostThread};
use crate::report::calls::Calls;
use crate::report::directory::TraceDirectory;
use crate::report::{self, Format, Watch};
use crate::stream::{Origin, Pass, Stream, StreamOptions, WAITING_MAX};
use crate::testing::{ThreadEach, functions as made, text_of};

const FUNCTIONS: u64 = 300;
const STACK: u64 = 1 << 14;
const RINGS: u16 = 2;

/// What one ring brings in one round.
#[derive(Debug, Clone)]
struct Brought {
    origin: Origin,
    records: Vec<Record>,
    until_ns: u64,
    looked_ns: Option<u64>,
}

/// A session: rounds of what rings bring.
#[derive(Debug, Clone)]
struct Session {
    /// How many functions the guest has.
    functions: u64,
    options: StreamOptions,
    rounds: Vec<Vec<Brought>>,
}

impl Session {
    fn metadata(&self) -> Metadata {
        Metadata {
            image: "guest.elf".into(),
            vcpus: RINGS,
            tracer: match self.options.stack_bytes {
                Some(_) => GRAPH.into(),
                None => "function".into(),
            },
            callers: self.options.stack_bytes.is_none(),
            stack_bytes: self.options.stack_bytes.unwrap_or_default(),
            ..Metadata::default()
        }
    }

    fn doubts() -> Vec<TimeNote> {
        vec![TimeNote {
            kind: TimeDoubt::Late,
            count: 3,
        }]
    }

    /// Written as it would be without a compact trace.
    fn directly(&self, at: &Path) {
        let functions = made(self.functions);
        let mut stream = Stream::of(&self.options, &functions, WAITING_MAX).unwrap();
        let text = text_of(&functions);
        let mut to = UftraceWriter::create(at, text, self.metadata(), false).unwrap();
        stream.rings().expect_points();
        to.learn(News::Points(&points()));
        if self.options.has_values {
            let fields = fields();
            let captured = || captured(&fields).into_iter();
            captured().for_each(|(function, moment, _)| stream.expect_values(function, moment));
            to.learn(News::Values(CallFormats::of(&functions, captured())));
        }
        for round in &self.rounds {
            for brought in round {
                let mut columns = Columns::new(self.options.stack_bytes.unwrap_or(1));
                let records = brought.records.iter();
                records.for_each(|record| columns.record(record));
                let origin = brought.origin;
                stream.rings().push(origin, columns, brought.until_ns);
                if let Some(time_ns) = brought.looked_ns {
                    stream.rings().looked(origin, time_ns);
                }
            }
            to.take(&mut stream, Pass::Round, &ThreadEach);
            for (thread, stack) in stream.take_fresh() {
                to.learn(News::Thread(thread, name(stack)));
            }
        }
        to.take(&mut stream, Pass::All, &ThreadEach);
        for (thread, stack) in stream.take_fresh() {
            to.learn(News::Thread(thread, name(stack)));
        }
        let anomalies = stream.anomalies();
        let anomalies = anomalies.map(|seen| AnomalyNote::list(&seen, &functions));
        let ending = Ending {
            doubts: Self::doubts(),
            anomalies: anomalies.unwrap_or_default(),
            strays: stream.rings().strays(),
            ..Ending::default()
        };
        Store::finish(&mut to, ending).unwrap();
    }

    fn writer(&self, at: &Path) -> CompactWriter {
        let functions = made(self.functions);
        let text = text_of(&functions);
        let metadata = self.metadata();
        let mut writer = CompactWriter::create(at, text, metadata, &self.options, false).unwrap();
        writer.learn(&News::Points(&points()));
        if self.options.has_values {
            writer.values(captured(&fields()).into_iter());
        }
        writer
    }

    fn write(&self, writer: &mut CompactWriter) {
        let mut coders: BTreeMap<String, Coder> = BTreeMap::new();
        for round in &self.rounds {
            let mut stacks = Vec::new();
            for brought in round {
                let coder = coders.entry(format!("{:?}", brought.origin));
                let coder =
                    coder.or_insert_with(|| Coder::new(self.options.stack_bytes.unwrap_or(1)));
                encode(&brought.records, coder);
                let mut coded = coder.take();
                assert_eq!(decoded(&coded), joined(&brought.records));
                stacks.extend(coded.take_stacks());
                writer.append(brought.origin, coded, brought.until_ns, brought.looked_ns);
            }
            writer.end_round();
            let names = stacks.into_iter().map(|stack| (stack, name(stack)));
            writer.threads(names.collect(), Vec::new());
        }
    }

    fn compact(&self, at: &Path) -> Kept {
        let mut writer = self.writer(at);
        self.write(&mut writer);
        writer.finish(&Self::doubts()).unwrap()
    }
}

/// Calls come as columns, as many as there are at once, as a ring's reader has them.
fn encode(records: &[Record], coder: &mut Coder) {
    let mut rest = records;
    while let [first, ..] = rest {
        let entry = |record: &Record| match record.kind {
            RecordKind::Entry(function) => Some(function),
            _ => None,
        };
        let run: Vec<FunctionId> = rest.iter().map_while(entry).collect();
        if run.len() > 1 {
            let times: Vec<u64> = rest.iter().take(run.len()).map(|one| one.time_ns).collect();
            coder.calls(&times, &run);
            rest = &rest[run.len()..];
            continue;
        }
        let called = |record: &Record| match record.kind {
            RecordKind::Called { function, caller } => Some((function, caller)),
            _ => None,
        };
        let run: Vec<(FunctionId, u64)> = rest.iter().map_while(called).collect();
        if run.len() > 1 {
            let times: Vec<u64> = rest.iter().take(run.len()).map(|one| one.time_ns).collect();
            let (functions, callers): (Vec<_>, Vec<_>) = run.into_iter().unzip();
            coder.called(&times, &functions, &callers);
            rest = &rest[times.len()..];
            continue;
        }
        coder.record(first);
        rest = &rest[1..];
    }
}

/// Losses that follow each other are one.
fn joined(records: &[Record]) -> Vec<Record> {
    let mut joined: Vec<Record> = Vec::new();
    for record in records {
        let last = joined.last_mut().map(|last| &mut last.kind);
        match (last, &record.kind) {
            (Some(RecordKind::Lost(before)), RecordKind::Lost(count)) => {
                *before = before.saturating_add(*count);
            }
            _ => joined.push(record.clone()),
        }
    }
    joined
}

fn name(stack: Gva) -> String {
    format!("task-{:x}", stack.0 >> 14)
}

fn points() -> Vec<std::sync::Arc<terms::event_format::EventFormat>> {
    let fields = fields();
    let format = terms::event_format::EventFormat::new("sent".into(), fields);
    vec![std::sync::Arc::new(format)]
}

fn fields() -> Vec<Field> {
    let field = |name: &str, kind| Field {
        name: name.into(),
        kind,
    };
    vec![
        field("size", FieldType::named("i32").unwrap()),
        field("to", FieldType::text(16)),
    ]
}

fn captured(fields: &[Field]) -> Vec<(FunctionId, Moment, &[Field])> {
    let each = (0..4).map(FunctionId);
    each.flat_map(|function| {
        [
            (function, Moment::Entry, fields),
            (function, Moment::Exit, fields),
        ]
    })
    .collect()
}

/// All files of a directory.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap());
    files
        .map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, fs::read(file.path()).unwrap())
        })
        .collect()
}

fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (contents(one), contents(other));
    let names: Vec<_> = one.keys().collect();
    assert_eq!(names, other.keys().collect::<Vec<_>>());
    for (name, bytes) in &one {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            *bytes == other[name],
            "{name}:\n{}\n{}",
            text(bytes),
            text(&other[name])
        );
    }
}

prop_compose! {
    /// One round: what two vCPUs call, and what else happens.
    fn round()(
        first in prop::collection::vec(any::<(u8, u16)>(), 0..200),
        second in prop::collection::vec(any::<(u8, u16)>(), 0..200),
        more in prop::collection::vec(any::<(u8, u16)>(), 0..12),
        is_drained in any::<(bool, bool)>(),
    ) -> ([Vec<(u8, u16)>; 2], Vec<(u8, u16)>, [bool; 2]) {
        ([first, second], more, [is_drained.0, is_drained.1])
    }
}

prop_compose! {
    fn session()(
        rounds in prop::collection::vec(round(), 1..6),
        kind in 0..4u8,
        max_depth in prop::option::of(1..4u32),
    ) -> Session {
        let is_graph = kind > 0;
        let options = StreamOptions {
            rings: RINGS,
            stack_bytes: is_graph.then_some(STACK),
            has_values: kind > 2,
            rules: match kind {
                2 => Rules {
                    max_depth: max_depth.and_then(std::num::NonZeroU32::new),
                    ..Rules::default()
                },
                _ => Rules::default(),
            },
        };
        let mut begun_ns = 1000;
        let mut session = Session { functions: FUNCTIONS, options, rounds: Vec::new() };
        for (seeds, more, is_drained) in rounds {
            let mut brought: Vec<Brought> = Vec::new();
            let mut end_ns = begun_ns;
            let mut points: BTreeMap<u16, Vec<(Origin, Record)>> = BTreeMap::new();
            for ((vcpu, seed), is_drained) in (0..).zip(&seeds).zip(is_drained) {
                let records = calls(seed, vcpu, is_graph, begun_ns);
                if kind > 2 {
                    let captured = captures(&records).into_iter();
                    let place = points.entry(10 + vcpu).or_default();
                    place.extend(captured.map(|record| (Origin::Points(vcpu), record)));
                }
                end_ns = end_ns.max(records.last().map_or(0, |record| record.time_ns));
                brought.push(Brought {
                    origin: Origin::Calls(vcpu),
                    records,
                    until_ns: end_ns + 7,
                    looked_ns: is_drained.then_some(end_ns),
                });
            }
            if kind < 3 {
                for (origin, record) in others(&more, begun_ns) {
                    let place = match origin {
                        Origin::Points(vcpu) => vcpu,
                        Origin::Clock => 2,
                        Origin::Host(vcpu) => 3 + vcpu,
                        Origin::Calls(_) => unreachable!(),
                    };
                    points.entry(place).or_default().push((origin, record));
                }
            }
            for (_, records) in points {
                let Some(origin) = records.first().map(|(origin, _)| *origin) else {
                    continue;
                };
                brought.push(Brought {
                    origin,
                    records: records.into_iter().map(|(_, record)| record).collect(),
                    until_ns: end_ns,
                    looked_ns: Some(end_ns),
                });
            }
            // Rings of points that brought nothing were looked at, too.
            brought.extend((0..RINGS).map(|vcpu| Brought {
                origin: Origin::Points(vcpu),
                records: Vec::new(),
                until_ns: 0,
                looked_ns: Some(end_ns),
            }));
            begun_ns = end_ns + 10;
            for brought in &mut brought {
                brought.records = joined(&brought.records);
            }
            session.rounds.push(brought);
        }
        session
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn what_is_put_together_is_what_would_have_been_written(session in session()) {
        let folder = tempfile::tempdir().unwrap();
        let [direct, store, again] =
            ["direct", "store", "again"].map(|name| folder.path().join(name));
        session.directly(&direct);
        session.compact(&store);
        let replayed = convert(&store, &again, false, &Watch::default()).unwrap();
        prop_assert!(replayed.is_finished && replayed.remark.is_none());
        assert_same(&direct, &again);
        // And reports are of the one as of the other.
        for format in [Format::Counts, Format::Function, Format::Timeline, Format::Values] {
            let text = |directory: &Path| {
                let mut text = Vec::new();
                let view = format.into();
                report::print(directory, &view, &mut text).map(|_| text).map_err(|e| e.to_string())
            };
            prop_assert_eq!(text(&direct), text(&store));
        }
    }
}

fn decoded(coded: &Coded) -> Vec<Record> {
    let mut records = Vec::new();
    coded.decode(&mut records);
    records
}

/// What was passed on when a round was over is not put in order with what a later one brings of the same thread.
#[test]
fn what_comes_rounds_later_than_others_of_its_time_is_as_late_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name| folder.path().join(name);
    let brought = |vcpu, times: &[u64], until_ns| Brought {
        origin: Origin::Calls(vcpu),
        records: times
            .iter()
            .flat_map(|time_ns| calls(&[(8, 1), (1, 1)], 0, true, *time_ns))
            .collect(),
        until_ns,
        looked_ns: Some(until_ns),
    };
    let looked = |vcpu, until_ns| Brought {
        origin: Origin::Points(vcpu),
        ..brought(vcpu, &[], until_ns)
    };
    let round = |until_ns, first: &[u64], second: &[u64]| {
        let calls = [brought(0, first, until_ns), brought(1, second, until_ns)];
        let points = [looked(0, until_ns), looked(1, until_ns)];
        calls.into_iter().chain(points).collect()
    };
    let session = Session {
        rounds: vec![
            round(6_000, &[5_000], &[]),
            round(8_000, &[7_000], &[]),
            round(10_000, &[9_000], &[1_000]),
        ],
        ..small()
    };
    session.directly(&place("direct"));
    session.compact(&place("store"));
    convert(&place("store"), &place("again"), false, &Watch::default()).unwrap();
    assert_same(&place("direct"), &place("again"));
    let at_once = Session {
        rounds: vec![session.rounds.into_iter().flatten().collect()],
        ..small()
    };
    at_once.directly(&place("at_once"));
    let is_same = contents(&place("direct")) == contents(&place("at_once"));
    assert!(!is_same, "rounds do not matter");
}

/// A small one.
fn small() -> Session {
    let seed: Vec<(u8, u16)> = (0..40u8)
        .map(|at| (at.wrapping_mul(7), u16::from(at) % 5))
        .collect();
    let brought = |vcpu, from_ns| Brought {
        origin: Origin::Calls(vcpu),
        records: calls(&seed, vcpu, true, from_ns),
        until_ns: from_ns + 100_000,
        looked_ns: Some(from_ns),
    };
    let rounds = (1..4).map(|at| vec![brought(0, at * 1_000_000), brought(1, at * 1_000_000)]);
    Session {
        functions: 5,
        options: StreamOptions {
            rings: RINGS,
            stack_bytes: Some(STACK),
            ..StreamOptions::default()
        },
        rounds: rounds.collect(),
    }
}

#[test]
fn parts_of_a_large_batch_lose_nothing_between_them() {
    let mut coder = Coder::new(1);
    let mut expected = Vec::new();
    for round in 0..4000u64 {
        let times: Vec<u64> = (0..512).map(|at| round * 1_000_000 + at * 70_000).collect();
        let functions: Vec<FunctionId> = (0..512u32)
            .map(|at| FunctionId(at * 997 % 200_000))
            .collect();
        coder.calls(&times, &functions);
        let each = times.iter().zip(&functions);
        expected.extend(each.map(|(time_ns, function)| Record {
            time_ns: *time_ns,
            kind: RecordKind::Entry(*function),
        }));
        if round % 100 == 0 {
            let time_ns = round * 1_000_000;
            coder.lost(time_ns, 1);
            coder.lost(time_ns + 5, 2);
            let kind = RecordKind::Lost(3);
            expected.push(Record { time_ns, kind });
        }
    }
    let coded = coder.take();
    assert!(coded.parts.len() > 10);
    assert_eq!(coded.records(), 4000 * 512);
    assert!(decoded(&coded) == expected);
}
