//! The data files of a graph trace: one for each thread, made when the thread is first seen.
//!
//! Beside each `TID.dat` lies `TID.side`, which uftrace does not open: two bytes for each record of
//! the data file, the vCPU in the low 12 bits, how the call ended ([`End`]) in 3, and in the highest whether values of the call
//! come after them, where uftrace cannot be told of these.
//!
//! What uftrace needs to know of a thread is written before its first record, and the list of
//! threads last and in one step, so the directory can be opened at every moment.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::block::{BUFFER, Block, Counts, Length, VALUES_BESIDE};
use super::called::Called;
use super::directory::{append, replace};
use super::entries::Entries;
use super::error::ExportError;
use super::lane::{Budgeted, Lane, LaneTotals, Storage};
use super::layout::{self, NAMES_FILE};
use super::lists::{Listed, Lists, cut};
use super::record::{Kind, MAX_DEPTH, MAX_VALUE, Record};
use crate::event::{End, Event, EventKind, Moment, SureStep, Values};
use crate::export::budget::Budget;
use crate::export::call_formats::CallFormats;

/// Bytes that a thread takes in the lists of all, at most: its task, its name, its number.
const LISTED: u64 = 256;
/// Bytes gathered for all threads before a write.
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
    let end = (word & !VALUES_BESIDE) >> END_SHIFT;
    let end = End::ALL.get(usize::from(end));
    (word & VCPU_MASK, end.copied().unwrap_or_default())
}

/// Whether values of the call stand after them.
pub(crate) const fn has_values_beside(word: u16) -> bool {
    word & VALUES_BESIDE != 0
}

/// What describes every thread.
#[derive(Debug, Clone)]
struct Description {
    directory: PathBuf,
    command_line: String,
    module: String,
    /// What threads are called, as far as the guest told.
    names: BTreeMap<u32, String>,
    /// What the values of calls are.
    values: CallFormats,
    /// The list of all threads is written at the end, and not for each.
    is_listed_later: bool,
}

impl Description {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes all that is needed before the first record of this thread; `listed` are in the list.
    fn announce(
        &self,
        thread: u32,
        listed: &[u32],
        lists: &mut Lists<Listed>,
    ) -> Result<(), ExportError> {
        for name in [layout::data_file(thread), layout::side_file(thread)] {
            let path = self.path(&name);
            File::create(&path).map_err(ExportError::io("create", &path))?;
        }
        // It is tried again with its next records.
        lists.all_or_nothing(|lists| self.add(thread, listed, lists))
    }

    /// Adds a thread to the lists.
    fn add(
        &self,
        thread: u32,
        listed: &[u32],
        lists: &mut Lists<Listed>,
    ) -> Result<(), ExportError> {
        let paths = [self.path("task.txt"), self.path(NAMES_FILE)];
        let [tasks_at, names_at] = paths.each_ref();
        let first = listed.first().copied().unwrap_or(thread);
        let lines = layout::task(layout::tid(thread), layout::tid(first), &self.module);
        let tasks = lists.tasks.add(lines.as_bytes());
        tasks.map_err(ExportError::io("write", tasks_at))?;
        let names = lists.names.add(&self.name(thread));
        names.map_err(ExportError::io("write", names_at))?;
        self.list_unless_later(&[listed, &[thread]].concat())
    }

    fn list_unless_later(&self, threads: &[u32]) -> Result<(), ExportError> {
        match self.is_listed_later {
            true => Ok(()),
            false => self.list(threads),
        }
    }

    fn list(&self, threads: &[u32]) -> Result<(), ExportError> {
        let tids: Vec<_> = threads.iter().copied().map(layout::tid).collect();
        let info = layout::info(&self.command_line, &self.module, &tids, &self.values);
        self.replace("info", &info)
    }

    /// What tells the name of a thread.
    fn name(&self, thread: u32) -> Vec<u8> {
        let tid = layout::tid(thread);
        match self.names.get(&thread) {
            Some(name) => layout::name(tid, name),
            None => layout::name(tid, &format!("thread{thread}")),
        }
    }

    /// Threads that are listed already have got their names. Returns how long the list of them is.
    fn rename(&self, threads: &[u32]) -> Result<u64, ExportError> {
        let names = threads.iter().map(|thread| self.name(*thread));
        let names = names.collect::<Vec<_>>().concat();
        self.replace(NAMES_FILE, &names)?;
        Ok(names.len() as u64)
    }

    fn replace(&self, name: &str, contents: &[u8]) -> Result<(), ExportError> {
        replace(&self.directory, name, contents)
    }
}

/// The data file of a thread, and the one beside it: there may be thousands, so they are open while they are written.
#[derive(Debug)]
struct ThreadFiles {
    data: PathBuf,
    side: PathBuf,
}

impl Storage for ThreadFiles {
    const HAS_BESIDE: bool = true;

    fn append(&mut self, records: &[u8], beside: &[u8]) -> io::Result<()> {
        // In this order: who reads a record finds what stands beside it.
        append(&self.side, beside).and_then(|()| append(&self.data, records))
    }

    fn cut(&mut self, length: Length) -> io::Result<()> {
        // Where the second fails no record is without what stands beside it.
        cut(&self.data, length.records)?;
        cut(&self.side, length.beside)
    }
}

/// One thread.
#[derive(Debug)]
struct ThreadLane {
    is_announced: bool,
    lane: Lane<Budgeted<ThreadFiles>>,
}

/// The files of all threads.
#[derive(Debug)]
pub(super) struct ThreadLanes {
    description: Arc<Description>,
    /// By number; none of those that are lent.
    lanes: Vec<Option<Box<ThreadLane>>>,
    listed: Vec<u32>,
    /// None where these are some of all threads. Who has them all makes the lists: what is in none of them waits for that.
    lists: Option<Lists<Listed>>,
    /// A thread was listed before its name was known.
    is_misnamed: bool,
    entries: Entries,
    waiting: usize,
    /// Of threads to come.
    budget: Budget,
}

impl ThreadLanes {
    pub fn create(
        directory: &Path,
        entries: Entries,
        module: &str,
        command_line: &str,
    ) -> Result<Self, ExportError> {
        let lanes = Self {
            description: Arc::new(Description {
                directory: directory.to_owned(),
                command_line: command_line.to_owned(),
                module: module.to_owned(),
                names: BTreeMap::new(),
                values: CallFormats::default(),
                is_listed_later: false,
            }),
            lanes: Vec::new(),
            listed: Vec::new(),
            lists: Some(Lists::of(directory)),
            is_misnamed: false,
            entries,
            waiting: 0,
            budget: Budget::default(),
        };
        lanes.description.list(&[])?;
        Ok(lanes)
    }

    /// Threads that come from now on take from a budget.
    pub fn set_budget(&mut self, budget: &Budget) {
        self.budget = budget.clone();
    }

    /// A thread has this name; uftrace shows its first 15 characters.
    pub fn name(&mut self, thread: u32, name: &str) {
        self.is_misnamed = self.is_misnamed || self.listed.contains(&thread);
        let description = Arc::make_mut(&mut self.description);
        description.names.insert(thread, name.to_owned());
    }

    /// What the values of calls are so far.
    pub fn values(&self) -> &CallFormats {
        &self.description.values
    }

    /// What the values of calls are, from now on.
    pub fn describe_values(&mut self, values: CallFormats) -> Result<(), ExportError> {
        Arc::make_mut(&mut self.description).values = values;
        self.description.list_unless_later(&self.listed)
    }

    /// The list of all threads is written with [`Self::list`] only: it has what the values of calls are, too, and would be written
    /// anew for each.
    pub fn list_later(&mut self) {
        Arc::make_mut(&mut self.description).is_listed_later = true;
    }

    /// Writes the list, if it was not written yet for that.
    pub fn list(&self) -> Result<(), ExportError> {
        match self.description.is_listed_later {
            true => self.description.list(&self.listed),
            false => Ok(()),
        }
    }

    /// Lends the files of these threads, until they are [back](Self::take_back). `None` if there is not one of each yet.
    pub fn lend(&mut self, threads: &[u32]) -> Option<Self> {
        let has = |thread: &u32| matches!(self.lanes.get(*thread as usize), Some(Some(_)));
        if !threads.iter().all(has) {
            return None;
        }
        let mut lent = Self {
            description: Arc::clone(&self.description),
            lanes: Vec::new(),
            listed: Vec::new(),
            lists: None,
            is_misnamed: false,
            entries: self.entries.clone(),
            waiting: 0,
            budget: self.budget.clone(),
        };
        let last = threads.iter().max().map_or(0, |last| *last as usize + 1);
        lent.lanes.resize_with(last, || None);
        for index in threads.iter().map(|thread| *thread as usize) {
            let places = self.lanes.get_mut(index).zip(lent.lanes.get_mut(index));
            let Some((from, to)) = places else { continue };
            std::mem::swap(from, to);
            let waiting = to.as_ref().map_or(0, |thread| thread.lane.waiting());
            self.waiting = self.waiting.saturating_sub(waiting);
            lent.waiting += waiting;
        }
        Some(lent)
    }

    /// They are back.
    pub fn take_back(&mut self, lent: Self) -> Result<(), ExportError> {
        self.waiting += lent.waiting;
        let mut result = Ok(());
        for (index, lane) in lent.lanes.into_iter().enumerate() {
            let Some(lane) = lane else { continue };
            let is_much = lane.lane.waiting() >= BUFFER;
            let Some(place) = self.lanes.get_mut(index) else {
                continue;
            };
            *place = Some(lane);
            if is_much {
                result = result.and(self.flush_one(index));
                self.leave_room(index);
            }
        }
        if self.waiting >= BUFFERS {
            result = result.and(self.flush());
        }
        result
    }

    /// What was in no list has waited for that in more room than a thread has.
    fn leave_room(&mut self, index: usize) {
        if let Some(Some(thread)) = self.lanes.get_mut(index) {
            thread.lane.block().leave_room();
        }
    }

    /// Functions have come.
    pub fn extend(&mut self, entries: Entries) {
        self.entries = entries;
    }

    /// Takes one step of a thread; whether its function is known.
    pub fn append(&mut self, event: &Event) -> Result<bool, ExportError> {
        let (kind, value, end) = match event.kind {
            EventKind::Entry(function) => {
                (Kind::Entry, self.entries.address(function), End::Returned)
            }
            EventKind::Exit { function, end, .. } => {
                (Kind::Exit, self.entries.address(function), end)
            }
            EventKind::Lost(count) => (Kind::Lost, Some(count.min(MAX_VALUE)), End::Returned),
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => {
                return Ok(false);
            }
        };
        let Some(value) = value else {
            return Ok(false);
        };
        let record = Record {
            time: event.time_ns,
            kind,
            value,
            depth: event.depth.min(MAX_DEPTH),
            has_values: false,
        };
        let (values, is_inline) = match &event.values {
            None => (Vec::new(), true),
            Some(values) => self.encode(record, values),
        };
        let side = side_word(event.vcpu, end);
        self.add(event.thread, |block| {
            block.step(record, &values, is_inline, side);
        })?;
        Ok(true)
    }

    /// Takes steps of a thread, on one vCPU, counts them, and notes which functions are `called`. All are taken, or counted as
    /// dropped, whatever the error.
    pub fn append_all(
        &mut self,
        vcpu: u16,
        thread: u32,
        mut steps: &[SureStep],
        called: &mut Called,
    ) -> (Counts, Result<(), ExportError>) {
        let (entries, side) = (self.entries.clone(), side_word(vcpu, End::Returned));
        let (mut counts, mut result) = (Counts::default(), Ok(()));
        while !steps.is_empty() {
            let mut taken = 0;
            let added = self.add(thread, |block| {
                let before = block.counts.entries;
                taken = block.steps(&entries, steps, side, called);
                counts.entries += block.counts.entries - before;
            });
            result = result.and(added);
            counts.unknown += u64::from(taken == 0);
            steps = steps.get(taken.max(1)..).unwrap_or_default();
        }
        (counts, result)
    }

    /// Adds to what waits of a thread.
    fn add(&mut self, thread: u32, add: impl FnOnce(&mut Block)) -> Result<(), ExportError> {
        let index = thread as usize;
        if index >= self.lanes.len() {
            self.make_lanes(thread);
        }
        if let Some(Some(thread)) = self.lanes.get_mut(index) {
            let lane = &mut thread.lane;
            let before = lane.waiting();
            add(lane.block());
            self.waiting += lane.waiting() - before;
            if lane.waiting() >= BUFFER {
                self.flush_one(index)?;
            }
        }
        if self.waiting >= BUFFERS {
            self.flush()?;
        }
        Ok(())
    }

    /// The values of a record's call, as its file or the one beside it takes them, and whether it is the first.
    fn encode(&self, record: Record, values: &Values) -> (Vec<u8>, bool) {
        let moment = match record.kind {
            Kind::Entry => Moment::Entry,
            Kind::Exit | Kind::Lost | Kind::Event => Moment::Exit,
        };
        let formats = &self.description.values;
        let encoded = formats.encode(record.value, moment, values);
        let is_beside = formats.is_beside(record.value, moment);
        (encoded.unwrap_or_default(), !is_beside)
    }

    fn make_lanes(&mut self, up_to: u32) {
        let next = u32::try_from(self.lanes.len()).unwrap_or(u32::MAX);
        let lanes = (next..=up_to).map(|thread| {
            let data = self.description.path(&layout::data_file(thread));
            let side = self.description.path(&layout::side_file(thread));
            let path = data.clone();
            Some(Box::new(ThreadLane {
                is_announced: false,
                lane: Lane::new(
                    Budgeted::new(ThreadFiles { data, side }, self.budget.clone()),
                    path,
                ),
            }))
        });
        self.lanes.extend(lanes);
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
            let renamed = renamed.map(|length| {
                if let Some(lists) = &mut self.lists {
                    lists.names.replaced(length);
                }
            });
            result = result.and(renamed);
        }
        result
    }

    fn flush_one(&mut self, thread: usize) -> Result<(), ExportError> {
        let Some(Some(lane)) = self.lanes.get_mut(thread) else {
            return Ok(());
        };
        let ThreadLane { is_announced, lane } = &mut **lane;
        // What a thread has lost it says also if it never calls anything again.
        if lane.is_said() || self.lists.is_none() && !*is_announced {
            return Ok(());
        }
        self.waiting = self.waiting.saturating_sub(lane.waiting());
        if let Some(lists) = self.lists.as_mut().filter(|_| !*is_announced) {
            let number = u32::try_from(thread).unwrap_or(u32::MAX);
            let announced = match self.budget.take(LISTED) {
                Ok(()) => {
                    let announced = self.description.announce(number, &self.listed, lists);
                    // It is tried again, and taken again then.
                    announced.inspect_err(|_| self.budget.give_back(LISTED))
                }
                Err(spent) => Err(ExportError::io("write", &self.description.directory)(
                    spent.into(),
                )),
            };
            if let Err(error) = announced {
                lane.drop_waiting();
                return Err(error);
            }
            *is_announced = true;
            self.listed.push(number);
        }
        lane.flush()
    }

    /// The tasks that are listed.
    pub fn tids(&self) -> Vec<u32> {
        self.listed.iter().copied().map(layout::tid).collect()
    }

    /// Where no thread was seen, the first is listed: a session is that of a task.
    pub fn list_one(&mut self) -> Result<(), ExportError> {
        if let Some(lists) = self.lists.as_mut().filter(|_| self.listed.is_empty()) {
            self.description.announce(0, &[], lists)?;
            self.listed.push(0);
        }
        Ok(())
    }

    /// Says what was dropped in the threads' files, also where there is no room for more. Nothing that comes after this goes on in
    /// a part of a list.
    pub fn say_in_place(&mut self) {
        self.lists.iter_mut().for_each(Lists::mend);
        let lanes = self.lanes.iter_mut().flatten();
        lanes.for_each(|thread| thread.lane.say_in_place());
    }

    /// Records that are missing, of which no file says so.
    pub fn unsaid(&self) -> u64 {
        let lanes = self.lanes.iter().flatten();
        lanes.fold(0, |sum, thread| sum.saturating_add(thread.lane.unsaid()))
    }

    /// What all of them have come to.
    pub fn totals(&self) -> LaneTotals {
        let lanes = self.lanes.iter().flatten();
        lanes.fold(LaneTotals::default(), |sum, thread| {
            sum.with(thread.lane.totals)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn no_record_is_without_what_stands_beside_it_where_its_file_cannot_be_cut() {
        let folder = tempfile::tempdir().unwrap();
        let [data, side] = ["1000.dat", "1000.side"].map(|name| folder.path().join(name));
        fs::create_dir(&data).unwrap();
        fs::write(&side, [0; 4]).unwrap();
        let mut files = ThreadFiles { data, side };
        files.cut(Length::default()).unwrap_err();
        assert_eq!(fs::metadata(&files.side).unwrap().len(), 4);
    }
}
