//! A file that somebody has made up: its entries are deeper than a record can say, so that no depth ends any.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::boot::Boot;
use super::summary::Summary;
use super::*;
use crate::event::End;
use crate::export::folded::{Folded, Weight};
use crate::export::uftrace::record::{Kind, MAX_DEPTH, Record};
use crate::export::uftrace::{GRAPH, Metadata, UftraceWriter};
use crate::graph::STACK_OPEN_MAX;
use crate::testing::{entry, event, functions, text_of};

/// As many as are open at most.
const MOST: usize = STACK_OPEN_MAX + 1;
/// And some more.
const MANY: usize = MOST + 3_000;

/// A trace of a thread that has these records in its file: each of a kind, a function, and a depth.
fn made_up(records: impl IntoIterator<Item = (Kind, usize, u32)>) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        vcpus: 1,
        tracer: GRAPH.into(),
        ..Metadata::default()
    };
    let functions = functions(2);
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), metadata, false).unwrap();
    writer.append(event(0, 0, 0, 0, entry(0))).unwrap();
    writer.finish().unwrap();
    let records = (1..).zip(records);
    let records = records.flat_map(|(time, (kind, function, depth))| {
        let record = Record {
            time,
            kind,
            value: functions[0].address.0 + 16 * function as u64,
            depth,
            has_values: false,
        };
        record.pack()
    });
    std::fs::write(directory.join("1000.dat"), records.collect::<Vec<u8>>()).unwrap();
    std::fs::remove_file(directory.join("1000.side")).unwrap();
    (root, directory)
}

/// Entries of ever other functions.
fn entries(count: usize) -> impl Iterator<Item = (Kind, usize, u32)> {
    (0..count).map(|function| (Kind::Entry, function, MAX_DEPTH))
}

/// Each step of a trace, and what was said of it.
fn walk(directory: &Path, mut to: impl FnMut(&TraceDirectory, &Calls, &Event)) -> Vec<String> {
    let trace = TraceDirectory::open(directory).unwrap();
    let mut calls = Calls::open(&trace, &Excerpt::default()).unwrap();
    while let Some(next) = calls.pop().unwrap() {
        next.steps().for_each(|step| to(&trace, &calls, &step));
    }
    calls.notes
}

/// How calls have ended, and how deep they were.
fn ends(directory: &Path) -> (Vec<(u32, End)>, Vec<String>) {
    let mut ends = Vec::new();
    let notes = walk(directory, |_, _, step| {
        if let EventKind::Exit { end, .. } = step.kind {
            ends.push((step.depth, end));
        }
    });
    (ends, notes)
}

#[test]
fn no_more_calls_are_open_than_where_they_are_recorded_and_the_others_are_said() {
    let (_root, directory) = made_up(entries(MANY));
    let (mut entries, mut deepest) = (0, 0);
    walk(&directory, |_, _, step| {
        entries += usize::from(matches!(step.kind, EventKind::Entry(_)));
        deepest = deepest.max(step.depth as usize);
    });
    assert_eq!((entries, deepest), (MANY, MOST));
    let (ends, notes) = ends(&directory);
    assert_eq!(
        notes,
        ["thread 0: 3,000 calls not followed: too many calls open at once"]
    );
    let most = u32::try_from(MOST).unwrap();
    assert_eq!(ends, [(most, End::EntryOnly); 3_000]);
}

#[test]
fn calls_that_are_not_followed_take_no_end_of_those_that_are() {
    let exits = |count| (0..count).rev();
    let exit = |function| (Kind::Exit, function, MAX_DEPTH);
    let (_root, directory) = made_up(entries(MOST + 2).chain(exits(MOST + 2).map(exit)));
    let (found, _) = ends(&directory);
    let (beyond, followed) = found.split_at(2);
    let most = u32::try_from(MOST).unwrap();
    assert_eq!(beyond, [(most, End::EntryOnly); 2]);
    let returned = (0..most).rev().map(|depth| (depth, End::Returned));
    assert!(
        followed.iter().copied().eq(returned),
        "{:?}",
        &followed[..9]
    );
    // Of one function that calls itself each end is its own, too.
    let same = [Kind::Entry, Kind::Exit].map(|kind| [(kind, 0, MAX_DEPTH)].repeat(MOST + 2));
    let (_root, directory) = made_up(same.concat());
    let mut first = None;
    walk(&directory, |_, _, step| {
        if let EventKind::Exit { duration, .. } = step.kind {
            first = first.or(duration);
        }
    });
    assert_eq!(first, Some(5), "two have ended inside of it");
    // What is less deep ends them all.
    let shallow = [(Kind::Entry, 0, 1), (Kind::Exit, 0, 1)];
    let (_root, directory) = made_up(entries(MOST + 2).chain(shallow));
    let (found, _) = ends(&directory);
    let (last, before) = found.split_last().unwrap();
    assert_eq!(*last, (1, End::Returned));
    let missing = before.iter().filter(|(_, end)| *end == End::NotSeen);
    assert_eq!(missing.count(), MOST - 1);
}

/// As our own writer has it: the call that there was no room for has both its ends.
#[test]
fn the_deepest_stack_that_is_recorded_comes_back_whole() {
    let deep = |kind| move |depth: usize| (kind, 0, u32::try_from(depth).unwrap().min(MAX_DEPTH));
    let begins = (0..MOST).map(deep(Kind::Entry));
    let returns = (0..MOST).rev().map(deep(Kind::Exit));
    let (_root, directory) = made_up(begins.chain(returns));
    let (found, notes) = ends(&directory);
    assert_eq!(notes, Vec::<String>::new());
    let depths = (0..u32::try_from(MOST).unwrap()).rev();
    assert!(
        found
            .into_iter()
            .eq(depths.map(|depth| (depth, End::Returned)))
    );
}

#[test]
fn what_stacks_have_in_common_is_kept_once() {
    let (_root, directory) = made_up(entries(MANY));
    let mut folded = Folded::by(Weight::Calls);
    walk(&directory, |_, _, step| folded.add(step));
    assert_eq!(folded.frames(), MANY);
}

#[test]
fn counting_calls_keeps_no_more_than_are_open() {
    let (_root, directory) = made_up(entries(MANY));
    for by in [By::Function, By::Caller] {
        let (mut summary, mut most) = (Summary::new(by), 0);
        walk(&directory, |_, _, step| {
            summary.add(step, None);
            most = most.max(summary.open_calls());
        });
        assert_eq!((summary.len(), most), (MANY, MOST + 1), "{by:?}");
    }
    let mut text = Vec::new();
    print(&directory, &Format::Counts.into(), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let all = format!("# {MANY} calls of {MANY} functions, 0 lost");
    assert_eq!(text.lines().last(), Some(&*all));
}

#[test]
fn a_boot_keeps_no_more_than_are_open() {
    let (_root, directory) = made_up(entries(MANY));
    let (mut boot, mut most) = (Boot::default(), 0);
    walk(&directory, |trace, calls, step| {
        boot.add(step, |function| calls.name(trace, function).into_owned());
        most = most.max(boot.open_calls());
    });
    assert_eq!(most, MOST + 1);
}
