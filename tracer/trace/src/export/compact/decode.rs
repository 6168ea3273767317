//! Bytes back into records ([`coder`](super::coder) says how they lie). They may come from anywhere: what a part takes in
//! memory is bounded by its length.

use terms::function::FunctionId;

use super::bytes::{Bytes, Malformed};
use super::rows::{self, CALLED, CALLS, GRAPH, GROUP};
use crate::event::{Record, RecordKind, Step};

/// Adds the records in `bytes` to `into`; the time of the first counts from `base_ns`.
pub(super) fn decode(bytes: &[u8], base_ns: u64, into: &mut Vec<Record>) -> Result<(), Malformed> {
    let mut from = Bytes::of(bytes);
    let (mut time_ns, mut slot, mut caller) = (base_ns, 0, 0);
    while !from.is_empty() {
        match from.byte()? {
            CALLS => calls(&mut time_ns, &mut from, into)?,
            GRAPH => graph((&mut time_ns, &mut slot), &mut from, into)?,
            CALLED => called((&mut time_ns, &mut caller), &mut from, into)?,
            tag => {
                let record = rows::decode(tag, time_ns, &mut from)?;
                time_ns = record.time_ns;
                into.push(record);
            }
        }
    }
    Ok(())
}

/// What stands before a group: how many, the widths of times and functions, and the lowest function.
struct Head {
    count: usize,
    time: u8,
    function: u8,
    beside: u8,
    lowest: u32,
}

impl Head {
    fn read(from: &mut Bytes<'_>, has_beside: bool) -> Result<Self, Malformed> {
        let [count, widths] = from.array()?;
        let beside = if has_beside { from.byte()? } else { 0 };
        let head = Self {
            count: usize::from(count) + 1,
            time: widths & 0xf,
            function: widths >> 4,
            beside,
            lowest: u32::from_le_bytes(from.array()?),
        };
        match head.count <= GROUP && head.time <= 8 && head.function <= 4 && beside <= 8 {
            true => Ok(head),
            false => Err(Malformed("no group of records")),
        }
    }
}

fn calls(time_ns: &mut u64, from: &mut Bytes<'_>, into: &mut Vec<Record>) -> Result<(), Malformed> {
    let head = Head::read(from, false)?;
    let times = column(head.time, head.count, from)?;
    let functions = column(head.function, head.count, from)?;
    let both = times.iter().zip(&functions).take(head.count);
    into.extend(both.map(|(since, above)| {
        *time_ns = time_ns.wrapping_add(*since);
        Record {
            time_ns: *time_ns,
            kind: RecordKind::Entry(function(head.lowest, *above)),
        }
    }));
    Ok(())
}

fn graph(
    (time_ns, slot): (&mut u64, &mut u64),
    from: &mut Bytes<'_>,
    into: &mut Vec<Record>,
) -> Result<(), Malformed> {
    with_beside(time_ns, from, into, |function, moved| {
        *slot = (*slot >> 3).wrapping_add(distance(moved >> 2)) << 3;
        RecordKind::Graph {
            function,
            step: Step::of(moved & 3).unwrap_or(Step::Entry),
            slot: *slot,
        }
    })
}

fn called(
    (time_ns, caller): (&mut u64, &mut u64),
    from: &mut Bytes<'_>,
    into: &mut Vec<Record>,
) -> Result<(), Malformed> {
    with_beside(time_ns, from, into, |function, apart| {
        *caller = caller.wrapping_add(distance(apart));
        RecordKind::Called {
            function,
            caller: *caller,
        }
    })
}

/// Records that have a number beside time and function; `kind` is what both say.
fn with_beside(
    time_ns: &mut u64,
    from: &mut Bytes<'_>,
    into: &mut Vec<Record>,
    mut kind: impl FnMut(FunctionId, u64) -> RecordKind,
) -> Result<(), Malformed> {
    let head = Head::read(from, true)?;
    let times = column(head.time, head.count, from)?;
    let functions = column(head.function, head.count, from)?;
    let beside = column(head.beside, head.count, from)?;
    let all = times.iter().zip(&functions).zip(&beside).take(head.count);
    into.extend(all.map(|((since, above), beside)| {
        *time_ns = time_ns.wrapping_add(*since);
        Record {
            time_ns: *time_ns,
            kind: kind(function(head.lowest, *above), *beside),
        }
    }));
    Ok(())
}

/// How far from the one before, of a number that says so in zigzag.
const fn distance(zigzag: u64) -> u64 {
    (zigzag >> 1) ^ (zigzag & 1).wrapping_neg()
}

/// A function that there is not is counted when it is looked up.
fn function(lowest: u32, above: u64) -> FunctionId {
    let above = u32::try_from(above).unwrap_or(u32::MAX);
    FunctionId(lowest.wrapping_add(above))
}

fn column(width: u8, count: usize, from: &mut Bytes<'_>) -> Result<[u64; GROUP], Malformed> {
    let mut values = [0; GROUP];
    match width {
        0 => {}
        1 => fill::<1>(&mut values, count, from)?,
        2 => fill::<2>(&mut values, count, from)?,
        3 => fill::<3>(&mut values, count, from)?,
        4 => fill::<4>(&mut values, count, from)?,
        5 => fill::<5>(&mut values, count, from)?,
        6 => fill::<6>(&mut values, count, from)?,
        7 => fill::<7>(&mut values, count, from)?,
        _ => fill::<8>(&mut values, count, from)?,
    }
    Ok(values)
}

fn fill<const N: usize>(
    values: &mut [u64; GROUP],
    count: usize,
    from: &mut Bytes<'_>,
) -> Result<(), Malformed> {
    let (places, _) = from.take(N * count)?.as_chunks::<N>();
    for (value, place) in values.iter_mut().zip(places) {
        let mut bytes = [0; 8];
        if let Some(low) = bytes.first_chunk_mut() {
            *low = *place;
        }
        *value = u64::from_le_bytes(bytes);
    }
    Ok(())
}
