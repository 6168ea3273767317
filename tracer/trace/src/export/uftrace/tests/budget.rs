//! A trace of which not all may be written, or can: whichever write fails, what is there is whole, and the rest is counted.

use terms::event_format::EventId;

use super::full::Disk;
use super::*;
use crate::event::End;
use crate::export::budget::Budget;
use crate::export::store::{News, Store};
use crate::report::{self, Format};

const CALLS: u64 = 24;
const POINTS: u64 = 8;
/// Prime to the length of anything.
const STEP: u64 = 11;

/// Writes calls of two threads and points of two vCPUs, in several writes. Says how many records of calls were dropped, and what there is.
fn written(
    directory: &Path,
    metadata: Metadata,
    budget: &Budget,
) -> (Result<(), ExportError>, u64, Tally) {
    let is_graph = metadata.is_graph();
    let functions = functions(2);
    let writer = UftraceWriter::create(directory, text_of(&functions), metadata, false);
    let mut writer = writer.unwrap();
    writer.set_budget(budget);
    let sent = EventFormat::new("sent".into(), Vec::new());
    writer.learn(News::Points(&[sent.into()]));
    let mut outcome = Ok(());
    for time_ns in 0..CALLS {
        let vcpu = u16::try_from(time_ns % 2).unwrap();
        let mut add = |kind| {
            let event = event(10 * time_ns, vcpu, vcpu.into(), 0, kind);
            let added = writer.append(event);
            outcome = std::mem::replace(&mut outcome, Ok(())).and(added);
        };
        let function = FunctionId(vcpu.into());
        add(EventKind::Entry(function));
        if time_ns % 3 == 0 {
            add(EventKind::Point(EventId(0)));
        }
        if is_graph {
            add(EventKind::Exit {
                function,
                end: End::Returned,
                duration: Some(0),
            });
        }
        if time_ns % 5 == 4 {
            outcome = outcome.and(writer.flush());
        }
    }
    let closed = writer.close();
    (
        outcome.and(closed),
        writer.dropped_records(),
        writer.tally(),
    )
}

#[test]
fn whatever_of_a_trace_is_not_written_is_counted_and_the_rest_is_whole() {
    let root = tempfile::tempdir().unwrap();
    for (name, metadata) in [("functions", metadata(2)), ("graph", graph_metadata())] {
        let mut has_failed = false;
        let mut room = 0;
        loop {
            let directory = root.path().join(format!("{name}-{room}"));
            let budget = Budget::of(room);
            let (outcome, dropped, tally) = written(&directory, metadata.clone(), &budget);
            let view = Format::Counts.into();
            let printed = report::print(&directory, &view, std::io::sink()).unwrap();
            let of_call = if metadata.is_graph() { 2 } else { 1 };
            let there = tally.records - tally.events;
            assert_eq!(there + dropped, of_call * CALLS, "{name}, {room} bytes");
            assert_eq!(printed.entries, tally.calls, "{name}, {room} bytes");
            let side = fs::read_to_string(directory.join(layout::SIDE_FILE)).unwrap();
            let side: serde_json::Value = serde_json::from_str(&side).unwrap();
            let lost = side["events"]["lost"].as_u64().unwrap_or_default();
            // Also where there was no room to say so beside the calls.
            let missing = dropped..=dropped + lost;
            assert!(missing.contains(&printed.lost), "{name}, {room} bytes");
            assert_eq!(printed.events + lost, POINTS, "{name}, {room} bytes");
            let files = fs::read_dir(&directory).unwrap().map(Result::unwrap);
            let records = files.filter(|file| {
                let name = file.file_name().into_string().unwrap();
                let has = |end: &str| name.ends_with(end);
                [".dat", ".side", ".jsonl"].iter().any(|end| has(end))
                    && name != "999.dat"
                    && !name.starts_with("perf-")
            });
            let sizes: Vec<(String, u64)> = records
                .map(|file| {
                    let name = file.file_name().into_string().unwrap();
                    (name, file.metadata().unwrap().len())
                })
                .collect();
            let bytes: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
            assert!(bytes <= room, "{name}: {sizes:?}, {room} bytes");
            fs::remove_dir_all(&directory).unwrap();
            if outcome.is_ok() {
                assert_eq!(
                    (dropped, printed.events),
                    (0, POINTS),
                    "{name}, {room} bytes"
                );
                break;
            }
            has_failed = true;
            room += STEP;
        }
        assert!(has_failed, "{name}");
    }
}

/// What is cut off can be written anew: the loss stands in place of the last event.
#[test]
fn what_is_cut_off_is_given_back() {
    let disk = Disk {
        bytes: Vec::new(),
        room: 1000,
    };
    let budget = Budget::of(70);
    let mut lane = Lane::new(Budgeted::new(disk, budget.clone()), "1000.dat".into());
    let word = word(Kind::Entry, 0x1000);
    (0..2).for_each(|time| lane.block().entry(time, word));
    lane.flush().unwrap();
    budget.take(7).unwrap_err();
    budget.take(6).unwrap();
    lane.block().entry(2, word);
    lane.flush().unwrap_err();
    lane.say_in_place();
    assert_eq!((lane.totals.entries, lane.totals.dropped), (1, 2));
    // A call is two records, and that it is lost is one.
    budget.take(17).unwrap_err();
    budget.take(16).unwrap();
}

/// A guest can make threads without end: each has files and lines in lists.
#[test]
fn threads_that_come_after_the_budget_is_spent_leave_nothing() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(1);
    let writer = UftraceWriter::create(&directory, text_of(&functions), graph_metadata(), false);
    let mut writer = writer.unwrap();
    writer.set_budget(&Budget::of(1000));
    let sizes = || {
        let files = fs::read_dir(&directory).unwrap().map(Result::unwrap);
        let sizes = files.map(|file| file.metadata().unwrap().len());
        sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size))
    };
    let (files, described) = sizes();
    let mut refused = 0;
    for thread in 0..200 {
        let entry = EventKind::Entry(FunctionId(0));
        writer
            .append(event(thread.into(), 0, thread, 0, entry))
            .unwrap();
        refused += u64::from(writer.flush().is_err());
    }
    // Three have files of two kinds, one of which is empty where there was no room for a record.
    let (now, bytes) = sizes();
    assert!(now <= files + 8, "{now} files");
    assert!(bytes <= described + 1000, "{bytes} bytes");
    assert!(refused >= 196, "{refused}");
    assert_eq!(writer.dropped_records(), refused);
}

/// Others share the budget.
#[test]
fn a_thread_that_cannot_be_listed_takes_nothing_however_often_that_is_tried() {
    const ROOM: u64 = 10_000;
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let (functions, budget) = (functions(2), Budget::of(ROOM));
    let writer = UftraceWriter::create(&directory, text_of(&functions), graph_metadata(), false);
    let mut writer = writer.unwrap();
    writer.set_budget(&budget);
    fs::remove_dir_all(&directory).unwrap();
    for time_ns in 0..1000 {
        let kind = EventKind::Entry(FunctionId(0));
        writer.append(event(time_ns, 0, 0, 0, kind)).unwrap();
        writer.flush().unwrap_err();
    }
    budget.take(ROOM).unwrap();
}
