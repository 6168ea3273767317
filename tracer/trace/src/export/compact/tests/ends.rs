//! Calls that are over with their thread, and such as never end.

use super::*;

/// A guest that hangs brings nothing any more, and those calls are asked for that took long: when its rings were looked at last is kept.
#[test]
fn a_call_that_hangs_is_in_both_kinds_of_traces_with_a_threshold() {
    let stack = Gva(0xffff_8880_0000_0000);
    let hang = Record {
        time_ns: 1_000,
        kind: RecordKind::Graph {
            function: FunctionId(0),
            step: Step::Entry,
            slot: stack.0 + 0x3000,
        },
    };
    let brought = |origin, records: &[Record], looked_ns| Brought {
        origin,
        records: records.to_vec(),
        until_ns: looked_ns,
        looked_ns: Some(looked_ns),
    };
    let round = |records: &[Record], looked_ns| {
        let calls = [records, &[]];
        let calls = (0..).zip(calls);
        let calls = calls.map(|(vcpu, of)| brought(Origin::Calls(vcpu), of, looked_ns));
        let points = [0, 1].map(|vcpu| brought(Origin::Points(vcpu), &[], looked_ns));
        calls.chain(points).collect::<Vec<_>>()
    };
    let shown = |nanoseconds| {
        let folder = tempfile::tempdir().unwrap();
        let place = |name| folder.path().join(name);
        let rules = Rules {
            threshold: Some(Threshold { nanoseconds }),
            ..Rules::default()
        };
        let session = Session {
            options: StreamOptions {
                rules,
                ..small().options
            },
            rounds: vec![
                round(std::slice::from_ref(&hang), 2_000),
                round(&[], 5_000),
                round(&[], 9_000),
            ],
            ..small()
        };
        session.directly(&place("direct"));
        session.compact(&place("store"));
        convert(&place("store"), &place("again"), false, &Watch::default()).unwrap();
        assert_same(&place("direct"), &place("again"));
        let view = Format::Counts.into();
        let printed = report::print(&place("direct"), &view, std::io::sink());
        printed.unwrap().entries == 1
    };
    assert!(shown(8_000));
    assert!(!shown(8_001));
}

#[test]
fn deaths_and_names_reach_threads_whose_records_come_later() {
    let folder = tempfile::tempdir().unwrap();
    let [store, to] = ["store", "to"].map(|name| folder.path().join(name));
    let session = small();
    let mut writer = session.writer(&store);
    let stack = Gva(0xffff_8880_0000_0000);
    let death = Death {
        thread: 77,
        alive_ns: 1,
        gone_ns: u64::MAX - 1,
    };
    writer.threads(vec![(stack, "early-7".into())], vec![(stack, death)]);
    session.write(&mut writer);
    writer.threads(vec![(stack, "renamed-7".into())], Vec::new());
    writer.finish(&[]).unwrap();
    convert(&store, &to, false, &Watch::default()).unwrap();
    let names = fs::read(to.join(NAMES_FILE)).unwrap();
    let names = String::from_utf8_lossy(&names);
    assert!(names.contains("renamed-7"), "{names}");
}

/// What a thread that has ended has left open ends with it: whether that was told before there were records of it or after.
#[test]
fn a_death_ends_the_calls_of_the_thread_that_had_the_stack() {
    let stack = Gva(0xffff_8880_0000_0000);
    let death = Death {
        thread: 77,
        alive_ns: 5_000,
        gone_ns: 9_000,
    };
    let entry = |time_ns, slot| Record {
        time_ns,
        kind: RecordKind::Graph {
            function: FunctionId(0),
            step: Step::Entry,
            slot,
        },
    };
    let brought = |vcpu, until_ns, records: &[Record]| Brought {
        origin: Origin::Calls(vcpu),
        records: records.to_vec(),
        until_ns,
        looked_ns: Some(until_ns),
    };
    let rounds = [
        [entry(1_000, stack.0 + 0x3000)],
        [entry(20_000, stack.0 + 5 * STACK)],
    ];
    let files = [None, Some(0), Some(1)].map(|told_before| {
        let folder = tempfile::tempdir().unwrap();
        let [store, to] = ["store", "to"].map(|name| folder.path().join(name));
        let mut writer = small().writer(&store);
        for (number, records) in rounds.iter().enumerate() {
            if told_before == Some(number) {
                writer.threads(Vec::new(), vec![(stack, death)]);
            }
            let until_ns = 10_000 + 20_000 * number as u64;
            let points = |vcpu| Brought {
                origin: Origin::Points(vcpu),
                ..brought(vcpu, until_ns, &[])
            };
            let calls = [brought(0, until_ns, records), brought(1, until_ns, &[])];
            let session = Session {
                rounds: vec![calls.into_iter().chain([0, 1].map(points)).collect()],
                ..small()
            };
            session.write(&mut writer);
        }
        writer.finish(&[]).unwrap();
        convert(&store, &to, false, &Watch::default()).unwrap();
        contents(&to)
    });
    assert!(files[0] != files[1], "nothing has ended");
    assert!(files[1] == files[2], "another end");
}
