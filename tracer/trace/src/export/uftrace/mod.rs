//! A trace as a directory in uftrace's data format (version 4), which `uftrace replay`, `report`,
//! `graph`, `tui` and `dump` open as it is.
//!
//! Everything that describes the trace is written when it is created, so the directory can be
//! opened at every moment after that, whatever becomes of the writer. Events then go to one data
//! file per vCPU, whole records at a time.
//!
//! Function tracing knows entries only. Each is written as an entry and an exit at the same time:
//! uftrace then shows a call of unknown duration, and counts it once.
//!
//! Graph tracing knows calls and threads: they go to one data file per thread (`threads`). A call
//! of which no return was seen ends where the last thing is known of it.

mod alone;
mod block;
mod call_coder;
mod called;
mod described;
mod directory;
mod entries;
mod error;
mod init_calls;
mod kept;
mod lane;
mod late;
pub mod layout;
mod lists;
mod lock;
mod pauses;
pub mod record;
mod side;
mod tally;
#[cfg(test)]
mod tests;
pub(crate) mod threads;
mod tracks;
mod waits;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use self::alone::NO_CALLS;
pub use self::call_coder::{CallCoder, CodedCalls};
use self::called::Called;
use self::described::Later;
pub(crate) use self::directory::begin_in;
use self::directory::replace;
pub use self::directory::{check_output, is_gone, take_away};
pub use self::entries::Entries;
pub use self::error::ExportError;
pub use self::init_calls::InitCallList;
use self::lane::{Budgeted, Lane, LaneTotals};
pub use self::late::{LateModule, LateModules, WaitingModules};
use self::layout::{Extent, FIRST_TID, MAP_FILE, NAMES_FILE, SIDE_FILE, Text};
pub(crate) use self::lock::DirectoryLock;
pub(crate) use self::lock::has_lock;
pub use self::lock::writer_of;
pub use self::pauses::{Pause, PauseSpread};
pub use self::side::{
    AnomalyNote, ClockStall, Fired, GRAPH, Metadata, NO_CLOCK, NOP, SideFile, VERSION, VcpuTotals,
};
pub use self::tally::Tally;
pub use self::waits::{Wait, Waits};
use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::function::FunctionId;
use terms::printable;

use self::threads::ThreadLanes;
use self::tracks::Tracks;
use crate::event::{Event, EventKind};
use crate::export::budget::{Budget, Steps};
use crate::export::call_formats::CallFormats;
use crate::export::events::{EventReader, EventWriter};
use crate::export::remark::Remark;

/// Writes one trace.
#[derive(Debug)]
pub struct UftraceWriter {
    directory: PathBuf,
    lanes: Vec<Lane<Budgeted<File>>>,
    /// Of a graph trace.
    threads: Option<Tracks>,
    entries: Entries,
    /// Where they lie.
    extent: Extent,
    /// Which functions were called, without returns.
    called: Called,
    side: SideFile,
    events: EventWriter,
    /// What points are, by number.
    points: Vec<Arc<EventFormat>>,
    /// Why not everything was written.
    error: Option<ExportError>,
    /// What came is not all that there was.
    is_cut: bool,
    /// Of what describes it.
    steps: Steps,
    /// Where what describes it is written at the end.
    later: Option<Later>,
    /// Until the trace is complete.
    lock: Option<DirectoryLock>,
}

impl UftraceWriter {
    /// Creates the directory with everything but events in it.
    ///
    /// A directory that exists is refused; with `force` an older trace in it is removed, but
    /// nothing else. Nobody else can do that until this one is closed or gone.
    ///
    /// # Errors
    /// An [`ExportError`] that names the file; then nothing is there of it.
    pub fn create(
        directory: &Path,
        text: Text<'_>,
        metadata: Metadata,
        force: bool,
    ) -> Result<Self, ExportError> {
        let command = metadata.command_line.clone();
        begin_in(directory, force, &command, |lock| {
            Self::begin(directory, text, metadata, lock)
        })
    }

    fn begin(
        directory: &Path,
        text: Text<'_>,
        metadata: Metadata,
        lock: DirectoryLock,
    ) -> Result<Self, ExportError> {
        let module = module_name(&metadata.image);
        let extent = Extent::of(text);
        // In a graph tasks are threads, as they are seen.
        let numbers = 0..if metadata.is_graph() {
            0
        } else {
            metadata.vcpus
        };
        put_description(
            directory,
            &metadata,
            &module,
            (extent, text),
            numbers.clone(),
        )?;
        let lanes = numbers.map(|number| open_lane(directory, number.into()));
        let lanes = lanes.collect::<Result<_, _>>()?;
        let entries = Entries::of(text.functions);
        let threads = metadata.is_graph().then(|| {
            ThreadLanes::create(directory, entries.clone(), &module, &metadata.command_line)
        });
        let threads = threads.transpose()?;
        let side = SideFile::new(metadata);
        let writer = Self {
            directory: directory.to_owned(),
            lanes,
            threads: threads.map(Tracks::new),
            entries,
            extent,
            called: Called::default(),
            side,
            events: EventWriter::new(directory),
            points: Vec::new(),
            error: None,
            is_cut: false,
            steps: Steps::default(),
            later: None,
            lock: Some(lock),
        };
        writer.write_side()?;
        Ok(writer)
    }

    /// What is missing of the trace that this one is put together from, if it is known.
    pub fn note_cut(&mut self, cut: Option<String>) {
        self.side.cut = cut;
    }

    /// A thread of a graph trace has this name.
    pub fn name_thread(&mut self, thread: u32, name: String) {
        if let Some(threads) = &mut self.threads {
            threads.lanes.name(thread, &name);
        }
        self.side.threads.insert(thread, name);
    }

    /// Adds an event. The calls of one thread come in its order, points in that of their vCPU; threads and vCPUs may be
    /// mixed in any way.
    ///
    /// # Errors
    /// An [`ExportError`] that names the file. What could not be written is counted, and later events are tried again.
    // Out of the way of calls without returns, of which there are most.
    #[inline(never)]
    pub fn append(&mut self, event: Event) -> Result<(), ExportError> {
        match event.kind {
            EventKind::Entry(_) | EventKind::Exit { .. } | EventKind::Lost(_) => {
                match &mut self.threads {
                    Some(threads) => threads.append(&event),
                    None => self.append_alone(&event),
                }
            }
            EventKind::Point(point) => {
                Self::point(match self.points.get(point.index()) {
                    Some(format) => self.events.append(&event, format),
                    // Nobody has said what it is.
                    None => self.events.lost(&event, 1),
                })
            }
            EventKind::LostPoints(count) => Self::point(self.events.lost(&event, count)),
            EventKind::Host(step) => Self::point(self.events.host(&event, step)),
            EventKind::Stall(length_ns) => {
                let end_ns = event.time_ns;
                self.side.add_stall(ClockStall { end_ns, length_ns });
                Ok(())
            }
            EventKind::Wait(length_ns) => {
                self.side.waits.add(Wait {
                    vcpu: event.vcpu,
                    end_ns: event.time_ns,
                    length_ns,
                });
                Ok(())
            }
        }
    }

    /// Which functions were called.
    fn called(&self) -> &Called {
        self.threads.as_ref().map_or(&self.called, Tracks::called)
    }

    /// Whether each vCPU is a thread, and of calls nothing but their entries is known.
    const fn has_entries_only(&self) -> bool {
        self.threads.is_none()
    }

    /// A call without a return, by itself.
    #[inline]
    fn append_entry(
        &mut self,
        vcpu: u16,
        time_ns: u64,
        function: FunctionId,
        caller: Option<Gva>,
    ) -> Result<(), ExportError> {
        let Some(lane) = self.lanes.get_mut(usize::from(vcpu)) else {
            self.side.strays += 1;
            return Ok(());
        };
        match self.entries.of_function(function) {
            Some(entry) => {
                match caller {
                    None => lane.block().entry(time_ns, entry),
                    Some(caller) => lane.block().entry_from(time_ns, entry, caller.0),
                }
                self.called.note(function);
            }
            None => lane.totals.unknown += 1,
        }
        if lane.block().is_full() {
            return lane.flush();
        }
        Ok(())
    }

    /// What somebody else has made of many, with what is lost among them.
    fn append_coded(&mut self, vcpu: u16, calls: CodedCalls) -> Result<(), ExportError> {
        let Some(lane) = self.lanes.get_mut(usize::from(vcpu)) else {
            self.side.strays += calls.calls();
            return Ok(());
        };
        for function in calls.called {
            self.called.note(function);
        }
        let mut result = Ok(());
        for block in calls.blocks {
            // It is taken whether or not one before it failed.
            result = result.and(lane.take(block));
        }
        result
    }

    /// What happens to calls without returns: each vCPU is a thread.
    fn append_alone(&mut self, event: &Event) -> Result<(), ExportError> {
        if let EventKind::Entry(function) = event.kind {
            return self.append_entry(event.vcpu, event.time_ns, function, event.caller());
        }
        let Some(lane) = self.lanes.get_mut(usize::from(event.vcpu)) else {
            self.side.strays += 1;
            return Ok(());
        };
        match event.kind {
            EventKind::Lost(count) => lane.block().lost(event.time_ns, count),
            _ => lane.totals.unknown += 1,
        }
        if lane.block().is_full() {
            return lane.flush();
        }
        Ok(())
    }

    fn point(outcome: Result<(), (PathBuf, std::io::Error)>) -> Result<(), ExportError> {
        outcome.map_err(|(path, error)| ExportError::io("write", &path)(error))
    }

    /// The file that uftrace merges into the trace as comments, which it shows inside calls, and outside them too with
    /// `--event-full`: what stood still, and events.
    /// When the first and the last of them were, in nanoseconds.
    fn write_comments(&self) -> Result<Option<(u64, u64)>, ExportError> {
        let stalls = self.side.clock_stalls.iter().copied().map(Remark::Stall);
        let waits = self.side.waits.each.iter().copied().map(Remark::Wait);
        let mut remarks: Vec<_> = stalls.chain(waits).collect();
        remarks.sort_by_key(Remark::time_ns);
        if remarks.is_empty() && self.side.events.is_empty() {
            return Ok(None);
        }
        let path = self.directory.join(layout::COMMENT_FILE);
        let failed = || ExportError::io("write", &path);
        let file = File::create(&path).map_err(failed())?;
        let mut file = BufWriter::new(self.steps.of(file));
        let mut events = EventReader::of_guest(&self.directory).map_err(ExportError::Events)?;
        let remarks = remarks.iter();
        let remarks = remarks.map(|remark| (remark.time_ns(), remark.to_string()));
        let mut span = None;
        let mut write = |time_ns, remark: &str| {
            let (first, _) = *span.get_or_insert((time_ns, time_ns));
            span = Some((first, time_ns));
            let line = layout::comment(time_ns, remark);
            file.write_all(line.as_bytes()).map_err(failed())
        };
        for (time_ns, remark) in remarks.chain([(u64::MAX, String::new())]) {
            while let Some(event) = events.pop_until(time_ns).map_err(ExportError::Events)? {
                write(event.time_ns, &event.to_string())?;
            }
            if !remark.is_empty() {
                write(time_ns, &remark)?;
            }
        }
        file.flush().map_err(failed())?;
        Ok(span)
    }

    /// Has uftrace open a directory without a call, for the comments in it.
    fn stand_alone(&mut self, span: Option<(u64, u64)>) -> Result<(), ExportError> {
        if self.side.totals.iter().any(|vcpu| vcpu.entries > 0) {
            return Ok(());
        }
        let numbers = self.side.totals.iter().map(|vcpu| vcpu.tid);
        let tids = match &mut self.threads {
            None => numbers.collect(),
            Some(threads) => {
                threads.lanes.list_one()?;
                threads.lanes.tids()
            }
        };
        let values = values_of(&self.side.metadata);
        let threads = self.threads.as_ref();
        let told = alone::Told {
            command_line: &self.side.metadata.command_line,
            module: &module_name(&self.side.metadata.image),
            tids,
            values: threads.map_or(&values, |threads| threads.lanes.values()),
            extent: self.extent,
            span,
        };
        alone::write(&self.directory, told)
    }

    /// Writes everything that is still buffered, so that a reader finds it.
    ///
    /// # Errors
    /// The first [`ExportError::Dropped`]; the other vCPUs' events are written all the same.
    pub fn flush(&mut self) -> Result<(), ExportError> {
        let mut result = Ok(());
        for lane in &mut self.lanes {
            // The lane is flushed whether or not one before it failed.
            result = result.and(lane.flush());
        }
        let events = self.events.flush();
        let events = events.map_err(|(path, error)| ExportError::io("write", &path)(error));
        match &mut self.threads {
            Some(threads) => result.and(threads.lanes.flush()).and(events),
            None => result.and(events),
        }
    }

    /// What was written so far, per vCPU; buffered events are not in it yet.
    pub fn totals(&self) -> impl Iterator<Item = VcpuTotals> {
        (0u16..)
            .zip(&self.lanes)
            .map(|(vcpu, lane)| VcpuTotals::new(vcpu, layout::tid(vcpu.into()), lane.totals))
            .chain(self.threads.iter().flat_map(Tracks::seen))
    }

    /// What all its files have come to so far.
    fn sums(&self) -> LaneTotals {
        let threads = self.threads.as_ref();
        let threads = threads.map_or_else(LaneTotals::default, |all| all.lanes.totals());
        let lanes = self.lanes.iter().map(|lane| lane.totals);
        lanes.fold(threads, LaneTotals::with)
    }

    /// Records of calls that could not be written so far: two of a call of a graph, if neither could be.
    #[must_use]
    pub fn dropped_records(&self) -> u64 {
        self.sums().dropped_records
    }

    /// Writes the rest and the totals.
    ///
    /// # Errors
    /// The first [`ExportError`]; everything that could be written was.
    pub fn finish(mut self) -> Result<Vec<VcpuTotals>, ExportError> {
        self.close()?;
        Ok(self.side.totals)
    }

    /// The same, for who wants to know more afterwards. Nothing is added later.
    ///
    /// # Errors
    /// As of [`Self::finish`].
    pub fn close(&mut self) -> Result<(), ExportError> {
        let mut flushed = self.flush();
        self.lanes.iter_mut().for_each(Lane::say_in_place);
        if let Some(threads) = &mut self.threads {
            threads.lanes.say_in_place();
            // All have been seen by now.
            flushed = flushed.and(threads.lanes.list());
        }
        self.side.totals = self.totals().collect();
        self.side.events = self.events.totals();
        let unsaid = self.lanes.iter().map(Lane::unsaid);
        self.side.unsaid = unsaid.fold(0, u64::saturating_add);
        if let Some(threads) = &self.threads {
            self.side.dropped = threads.lanes.totals().dropped;
            self.side.unsaid = self.side.unsaid.saturating_add(threads.lanes.unsaid());
        }
        self.side.finished = flushed.is_ok() && !self.is_cut;
        let (comments, span) = match self.write_comments() {
            Ok(span) => (Ok(()), span),
            Err(error) => (Err(error), None),
        };
        self.steps.step();
        let alone = self.stand_alone(span);
        self.steps.step();
        // What is missing is said, and the directory is let go, whatever could not be written before.
        let side = self.write_side();
        self.steps.step();
        let released = self.lock.take().map_or(Ok(()), DirectoryLock::release);
        flushed.and(comments).and(alone).and(side).and(released)
    }

    fn write_side(&self) -> Result<(), ExportError> {
        let text = printable::json_pretty(&self.side).map_err(std::io::Error::from);
        let text = text.map_err(ExportError::io("write", &self.directory.join(SIDE_FILE)))?;
        replace(&self.directory, SIDE_FILE, text.as_bytes())
    }
}

/// The files that say what there is: symbols, a task for each of these vCPUs, the map, and what was run.
fn put_description(
    directory: &Path,
    metadata: &Metadata,
    module: &str,
    (extent, text): (Extent, Text<'_>),
    vcpus: Range<u16>,
) -> Result<(), ExportError> {
    let put = |name: &str, contents: &[u8]| {
        let path = directory.join(name);
        fs::write(&path, contents).map_err(ExportError::io("write", &path))
    };
    let symbols = extent.symbols(text.functions);
    put(&format!("{module}.sym"), symbols.as_bytes())?;
    let vcpus = vcpus.map(u32::from);
    let tids: Vec<_> = vcpus.clone().map(layout::tid).collect();
    let task = |tid: &u32| layout::task(*tid, FIRST_TID, module);
    let tasks: String = tids.iter().map(task).collect();
    put("task.txt", tasks.as_bytes())?;
    let name = |vcpu| layout::name(layout::tid(vcpu), &format!("vcpu{vcpu}"));
    let names: Vec<_> = vcpus.map(name).collect();
    put(NAMES_FILE, &names.concat())?;
    put(MAP_FILE, extent.map(module).as_bytes())?;
    let values = values_of(metadata);
    let info = layout::info(&metadata.command_line, module, &tids, &values);
    put("info", &info)
}

/// What is known of calls when such a trace begins.
fn values_of(metadata: &Metadata) -> CallFormats {
    match metadata.callers {
        true => CallFormats::callers(),
        false => CallFormats::default(),
    }
}

fn open_lane(directory: &Path, vcpu: u32) -> Result<Lane<Budgeted<File>>, ExportError> {
    let path = directory.join(layout::data_file(vcpu));
    let file = File::create(&path).map_err(ExportError::io("create", &path))?;
    Ok(Lane::new(Budgeted::new(file, Budget::default()), path))
}

/// What uftrace calls the image: its file name, in characters that its line formats can take.
fn module_name(image: &str) -> String {
    let name = Path::new(image)
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("guest");
    let plain = |char: char| char.is_ascii_alphanumeric() || "._-+".contains(char);
    // One that begins with a dot is no name of a file to who reads it.
    let is_plain = |at: usize, char: char| plain(char) && (at, char) != (0, '.');
    name.char_indices()
        .map(|(at, char)| if is_plain(at, char) { char } else { '_' })
        .collect()
}
