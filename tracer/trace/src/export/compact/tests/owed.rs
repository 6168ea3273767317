//! What describes a trace and could not be written comes before the records that are written next.

use super::*;
use crate::export::uftrace::SideFile;

/// Calls with values, each of which is told before its call.
fn with_values() -> Session {
    let seed: Vec<(u8, u16)> = (0..60u8).map(|at| (at.wrapping_mul(7), 1)).collect();
    let records = calls(&seed, 0, true, 1_000);
    let captured = captures(&records);
    assert!(!captured.is_empty());
    let until_ns = records.last().unwrap().time_ns + 10;
    let brought = |origin, records| Brought {
        origin,
        records,
        until_ns,
        looked_ns: Some(until_ns),
    };
    Session {
        options: StreamOptions {
            has_values: true,
            ..small().options
        },
        rounds: vec![vec![
            brought(Origin::Points(0), captured),
            brought(Origin::Calls(0), records),
            brought(Origin::Points(1), Vec::new()),
            brought(Origin::Calls(1), Vec::new()),
        ]],
        ..small()
    }
}

/// A writer that has not been told what points and values are.
fn untold(session: &Session, store: &Path) -> CompactWriter {
    let functions = made(session.functions);
    let (text, metadata) = (text_of(&functions), session.metadata());
    CompactWriter::create(store, text, metadata, &session.options, false).unwrap()
}

/// A session whose disk took nothing when it was told what points and values are, and has room after that.
fn told_on_a_full_disk(session: &Session, store: &Path, while_full: impl Fn(&mut CompactWriter)) {
    let mut writer = untold(session, store);
    let unwritable = fs::File::open(store.join(STORE_FILE)).unwrap();
    let good = std::mem::replace(writer.file(), unwritable);
    writer.learn(&News::Points(&points()));
    if session.options.has_values {
        writer.values(captured(&fields()).into_iter());
    }
    while_full(&mut writer);
    *writer.file() = good;
    session.write(&mut writer);
    writer.finish(&Session::doubts()).unwrap_err();
}

#[test]
fn what_values_are_is_told_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let [direct, store, again] = ["direct", "store", "again"].map(|name| folder.path().join(name));
    let session = with_values();
    session.directly(&direct);
    told_on_a_full_disk(&session, &store, |_| ());
    convert(&store, &again, false, &Watch::default()).unwrap();
    let [mut expected, mut found] = [&direct, &again].map(|directory| contents(directory));
    // That something has failed is said there.
    for files in [&mut expected, &mut found] {
        files.remove("exotrace.json");
    }
    assert!(expected == found);
}

#[test]
fn a_thread_that_was_named_on_a_full_disk_has_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let [store, to] = ["store", "to"].map(|name| folder.path().join(name));
    let stack = Gva(0xffff_8880_0000_0000);
    let mut writer = small().writer(&store);
    small().write(&mut writer);
    let unwritable = fs::File::open(store.join(STORE_FILE)).unwrap();
    let good = std::mem::replace(writer.file(), unwritable);
    for name in ["early-7", "late-7"] {
        writer.threads(vec![(stack, name.into())], Vec::new());
    }
    *writer.file() = good;
    writer.finish(&[]).unwrap_err();
    convert(&store, &to, false, &Watch::default()).unwrap();
    let names = fs::read(to.join(NAMES_FILE)).unwrap();
    let names = String::from_utf8_lossy(&names);
    assert!(names.contains("late-7"), "{names}");
}

/// A point, and nothing else.
fn one_point() -> Session {
    let kind = RecordKind::Point(Box::new(Passed {
        event: EventId(0),
        values: [FieldValue::Signed(1), FieldValue::of_text(b"to", false)].into(),
    }));
    let point = Brought {
        origin: Origin::Points(0),
        records: vec![Record { time_ns: 5, kind }],
        until_ns: 10,
        looked_ns: Some(10),
    };
    Session {
        rounds: vec![vec![point]],
        ..small()
    }
}

#[test]
fn points_whose_formats_could_not_be_written_are_events_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let [store, to] = ["store", "to"].map(|name| folder.path().join(name));
    told_on_a_full_disk(&one_point(), &store, |_| ());
    let tally = convert(&store, &to, false, &Watch::default())
        .unwrap()
        .tally;
    assert_eq!((tally.events, tally.lost), (1, 0));
}

#[test]
fn points_that_come_while_their_formats_cannot_be_written_are_lost() {
    let folder = tempfile::tempdir().unwrap();
    let [store, to] = ["store", "to"].map(|name| folder.path().join(name));
    let (session, nothing) = (
        one_point(),
        Session {
            rounds: Vec::new(),
            ..small()
        },
    );
    told_on_a_full_disk(&nothing, &store, |writer| session.write(writer));
    let tally = convert(&store, &to, false, &Watch::default())
        .unwrap()
        .tally;
    assert_eq!((tally.events, tally.lost), (0, 1));
}

/// As of a file that somebody else has made.
#[test]
fn a_point_of_which_nobody_has_said_what_it_is_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let [store, to] = ["store", "to"].map(|name| folder.path().join(name));
    let session = one_point();
    let mut writer = untold(&session, &store);
    session.write(&mut writer);
    let kept = writer.finish(&[]).unwrap();
    let tally = convert(&store, &to, false, &Watch::default())
        .unwrap()
        .tally;
    assert_eq!((kept.records, tally.events, tally.lost), (1, 0, 1));
    let side: SideFile =
        serde_json::from_slice(&fs::read(to.join("exotrace.json")).unwrap()).unwrap();
    assert_eq!(side.events.lost, 1);
}
