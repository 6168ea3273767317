//! Writing a compact trace: each block goes to the file as soon as it is there, so what was read of the rings survives whoever
//! reads them. What cannot be written is counted by ring, and said as lost there as soon as there is room.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::field::Field;
use terms::function::FunctionId;

use super::STORE_FILE;
use super::blocks::{BlockFile, FRAME, Kind};
use super::coder::{Coded, Coder};
use super::looks::{Looks, number, origin};
use super::notes::{
    BeginNote, DeathNote, EndNote, FunctionsNote, PointNote, ThreadsNote, ValuesNote,
};
use super::part::{Of, Part};
use crate::doubt::TimeNote;
use crate::event::{Moment, Record, RecordKind};
use crate::export::budget::Budget;
use crate::export::probes::ProbeNote;
use crate::export::store::News;
use crate::export::uftrace::layout::Text;
use crate::export::uftrace::{DirectoryLock, ExportError, Metadata, prepare};
use crate::form::Form;
use crate::graph::Death;
use crate::stream::{Origin, StreamOptions};

/// What a compact trace has come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Records of the guest that are in it.
    pub records: u64,
    /// Records that are known to be missing.
    pub lost: u64,
    /// Records whose times may be wrong.
    pub doubts: u64,
    /// How often a vCPU waited for the reader.
    pub waits: u64,
    /// All waits together, in nanoseconds.
    pub waited_ns: u64,
    /// Its size.
    pub bytes: u64,
}

/// Writes one trace.
#[derive(Debug)]
pub struct CompactWriter {
    path: PathBuf,
    file: BlockFile,
    looks: Looks,
    /// Functions that are written.
    functions: usize,
    /// Records that could not be written, of each ring: since when, and how many.
    unsaid: BTreeMap<(u8, u16), (u64, u64)>,
    /// The last block of records, which can give its place: where it begins, of which ring, how much it has.
    last: Option<(u64, (u8, u16), Kept, u64)>,
    /// Records that could not be written.
    dropped: u64,
    kept: Kept,
    error: Option<ExportError>,
    lock: Option<DirectoryLock>,
}

impl CompactWriter {
    /// Makes the directory and the file, with all that is known by now; of a stream like this.
    ///
    /// # Errors
    /// An [`ExportError`] that names the file.
    pub fn create(
        directory: &Path,
        text: Text<'_>,
        metadata: Metadata,
        options: &StreamOptions,
        force: bool,
    ) -> Result<Self, ExportError> {
        let lock = prepare(directory, force, &metadata.command_line)?;
        let path = directory.join(STORE_FILE);
        let fresh = directory.join(format!("{STORE_FILE}.new"));
        let file = File::create(&fresh).map_err(ExportError::io("create", &fresh))?;
        let file = BlockFile::begin(file).map_err(ExportError::io("write", &fresh))?;
        let mut writer = Self {
            path,
            file,
            looks: Looks::default(),
            functions: 0,
            unsaid: BTreeMap::new(),
            last: None,
            dropped: 0,
            kept: Kept::default(),
            error: None,
            lock: Some(lock),
        };
        writer.note(Kind::Begin, &BeginNote::of(options, metadata));
        writer.extend(text);
        if let Some(error) = writer.error.take() {
            return Err(error);
        }
        // Where it stands it can be read, whenever who writes it is killed.
        fs::rename(&fresh, &writer.path).map_err(ExportError::io("write", &writer.path))?;
        Ok(writer)
    }

    #[cfg(test)]
    pub(super) const fn file(&mut self) -> &mut BlockFile {
        &mut self.file
    }

    /// Takes records that come from now on from a budget, and what comes with them: looks, rounds, threads.
    pub fn set_budget(&mut self, budget: &Budget) {
        self.file.set_budget(budget.clone());
    }

    /// Something is known from now on. Names of threads are told by [`Self::threads`], values of calls by [`Self::values`].
    pub fn learn(&mut self, news: &News<'_>) {
        match news {
            News::Functions(text) => self.extend(*text),
            News::Metadata(metadata) => _ = self.note(Kind::Metadata, metadata),
            News::Points(formats) => self.points(formats),
            News::Probes(probes) => _ = self.note::<[ProbeNote]>(Kind::Probes, probes),
            News::Values(_) | News::Thread(..) => {}
        }
    }

    fn extend(&mut self, text: Text<'_>) {
        let new = text.functions.get(self.functions..).unwrap_or_default();
        let functions = FunctionsNote {
            limit: text.limit.map(|limit| limit.0),
            functions: new.iter().map(Into::into).collect(),
        };
        // They are numbered as they come: those that could not be written come again with the next.
        if self.note(Kind::Functions, &functions) {
            self.functions = text.functions.len();
        }
    }

    fn points(&mut self, formats: &[Arc<EventFormat>]) {
        let formats = formats.iter().map(|format| PointNote::from(&**format));
        self.note(Kind::Points, &formats.collect::<Vec<_>>());
    }

    /// What is captured of calls, from now on.
    pub fn values<'a>(
        &mut self,
        captured: impl Iterator<Item = (FunctionId, Moment, &'a [Field])>,
    ) {
        self.note(
            Kind::Values,
            &captured.map(ValuesNote::of).collect::<Vec<_>>(),
        );
    }

    /// What was found out about threads, each by the lowest address of its stack.
    pub fn threads(&mut self, names: Vec<(Gva, String)>, deaths: Vec<(Gva, Death)>) {
        if names.is_empty() && deaths.is_empty() {
            return;
        }
        let names = names.into_iter().map(|(stack, name)| (stack.0, name));
        let deaths = deaths.into_iter();
        let deaths = deaths.map(|(stack, death)| DeathNote::of(stack, death));
        let threads = ThreadsNote {
            names: names.collect(),
            deaths: deaths.collect(),
        };
        self.note(Kind::Threads, &threads);
    }

    /// What one ring brought in one round, as [`Stream::push`](crate::stream::Stream::push) and
    /// [`Stream::looked`](crate::stream::Stream::looked) take it.
    pub fn append(&mut self, origin: Origin, coded: Coded, until_ns: u64, looked_ns: Option<u64>) {
        if coded.parts.is_empty() {
            if let Some(time_ns) = looked_ns {
                self.looks.note(origin, time_ns);
            }
            return;
        }
        self.say_looks();
        let mut parts = coded.parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            // What is lost at its end was lost before the next.
            let next_ns = parts.peek().map(|next| next.base_ns);
            let of = Of {
                origin,
                looked_ns: looked_ns.filter(|_| next_ns.is_none()),
                until_ns: next_ns.unwrap_or(until_ns),
            };
            self.say_dropped(number(origin), &of);
            self.records(part, of);
        }
    }

    /// Writes a part, or counts it.
    fn records(&mut self, mut part: Part, of: Of) {
        let at = self.file.length();
        let (waits, waited_ns) = part.waits;
        let has = Kept {
            records: u64::from(part.records).saturating_sub(waits),
            lost: part.lost,
            waits,
            waited_ns,
            ..Kept::default()
        };
        if let Err(error) = self.file.add(Kind::Records, part.describe(of)) {
            let missing = has.records.saturating_add(has.lost);
            let unsaid = self.unsaid.entry(number(of.origin));
            let (_, count) = unsaid.or_insert((part.base_ns, 0));
            *count = count.saturating_add(missing);
            self.dropped = self.dropped.saturating_add(has.records);
            // They are in it as losses once that is said.
            self.kept.lost = self.kept.lost.saturating_add(missing);
            self.failed(ExportError::io("write", &self.path)(error));
            return;
        }
        self.kept.records += has.records;
        self.kept.lost = self.kept.lost.saturating_add(has.lost);
        self.kept.waits += has.waits;
        self.kept.waited_ns = self.kept.waited_ns.saturating_add(has.waited_ns);
        self.last = Some((at, number(of.origin), has, part.base_ns));
    }

    /// Says what of this ring could not be written, which was before what comes now.
    fn say_dropped(&mut self, ring: (u8, u16), of: &Of) {
        let Some((time_ns, count)) = self.unsaid.remove(&ring) else {
            return;
        };
        let mut coder = Coder::new(1);
        let kind = RecordKind::Lost(count);
        coder.record(&Record { time_ns, kind });
        // It is counted already, and again if it cannot be written.
        self.kept.lost = self.kept.lost.saturating_sub(count);
        let of = Of {
            looked_ns: None,
            ..*of
        };
        let parts = coder.take().parts.into_iter();
        parts.for_each(|part| self.records(part, of));
    }

    /// Looks at rings that brought nothing come before what comes now.
    fn say_looks(&mut self) {
        let (before, now) = self.looks.before_records();
        if let Some(before) = before {
            self.block(Kind::Looks, before);
            self.block(Kind::Round, Vec::new());
        }
        if let Some(now) = now {
            self.block(Kind::Looks, now);
        }
    }

    /// A round is over: what is certain by then continues when this is read.
    pub fn end_round(&mut self) {
        let (has_records, looks) = self.looks.end_round();
        if let Some(looks) = looks {
            self.block(Kind::Looks, looks);
        }
        if has_records {
            self.block(Kind::Round, Vec::new());
        }
    }

    /// Whether it was written.
    fn note<T: Serialize + ?Sized>(&mut self, kind: Kind, what: &T) -> bool {
        match terms::printable::json(what) {
            Ok(text) => self.block(kind, text.into_bytes()),
            Err(error) => {
                self.failed(ExportError::io("write", &self.path)(error.into()));
                false
            }
        }
    }

    /// Whether it was written.
    fn block(&mut self, kind: Kind, contents: Vec<u8>) -> bool {
        let mut block = vec![0; FRAME];
        block.extend(contents);
        let added = self.file.add(kind, &mut block);
        let is_written = added.is_ok();
        if let Err(error) = added {
            self.failed(ExportError::io("write", &self.path)(error));
        }
        is_written
    }

    /// The first error stays.
    fn failed(&mut self, error: ExportError) {
        let first = self.error.take().unwrap_or(error);
        self.error = Some(first.with_dropped(self.dropped));
    }

    /// Why not everything was written so far.
    #[must_use]
    pub const fn error(&self) -> Option<&ExportError> {
        self.error.as_ref()
    }

    /// No record comes any more.
    ///
    /// # Errors
    /// The first [`ExportError`] since the trace was begun.
    pub fn finish(&mut self, doubts: &[TimeNote]) -> Result<Kept, ExportError> {
        // What says what is missing, and how it ended, is little, and has to be there.
        self.file.set_budget(Budget::default());
        self.end_round();
        self.say_all_dropped();
        let end = EndNote {
            doubts: doubts.to_vec(),
            is_whole: self.error.is_none(),
        };
        self.note(Kind::End, &end);
        let released = self.lock.take().map_or(Ok(()), DirectoryLock::release);
        self.kept.bytes = self.file.length();
        self.kept.doubts = doubts
            .iter()
            .map(|note| note.count)
            .fold(0, u64::saturating_add);
        match self.error.take().or(released.err()) {
            Some(error) => Err(error.with_dropped(self.dropped)),
            None => Ok(self.kept),
        }
    }

    /// Says what was dropped and not said: on a disk that is full still, in place of the last records.
    fn say_all_dropped(&mut self) {
        if self.unsaid.is_empty() {
            return;
        }
        if let Some((at, ring, has, time_ns)) = self.last.take()
            && self.file.cut(at).is_ok()
        {
            let missing = has.records.saturating_add(has.lost);
            let (since_ns, count) = self.unsaid.entry(ring).or_insert((time_ns, 0));
            (*since_ns, *count) = (time_ns, count.saturating_add(missing));
            self.kept.records = self.kept.records.saturating_sub(has.records);
            self.kept.waits = self.kept.waits.saturating_sub(has.waits);
            self.kept.waited_ns = self.kept.waited_ns.saturating_sub(has.waited_ns);
            self.kept.lost = self.kept.lost.saturating_add(has.records);
            self.dropped = self.dropped.saturating_add(has.records);
        }
        for ((kind, vcpu), (time_ns, _)) in self.unsaid.clone() {
            let Ok(origin) = origin(kind, vcpu) else {
                continue;
            };
            let of = Of {
                origin,
                looked_ns: None,
                until_ns: time_ns,
            };
            self.say_dropped((kind, vcpu), &of);
        }
        self.block(Kind::Round, Vec::new());
    }
}
