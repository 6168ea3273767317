//! Calls that are put into bytes by who reads them are what they are one by one, also when some of them come the other way, and
//! on a disk that fills up.

use proptest::prelude::*;

use super::block::{BUFFER, Call, Events};
use super::*;
use crate::event::{Record, RecordKind, Sink};
use crate::export::budget::Budget;
use crate::export::store::{Ending, Store};
use crate::form::Form;
use terms::field::FieldValue;

/// Functions that there are; some calls are of others.
const FUNCTIONS: u32 = 5;
const VCPUS: u16 = 2;

/// What one ring brings in one round.
#[derive(Debug, Clone)]
struct Round {
    vcpu: u16,
    records: Vec<Record>,
    /// Somebody listens: so it comes as rows.
    is_heard: bool,
}

/// How a trace is made of rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One event after the other.
    OneByOne,
    /// As bytes, unless somebody listens.
    Coded,
    /// As bytes, whoever listens.
    AllCoded,
}

/// A trace that is complete.
#[derive(Debug, PartialEq, Eq)]
struct Made {
    files: Vec<Vec<u8>>,
    totals: Vec<VcpuTotals>,
    tally: Tally,
    strays: u64,
    ended: String,
}

/// What is missing at once is one loss.
fn put_together(records: &[Record]) -> Vec<Record> {
    let mut all: Vec<Record> = Vec::new();
    for record in records {
        match (all.last_mut().map(|last| &mut last.kind), &record.kind) {
            (Some(RecordKind::Lost(before)), RecordKind::Lost(count)) => *before += count,
            _ => all.push(record.clone()),
        }
    }
    all.retain(|record| record.kind != RecordKind::Lost(0));
    all
}

fn feed(coder: &mut CallCoder, records: &[Record]) {
    let is_call = |record: &Record| matches!(record.kind, RecordKind::Entry(_));
    for same in records.chunk_by(|one, next| is_call(one) && is_call(next)) {
        if let [record] = same {
            coder.record(record);
            continue;
        }
        let times: Vec<u64> = same.iter().map(|record| record.time_ns).collect();
        let functions = same.iter().filter_map(|record| match record.kind {
            RecordKind::Entry(function) => Some(function),
            _ => None,
        });
        coder.calls(&times, &functions.collect::<Vec<_>>());
    }
}

fn made(rounds: &[Round], room: u64, way: Way) -> Made {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(FUNCTIONS.into());
    let text = text_of(&functions);
    let mut writer = UftraceWriter::create(&directory, text, metadata(VCPUS), false).unwrap();
    Store::set_budget(&mut writer, &Budget::of(room));
    let entries = Store::entries(&writer).unwrap().clone();
    let mut coders = [(); VCPUS as usize + 1].map(|()| CallCoder::new(entries.clone()));
    for round in rounds {
        let is_coded = match way {
            Way::OneByOne => false,
            Way::Coded => !round.is_heard,
            Way::AllCoded => true,
        };
        if is_coded {
            let coder = &mut coders[usize::from(round.vcpu)];
            feed(coder, &round.records);
            writer.coded(round.vcpu, coder.take());
            continue;
        }
        let is_stray = round.vcpu == VCPUS;
        for record in put_together(&round.records) {
            if is_stray && matches!(record.kind, RecordKind::Lost(_)) {
                // One by one it would be a stray itself.
                continue;
            }
            let (kind, values) = match record.kind {
                RecordKind::Entry(function) => (EventKind::Entry(function), None),
                RecordKind::Called { function, caller } => {
                    let caller = FieldValue::Pointer(Gva(caller));
                    (EventKind::Entry(function), Some([caller].into()))
                }
                RecordKind::Lost(count) => (EventKind::Lost(count), None),
                _ => unreachable!("{record:?}"),
            };
            let event = call_on(round.vcpu, record.time_ns, kind);
            Sink::event(&mut writer, Event { values, ..event });
        }
    }
    let ended = Store::finish(&mut writer, Ending::default());
    let ended = format!("{:?}", ended.map(|_| ())).replace(&*root.path().to_string_lossy(), "");
    let files = ["1000.dat", "1001.dat"].map(|name| fs::read(directory.join(name)).unwrap());
    Made {
        files: files.into(),
        totals: writer.side.totals.clone(),
        tally: writer.tally(),
        strays: writer.side.strays,
        ended,
    }
}

fn decoded(coded: &CodedCalls) -> Vec<Record> {
    let mut records = Vec::new();
    coded.decode(&mut records);
    records
}

/// Where kernels have their text.
const CALLER: u64 = 0xffff_ffff_8100_0000;

fn kind() -> impl Strategy<Value = RecordKind> {
    let function = (0..=FUNCTIONS).prop_map(FunctionId);
    let caller = (function.clone(), 0..100u64).prop_map(|(function, at)| RecordKind::Called {
        function,
        caller: CALLER + at,
    });
    prop_oneof![
        300 => function.prop_map(RecordKind::Entry),
        10 => caller,
        1 => (0..50u64).prop_map(RecordKind::Lost),
    ]
}

fn rounds(times: impl Strategy<Value = u64>) -> impl Strategy<Value = Vec<Round>> {
    let record = (times, kind()).prop_map(|(time_ns, kind)| Record { time_ns, kind });
    let records = proptest::collection::vec(record, 0..3_000);
    let round = (0..=VCPUS, records, any::<bool>());
    let round = round.prop_map(|(vcpu, records, is_heard)| Round {
        vcpu,
        records,
        is_heard,
    });
    proptest::collection::vec(round, 0..6)
}

/// What these totals say beside of times.
fn without_order(totals: &[VcpuTotals]) -> Vec<VcpuTotals> {
    let totals = totals.iter().copied();
    let unordered = totals.map(|totals| VcpuTotals {
        reordered: 0,
        ..totals
    });
    unordered.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn coded_calls_are_the_same_calls(rounds in rounds(0..2_000u64)) {
        let [coded, each] = [Way::AllCoded, Way::OneByOne].map(|way| made(&rounds, u64::MAX, way));
        prop_assert!(coded == each, "{:?} {:?}", coded.totals, each.totals);
    }

    #[test]
    fn calls_that_come_both_ways_are_the_same_calls(rounds in rounds(0..2_000u64)) {
        let [both, each] = [Way::Coded, Way::OneByOne].map(|way| made(&rounds, u64::MAX, way));
        prop_assert!(both.files == each.files, "other bytes");
        prop_assert_eq!(both.tally, each.tally);
        prop_assert_eq!(both.strays, each.strays);
        prop_assert_eq!(without_order(&both.totals), without_order(&each.totals));
        let (more, least) = (both.totals.iter(), each.totals.iter());
        prop_assert!(more.zip(least).all(|(more, least)| more.reordered >= least.reordered));
    }

    #[test]
    fn coded_calls_that_do_not_fit_are_counted(rounds in rounds(0..2_000u64), room in 0..300_000u64) {
        let Made { files, totals, strays, .. } = made(&rounds, room, Way::AllCoded);
        let bytes: u64 = files.iter().map(|file| file.len() as u64).sum();
        prop_assert!(bytes <= room);
        let of = |vcpu: u16| {
            let of_vcpu = rounds.iter().filter(move |round| round.vcpu == vcpu);
            let records = of_vcpu.flat_map(|round| &round.records);
            records.filter(|record| !matches!(record.kind, RecordKind::Lost(_))).count() as u64
        };
        for (totals, file) in totals.iter().zip(&files) {
            let all = totals.entries + totals.dropped + totals.unknown;
            prop_assert_eq!(all, of(totals.vcpu));
            let (mut entries, mut lost) = (0, 0);
            for (_, call) in Events::of(file) {
                match call {
                    Call::Of(..) => entries += 1,
                    Call::Lost(count) => lost += count,
                }
            }
            prop_assert_eq!(entries, totals.entries);
            // Where anything is in the file, or has room there, all that is missing is said in it.
            prop_assert!(file.is_empty() || lost == totals.lost + totals.dropped, "{lost} {totals:?}");
        }
        prop_assert_eq!(strays, of(VCPUS));
    }

    #[test]
    fn coded_calls_come_back(rounds in rounds(0..2_000u64)) {
        let mut coder = CallCoder::new(Entries::of(&functions(FUNCTIONS.into())));
        let mut time = 0;
        for Round { records, .. } in &rounds {
            feed(&mut coder, records);
            let coded = coder.take();
            let mut expected = put_together(records);
            expected.retain(|record| match record.kind {
                RecordKind::Entry(function) | RecordKind::Called { function, .. } => function.0 < FUNCTIONS,
                _ => true,
            });
            for record in &mut expected {
                time = time.max(record.time_ns);
                record.time_ns = time;
            }
            let calls = expected.iter().filter(|record| !matches!(record.kind, RecordKind::Lost(_)));
            prop_assert_eq!(coded.records(), calls.count());
            prop_assert!(decoded(&coded) == expected, "others");
        }
    }
}

#[test]
fn a_coder_knows_functions_that_come_and_says_once_which_are_called() {
    let all = functions(3);
    let mut coder = CallCoder::new(Entries::of(&all[..2]));
    let call = |function| Record {
        time_ns: 5,
        kind: RecordKind::Entry(FunctionId(function)),
    };
    for function in [0, 2, 0] {
        coder.record(&call(function));
    }
    let coded = coder.take();
    assert_eq!((coded.records(), coded.called.len()), (2, 1));
    coder.extend(Entries::of(&all));
    for function in [0, 2] {
        coder.record(&call(function));
    }
    let coded = coder.take();
    assert_eq!(coded.called, [FunctionId(2)]);
    assert_eq!(decoded(&coded), [0, 2].map(call));
    // A step of a graph is none of its.
    coder.record(&Record {
        time_ns: 6,
        kind: RecordKind::Graph {
            function: FunctionId(0),
            step: crate::event::Step::Entry,
            slot: 8,
        },
    });
    let coded = coder.take();
    assert_eq!(coded.blocks[0].counts.unknown, 1);
    assert_eq!(coded.records(), 0);
    assert!(coder.take().blocks.is_empty());
}

#[test]
fn a_coder_makes_blocks_as_large_as_what_is_written_at_once() {
    let mut coder = CallCoder::new(Entries::of(&functions(1)));
    let count = 3 * BUFFER / 32;
    coder.calls(&[7], &[FunctionId(0)]);
    coder.calls(&vec![7; count], &vec![FunctionId(0); count]);
    let coded = coder.take();
    assert_eq!(coded.records(), count + 1);
    let lengths = coded.blocks.iter().map(|block| block.records.len());
    let lengths: Vec<_> = lengths.collect();
    let (last, full) = lengths.split_last().unwrap();
    let is_full = |length: &usize| (BUFFER - 64..=BUFFER).contains(length);
    assert!(full.iter().all(is_full) && *last <= BUFFER, "{lengths:?}");
}

/// What is not in the file is said in place of its last event: that of the last block.
#[test]
fn of_two_blocks_the_last_event_gives_its_place() {
    let made = [false, true].map(|is_coded| {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("trace");
        let functions = functions(FUNCTIONS.into());
        let text = text_of(&functions);
        let mut writer = UftraceWriter::create(&directory, text, metadata(1), false).unwrap();
        Store::set_budget(&mut writer, &Budget::of(5 * 32));
        let mut coder = CallCoder::new(Store::entries(&writer).unwrap().clone());
        for times in [1..3, 3..6, 6..9] {
            if times.start == 6 {
                // The rest has no room.
                writer.flush().unwrap();
            }
            for time_ns in times {
                match is_coded {
                    true => coder.calls(&[time_ns], &[FunctionId(1)]),
                    false => Sink::event(&mut writer, entry(time_ns, 0, 1)),
                }
            }
            writer.coded(0, coder.take());
        }
        writer.close().unwrap_err();
        let totals = writer.side.totals.clone();
        (records(&directory.join("1000.dat")), totals)
    });
    assert_eq!(made[0], made[1]);
    let (records, totals) = &made[0];
    assert_eq!(records.len(), 4 * 2 + 1);
    assert_eq!((totals[0].entries, totals[0].dropped), (4, 4));
}
