//! A compact trace that may come from anywhere: what is read of it is text or an error, in memory that its length bounds. The
//! first byte of the input says whether checksums are made right, so that what is in the blocks is looked at, too.

use std::fs;
use std::path::Path;

use terms::addr::Gva;
use terms::function::{Function, FunctionId};
use trace::event::{SlotStep, Step};
use trace::export::compact::{Coder, CompactWriter, STORE_FILE};
use trace::export::uftrace::layout::Text;
use trace::export::uftrace::{GRAPH, Metadata};
use trace::form::Form;
use trace::report::{Format, print};
use trace::stream::{Origin, StreamOptions};

use super::directory::{Directory, shown};

/// Bytes before the blocks, and before what a block holds.
const START: usize = 16;
const FRAME: usize = 12;

thread_local! {
    static DIRECTORY: Directory = Directory::new();
}

/// Reports of it.
pub fn run(bytes: &[u8]) {
    let Some((how, file)) = bytes.split_first() else {
        return;
    };
    let mut file = file.to_vec();
    if how % 2 == 1 {
        repair(&mut file);
    }
    DIRECTORY.with(|directory| {
        fs::write(directory.0.join(STORE_FILE), file).expect("a file");
        for format in [Format::Overview, Format::Function, Format::Graph] {
            shown(|out| print(&directory.0, &format.into(), out));
        }
    });
}

/// Makes the checksums of all blocks right.
fn repair(file: &mut [u8]) {
    let mut at = START;
    while let Some(length) = file.get(at..).and_then(|rest| rest.first_chunk()) {
        let length = u32::from_le_bytes(*length) as usize;
        let end = at.saturating_add(FRAME).saturating_add(length);
        let Some(block) = file.get_mut(at..end) else {
            return;
        };
        let (frame, contents) = block.split_at_mut(FRAME);
        let right = crc32(frame[..8].iter().chain(contents.iter()));
        frame[8..].copy_from_slice(&right.to_le_bytes());
        at = end;
    }
}

fn crc32<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ 0xedb8_8320 & (crc & 1).wrapping_neg()
        })
    };
    !bytes.fold(u32::MAX, step)
}

/// A trace of functions and one of a graph, with checksums that are looked at and made right.
pub fn seeds() -> Vec<Vec<u8>> {
    let traces = [written(None), written(Some(1 << 14))];
    let both = traces
        .iter()
        .flat_map(|trace| [0u8, 1].map(|how| (how, trace)));
    both.map(|(how, trace)| [&[how], &trace[..]].concat())
        .collect()
}

fn written(stack_bytes: Option<u64>) -> Vec<u8> {
    let directory = Directory::new();
    let _ = fs::remove_file(directory.0.join("info"));
    let at = directory.0.join("seed");
    let functions: Vec<Function> = (0..3).map(function).collect();
    let text = Text {
        functions: &functions,
        limit: None,
    };
    let metadata = Metadata {
        vcpus: 1,
        tracer: stack_bytes.map_or("function", |_| GRAPH).into(),
        stack_bytes: stack_bytes.unwrap_or_default(),
        ..Metadata::default()
    };
    let options = StreamOptions {
        rings: 1,
        stack_bytes,
        ..StreamOptions::default()
    };
    let mut writer = CompactWriter::create(&at, text, metadata, &options, true).expect("a trace");
    let mut coder = Coder::new(stack_bytes.unwrap_or(1));
    let times: Vec<u64> = (1..9).map(|time| time * 70).collect();
    let called: Vec<FunctionId> = (0..8).map(|at| FunctionId(at % 4 / 2)).collect();
    let steps: Vec<SlotStep> = (0..8u64)
        .map(|at| SlotStep::new(0xffff_8000_0000_3f00, step(at) as u64))
        .collect();
    match stack_bytes {
        Some(_) => coder.steps(&times, &called, &steps),
        None => coder.calls(&times, &called),
    }
    coder.lost(600, 2);
    writer.append(Origin::Calls(0), coder.take(), 700, Some(650));
    writer.end_round();
    writer.threads(
        vec![(Gva(0xffff_8000_0000_0000), "init-1".into())],
        Vec::new(),
    );
    writer.finish(&[]).expect("a trace");
    read(&at)
}

fn read(at: &Path) -> Vec<u8> {
    fs::read(at.join(STORE_FILE)).expect("a file")
}

const fn step(at: u64) -> Step {
    match at % 2 {
        0 => Step::Entry,
        _ => Step::Exit,
    }
}

fn function(number: u64) -> Function {
    Function {
        address: Gva(0xffff_ffff_8100_0000 + 16 * number),
        size: 16,
        name: format!("f{number}").into(),
        display: format!("f{number}").into(),
        ..Function::default()
    }
}
