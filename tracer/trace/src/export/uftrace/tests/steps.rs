//! Steps of threads that are taken many at a time make the files that they make one by one, also of functions that there are
//! not, and on a disk that fills up.

use proptest::prelude::*;

use super::*;
use crate::event::{KeepsApart, Sink, SureStep};
use crate::export::budget::Budget;
use crate::export::store::{Ending, Store};

/// Functions that there are; some steps are of others.
const FUNCTIONS: u32 = 5;

/// Steps of one thread on one vCPU, so often after each other.
#[derive(Debug, Clone)]
struct Stretch {
    vcpu: u16,
    thread: u32,
    steps: Vec<SureStep>,
    times: usize,
}

fn step() -> impl Strategy<Value = SureStep> {
    let lasted = prop::option::of(0..9u64);
    (0..FUNCTIONS + 1, 0..2000u32, lasted).prop_map(|(function, depth, lasted_ns)| SureStep {
        time_ns: 0,
        function: FunctionId(function),
        depth,
        lasted_ns,
    })
}

fn stretch() -> impl Strategy<Value = Stretch> {
    let steps = prop::collection::vec(step(), 1..24);
    let times = prop_oneof![4 => 1..3usize, 1 => 300..600usize];
    (0..3u16, 0..4u32, steps, times).prop_map(|(vcpu, thread, steps, times)| Stretch {
        vcpu,
        thread,
        steps,
        times,
    })
}

type Made = (Vec<(String, Vec<u8>)>, String);

/// How steps come to a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    OneByOne,
    AtOnce,
    /// At once, to what their thread is kept in, which is lent for that if it is to be had.
    Lent,
}

fn add(
    writer: &mut UftraceWriter,
    Stretch { vcpu, thread, .. }: &Stretch,
    steps: &[SureStep],
    how: How,
) {
    let (vcpu, thread) = (*vcpu, *thread);
    let lent = (how == How::Lent).then(|| writer.lend(&[thread])).flatten();
    match (how, lent) {
        (_, Some(mut lent)) => {
            let (first, rest) = steps.split_at(steps.len() / 2);
            first
                .iter()
                .for_each(|step| lent.event(step.event(vcpu, thread)));
            lent.steps(vcpu, thread, rest);
            writer.take_back(lent);
        }
        (How::OneByOne, None) => {
            let each = steps.iter();
            each.for_each(|step| writer.event(step.event(vcpu, thread)));
        }
        (How::AtOnce | How::Lent, None) => writer.steps(vcpu, thread, steps),
    }
}

fn made(stretches: &[Stretch], room: u64, how: How) -> Made {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(FUNCTIONS.into());
    let text = text_of(&functions);
    let mut writer = UftraceWriter::create(&directory, text, graph_metadata(), false).unwrap();
    Store::set_budget(&mut writer, &Budget::of(room));
    let mut time_ns = 0;
    for stretch in stretches {
        let mut steps = stretch.steps.repeat(stretch.times);
        for step in &mut steps {
            time_ns += 3;
            step.time_ns = time_ns;
        }
        add(&mut writer, stretch, &steps, how);
    }
    let ended = match Store::finish(&mut writer, Ending::default()) {
        Ok(tally) => format!("{tally:?}"),
        Err(error) => error
            .to_string()
            .replace(&*root.path().to_string_lossy(), ""),
    };
    drop(writer);
    let files = fs::read_dir(&directory).unwrap().map(Result::unwrap);
    let mut files: Vec<_> = files
        .map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, fs::read(file.path()).unwrap())
        })
        .collect();
    files.sort();
    (files, ended)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn many_steps_at_a_time_make_the_same_files(
        stretches in prop::collection::vec(stretch(), 1..12),
        room in prop_oneof![3 => Just(u64::MAX), 2 => 0..600_000u64],
    ) {
        let expected = made(&stretches, room, How::OneByOne);
        prop_assert_eq!(&made(&stretches, room, How::AtOnce), &expected);
        if room == u64::MAX {
            prop_assert_eq!(made(&stretches, room, How::Lent), expected);
        }
    }
}

/// A writer of a graph that may take so many bytes.
fn writer(folder: &Path, room: u64) -> UftraceWriter {
    let functions = functions(FUNCTIONS.into());
    let text = text_of(&functions);
    let directory = folder.join("trace");
    let mut writer = UftraceWriter::create(&directory, text, graph_metadata(), false).unwrap();
    Store::set_budget(&mut writer, &Budget::of(room));
    writer
}

/// More than is gathered before it is written.
fn many_steps() -> Vec<SureStep> {
    let step = |time_ns| SureStep {
        time_ns,
        function: FunctionId(1),
        depth: 0,
        lasted_ns: None,
    };
    (0..9000).map(step).collect()
}

#[test]
fn why_a_thread_that_was_lent_is_not_written_is_known_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    // Until then it is in no list.
    let mut writer = writer(folder.path(), 0);
    writer.event(many_steps()[0].event(0, 0));
    let mut lent = writer.lend(&[0]).unwrap();
    lent.steps(0, 0, &many_steps());
    assert!(writer.error().is_none());
    writer.take_back(lent);
    assert!(writer.error().is_some());
}

#[test]
fn why_who_was_lent_a_thread_could_not_write_it_is_known_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer(folder.path(), 256 + 2 * (64 << 10) * 18 / 16);
    writer.steps(0, 0, &many_steps());
    assert!(writer.error().is_none(), "there was room for that");
    let mut lent = writer.lend(&[0]).unwrap();
    lent.steps(0, 0, &many_steps());
    writer.take_back(lent);
    let error = writer.error().map(ToString::to_string);
    assert!(error.is_some_and(|error| error.contains("1000.dat")));
}
