//! Writing a compact trace: each block goes to the file as soon as it is there, so what was read of the rings survives whoever
//! reads them.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::field::Field;
use terms::function::FunctionId;

use super::STORE_FILE;
use super::accounted::Accounted;
use super::blocks::{BlockFile, Kind};
use super::coder::Coded;
use super::kept::Kept;
use super::looks::Looks;
use super::notes::{
    BeginNote, DeathNote, EndNote, FunctionsNote, PointNote, ThreadsNote, ValuesNote,
};
use super::part::Of;
use crate::doubt::TimeNote;
use crate::event::Moment;
use crate::export::budget::Budget;
use crate::export::probes::ProbeNote;
use crate::export::store::News;
use crate::export::uftrace::layout::Text;
use crate::export::uftrace::{DirectoryLock, ExportError, Metadata, begin_in};
use crate::graph::Death;
use crate::stream::{Origin, StreamOptions};

/// Writes one trace.
#[derive(Debug)]
pub struct CompactWriter {
    file: Accounted,
    looks: Looks,
    /// Functions that are written, or are going to be.
    functions: usize,
    /// Whether it is asked how long calls were open that never ended.
    has_threshold: bool,
    until_ns: Option<u64>,
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
        let command = metadata.command_line.clone();
        begin_in(directory, force, &command, |lock| {
            Self::begin(directory, text, metadata, options, lock)
        })
    }

    fn begin(
        directory: &Path,
        text: Text<'_>,
        metadata: Metadata,
        options: &StreamOptions,
        lock: DirectoryLock,
    ) -> Result<Self, ExportError> {
        let path = directory.join(STORE_FILE);
        let fresh = directory.join(format!("{STORE_FILE}.new"));
        let file = File::create(&fresh).map_err(ExportError::io("create", &fresh))?;
        let file = BlockFile::begin(file).map_err(ExportError::io("write", &fresh))?;
        let mut writer = Self {
            file: Accounted::of(file, path.clone()),
            looks: Looks::default(),
            functions: 0,
            has_threshold: options.rules.threshold.is_some(),
            until_ns: None,
            lock: Some(lock),
        };
        writer.note(Kind::Begin, &BeginNote::of(options, metadata));
        writer.extend(text);
        if let Some(error) = writer.file.take_error() {
            return Err(error);
        }
        // Where it stands it can be read, whenever who writes it is killed.
        fs::rename(&fresh, &path).map_err(ExportError::io("write", &path))?;
        Ok(writer)
    }

    #[cfg(test)]
    pub(super) const fn file(&mut self) -> &mut File {
        self.file.blocks.file()
    }

    /// Takes records that come from now on from a budget, and what comes with them: looks, rounds, threads.
    pub fn set_budget(&mut self, budget: &Budget) {
        self.file.blocks.set_budget(budget.clone());
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
        // They are numbered as they come: those for which there can be no room come again with the next.
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

    /// What one ring brought in one round, as [`Rings::push`](crate::stream::Rings::push) and
    /// [`Rings::looked`](crate::stream::Rings::looked) take it.
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
            self.file.append(part, of);
        }
    }

    /// Looks at rings that brought nothing come before what comes now.
    fn say_looks(&mut self) {
        let (before, now) = self.looks.before_records();
        if let Some(before) = before {
            self.file.block(Kind::Looks, before);
            self.file.block(Kind::Round, Vec::new());
        }
        if let Some(now) = now {
            self.file.block(Kind::Looks, now);
        }
    }

    /// A round is over: what is certain by then continues when this is read.
    pub fn end_round(&mut self) {
        let (has_records, looks) = self.looks.end_round();
        if let Some(looks) = looks {
            self.file.block(Kind::Looks, looks);
        }
        if has_records {
            self.file.block(Kind::Round, Vec::new());
        }
    }

    /// Whether it is written, or is going to be.
    fn note<T: Serialize + ?Sized>(&mut self, kind: Kind, what: &T) -> bool {
        match terms::printable::json(what) {
            Ok(text) => self.file.block(kind, text.into_bytes()),
            Err(error) => {
                self.file.failed(error.into());
                false
            }
        }
    }

    /// Why not everything was written so far.
    #[must_use]
    pub const fn error(&self) -> Option<&ExportError> {
        self.file.error()
    }

    /// Something would have been recorded up to then, in nanoseconds.
    pub const fn recorded_until(&mut self, time_ns: u64) {
        self.until_ns = Some(time_ns);
    }

    /// No record comes any more.
    ///
    /// # Errors
    /// The first [`ExportError`] since the trace was begun.
    pub fn finish(&mut self, doubts: &[TimeNote]) -> Result<Kept, ExportError> {
        // What says what is missing, and how it ended, is little, and has to be there.
        self.file.blocks.has_no_budget();
        self.end_round();
        if let Some(looks) = self.looks.rest().filter(|_| self.has_threshold) {
            self.file.block(Kind::Looks, looks);
        }
        self.file.say_all_dropped();
        let end = EndNote {
            doubts: doubts.to_vec(),
            is_whole: self.file.error().is_none(),
            until_ns: self.until_ns,
        };
        self.note(Kind::End, &end);
        let released = self.lock.take().map_or(Ok(()), DirectoryLock::release);
        match self.file.take_error().or(released.err()) {
            Some(error) => Err(error),
            None => Ok(Kept {
                doubts: doubts
                    .iter()
                    .map(|note| note.count)
                    .fold(0, u64::saturating_add),
                ..self.file.kept()
            }),
        }
    }
}
