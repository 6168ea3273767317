//! A compact trace of which not all may be written.

use super::*;
use crate::export::budget::Budget;
use crate::form::Form;

const ROUNDS: u64 = 500;

/// What the guest makes after the budget is spent does not make the file any longer, however long that goes on.
#[test]
fn a_file_is_no_longer_than_its_budget_however_long_the_guest_runs() {
    let root = tempfile::tempdir().unwrap();
    let functions = made(2);
    let metadata = Metadata {
        vcpus: RINGS,
        tracer: "function".into(),
        ..Metadata::default()
    };
    let options = StreamOptions {
        rings: RINGS,
        ..StreamOptions::default()
    };
    let mut longest = 0;
    for room in [0, 1, 60, 100, 1000, 5000] {
        let directory = root.path().join(room.to_string());
        let text = text_of(&functions);
        let writer = CompactWriter::create(&directory, text, metadata.clone(), &options, false);
        let mut writer = writer.unwrap();
        let file = directory.join(STORE_FILE);
        let length = || fs::metadata(&file).unwrap().len();
        let described = length();
        writer.set_budget(&Budget::of(room));
        for round in 0..ROUNDS {
            let mut coder = Coder::new(1);
            let record = Record {
                time_ns: 10 * round,
                kind: RecordKind::Entry(FunctionId(0)),
            };
            coder.record(&record);
            let looked_ns = Some(10 * round + 5);
            writer.append(Origin::Calls(0), coder.take(), 10 * round + 5, looked_ns);
            writer.append(Origin::Calls(1), Coder::new(1).take(), 0, looked_ns);
            writer.threads(vec![(Gva(round), format!("thread-{round}"))], Vec::new());
            writer.end_round();
            assert!(length() <= described + room, "{room}: {}", length());
        }
        longest = longest.max(length() - described);
        let error = writer.finish(&[]).unwrap_err();
        assert!(
            error.to_string().contains("that traces may take"),
            "{error}"
        );
        let view = Format::Counts.into();
        let printed = report::print(&directory, &view, std::io::sink()).unwrap();
        assert_eq!(printed.entries + printed.lost, ROUNDS, "{room}");
    }
    assert!(longest > 4000, "{longest}");
}
