//! The data file of one vCPU: buffered, cut back to whole records when a write fails.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use super::error::ExportError;
use super::record::{Kind, MAX_VALUE, RECORD_LENGTH, Record, packed, word};

/// Bytes gathered before a write.
const BUFFER: usize = 64 << 10;
/// An event takes an entry and an exit at most.
const PER_EVENT: usize = 2 * RECORD_LENGTH;

/// Where a lane's bytes go.
pub(super) trait Storage: Write {
    /// Cuts the file to this length and continues writing there.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

impl Storage for File {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)?;
        io::Seek::seek(self, io::SeekFrom::Start(length)).map(|_| ())
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

#[derive(Debug)]
pub(super) struct Lane<S> {
    storage: S,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Bytes in the file: whole records.
    written: u64,
    /// The last record in the file.
    last: Option<Record>,
    /// Time of the last record.
    time: u64,
    /// Events dropped, and lost ones whose record was, not yet written as lost.
    unsaid: u64,
    /// Entries in the buffer.
    buffered: u64,
    /// What the lost records in the buffer say.
    buffered_lost: u64,
    pub totals: LaneTotals,
}

impl<S: Storage> Lane<S> {
    pub fn new(storage: S, path: PathBuf) -> Self {
        Self {
            storage,
            path,
            buffer: Vec::with_capacity(BUFFER),
            written: 0,
            last: None,
            time: 0,
            unsaid: 0,
            buffered: 0,
            buffered_lost: 0,
            totals: LaneTotals::default(),
        }
    }

    #[cfg(test)]
    pub fn storage(&mut self) -> &mut S {
        &mut self.storage
    }

    /// An entry, followed at once by its exit: how long it took is not known.
    #[inline]
    pub fn entry(&mut self, time: u64, entry: u64) {
        let time = self.ordered(time);
        // The exit differs from the entry in its lowest bit.
        let exit = entry | 1;
        let mut pair = [0; PER_EVENT];
        let (first, second) = pair.split_at_mut(RECORD_LENGTH);
        first.copy_from_slice(&packed(time, entry));
        second.copy_from_slice(&packed(time, exit));
        self.buffer.extend_from_slice(&pair);
        self.buffered += 1;
    }

    pub fn lost(&mut self, time: u64, count: u64) {
        let time = self.ordered(time);
        self.totals.lost = self.totals.lost.saturating_add(count);
        self.buffered_lost = self.buffered_lost.saturating_add(count);
        let word = word(Kind::Lost, count.min(MAX_VALUE));
        self.buffer.extend_from_slice(&packed(time, word));
    }

    /// Whether the buffer has no room for another event: time to [`flush`](Self::flush).
    #[inline]
    pub fn is_full(&self) -> bool {
        self.buffer.len() + PER_EVENT > BUFFER
    }

    /// Writes what is buffered. What cannot be written is dropped and counted.
    pub fn flush(&mut self) -> Result<(), ExportError> {
        if self.buffer.is_empty() && self.unsaid == 0 {
            return Ok(());
        }
        self.write_buffer().map_err(|source| {
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
        let (records, said) = match last.kind {
            Kind::Lost => (1, last.value),
            // An exit, after its entry.
            _ => (2, 1),
        };
        let start = self.written.saturating_sub(records * RECORD_LENGTH as u64);
        if self.storage.cut(start).is_err() {
            return;
        }
        if last.kind != Kind::Lost {
            self.totals.entries = self.totals.entries.saturating_sub(1);
            self.totals.dropped += 1;
        }
        (self.written, self.last) = (start, None);
        self.unsaid = self.unsaid.saturating_add(said);
        let lost = word(Kind::Lost, self.unsaid.min(MAX_VALUE));
        if self.write_records(&packed(last.time, lost)).is_ok() {
            self.unsaid = 0;
        }
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

    fn write_buffer(&mut self) -> io::Result<()> {
        if self.unsaid > 0 {
            // Lost before everything in the buffer, so the record comes first.
            let first = self
                .buffer
                .first_chunk()
                .map_or(self.time, |time| u64::from_le_bytes(*time));
            let lost = packed(first, word(Kind::Lost, self.unsaid.min(MAX_VALUE)));
            if let Err(error) = self.write_records(&lost) {
                self.drop_buffer();
                return Err(error);
            }
            self.unsaid = 0;
        }
        let buffer = std::mem::take(&mut self.buffer);
        let result = self.write_records(&buffer);
        self.buffer = buffer;
        if result.is_err() {
            self.drop_buffer();
        } else {
            self.totals.entries += self.buffered;
            self.clear_buffer();
        }
        result
    }

    fn drop_buffer(&mut self) {
        self.unsaid = self
            .unsaid
            .saturating_add(self.buffered)
            .saturating_add(self.buffered_lost);
        self.totals.dropped += self.buffered;
        self.clear_buffer();
    }

    fn clear_buffer(&mut self) {
        self.buffered = 0;
        self.buffered_lost = 0;
        self.buffer.clear();
    }

    /// Writes all of `records`, or none: a part that got through is cut off again.
    fn write_records(&mut self, records: &[u8]) -> io::Result<()> {
        match self.storage.write_all(records) {
            Ok(()) => {
                self.written += records.len() as u64;
                self.last = records.last_chunk().copied().and_then(Record::unpack);
                Ok(())
            }
            Err(error) => {
                // If even that fails, readers meet a torn record at the end, which they ignore.
                let _ = self.storage.cut(self.written);
                Err(error)
            }
        }
    }
}
