//! Records of whole events of one data file, in their order, and what stands beside them: as they are gathered until they are
//! written, by whoever puts events together.

use std::iter;

use terms::function::FunctionId;

use super::called::Called;
use super::entries::Entries;
use super::record::{
    Kind, MAX_VALUE, RECORD_LENGTH, Record, packed, step_word, truncated, with_values, word,
};
use crate::event::SureStep;

/// Bytes gathered before a write.
pub(super) const BUFFER: usize = 64 << 10;
/// An event of a vCPU takes an entry, its caller and an exit at most.
const PER_EVENT: usize = 2 * RECORD_LENGTH + CALLER_LENGTH;
const CALLER_LENGTH: usize = size_of::<u64>();
/// Bytes beside a record, where there are any.
pub(super) const BESIDE: usize = 2;
/// Marks them when the values of the record's call stand after them.
pub(super) const VALUES_BESIDE: u16 = 1 << 15;

/// How much there is of a file, and of the one beside it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Length {
    pub records: u64,
    pub beside: u64,
}

impl Length {
    /// So much more.
    pub const fn after(self, more: Self) -> Self {
        Self {
            records: self.records + more.records,
            beside: self.beside + more.beside,
        }
    }
}

/// Calls that are taken at once.
const COLUMN: usize = 512;

/// What is in a block, in events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub entries: u64,
    /// Ends of calls that are records of their own, as those of threads are.
    pub exits: u64,
    /// What its lost records say.
    pub lost: u64,
    /// Events whose time was before that of the one before.
    pub reordered: u64,
    /// Calls of a function that there is not: they are not in it.
    pub unknown: u64,
}

/// An entry and its exit.
type Pair = [u8; 2 * RECORD_LENGTH];

/// An entry, followed at once by its exit, which differs from it in the lowest bit.
#[inline]
fn pair(time: u64, entry: u64) -> Pair {
    let mut pair = [0; 2 * RECORD_LENGTH];
    let (first, second) = pair.split_at_mut(RECORD_LENGTH);
    first.copy_from_slice(&packed(time, entry));
    second.copy_from_slice(&packed(time, entry | 1));
    pair
}

/// Records of whole events, and what stands beside them.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub records: Vec<u8>,
    pub beside: Vec<u8>,
    /// Where in it the last event begins.
    pub last_at: Length,
    /// Time of the last record, here or before.
    pub time: u64,
    pub counts: Counts,
}

impl Block {
    /// How long it is.
    pub const fn length(&self) -> Length {
        Length {
            records: self.records.len() as u64,
            beside: self.beside.len() as u64,
        }
    }

    /// Whether nothing has come.
    pub fn is_nothing(&self) -> bool {
        self.records.is_empty() && self.counts == Counts::default()
    }

    /// What comes next is the first again.
    pub fn clear(&mut self) {
        self.records.clear();
        self.beside.clear();
        self.last_at = Length::default();
        self.counts = Counts::default();
    }

    /// Leaves what room there is for more than is gathered.
    pub fn leave_room(&mut self) {
        self.records.shrink_to(BUFFER);
        self.beside.shrink_to(BUFFER / RECORD_LENGTH * BESIDE);
    }

    /// Whether it has no room for another event of a vCPU.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.records.len() + PER_EVENT > BUFFER
    }

    /// How many calls without a caller can come until then: one at least.
    pub fn room(&self) -> usize {
        let left = BUFFER.saturating_sub(self.records.len() + PER_EVENT);
        left / size_of::<Pair>() + 1
    }

    /// The time of its first record.
    pub fn first_time(&self) -> Option<u64> {
        let time = self.records.first_chunk();
        time.map(|time| u64::from_le_bytes(*time))
    }

    /// An entry, followed at once by its exit: how long it took is not known.
    #[inline]
    pub fn entry(&mut self, time: u64, entry: u64) {
        let time = self.begin(time);
        self.records.extend_from_slice(&pair(time, entry));
        self.counts.entries += 1;
    }

    /// As many of the first of these calls as there is room for, of functions with these entries. Returns how many were taken:
    /// one at least. The entries are looked up in a loop of their own, which is faster.
    pub fn calls(&mut self, entries: &Entries, times: &[u64], functions: &[FunctionId]) -> usize {
        let mut column = [0; COLUMN];
        let most = times.len().min(self.room());
        let functions = functions.get(..most).unwrap_or(functions);
        let known = entries.of_functions(functions, &mut column);
        if known == 0 {
            self.counts.unknown += 1;
            return 1;
        }
        let start = self.records.len();
        self.records.resize(start + known * size_of::<Pair>(), 0);
        let places = self.records.get_mut(start..).unwrap_or_default();
        let (places, _) = places.as_chunks_mut();
        let (mut last, mut reordered) = (self.time, 0);
        for ((place, time), entry) in places.iter_mut().zip(times).zip(&column) {
            reordered += u64::from(*time < last);
            last = last.max(*time);
            *place = pair(last, *entry);
        }
        self.time = last;
        self.counts.reordered += reordered;
        self.counts.entries += known as u64;
        self.last_at.records = (self.records.len() - size_of::<Pair>()) as u64;
        known
    }

    /// The same of one of which is known where it was made: so uftrace finds its name, as that of a function.
    #[inline]
    pub fn entry_from(&mut self, time: u64, entry: u64, caller: u64) {
        let time = self.begin(time);
        let records = &mut self.records;
        records.extend_from_slice(&packed(time, with_values(entry)));
        records.extend_from_slice(&truncated(caller).to_le_bytes());
        records.extend_from_slice(&packed(time, entry | 1));
        self.counts.entries += 1;
    }

    /// So many are missing here.
    pub fn lost(&mut self, time: u64, count: u64) {
        let time = self.begin(time);
        self.counts.lost = self.counts.lost.saturating_add(count);
        let word = word(Kind::Lost, count.min(MAX_VALUE));
        self.records.extend_from_slice(&packed(time, word));
    }

    /// As many of the first of these steps of a thread as there is room for, of functions with these entries, all with
    /// the same beside them. Which are `called` is noted. Returns how many were taken: none when there is not the function of
    /// the first.
    pub fn steps(
        &mut self,
        entries: &Entries,
        steps: &[SureStep],
        beside: u16,
        called: &mut Called,
    ) -> usize {
        let left = BUFFER.saturating_sub(self.records.len());
        let most = left.div_ceil(RECORD_LENGTH).max(1).min(steps.len());
        let (start, before) = (self.records.len(), self.length());
        self.records.resize(start + most * RECORD_LENGTH, 0);
        let places = self.records.get_mut(start..).unwrap_or_default();
        let (places, _) = places.as_chunks_mut::<RECORD_LENGTH>();
        let (mut known, mut exits) = (0, 0);
        for (place, step) in places.iter_mut().zip(steps) {
            let Some(entry) = entries.of_function(step.function) else {
                break;
            };
            let is_exit = step.lasted_ns.is_some();
            *place = packed(step.time_ns, step_word(entry, step.depth, is_exit));
            self.time = step.time_ns;
            known += 1;
            match is_exit {
                true => exits += 1,
                false => {
                    called.note(step.function);
                }
            }
        }
        self.records.truncate(start + known * RECORD_LENGTH);
        let Some(last) = known.checked_sub(1) else {
            return 0;
        };
        let marks = iter::repeat_n(beside.to_le_bytes(), known);
        self.beside.extend(marks.flatten());
        self.counts.entries += (known - exits) as u64;
        self.counts.exits += exits as u64;
        self.last_at = Length {
            records: before.records + (last * RECORD_LENGTH) as u64,
            beside: before.beside + (last * BESIDE) as u64,
        };
        known
    }

    /// A step of a thread, which is one record, and what stands beside it; the values of its call stand after the one
    /// (`is_inline`) or after the other.
    pub fn step(&mut self, record: Record, values: &[u8], is_inline: bool, beside: u16) {
        match record.kind {
            Kind::Entry => self.counts.entries += 1,
            Kind::Lost => self.counts.lost = self.counts.lost.saturating_add(record.value),
            Kind::Exit => self.counts.exits += 1,
            Kind::Event => {}
        }
        self.time = record.time;
        self.last_at = self.length();
        let (inline, apart) = match is_inline {
            true => (values, &[][..]),
            false => (&[][..], values),
        };
        let record = Record {
            has_values: !inline.is_empty(),
            ..record
        };
        let mark = if apart.is_empty() { 0 } else { VALUES_BESIDE };
        let beside = (beside | mark).to_le_bytes();
        self.records.extend_from_slice(&record.pack());
        self.records.extend_from_slice(inline);
        self.beside.extend_from_slice(&beside);
        self.beside.extend_from_slice(apart);
    }

    /// Puts before everything else that so many were lost.
    pub fn put_lost(&mut self, time: u64, count: u64, beside: [u8; BESIDE]) {
        let lost = word(Kind::Lost, count.min(MAX_VALUE));
        // It has no values.
        let beside = u16::from_le_bytes(beside) & !VALUES_BESIDE;
        let is_alone = self.records.is_empty();
        self.records.splice(0..0, packed(time, lost));
        self.beside.splice(0..0, beside.to_le_bytes());
        self.last_at = match is_alone {
            true => Length::default(),
            false => self.last_at.after(Length {
                records: RECORD_LENGTH as u64,
                beside: BESIDE as u64,
            }),
        };
    }

    /// Adds the events of another one, of a vCPU's as they are, after its own.
    pub fn append(&mut self, other: &Self) {
        if !other.records.is_empty() {
            self.last_at = self.length().after(other.last_at);
            self.time = other.time;
        }
        self.records.extend_from_slice(&other.records);
        self.beside.extend_from_slice(&other.beside);
        let (counts, more) = (&mut self.counts, other.counts);
        counts.entries += more.entries;
        counts.exits += more.exits;
        counts.lost = counts.lost.saturating_add(more.lost);
        counts.reordered += more.reordered;
        counts.unknown += more.unknown;
    }

    /// The events of a vCPU that are in it.
    pub fn events(&self) -> Events<'_> {
        Events(&self.records)
    }

    /// Begins an event, and says what its time is among the others.
    #[inline]
    fn begin(&mut self, time: u64) -> u64 {
        self.last_at.records = self.records.len() as u64;
        if time < self.time {
            self.counts.reordered += 1;
        } else {
            self.time = time;
        }
        self.time
    }
}

/// What happened on a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// A function was called: the low bits of its address, and where it was made, if that is known.
    Of(u64, Option<u64>),
    /// So many are missing.
    Lost(u64),
}

/// The events of a vCPU that a block holds, in their order, with their times.
#[derive(Debug)]
pub(super) struct Events<'a>(&'a [u8]);

impl<'a> Events<'a> {
    /// Those of a file.
    #[cfg(test)]
    pub const fn of(file: &'a [u8]) -> Self {
        Self(file)
    }
}

impl Iterator for Events<'_> {
    type Item = (u64, Call);

    fn next(&mut self) -> Option<Self::Item> {
        let (record, mut rest) = self.0.split_first_chunk()?;
        let record = Record::unpack(*record)?;
        let call = match record.kind {
            Kind::Lost => Call::Lost(record.value),
            Kind::Entry | Kind::Exit | Kind::Event => {
                let mut caller = None;
                if record.has_values {
                    let (value, after) = rest.split_first_chunk()?;
                    (caller, rest) = (Some(u64::from_le_bytes(*value)), after);
                }
                // Its exit, at the same time.
                rest = rest.get(RECORD_LENGTH..)?;
                Call::Of(record.value, caller)
            }
        };
        self.0 = rest;
        Some((record.time, call))
    }
}
