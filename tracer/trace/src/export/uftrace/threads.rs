//! The data files of a graph trace: one for each thread, made when the thread is first seen.
//!
//! Beside each `TID.dat` lies `TID.side`, which uftrace does not open: two bytes for each record of
//! the data file, the vCPU in the low 12 bits and how the call ended ([`End`]) in the high 4.
//!
//! What uftrace needs to know of a thread is written before its first record, and the list of
//! threads last and in one step, so the directory can be opened at every moment.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use terms::function::Function;

use super::error::ExportError;
use super::layout::{self, Extent, Text};
use super::record::{
    HAS_VALUES, Kind, MAX_DEPTH, MAX_VALUE, RECORD_LENGTH, Record, packed, word, word_at,
};
use crate::event::Moment;
use crate::export::call_formats::CallFormats;
use crate::graph::{CallEvent, CallKind, End};

/// Bytes gathered for one thread before a write, and for all.
const BUFFER: usize = 64 << 10;
const BUFFERS: usize = 16 << 20;
/// The highest vCPU number that a side file holds.
const VCPU_MASK: u16 = 0xfff;
const END_SHIFT: u32 = 12;

/// The two bytes beside a record.
pub(crate) fn side_word(vcpu: u16, end: End) -> u16 {
    vcpu.min(VCPU_MASK) | (end as u16) << END_SHIFT
}

/// What the two bytes beside a record say.
pub(crate) fn read_side_word(word: u16) -> (u16, End) {
    let end = End::ALL.get(usize::from(word >> END_SHIFT));
    (word & VCPU_MASK, end.copied().unwrap_or_default())
}

/// What describes every thread.
#[derive(Debug)]
struct Description {
    directory: PathBuf,
    command_line: String,
    module: String,
    map: String,
    /// What threads are called, as far as the guest told.
    names: BTreeMap<u32, String>,
    /// What the values of calls are.
    values: CallFormats,
}

impl Description {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes all that is needed before the first record of this thread; `listed` are in the list.
    fn announce(&self, thread: u32, listed: &[u32]) -> Result<(), ExportError> {
        for name in [layout::data_file(thread), layout::side_file(thread)] {
            let path = self.path(&name);
            File::create(&path).map_err(ExportError::io("create", &path))?;
        }
        let map = self.path(&layout::map_file(thread));
        fs::write(&map, &self.map).map_err(ExportError::io("write", &map))?;
        let tasks = self.path("task.txt");
        append(&tasks, self.task(thread).as_bytes()).map_err(ExportError::io("write", &tasks))?;
        let mut listed = listed.to_vec();
        listed.push(thread);
        self.list(&listed)
    }

    fn list(&self, threads: &[u32]) -> Result<(), ExportError> {
        let info = layout::info(&self.command_line, &self.module, threads, &self.values);
        self.replace("info", &info)
    }

    /// The lines of `task.txt` about a thread.
    fn task(&self, thread: u32) -> String {
        match self.names.get(&thread) {
            Some(name) => layout::task(thread, name),
            None => layout::task(thread, &format!("thread{thread}")),
        }
    }

    /// Threads that are in `task.txt` already have got their names.
    fn rename(&self, threads: &[u32]) -> Result<(), ExportError> {
        let tasks: String = threads.iter().map(|thread| self.task(*thread)).collect();
        self.replace("task.txt", tasks.as_bytes())
    }

    /// Readers find the old file or the new one.
    fn replace(&self, name: &str, content: &[u8]) -> Result<(), ExportError> {
        let (path, fresh) = (self.path(name), self.path(&format!("{name}.new")));
        fs::write(&fresh, content)
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(ExportError::io("write", &path))
    }
}

fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(bytes)
}

/// What waits to be written for one thread.
#[derive(Debug, Default)]
struct ThreadLane {
    is_announced: bool,
    records: Vec<u8>,
    side: Vec<u8>,
    /// Where the last of those begins.
    last_at: usize,
    /// Records in the files, and bytes in the data file.
    written: u64,
    bytes: u64,
    /// The last of them, what is beside it, and its bytes with the values after it.
    last: Option<(Record, [u8; 2], u64)>,
    /// Entries among those that wait.
    entries: u64,
    /// What the lost records that wait say.
    lost: u64,
    /// Events dropped, and lost ones whose record was, that no record tells of yet.
    unsaid: u64,
    dropped: u64,
}

impl ThreadLane {
    fn push(&mut self, time: u64, word: u64, values: &[u8], side: u16) {
        let mark = if values.is_empty() { 0 } else { HAS_VALUES };
        self.last_at = self.records.len();
        self.records.extend_from_slice(&packed(time, word | mark));
        self.records.extend_from_slice(values);
        self.side.extend_from_slice(&side.to_le_bytes());
    }

    fn drop_waiting(&mut self) {
        self.dropped += self.entries;
        self.unsaid = self
            .unsaid
            .saturating_add(self.entries)
            .saturating_add(self.lost);
        self.clear();
    }

    fn clear(&mut self) {
        (self.entries, self.lost) = (0, 0);
        self.records.clear();
        self.side.clear();
    }

    /// Writes all that waits, or nothing of it.
    fn write(&mut self, data: &Path, side: &Path) -> io::Result<()> {
        self.say_unsaid();
        let (old, count) = (self.written, (self.side.len() / 2) as u64);
        let written = append(side, &self.side).and_then(|()| append(data, &self.records));
        if written.is_ok() {
            self.written += count;
            self.unsaid = 0;
            self.bytes += self.records.len() as u64;
            let last = self.records.get(self.last_at..).unwrap_or_default();
            let record = last.first_chunk().copied().and_then(Record::unpack);
            let both = record.zip(self.side.last_chunk().copied());
            self.last = both.map(|(record, side)| (record, side, last.len() as u64));
            self.clear();
        } else {
            // If even that fails, readers meet a torn record at the end, which they ignore.
            let _ = cut(side, old * 2).and(cut(data, self.bytes));
        }
        written
    }

    /// Says what was dropped and not said: on a disk that is full still, in place of the last record.
    fn say_in_place(&mut self, data: &Path, side: &Path) -> io::Result<()> {
        let Some((last, beside, length)) = self.last.filter(|_| self.unsaid > 0) else {
            return Ok(());
        };
        let kept = self.written.saturating_sub(1);
        let bytes = self.bytes.saturating_sub(length);
        cut(data, bytes).and(cut(side, kept * 2))?;
        (self.written, self.bytes, self.last) = (kept, bytes, None);
        let said = match last.kind {
            Kind::Entry => {
                self.dropped += 1;
                1
            }
            Kind::Lost => last.value,
            Kind::Exit | Kind::Event => 0,
        };
        self.unsaid = self.unsaid.saturating_add(said);
        let lost = word(Kind::Lost, self.unsaid.min(MAX_VALUE));
        append(side, &beside).and_then(|()| append(data, &packed(last.time, lost)))?;
        self.written += 1;
        self.bytes += RECORD_LENGTH as u64;
        self.unsaid = 0;
        Ok(())
    }

    /// Puts a record of what was dropped before the rest.
    fn say_unsaid(&mut self) {
        let Some(first) = self.records.first_chunk().filter(|_| self.unsaid > 0) else {
            return;
        };
        let time = u64::from_le_bytes(*first);
        let lost = word_at(Kind::Lost, 0, self.unsaid.min(MAX_VALUE));
        self.records.splice(0..0, packed(time, lost));
        self.last_at += RECORD_LENGTH;
        let vcpu = self.side.first_chunk().map_or([0; 2], |side| *side);
        self.side.splice(0..0, vcpu);
    }
}

fn cut(path: &Path, length: u64) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(length)
}

/// The files of all threads.
#[derive(Debug)]
pub(super) struct ThreadLanes {
    description: Description,
    lanes: Vec<ThreadLane>,
    listed: Vec<u32>,
    /// A thread was listed before its name was known.
    is_misnamed: bool,
    /// The address of each function.
    addresses: Vec<u64>,
    waiting: usize,
}

impl ThreadLanes {
    pub fn create(
        directory: &Path,
        text: Text<'_>,
        module: &str,
        command_line: &str,
    ) -> Result<Self, ExportError> {
        let addresses = text.functions.iter();
        let lanes = Self {
            description: Description {
                directory: directory.to_owned(),
                command_line: command_line.to_owned(),
                module: module.to_owned(),
                map: Extent::of(text).map(module),
                names: BTreeMap::new(),
                values: CallFormats::default(),
            },
            lanes: Vec::new(),
            listed: Vec::new(),
            is_misnamed: false,
            addresses: addresses.map(|f| f.address.0 & MAX_VALUE).collect(),
            waiting: 0,
        };
        lanes.description.list(&[])?;
        Ok(lanes)
    }

    /// A thread has this name; uftrace shows its first 15 characters.
    pub fn name(&mut self, thread: u32, name: &str) {
        self.is_misnamed |= self.listed.contains(&thread);
        self.description.names.insert(thread, name.to_owned());
    }

    /// What the values of calls are, from now on.
    pub fn describe_values(&mut self, values: CallFormats) -> Result<(), ExportError> {
        self.description.values = values;
        self.description.list(&self.listed)
    }

    /// Functions have come.
    pub fn extend(&mut self, functions: &[Function]) {
        let new = functions.get(self.addresses.len()..);
        let new = new.unwrap_or_default().iter();
        self.addresses.extend(new.map(|f| f.address.0 & MAX_VALUE));
    }

    /// Takes one step of a thread; whether its function is known.
    pub fn append(&mut self, event: CallEvent) -> Result<bool, ExportError> {
        let (kind, value, end) = match event.kind {
            CallKind::Entry(function) => {
                (Kind::Entry, self.address(function.index()), End::Returned)
            }
            CallKind::Exit { function, end, .. } => {
                (Kind::Exit, self.address(function.index()), end)
            }
            CallKind::Lost(count) => (Kind::Lost, Some(count.min(MAX_VALUE)), End::Returned),
        };
        let Some(value) = value else {
            return Ok(false);
        };
        let moment = match event.kind {
            CallKind::Entry(_) => Moment::Entry,
            CallKind::Exit { .. } | CallKind::Lost(_) => Moment::Exit,
        };
        let formats = &self.description.values;
        let values = event.values.as_deref();
        let values = values.and_then(|values| formats.encode(value, moment, values));
        let values = values.unwrap_or_default();
        let thread = event.thread as usize;
        while self.lanes.len() <= thread {
            self.lanes.push(ThreadLane::default());
        }
        if let Some(lane) = self.lanes.get_mut(thread) {
            let word = word_at(kind, event.depth.min(MAX_DEPTH), value);
            lane.push(event.time_ns, word, &values, side_word(event.vcpu, end));
            match kind {
                Kind::Entry => lane.entries += 1,
                Kind::Lost => lane.lost = lane.lost.saturating_add(value),
                Kind::Exit | Kind::Event => {}
            }
            self.waiting += RECORD_LENGTH + values.len();
            if lane.records.len() >= BUFFER {
                self.flush_one(thread)?;
            }
        }
        if self.waiting >= BUFFERS {
            self.flush()?;
        }
        Ok(true)
    }

    fn address(&self, index: usize) -> Option<u64> {
        self.addresses.get(index).copied()
    }

    /// Writes everything that waits.
    pub fn flush(&mut self) -> Result<(), ExportError> {
        let mut result = Ok(());
        for thread in 0..self.lanes.len() {
            // The thread is flushed whether or not one before it failed.
            result = result.and(self.flush_one(thread));
        }
        if self.is_misnamed {
            let renamed = self.description.rename(&self.listed);
            self.is_misnamed = renamed.is_err();
            result = result.and(renamed);
        }
        result
    }

    fn flush_one(&mut self, thread: usize) -> Result<(), ExportError> {
        let Some(lane) = self.lanes.get_mut(thread) else {
            return Ok(());
        };
        if lane.records.is_empty() {
            return Ok(());
        }
        self.waiting = self.waiting.saturating_sub(lane.records.len());
        let number = u32::try_from(thread).unwrap_or(u32::MAX);
        if !lane.is_announced {
            if let Err(error) = self.description.announce(number, &self.listed) {
                lane.drop_waiting();
                return Err(error);
            }
            lane.is_announced = true;
            self.listed.push(number);
        }
        let data = self.description.path(&layout::data_file(number));
        let side = self.description.path(&layout::side_file(number));
        lane.write(&data, &side).map_err(|source| {
            lane.drop_waiting();
            let dropped = lane.dropped;
            ExportError::Dropped {
                path: data,
                dropped,
                source,
            }
        })
    }

    /// Says what was dropped in the threads' files, also where there is no room for more.
    pub fn say_in_place(&mut self) {
        for (thread, lane) in (0u32..).zip(&mut self.lanes) {
            let data = self.description.path(&layout::data_file(thread));
            let side = self.description.path(&layout::side_file(thread));
            // A file that cannot be changed says less than is true; the side file has the count.
            let _ = lane.say_in_place(&data, &side);
        }
    }

    /// Calls that could not be written.
    pub fn dropped(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.dropped).sum()
    }
}
