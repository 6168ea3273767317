//! A file of which all is accounted for: what of a ring cannot be written is counted, and said as lost there as soon as there is
//! room.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use super::blocks::{BlockFile, FRAME, Kind, seal};
use super::coder::Coder;
use super::described::Described;
use super::kept::Kept;
use super::looks::{number, origin};
use super::part::{Of, Part};
use super::tail::Tail;
use super::unsaid::Unsaid;
use crate::event::{Record, RecordKind};
use crate::export::uftrace::ExportError;
use crate::export::whole::Cut;
use crate::form::Form;
use crate::host::HostStep;
use crate::stream::Origin;

/// Blocks, and what is known of those that are missing.
#[derive(Debug)]
pub(super) struct Accounted<F = File> {
    pub blocks: BlockFile<F>,
    path: PathBuf,
    /// Records that could not be written, and no block says so.
    unsaid: Unsaid,
    /// What describes the trace and could not be written. It comes before the next records.
    owed: Described,
    /// The end of the file, which can give its place.
    tail: Option<Tail>,
    /// Records that could not be written.
    dropped: u64,
    kept: Kept,
    error: Option<ExportError>,
}

impl<F: Write + Cut> Accounted<F> {
    /// Of a file that is called so.
    pub fn of(blocks: BlockFile<F>, path: PathBuf) -> Self {
        Self {
            blocks,
            path,
            unsaid: Unsaid::default(),
            owed: Described::default(),
            tail: None,
            dropped: 0,
            kept: Kept::default(),
            error: None,
        }
    }

    /// Adds what a ring brought, after what describes it, and what of it could not be written before.
    pub fn append(&mut self, part: Part, of: Of) {
        self.describe();
        if self.owed.is_of(of.origin) {
            // Nobody could read it.
            return self.lose(&part, of.origin);
        }
        self.say_dropped(of);
        self.records(part, of);
    }

    /// Writes a part, or counts it.
    fn records(&mut self, mut part: Part, of: Of) {
        let (at, ring) = (self.blocks.length(), number(of.origin));
        let has = counted(&part, of.origin);
        if let Err(error) = self.blocks.add(Kind::Records, part.describe(of)) {
            self.lose(&part, of.origin);
            self.failed(error);
            return;
        }
        self.kept.add(&has);
        // A loss alone leaves no room for another one: it gives its place with the records before it.
        let tail = self.tail.take().filter(|_| has.records == 0);
        let tail = self.tail.insert(tail.unwrap_or_else(|| Tail::at(at)));
        tail.add(ring, part.base_ns, &has);
    }

    /// A part is not in the file.
    fn lose(&mut self, part: &Part, origin: Origin) {
        let has = counted(part, origin);
        self.unsaid
            .note(number(origin), part.base_ns, has.missing());
        self.dropped = self.dropped.saturating_add(has.records);
        // They are in it as losses once that is said.
        self.kept.lost = self.kept.lost.saturating_add(has.missing());
    }

    /// Says what of this ring could not be written, which was before what comes now.
    fn say_dropped(&mut self, of: Of) {
        let Some((time_ns, count)) = self.unsaid.take(number(of.origin)) else {
            return;
        };
        let mut coder = Coder::new(1);
        let kind = loss(of.origin, count);
        coder.record(&Record { time_ns, kind });
        // It is counted already, and again if it cannot be written.
        self.kept.lost = self.kept.lost.saturating_sub(count);
        let of = Of {
            looked_ns: None,
            ..of
        };
        let parts = coder.take().parts.into_iter();
        parts.for_each(|part| self.records(part, of));
    }

    /// Says what was dropped and not said: on a disk that is full still, in place of the last records. What describes the trace
    /// and could not be written comes after that.
    pub fn say_all_dropped(&mut self) {
        if self.unsaid.is_empty() {
            return self.describe();
        }
        self.say_each_dropped();
        if !self.unsaid.is_empty() {
            let described = self.give_place();
            self.say_each_dropped();
            let newer = std::mem::replace(&mut self.owed, described).take();
            newer
                .into_iter()
                .for_each(|(kind, block)| self.owed.add(kind, block));
        }
        self.describe();
        self.block(Kind::Round, Vec::new());
    }

    fn say_each_dropped(&mut self) {
        for ((kind, vcpu), until_ns) in self.unsaid.rings() {
            let Ok(origin) = origin(kind, vcpu) else {
                continue;
            };
            self.say_dropped(Of {
                origin,
                looked_ns: None,
                until_ns,
            });
        }
    }

    /// Cuts the last records off, and returns what is to be written again of what came after them.
    fn give_place(&mut self) -> Described {
        let Some(tail) = self.tail.take() else {
            return Described::default();
        };
        if self.blocks.cut(tail.at).is_err() {
            return Described::default();
        }
        self.kept.cut(&tail.has);
        self.dropped = self.dropped.saturating_add(tail.has.records);
        self.unsaid.note_all(tail.missing);
        tail.described
    }

    /// Whether it is written, or is going to be: what describes the trace waits until there is room, and is written before
    /// the records that come then.
    pub fn block(&mut self, kind: Kind, contents: Vec<u8>) -> bool {
        let mut block = vec![0; FRAME];
        block.extend(contents);
        if !Described::is_done_by(kind) {
            return self.add(kind, block).is_ok();
        }
        // For what is too large there is never room.
        if let Err(error) = seal(kind, &mut block) {
            self.failed(error);
            return false;
        }
        if !self.owed.has_room(kind, block.len()) {
            return false;
        }
        self.owed.add(kind, block);
        self.describe();
        true
    }

    /// Writes what describes the trace and is not in it.
    fn describe(&mut self) {
        for (kind, block) in self.owed.take() {
            let unwritten = match self.owed.is_before(kind) {
                true => Err(block),
                false => self.add(kind, block),
            };
            if let Err(block) = unwritten {
                self.owed.add(kind, block);
            }
        }
    }

    /// Writes a block that has room for what stands before its contents, or returns it.
    fn add(&mut self, kind: Kind, mut block: Vec<u8>) -> Result<(), Vec<u8>> {
        if let Err(error) = self.blocks.add(kind, &mut block) {
            self.failed(error);
            return Err(block);
        }
        if let Some(tail) = &mut self.tail {
            tail.described.add(kind, block);
        }
        Ok(())
    }

    /// Something could not be written: the first error stays.
    pub fn failed(&mut self, error: io::Error) {
        let error = ExportError::io("write", &self.path)(error);
        let first = self.error.take().unwrap_or(error);
        self.error = Some(first.with_dropped(self.dropped));
    }

    /// Why not everything was written so far.
    pub const fn error(&self) -> Option<&ExportError> {
        self.error.as_ref()
    }

    /// The same, for who says so.
    pub fn take_error(&mut self) -> Option<ExportError> {
        let error = self.error.take()?;
        Some(error.with_dropped(self.dropped))
    }

    /// What there is.
    pub const fn kept(&self) -> Kept {
        Kept {
            bytes: self.blocks.length(),
            ..self.kept
        }
    }
}

/// What is counted of a part. What the clock page tells is no record of the guest: none of it can be missing.
fn counted(part: &Part, origin: Origin) -> Kept {
    let (waits, waited_ns) = part.waits;
    let records = match origin {
        Origin::Clock => 0,
        Origin::Calls(_) | Origin::Points(_) | Origin::Host(_) => {
            u64::from(part.records).saturating_sub(waits)
        }
    };
    Kept {
        records,
        lost: part.lost,
        waits,
        waited_ns,
        ..Kept::default()
    }
}

/// What says that so many are missing. Of the host these are no calls.
fn loss(origin: Origin, count: u64) -> RecordKind {
    match origin {
        Origin::Host(_) => {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            RecordKind::Host(Box::new(HostStep::Lost(count)))
        }
        Origin::Calls(_) | Origin::Points(_) | Origin::Clock => RecordKind::Lost(count),
    }
}
