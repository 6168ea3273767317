//! Calls that come many at a time are what they are one by one, on a disk that fills up as well.

use proptest::prelude::*;

use super::*;
use crate::event::{Record, RecordKind, Sink};
use crate::export::budget::Budget;
use crate::export::store::{Ending, Store};

/// Functions that there are; some calls are of others.
const FUNCTIONS: u32 = 5;

/// The files of a trace of these batches, and what is said of it; `at_once`, or one call after the other.
fn trace(batches: &[(u16, Vec<(u64, u32)>)], room: u64, at_once: bool) -> (Vec<Vec<u8>>, String) {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(FUNCTIONS.into());
    let text = text_of(&functions);
    let mut writer = UftraceWriter::create(&directory, text, metadata(2), false).unwrap();
    Store::set_budget(&mut writer, &Budget::of(room));
    for (vcpu, calls) in batches {
        let call = |(time_ns, function): &(u64, u32)| Record {
            time_ns: *time_ns,
            kind: RecordKind::Entry(FunctionId(*function)),
        };
        let calls: Vec<Record> = calls.iter().map(call).collect();
        if at_once {
            Sink::calls(&mut writer, *vcpu, &calls);
        } else {
            calls.into_iter().for_each(|call| {
                if let RecordKind::Entry(function) = call.kind {
                    Sink::event(&mut writer, entry(call.time_ns, *vcpu, function.0));
                }
            });
        }
    }
    let ended = Store::finish(&mut writer, Ending::default());
    let said = format!("{ended:?} {:?} {:?}", writer.side.totals, writer.tally());
    let said = said.replace(&*root.path().to_string_lossy(), "");
    let files = ["1000.dat", "1001.dat"].map(|name| fs::read(directory.join(name)).unwrap());
    (files.into(), said)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn calls_at_once_are_the_same_calls(
        batches in proptest::collection::vec(
            (0..3u16, proptest::collection::vec((0..2_000u64, 0..=FUNCTIONS), 0..3_000)),
            0..6,
        ),
        room in prop_oneof![Just(u64::MAX), 0..300_000u64],
    ) {
        let [(files, said), (files_of_each, said_of_each)] =
            [true, false].map(|at_once| trace(&batches, room, at_once));
        prop_assert_eq!(said, said_of_each);
        prop_assert!(files == files_of_each, "other bytes");
    }
}
