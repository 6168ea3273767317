//! Steps of threads that are taken many at a time make the files that they make one by one, also of functions that there are
//! not, and on a disk that fills up.

use proptest::prelude::*;

use super::*;
use crate::event::{Sink, SureStep};
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
    let steps = prop::collection::vec(step(), 1..40);
    let times = prop_oneof![4 => 1..3usize, 1 => 300..900usize];
    (0..3u16, 0..4u32, steps, times).prop_map(|(vcpu, thread, steps, times)| Stretch {
        vcpu,
        thread,
        steps,
        times,
    })
}

type Made = (Vec<(String, Vec<u8>)>, String);

fn made(stretches: &[Stretch], room: u64, at_once: bool) -> Made {
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
        match at_once {
            true => writer.steps(stretch.vcpu, stretch.thread, &steps),
            false => steps
                .iter()
                .for_each(|step| writer.event(step.event(stretch.vcpu, stretch.thread))),
        }
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
        let expected = made(&stretches, room, false);
        prop_assert_eq!(made(&stretches, room, true), expected);
    }
}
