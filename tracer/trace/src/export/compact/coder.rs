//! Records as bytes: up to 64 of calls at a time as columns, each as wide as the largest in it; what is rare, one by one
//! ([`rows`](super::rows)).
//!
//! ```text
//!  calls   1, count - 1, widths (time | function << 4), lowest function (4 bytes), then the columns:
//!          time since the record before (0 to 8 bytes each), function - lowest (0 to 4 bytes each)
//!  graph   2, count - 1, widths as above, width of the steps, lowest function, then the columns:
//!          time, function, and (zigzag(stack slot / 8 - that of the record before) << 2 | step), 0 to 8 bytes each
//!  called  9, count - 1, widths as above, width of the callers, lowest function, then the columns:
//!          time, function, and zigzag(return address - that of the record before), 0 to 8 bytes each
//! ```
//!
//! All numbers have their low byte first. No column has a branch for each record: this is the drain's time.

use std::collections::HashSet;

use terms::addr::Gva;
use terms::function::FunctionId;

use super::part::Part;
use super::rows::{self, CALLED, CALLS, GRAPH, GROUP};
use crate::event::{Record, RecordKind, SlotStep};
use crate::form::Form;
use crate::host::HostStep;

/// A part is closed when it has so many bytes: parts are what can be lost of a file that is cut.
const PART: usize = 256 << 10;
/// Stacks that are told, at most: as many as threads are told apart.
const STACKS_MAX: usize = crate::graph::threads::THREADS_MAX;

/// What one ring brought in one round, as bytes.
#[derive(Debug, Default)]
pub struct Coded {
    /// In their order.
    pub(super) parts: Vec<Part>,
    /// Stacks that were seen for the first time.
    pub(super) stacks: Vec<Gva>,
}

impl Coded {
    /// How many records there are.
    #[must_use]
    pub fn records(&self) -> usize {
        self.parts.iter().map(|part| part.records as usize).sum()
    }

    /// Adds the records themselves, for who wants them at once.
    pub fn decode(&self, into: &mut Vec<Record>) {
        into.reserve(self.records());
        // They were made here: nothing of them is damaged.
        self.parts.iter().for_each(|part| _ = part.records(into));
    }

    /// Stacks that were seen for the first time.
    pub fn take_stacks(&mut self) -> Vec<Gva> {
        std::mem::take(&mut self.stacks)
    }
}

/// Turns records of one ring into bytes.
#[derive(Debug)]
pub struct Coder {
    done: Coded,
    part: Option<Part>,
    /// Of the record before, in this part.
    time_ns: u64,
    slot: u64,
    caller: u64,
    /// A loss that the next may be added to.
    lost: Option<(u64, u64)>,
    stack_log2: u32,
    stack: u64,
    known: HashSet<u64>,
}

impl Coder {
    /// For a guest with stacks of this many bytes, a power of two.
    #[must_use]
    pub fn new(stack_bytes: u64) -> Self {
        Self {
            done: Coded::default(),
            part: None,
            time_ns: 0,
            slot: 0,
            caller: 0,
            lost: None,
            stack_log2: stack_bytes.max(1).trailing_zeros(),
            stack: 1,
            known: HashSet::new(),
        }
    }

    /// All that came since this was asked last.
    pub fn take(&mut self) -> Coded {
        self.say_lost();
        self.close();
        std::mem::take(&mut self.done)
    }

    fn say_lost(&mut self) {
        if let Some((time_ns, count)) = self.lost.take() {
            let kind = RecordKind::Lost(count);
            self.row(&Record { time_ns, kind });
        }
    }

    fn row(&mut self, record: &Record) {
        let before_ns = self.open(record.time_ns);
        let Some(part) = &mut self.part else { return };
        rows::encode(record, before_ns, &mut part.bytes);
        match missing(&record.kind) {
            Some(count) => part.lost = part.lost.saturating_add(count),
            None => part.records += 1,
        }
        if let RecordKind::Wait { length_ns, .. } = record.kind {
            let (count, ns) = &mut part.waits;
            (*count, *ns) = (*count + 1, ns.saturating_add(length_ns));
        }
        self.time_ns = record.time_ns;
    }

    /// Sees to it that there is a part with room, and returns the time of the record before.
    fn open(&mut self, time_ns: u64) -> u64 {
        if self
            .part
            .as_ref()
            .is_some_and(|part| part.bytes.len() >= PART)
        {
            self.close();
        }
        if self.part.is_none() {
            (self.time_ns, self.slot, self.caller) = (time_ns, 0, 0);
            self.part = Some(Part::from(time_ns, PART + (PART >> 2)));
        }
        self.time_ns
    }

    fn close(&mut self) {
        self.done.parts.extend(self.part.take());
    }

    /// Up to [`GROUP`] records of calls.
    fn group(&mut self, times: &[u64], functions: &[FunctionId], beside: Beside<'_>) {
        let Some((first_ns, last_ns)) = times.first().zip(times.last()) else {
            return;
        };
        let before_ns = self.open(*first_ns);
        let (time_bits, times) = since(before_ns, times);
        self.time_ns = *last_ns;
        let (lowest, function_bits, functions) = above_lowest(functions);
        let (tag, beside) = match beside {
            Beside::Nothing => (CALLS, None),
            Beside::Steps(steps) => {
                self.see(steps);
                let (bits, coded, slot) = moved(self.slot, steps);
                self.slot = slot;
                (GRAPH, Some((width(bits), coded)))
            }
            Beside::Callers(callers) => {
                let (bits, coded) = apart(self.caller, callers);
                self.caller = callers.last().copied().unwrap_or(self.caller);
                (CALLED, Some((width(bits), coded)))
            }
        };
        let Some(part) = &mut self.part else { return };
        let (time_width, function_width) = (width(time_bits), width(function_bits));
        let count = times.len;
        part.records += u32::from(count);
        let widths = time_width | function_width << 4;
        part.bytes
            .extend_from_slice(&[tag, count.saturating_sub(1), widths]);
        part.bytes.extend(beside.as_ref().map(|(width, _)| *width));
        part.bytes.extend_from_slice(&lowest.to_le_bytes());
        times.put(time_width, &mut part.bytes);
        functions.put(function_width, &mut part.bytes);
        if let Some((width, column)) = beside {
            column.put(width, &mut part.bytes);
        }
    }

    /// Notes stacks that were not seen before. Nearly always all are on the one that was seen last.
    fn see(&mut self, steps: &[SlotStep]) {
        let last = self.stack;
        let away = |away, at: &SlotStep| away | (at.slot() >> self.stack_log2 ^ last);
        if steps.iter().fold(0, away) == 0 {
            return;
        }
        for at in steps {
            let stack = at.slot() >> self.stack_log2;
            if stack != self.stack {
                self.stack = stack;
                if self.known.len() < STACKS_MAX && self.known.insert(stack) {
                    self.done.stacks.push(Gva(stack << self.stack_log2));
                }
            }
        }
    }
}

/// Of calls hardly one is earlier than the one before: that takes eight bytes for each time of its group.
impl Form for Coder {
    fn calls(&mut self, times: &[u64], functions: &[FunctionId]) {
        self.say_lost();
        for (times, functions) in times.chunks(GROUP).zip(functions.chunks(GROUP)) {
            self.group(times, functions, Beside::Nothing);
        }
    }

    fn called(&mut self, times: &[u64], functions: &[FunctionId], callers: &[u64]) {
        self.say_lost();
        let groups = times.chunks(GROUP).zip(functions.chunks(GROUP));
        for ((times, functions), callers) in groups.zip(callers.chunks(GROUP)) {
            self.group(times, functions, Beside::Callers(callers));
        }
    }

    fn steps(&mut self, times: &[u64], functions: &[FunctionId], steps: &[SlotStep]) {
        self.say_lost();
        let groups = times.chunks(GROUP).zip(functions.chunks(GROUP));
        for ((times, functions), steps) in groups.zip(steps.chunks(GROUP)) {
            self.group(times, functions, Beside::Steps(steps));
        }
    }

    fn lost(&mut self, time_ns: u64, count: u64) {
        let (time_ns, before) = self.lost.unwrap_or((time_ns, 0));
        self.lost = Some((time_ns, before.saturating_add(count)));
    }

    fn other(&mut self, record: &Record) {
        self.say_lost();
        self.row(record);
    }
}

/// How many are missing, if that is what a record says.
fn missing(kind: &RecordKind) -> Option<u64> {
    match kind {
        RecordKind::Lost(count) => Some(*count),
        RecordKind::Host(step) => match **step {
            HostStep::Lost(count) => Some(count.into()),
            HostStep::Entry(_) | HostStep::Exit(..) => None,
        },
        _ => None,
    }
}

/// What stands beside times and functions, a number for each.
enum Beside<'a> {
    Nothing,
    Steps(&'a [SlotStep]),
    Callers(&'a [u64]),
}

/// A column of up to [`GROUP`] numbers.
struct Column {
    values: [u64; GROUP],
    len: u8,
}

impl Column {
    fn of(values: impl Iterator<Item = u64>) -> (u64, Self) {
        let mut column = Self {
            values: [0; GROUP],
            len: 0,
        };
        let (mut bits, mut len) = (0, 0u8);
        for (place, value) in column.values.iter_mut().zip(values) {
            *place = value;
            bits |= value;
            len += 1;
        }
        column.len = len;
        (bits, column)
    }

    /// What each has to do with the one before, and all bits of that. In two loops over slices: a chain of iterators would
    /// have a branch for each.
    fn between<T: Copy>(before: T, each: &[T], of: impl Fn(T, T) -> u64) -> (u64, Self) {
        let (first_bits, mut column) = Self::of(each.first().into_iter().map(|at| of(before, *at)));
        let pairs = each.iter().zip(each.get(1..).unwrap_or_default());
        let rest = column.values.get_mut(1..).unwrap_or_default();
        let mut bits = first_bits;
        for (place, (before, at)) in rest.iter_mut().zip(pairs) {
            *place = of(*before, *at);
            bits |= *place;
        }
        column.len = u8::try_from(each.len().min(GROUP)).unwrap_or(u8::MAX);
        (bits, column)
    }

    fn put(&self, width: u8, into: &mut Vec<u8>) {
        let values = self.values.get(..usize::from(self.len)).unwrap_or_default();
        match width {
            0 => {}
            1 => put::<1>(values, into),
            2 => put::<2>(values, into),
            3 => put::<3>(values, into),
            4 => put::<4>(values, into),
            5 => put::<5>(values, into),
            6 => put::<6>(values, into),
            7 => put::<7>(values, into),
            _ => put::<8>(values, into),
        }
    }
}

/// The low `N` bytes of each.
fn put<const N: usize>(values: &[u64], into: &mut Vec<u8>) {
    let start = into.len();
    into.resize(start + N * values.len(), 0);
    let places = into.get_mut(start..).unwrap_or_default();
    let (places, _) = places.as_chunks_mut::<N>();
    for (place, value) in places.iter_mut().zip(values) {
        if let Some(low) = value.to_le_bytes().first_chunk() {
            *place = *low;
        }
    }
}

/// Bytes that numbers of these bits take.
#[expect(clippy::cast_possible_truncation, reason = "at most 8")]
const fn width(bits: u64) -> u8 {
    (u64::BITS - bits.leading_zeros()).div_ceil(8) as u8
}

/// Each time since the one before.
fn since(before_ns: u64, times: &[u64]) -> (u64, Column) {
    Column::between(before_ns, times, |before, at| at.wrapping_sub(before))
}

/// The lowest function, and how far the others are above it.
fn above_lowest(functions: &[FunctionId]) -> (u32, u64, Column) {
    let lowest = functions.iter().fold(u32::MAX, |low, one| low.min(one.0));
    let above = functions
        .iter()
        .map(|one| u64::from(one.0.wrapping_sub(lowest)));
    let (bits, column) = Column::of(above);
    (lowest, bits, column)
}

const fn zigzag(by: i64) -> u64 {
    (by << 1 ^ by >> 63).cast_unsigned()
}

/// How far each return address is from the one before.
fn apart(before: u64, callers: &[u64]) -> (u64, Column) {
    let apart = |before, caller: u64| zigzag(caller.wrapping_sub(before).cast_signed());
    Column::between(before, callers, apart)
}

/// Steps, and how far each stack slot is from the one before; and the last slot.
fn moved(before: u64, steps: &[SlotStep]) -> (u64, Column, u64) {
    let moved = |before: SlotStep, at: SlotStep| {
        let by = (at.slot() >> 3).wrapping_sub(before.slot() >> 3);
        zigzag(by.cast_signed()) << 2 | at.step() as u64
    };
    let (bits, column) = Column::between(SlotStep::new(before, 0), steps, moved);
    let last = steps.last().map_or(before, |last| last.slot());
    (bits, column, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As one whose writer was away, of a session that traces no returns.
    #[test]
    fn a_call_that_is_earlier_than_the_one_before_keeps_its_time() {
        const FUNCTION: FunctionId = FunctionId(3);
        let mut coder = Coder::new(1 << 14);
        let times = [5000, 5010, 40, 41, 6000, 30];
        let (some, one_by_one) = times.split_at(4);
        coder.calls(some, &[FUNCTION; 4]);
        for time_ns in one_by_one {
            let (time_ns, kind) = (*time_ns, RecordKind::Entry(FUNCTION));
            coder.record(&Record { time_ns, kind });
        }
        let mut read = Vec::new();
        coder.take().decode(&mut read);
        let read: Vec<u64> = read.iter().map(|record| record.time_ns).collect();
        assert_eq!(read, times);
    }
}
