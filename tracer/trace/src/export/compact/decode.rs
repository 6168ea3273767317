//! Bytes back into records ([`coder`](super::coder) says how they lie). They may come from anywhere: what a part takes in
//! memory is bounded by its length.

use terms::function::FunctionId;

use super::bytes::{Bytes, Malformed};
use super::rows::{self, CALLED, CALLS, GRAPH, GROUP};
use crate::event::SlotStep;
use crate::form::Form;

/// Gives the records in `bytes` to `into`; the time of the first counts from `base_ns`.
pub(super) fn decode(bytes: &[u8], base_ns: u64, into: &mut impl Form) -> Result<(), Malformed> {
    let mut from = Bytes::of(bytes);
    let (mut time_ns, mut slot, mut caller) = (base_ns, 0_u64, 0_u64);
    while !from.is_empty() {
        match from.byte()? {
            CALLS => {
                let group = Group::read(&mut time_ns, false, &mut from)?;
                into.calls(group.times(), group.functions());
            }
            GRAPH => {
                let group = Group::read(&mut time_ns, true, &mut from)?;
                let steps = group.beside(|moved| {
                    slot = (slot >> 3).wrapping_add(distance(moved >> 2)) << 3;
                    SlotStep::new(slot, moved)
                });
                into.steps(group.times(), group.functions(), group.first(&steps));
            }
            CALLED => {
                let group = Group::read(&mut time_ns, true, &mut from)?;
                let callers = group.beside(|apart| {
                    caller = caller.wrapping_add(distance(apart));
                    caller
                });
                into.called(group.times(), group.functions(), group.first(&callers));
            }
            tag => {
                let record = rows::decode(tag, time_ns, &mut from)?;
                time_ns = record.time_ns;
                into.record(&record);
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

/// Records of one kind after each other, a column for each thing that they say.
struct Group {
    count: usize,
    times: [u64; GROUP],
    functions: [FunctionId; GROUP],
    beside: [u64; GROUP],
}

impl Group {
    /// The next one, where the record before it was at `time_ns`.
    fn read(time_ns: &mut u64, has_beside: bool, from: &mut Bytes<'_>) -> Result<Self, Malformed> {
        let head = Head::read(from, has_beside)?;
        let mut times = column(head.time, head.count, from)?;
        let above = column(head.function, head.count, from)?;
        let beside = match has_beside {
            true => column(head.beside, head.count, from)?,
            false => [0; GROUP],
        };
        for time in times.iter_mut().take(head.count) {
            *time_ns = time_ns.wrapping_add(*time);
            *time = *time_ns;
        }
        Ok(Self {
            count: head.count,
            times,
            functions: above.map(|above| function(head.lowest, above)),
            beside,
        })
    }

    /// As many as there are.
    fn first<'a, T>(&self, column: &'a [T; GROUP]) -> &'a [T] {
        column.get(..self.count).unwrap_or(column)
    }

    fn times(&self) -> &[u64] {
        self.first(&self.times)
    }

    fn functions(&self) -> &[FunctionId] {
        self.first(&self.functions)
    }

    /// What stands beside times and functions, made into what it is; what is after the last is nothing.
    fn beside<T: Copy + Default>(&self, mut made: impl FnMut(u64) -> T) -> [T; GROUP] {
        let mut all = [T::default(); GROUP];
        let each = all.iter_mut().zip(self.first(&self.beside));
        each.for_each(|(place, beside)| *place = made(*beside));
        all
    }
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
