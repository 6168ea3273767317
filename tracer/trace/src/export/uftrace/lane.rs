//! One data file, of a vCPU or of a thread: buffered, and cut back to whole events when a write fails. What could not be
//! written is said as lost where there is room again, or in place of the last event.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use super::error::ExportError;
use super::record::{Kind, MAX_VALUE, RECORD_LENGTH, Record, packed, truncated, with_values, word};
use crate::export::budget::Budget;

/// Bytes gathered before a write.
pub(super) const BUFFER: usize = 64 << 10;
/// An event of a vCPU takes an entry, its caller and an exit at most.
const PER_EVENT: usize = 2 * RECORD_LENGTH + CALLER_LENGTH;
const CALLER_LENGTH: usize = size_of::<u64>();
/// Bytes beside a record, where there are any.
const BESIDE: usize = 2;
/// Marks them when the values of the record's call stand after them.
pub(super) const VALUES_BESIDE: u16 = 1 << 15;

/// How much there is of a file, and of the one beside it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Length {
    pub records: u64,
    pub beside: u64,
}

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
        self.set_len(length.records)?;
        io::Seek::seek(self, io::SeekFrom::Start(length.records)).map(|_| ())
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
    /// Records lost in the ring, as reported by the reader.
    pub lost: u64,
    /// Events that could not be written to disk.
    pub dropped: u64,
    /// Events whose time was before that of the one before, written with that one's time.
    pub reordered: u64,
    /// Events of a function that the image does not have.
    pub unknown: u64,
}

/// Records of whole events, and what stands beside them.
#[derive(Debug, Default)]
struct Block {
    records: Vec<u8>,
    beside: Vec<u8>,
}

impl Block {
    const fn length(&self) -> Length {
        Length {
            records: self.records.len() as u64,
            beside: self.beside.len() as u64,
        }
    }

    fn clear(&mut self) {
        self.records.clear();
        self.beside.clear();
    }

    /// The time of its first record.
    fn time(&self) -> Option<u64> {
        self.records
            .first_chunk()
            .map(|time| u64::from_le_bytes(*time))
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

#[derive(Debug)]
pub(super) struct Lane<S> {
    storage: S,
    path: PathBuf,
    waiting: Block,
    /// Where in it the last event begins.
    last_at: Length,
    /// What is in the file.
    written: Length,
    last: Option<Last>,
    /// Time of the last record.
    time: u64,
    /// Events dropped, and lost ones whose record was, that no record tells of yet.
    unsaid: u64,
    /// Entries among those that wait.
    entries: u64,
    /// What the lost records that wait say.
    lost: u64,
    pub totals: LaneTotals,
}

impl<S: Storage> Lane<S> {
    pub fn new(storage: S, path: PathBuf) -> Self {
        Self {
            storage,
            path,
            waiting: Block::default(),
            last_at: Length::default(),
            written: Length::default(),
            last: None,
            time: 0,
            unsaid: 0,
            entries: 0,
            lost: 0,
            totals: LaneTotals::default(),
        }
    }

    /// Where its bytes go.
    pub fn storage(&mut self) -> &mut S {
        &mut self.storage
    }

    /// An entry, followed at once by its exit: how long it took is not known.
    #[inline]
    pub fn entry(&mut self, time: u64, entry: u64) {
        let time = self.ordered(time);
        self.last_at.records = self.waiting.records.len() as u64;
        self.waiting.records.extend_from_slice(&pair(time, entry));
        self.entries += 1;
    }

    /// How many of these can come until the buffer is full: one at least.
    pub fn room(&self) -> usize {
        let left = BUFFER.saturating_sub(self.waiting.records.len() + PER_EVENT);
        left / size_of::<Pair>() + 1
    }

    /// As many of them: times and entries, none where no such function is known.
    pub fn entries(&mut self, calls: impl ExactSizeIterator<Item = Option<(u64, u64)>>) {
        let start = self.waiting.records.len();
        self.waiting
            .records
            .resize(start + calls.len() * size_of::<Pair>(), 0);
        let places = self.waiting.records.get_mut(start..).unwrap_or_default();
        let (places, _) = places.as_chunks_mut();
        let mut places = places.iter_mut();
        let (mut time, mut reordered, mut unknown) = (self.time, 0, 0);
        for call in calls {
            let Some((made, entry)) = call else {
                unknown += 1;
                continue;
            };
            reordered += u64::from(made < time);
            time = time.max(made);
            if let Some(place) = places.next() {
                *place = pair(time, entry);
            }
        }
        self.time = time;
        self.totals.reordered += reordered;
        self.totals.unknown += unknown;
        let left = places.len() * size_of::<Pair>();
        let length = self.waiting.records.len() - left;
        self.waiting.records.truncate(length);
        let written = (length - start) / size_of::<Pair>();
        self.entries += written as u64;
        if written > 0 {
            self.last_at.records = (length - size_of::<Pair>()) as u64;
        }
    }

    /// The same of one of which is known where it was made: so uftrace finds its name, as that of a function.
    pub fn entry_from(&mut self, time: u64, entry: u64, caller: u64) {
        let time = self.ordered(time);
        self.last_at.records = self.waiting.records.len() as u64;
        let records = &mut self.waiting.records;
        records.extend_from_slice(&packed(time, with_values(entry)));
        records.extend_from_slice(&truncated(caller).to_le_bytes());
        records.extend_from_slice(&packed(time, entry | 1));
        self.entries += 1;
    }

    pub fn lost(&mut self, time: u64, count: u64) {
        let time = self.ordered(time);
        self.totals.lost = self.totals.lost.saturating_add(count);
        self.lost = self.lost.saturating_add(count);
        let word = word(Kind::Lost, count.min(MAX_VALUE));
        self.last_at.records = self.waiting.records.len() as u64;
        self.waiting.records.extend_from_slice(&packed(time, word));
    }

    /// A step of a thread, which is one record, and what stands beside it; the values of its call stand after the one
    /// (`is_inline`) or after the other. Returns the bytes of records that it takes.
    pub fn step(&mut self, record: Record, values: &[u8], is_inline: bool, beside: u16) -> usize {
        match record.kind {
            Kind::Entry => self.entries += 1,
            Kind::Lost => self.lost = self.lost.saturating_add(record.value),
            Kind::Exit | Kind::Event => {}
        }
        self.time = record.time;
        self.last_at = self.waiting.length();
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
        self.waiting.records.extend_from_slice(&record.pack());
        self.waiting.records.extend_from_slice(inline);
        self.waiting.beside.extend_from_slice(&beside);
        self.waiting.beside.extend_from_slice(apart);
        RECORD_LENGTH + inline.len()
    }

    /// Whether the buffer has no room for another event of a vCPU: time to [`flush`](Self::flush).
    #[inline]
    pub fn is_full(&self) -> bool {
        self.waiting.records.len() + PER_EVENT > BUFFER
    }

    /// Bytes that wait to be written.
    pub fn waiting(&self) -> usize {
        self.waiting.records.len()
    }

    /// Writes what waits. What cannot be written is dropped and counted.
    pub fn flush(&mut self) -> Result<(), ExportError> {
        if self.waiting.records.is_empty() && self.unsaid == 0 {
            return Ok(());
        }
        self.say_unsaid();
        self.write().map_err(|source| {
            self.drop_waiting();
            let (path, dropped) = (self.path.clone(), self.totals.dropped);
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
        let Some(last) = self.last.filter(|_| self.unsaid > 0) else {
            return;
        };
        // A file that cannot be changed says less than is true; the side file has the count.
        if self.storage.cut(last.start).is_err() {
            return;
        }
        let said = match last.record.kind {
            Kind::Entry => {
                self.totals.entries = self.totals.entries.saturating_sub(1);
                self.totals.dropped += 1;
                1
            }
            Kind::Lost => last.record.value,
            Kind::Exit | Kind::Event => 0,
        };
        (self.written, self.last) = (last.start, None);
        self.unsaid = self.unsaid.saturating_add(said);
        self.put_unsaid(last.record.time, last.beside);
        // As above.
        let _ = self.write();
        self.waiting.clear();
    }

    #[inline]
    fn ordered(&mut self, time: u64) -> u64 {
        if time < self.time {
            self.totals.reordered += 1;
        } else {
            self.time = time;
        }
        self.time
    }

    /// What is not said yet was lost before everything that waits, so its record comes first.
    fn say_unsaid(&mut self) {
        if self.unsaid > 0 {
            let time = self.waiting.time().unwrap_or(self.time);
            let beside = self.waiting.beside.first_chunk().copied();
            self.put_unsaid(time, beside.unwrap_or_default());
        }
    }

    fn put_unsaid(&mut self, time: u64, beside: [u8; BESIDE]) {
        let lost = word(Kind::Lost, self.unsaid.min(MAX_VALUE));
        // It has no values.
        let beside = u16::from_le_bytes(beside) & !VALUES_BESIDE;
        let is_alone = self.waiting.records.is_empty();
        self.waiting.records.splice(0..0, packed(time, lost));
        self.waiting.beside.splice(0..0, beside.to_le_bytes());
        self.last_at = match is_alone {
            true => Length::default(),
            false => Length {
                records: self.last_at.records + RECORD_LENGTH as u64,
                beside: self.last_at.beside + BESIDE as u64,
            },
        };
    }

    /// Writes all that waits, or nothing of it: a part that got through is cut off again.
    fn write(&mut self) -> io::Result<()> {
        let Block { records, beside } = &self.waiting;
        if let Err(error) = self.storage.append(records, beside) {
            // If even that fails, readers meet a torn record at the end, which they ignore.
            let _ = self.storage.cut(self.written);
            return Err(error);
        }
        self.last = self.last_of_waiting();
        let length = self.waiting.length();
        self.written.records += length.records;
        self.written.beside += length.beside;
        self.totals.entries += self.entries;
        self.unsaid = 0;
        self.clear();
        Ok(())
    }

    fn last_of_waiting(&self) -> Option<Last> {
        let at = usize::try_from(self.last_at.records).ok()?;
        let record = self.waiting.records.get(at..)?.first_chunk()?;
        let beside_at = usize::try_from(self.last_at.beside).ok()?;
        let beside = self.waiting.beside.get(beside_at..);
        let beside = beside.and_then(|beside| beside.first_chunk()).copied();
        Some(Last {
            record: Record::unpack(*record)?,
            start: Length {
                records: self.written.records + self.last_at.records,
                beside: self.written.beside + self.last_at.beside,
            },
            beside: beside.unwrap_or_default(),
        })
    }

    /// What waits cannot be written.
    pub fn drop_waiting(&mut self) {
        self.totals.dropped += self.entries;
        self.unsaid = self
            .unsaid
            .saturating_add(self.entries)
            .saturating_add(self.lost);
        self.clear();
    }

    fn clear(&mut self) {
        (self.entries, self.lost) = (0, 0);
        self.waiting.clear();
        self.last_at = Length::default();
    }
}
