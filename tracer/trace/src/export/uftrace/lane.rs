//! One data file, of a vCPU or of a thread: buffered, and cut back to whole events when a write fails. What could not be
//! written is said as lost where there is room again, or in place of the last event.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use super::block::{BESIDE, BUFFER, Block, Call, Counts, Length};
use super::error::ExportError;
use super::record::{Kind, Record, word};
use crate::export::budget::Budget;
use crate::export::whole::Cut;

/// Where a lane's bytes go.
pub(super) trait Storage {
    /// Whether what stands beside records is kept.
    const HAS_BESIDE: bool;
    /// Adds records, and what stands beside them.
    fn append(&mut self, records: &[u8], beside: &[u8]) -> io::Result<()>;
    /// Cuts the file to this length and continues writing there; the one beside it, too.
    fn cut(&mut self, length: Length) -> io::Result<()>;
}

/// A file that has none beside it.
impl Storage for File {
    const HAS_BESIDE: bool = false;

    fn append(&mut self, records: &[u8], _beside: &[u8]) -> io::Result<()> {
        self.write_all(records)
    }

    fn cut(&mut self, length: Length) -> io::Result<()> {
        Cut::cut(self, length.records)
    }
}

/// Storage that takes what it holds from a budget.
#[derive(Debug)]
pub(super) struct Budgeted<S> {
    storage: S,
    pub budget: Budget,
    /// What was appended and not cut, in bytes of both files.
    taken: u64,
}

impl<S> Budgeted<S> {
    /// Of new storage.
    pub const fn new(storage: S, budget: Budget) -> Self {
        Self {
            storage,
            budget,
            taken: 0,
        }
    }
}

impl<S: Storage> Budgeted<S> {
    /// What is taken for so much.
    const fn bytes(length: Length) -> u64 {
        match S::HAS_BESIDE {
            true => length.records.saturating_add(length.beside),
            false => length.records,
        }
    }
}

impl<S: Storage> Storage for Budgeted<S> {
    const HAS_BESIDE: bool = S::HAS_BESIDE;

    fn append(&mut self, records: &[u8], beside: &[u8]) -> io::Result<()> {
        let [records_length, beside_length] = [records, beside].map(|part| part.len() as u64);
        let bytes = Self::bytes(Length {
            records: records_length,
            beside: beside_length,
        });
        self.budget.take(bytes)?;
        // What of it gets through is cut off.
        self.taken = self.taken.saturating_add(bytes);
        self.storage.append(records, beside)
    }

    fn cut(&mut self, length: Length) -> io::Result<()> {
        self.storage.cut(length)?;
        let left = Self::bytes(length);
        self.budget.give_back(self.taken.saturating_sub(left));
        self.taken = self.taken.min(left);
        Ok(())
    }
}

/// What went through a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneTotals {
    /// Entries that are in the file.
    pub entries: u64,
    /// Ends of calls that are in it as records of their own.
    pub exits: u64,
    /// Records lost in the ring, as reported by the reader.
    pub lost: u64,
    /// Calls that could not be written to disk.
    pub dropped: u64,
    /// Records that could not: of a call of a thread its end is another one.
    pub dropped_records: u64,
    /// Events whose time was before that of the one before, written with that one's time.
    pub reordered: u64,
    /// Events of a function that the image does not have.
    pub unknown: u64,
}

impl LaneTotals {
    /// These, and those of another one.
    pub fn with(self, other: Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            exits: self.exits + other.exits,
            lost: self.lost.saturating_add(other.lost),
            dropped: self.dropped + other.dropped,
            dropped_records: self.dropped_records + other.dropped_records,
            reordered: self.reordered + other.reordered,
            unknown: self.unknown + other.unknown,
        }
    }
}

/// An event that is in the file, which can give its place.
#[derive(Debug, Clone, Copy)]
struct Last {
    /// Its first record.
    record: Record,
    /// Where it begins.
    start: Length,
    /// What stands beside it.
    beside: [u8; BESIDE],
}

/// One file.
#[derive(Debug)]
pub(super) struct Lane<S> {
    storage: S,
    path: PathBuf,
    waiting: Block,
    /// What is in the file.
    written: Length,
    /// A part of something may follow that, and could not be cut off yet.
    is_torn: bool,
    last: Option<Last>,
    /// Records dropped, and lost ones whose record was, that no record tells of yet.
    unsaid: u64,
    /// What stood beside the first of them.
    unsaid_beside: Option<[u8; BESIDE]>,
    pub totals: LaneTotals,
}

impl<S: Storage> Lane<S> {
    pub fn new(storage: S, path: PathBuf) -> Self {
        Self {
            storage,
            path,
            waiting: Block::default(),
            written: Length::default(),
            is_torn: false,
            last: None,
            unsaid: 0,
            unsaid_beside: None,
            totals: LaneTotals::default(),
        }
    }

    /// Where its bytes go.
    pub fn storage(&mut self) -> &mut S {
        &mut self.storage
    }

    /// What waits, for who adds to it.
    #[inline]
    pub const fn block(&mut self) -> &mut Block {
        &mut self.waiting
    }

    /// Takes events of a vCPU that were put together elsewhere.
    pub fn take(&mut self, block: Block) -> Result<(), ExportError> {
        let is_late = |first| first < self.waiting.time;
        if block.first_time().is_some_and(is_late) {
            return self.take_late(&block);
        }
        let mut result = Ok(());
        if self.waiting.records.len() + block.records.len() > BUFFER {
            result = self.flush();
        }
        if self.waiting.records.is_empty() && !block.records.is_empty() {
            self.settle();
            self.waiting = block;
        } else {
            self.waiting.append(&block);
        }
        if self.waiting.is_full() {
            result = result.and(self.flush());
        }
        result
    }

    /// The same of events that come after some of later times.
    fn take_late(&mut self, block: &Block) -> Result<(), ExportError> {
        let mut result = Ok(());
        for (time, call) in block.events() {
            let entry = |address| word(Kind::Entry, address);
            match call {
                Call::Of(address, None) => self.waiting.entry(time, entry(address)),
                Call::Of(address, Some(caller)) => {
                    self.waiting.entry_from(time, entry(address), caller);
                }
                Call::Lost(count) => self.waiting.lost(time, count),
            }
            if self.waiting.is_full() {
                result = result.and(self.flush());
            }
        }
        self.totals.reordered += block.counts.reordered;
        self.totals.unknown += block.counts.unknown;
        result
    }

    /// Bytes that wait to be written.
    pub fn waiting(&self) -> usize {
        self.waiting.records.len()
    }

    /// Whether nothing waits, and nothing is missing of which the file does not say so.
    pub fn is_said(&self) -> bool {
        self.waiting.records.is_empty() && self.unsaid == 0
    }

    /// Records that are missing, of which the file does not say so.
    pub const fn unsaid(&self) -> u64 {
        self.unsaid
    }

    /// Writes what waits. What cannot be written is dropped and counted.
    pub fn flush(&mut self) -> Result<(), ExportError> {
        if self.is_said() {
            self.settle();
            return Ok(());
        }
        self.say_unsaid();
        self.write().map_err(|source| {
            self.drop_waiting();
            let (path, dropped) = (self.path.clone(), self.totals.dropped_records);
            ExportError::Dropped {
                path,
                dropped,
                source,
            }
        })
    }

    /// Says what was dropped and not said: on a disk that is full still, in place of the file's last
    /// event.
    pub fn say_in_place(&mut self) {
        // A file that cannot be changed says less than is true; the side file has the count.
        if self.mend().is_err() {
            return;
        }
        let Some(last) = self.last.filter(|_| self.unsaid > 0) else {
            return;
        };
        if self.storage.cut(last.start).is_err() {
            self.is_torn = true;
            return;
        }
        let said = match last.record.kind {
            Kind::Entry => {
                self.totals.entries = self.totals.entries.saturating_sub(1);
                self.totals.dropped += 1;
                self.totals.dropped_records += 1;
                1
            }
            Kind::Exit => {
                self.totals.exits = self.totals.exits.saturating_sub(1);
                self.totals.dropped_records += 1;
                1
            }
            Kind::Lost => last.record.value,
            Kind::Event => 0,
        };
        (self.written, self.last) = (last.start, None);
        self.unsaid = self.unsaid.saturating_add(said);
        let time = last.record.time;
        self.waiting.put_lost(time, self.unsaid, last.beside);
        // As above.
        let _ = self.write();
        self.waiting.clear();
    }

    /// What is not said yet was lost before everything that waits, so its record comes first.
    fn say_unsaid(&mut self) {
        if self.unsaid > 0 {
            let time = self.waiting.first_time().unwrap_or(self.waiting.time);
            let beside = self.waiting.beside.first_chunk().copied();
            let beside = beside.or(self.unsaid_beside).unwrap_or_default();
            self.waiting.put_lost(time, self.unsaid, beside);
        }
    }

    /// Writes all that waits, or nothing of it: a part that got through is cut off again, at the latest before the next write.
    fn write(&mut self) -> io::Result<()> {
        self.mend()?;
        let Block {
            records, beside, ..
        } = &self.waiting;
        if let Err(error) = self.storage.append(records, beside) {
            self.is_torn = true;
            // Until that can be done readers meet a torn record at the end, which they ignore.
            let _ = self.mend();
            return Err(error);
        }
        self.last = self.last_of_waiting();
        self.written = self.written.after(self.waiting.length());
        let counts = self.settle();
        self.totals.entries += counts.entries;
        self.totals.exits += counts.exits;
        (self.unsaid, self.unsaid_beside) = (0, None);
        self.waiting.clear();
        Ok(())
    }

    /// Cuts off what is no whole event.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.storage.cut(self.written)?;
            self.is_torn = false;
        }
        Ok(())
    }

    fn last_of_waiting(&self) -> Option<Last> {
        let last_at = self.waiting.last_at;
        let at = usize::try_from(last_at.records).ok()?;
        let record = self.waiting.records.get(at..)?.first_chunk()?;
        let beside_at = usize::try_from(last_at.beside).ok()?;
        let beside = self.waiting.beside.get(beside_at..);
        let beside = beside.and_then(|beside| beside.first_chunk()).copied();
        Some(Last {
            record: Record::unpack(*record)?,
            start: self.written.after(last_at),
            beside: beside.unwrap_or_default(),
        })
    }

    /// What waits cannot be written.
    pub fn drop_waiting(&mut self) {
        let Counts {
            entries,
            exits,
            lost,
            ..
        } = self.settle();
        let records = entries.saturating_add(exits);
        let beside = || self.waiting.beside.first_chunk().copied();
        self.unsaid_beside = self.unsaid_beside.or_else(beside);
        self.totals.dropped += entries;
        self.totals.dropped_records += records;
        self.unsaid = self.unsaid.saturating_add(records).saturating_add(lost);
        self.waiting.clear();
    }

    /// What waits is counted: its entries by whoever knows what becomes of them.
    fn settle(&mut self) -> Counts {
        let counts = std::mem::take(&mut self.waiting.counts);
        let totals = &mut self.totals;
        totals.lost = totals.lost.saturating_add(counts.lost);
        totals.reordered += counts.reordered;
        totals.unknown += counts.unknown;
        counts
    }
}
